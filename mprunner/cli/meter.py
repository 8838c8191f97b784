"""What a run has done so far, read from its manager.

Owns the clock of a run and the rate of the last seconds. Knows nothing of how it is shown.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from mprunner.manager import EnvRunnerManager
from mprunner.stats import ManagerStats

_WINDOW_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        num_steps: that the run is to do.
        seconds: since its first step.
        rate: landed steps per second over the last seconds.
        mean_score, max_score: of all games that ended so far; None if none did.
        stats: of the manager.
    """

    num_steps: int
    seconds: float
    rate: float
    mean_score: float | None
    max_score: float | None
    stats: ManagerStats

    @property
    def landed(self) -> int:
        """Steps in memory."""
        return self.stats.steps_landed

    @property
    def mean_rate(self) -> float:
        """Landed steps per second since the first step."""
        return self.landed / self.seconds if self.seconds > 0 else 0.0

    def scores(self) -> str:
        """Both scores, in words."""
        if self.mean_score is None or self.max_score is None:
            return "no score"
        return f"score mean {self.mean_score:,.1f}, max {self.max_score:,.1f}"


class Meter:
    """Reads a manager; from any thread. The run begins when the meter is made.

    Args:
        manager: of the run.
        num_steps: that the run is to do.
    """

    def __init__(self, manager: EnvRunnerManager, num_steps: int) -> None:
        self._manager = manager
        self._num_steps = num_steps
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._recent = deque([(self._began, 0)])

    def stop(self) -> None:
        """The run is over; what lands while the manager closes is still counted."""
        self._ended = time.monotonic()

    def read(self) -> Snapshot:
        """The run as it is now; also after it has failed."""
        with self._lock:
            stats = self._manager.stats()
            now = time.monotonic() if self._ended is None else self._ended
            return Snapshot(
                num_steps=self._num_steps,
                seconds=now - self._began,
                rate=self._rate(now, stats.steps_landed),
                mean_score=stats.score_mean,
                max_score=stats.score_max,
                stats=stats,
            )

    def _rate(self, now: float, landed: int) -> float:
        recent = self._recent
        while len(recent) > 1 and now - recent[0][0] > _WINDOW_S:
            recent.popleft()
        then, landed_then = recent[0]
        recent.append((now, landed))
        return (landed - landed_then) / (now - then) if now > then else 0.0
