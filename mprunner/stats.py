"""What a pool tells outside: scores, ages, batches and the time shares of the workers."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

#: Batches that are noted before they are counted.
_MOST_BATCHES = 256


@dataclass(frozen=True)
class Distribution:
    """A summary of many values, in their own unit; None where there was none.

    Percentiles are read from a histogram with steps of 5 %.
    """

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class WorkerStats:
    """One runner's side.

    Attributes:
        pid: of its process; None where it has none of its own.
        state: "starting", "running", "restarting", "failed" or "closed".
        steps: stored in the memory.
        rows: stored, closing ones included.
        games: ended.
        restarts: how often it was replaced.
        share_player, share_job, share_prediction, share_block: of its time since it started, in
            [0, 1], spent in the player, waiting for a job, for a prediction, for a free block.
    """

    pid: int | None
    state: str
    steps: int
    rows: int
    games: int
    restarts: int
    share_player: float
    share_job: float
    share_prediction: float
    share_block: float


@dataclass(frozen=True)
class ManagerStats:
    """A snapshot of a manager.

    Attributes:
        steps_asked, steps_stored, steps_lost: since the start; a lost step will never be stored:
            its worker exited before its row arrived, or the pool closed before it was executed.
        outstanding, outstanding_peak: steps asked for and not yet executed; never above
            ``maximum_staleness``.
        episodes: games ended since the start.
        score_mean, score_max: whole and unclipped, of those games; None if there was none.
        age_s: seconds from the call of ``step()`` until its row is stored.
        version: of the newest published weights.
        version_lag: how many versions behind a row's weights were when it stored -> rows.
        batch_size, batch_latency_s: of the served predictor's calls; the latency runs from the
            call of the predictor to the last answer sent.
        restarts: of all workers.
        workers: one entry per runner.
    """

    steps_asked: int
    steps_stored: int
    steps_lost: int
    outstanding: int
    outstanding_peak: int
    episodes: int
    score_mean: float | None
    score_max: float | None
    age_s: Distribution
    version: int
    version_lag: Mapping[int, int]
    batch_size: Distribution
    batch_latency_s: Distribution
    restarts: int
    workers: Sequence[WorkerStats] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, float]:
        """Flat scalars for any logger: ``"age_s/p95"``, ``"worker/0/share_player"``; no None."""
        flat: dict[str, float] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Distribution):
                flat.update(_flat(item.name, value))
            elif isinstance(value, Mapping):
                flat.update({f"{item.name}/{k}": float(v) for k, v in value.items()})
            elif item.name == "workers":
                for i, worker in enumerate(value):
                    flat.update(_flat(f"worker/{i}", worker))
            elif value is not None:
                flat[item.name] = float(value)
        return flat


def _flat(prefix: str, record: Any) -> dict[str, float]:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {
        f"{prefix}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, (int, float))
    }


class StepCounts(NamedTuple):
    """The steps of a pool at one moment; see `ManagerStats`."""

    asked: int
    stored: int
    lost: int
    outstanding: int
    outstanding_peak: int


class Histogram:
    """Counts of positive values in bins that grow by 5 %."""

    _LOG_STEP = math.log(1.05)

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._count = 0
        self._sum = 0.0
        self._max = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` (at least 0) `times` times."""
        key = math.floor(math.log(value) / self._LOG_STEP) if value > 1e-9 else -1000
        self._bins[key] = self._bins.get(key, 0) + times
        self._count += times
        self._sum += value * times
        if value > self._max:
            self._max = value

    def summary(self) -> Distribution:
        """What was counted so far."""
        if not self._count:
            return Distribution()
        return Distribution(
            self._count,
            self._sum / self._count,
            self._percentile(0.50),
            self._percentile(0.95),
            self._max,
        )

    def _percentile(self, share: float) -> float:
        left = share * self._count
        for key in sorted(self._bins):
            left -= self._bins[key]
            if left <= 0:
                break
        value = 0.0 if key <= -1000 else math.exp((key + 0.5) * self._LOG_STEP)
        return min(value, self._max)


class Recorder:
    """What happened to the rows, scores and batches of one manager; nobody waits for it.

    Every method may be called from any thread.

    Args:
        num_workers: at least 1.
    """

    def __init__(self, num_workers: int) -> None:
        self._lock = threading.RLock()
        self.rows = [0] * num_workers
        self.games = [0] * num_workers
        self.restarts = [0] * num_workers
        self.age_s = Histogram()
        self.batch_size = Histogram()
        self.batch_latency_s = Histogram()
        self._batches: deque[tuple[int, float]] = deque()  # noted and not counted yet
        self.version = 0
        self._version_lag: dict[int, int] = {}
        self._scores: list[float] = []
        self._score_sum = 0.0
        self._score_max = -math.inf

    def add_block(
        self,
        worker: int,
        num_rows: int,
        scores: Sequence[float],
        ages_s: Sequence[tuple[float, int]],
        versions: Mapping[int, int],
    ) -> None:
        """Count a block that has been stored.

        Args:
            worker: index of the runner.
            num_rows: in the block.
            scores: of the games that ended in it.
            ages_s: (seconds since it was asked for, steps) of the jobs behind it.
            versions: of the weights acted with -> steps.
        """
        with self._lock:
            self.rows[worker] += num_rows
            self.games[worker] += len(scores)
            for score in scores:
                self._scores.append(score)
                self._score_sum += score
                self._score_max = max(self._score_max, score)
            for age, times in ages_s:
                self.age_s.add(age, times)
            for version, times in versions.items():
                lag = self.version - version
                self._version_lag[lag] = self._version_lag.get(lag, 0) + times

    def add_restart(self, worker: int) -> None:
        """Count a replacement of `worker`."""
        with self._lock:
            self.restarts[worker] += 1

    def add_batch(self, size: int, latency_s: float) -> None:
        """The served predictor was called with `size` states."""
        # For each greedy step, so it is only noted here, and without the lock.
        self._batches.append((size, latency_s))
        if len(self._batches) >= _MOST_BATCHES:
            self._count_batches()

    def _count_batches(self) -> None:
        with self._lock:
            batches = self._batches
            while batches:
                size, latency_s = batches.popleft()
                self.batch_size.add(size)
                self.batch_latency_s.add(latency_s)

    def take_scores(self) -> list[float]:
        """The scores of the games that ended since the last call."""
        with self._lock:
            scores, self._scores = self._scores, []
            return scores

    def score_summary(self) -> tuple[float | None, float | None]:
        """Mean and maximum of all games so far; (None, None) if there was none."""
        with self._lock:
            games = sum(self.games)
            return (self._score_sum / games, self._score_max) if games else (None, None)

    def version_lag(self) -> dict[int, int]:
        """Versions behind -> steps stored with that lag."""
        with self._lock:
            return dict(self._version_lag)

    def snapshot(
        self, steps: StepCounts, workers: Sequence[WorkerStats]
    ) -> ManagerStats:
        """All counters at one moment, with those that the ledger and the workers keep."""
        with self._lock:
            score_mean, score_max = self.score_summary()
            self._count_batches()
            return ManagerStats(
                steps_asked=steps.asked,
                steps_stored=steps.stored,
                steps_lost=steps.lost,
                outstanding=steps.outstanding,
                outstanding_peak=steps.outstanding_peak,
                episodes=sum(self.games),
                score_mean=score_mean,
                score_max=score_max,
                age_s=self.age_s.summary(),
                version=self.version,
                version_lag=self.version_lag(),
                batch_size=self.batch_size.summary(),
                batch_latency_s=self.batch_latency_s.summary(),
                restarts=sum(self.restarts),
                workers=tuple(workers),
            )
