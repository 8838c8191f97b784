"""What a worker is doing, since when, and where its time goes."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Cells(Protocol[_T]):
    """Numbers that can be set one by one: a list, or a view of shared memory."""

    def __getitem__(self, index: int, /) -> _T:
        ...

    def __setitem__(self, index: int, value: _T, /) -> None:
        ...


class Doing(IntEnum):
    """What a worker is doing; `label` has the words for it."""

    STARTING = 0
    FACTORY = 1
    RESET = 2
    STEP = 3
    CLOSING = 4
    JOB_WAIT = 5
    PREDICTION_WAIT = 6
    BLOCK_WAIT = 7
    PREDICTING = 8
    RUNNING = 9

    @property
    def label(self) -> str:
        """As in "has been ... for 3 s"."""
        return _LABELS[self]


_LABELS = (
    "starting",
    "in the player's factory",
    "in the player's reset()",
    "in the player's step()",
    "in the player's close()",
    "waiting for a job",
    "waiting for a prediction",
    "waiting for a free block",
    "in the predictor",
    "running",
)


class Activity:
    """What the runner does now, since when, and the seconds spent on each kind.

    Args:
        code: one integer cell; shared memory, where another process shall see it.
        times: ``[since] + [seconds of each Doing]``, float cells.
    """

    def __init__(
        self,
        code: Cells[int] | None = None,
        times: Cells[float] | None = None,
    ) -> None:
        self._code: Cells[int] = [0] if code is None else code
        self._times: Cells[float] = (
            [0.0] * (1 + len(Doing)) if times is None else times
        )

    def copy(self) -> Activity:
        """As it is now, in cells of its own."""
        return Activity([self._code[0]], [self._times[i] for i in range(1 + len(Doing))])

    def begin(self) -> None:
        """The clock runs from now on; call it first, on the side that does the work."""
        self._times[0] = time.monotonic()

    def enter(self, doing: int) -> None:
        """From now on it does this."""
        now = time.monotonic()
        times = self._times
        times[1 + self._code[0]] += now - times[0]
        times[0] = now
        self._code[0] = doing

    @property
    def doing(self) -> Doing:
        """What it does now."""
        return Doing(self._code[0])

    @property
    def since(self) -> float:
        """When that began, by `time.monotonic`."""
        return self._times[0]

    def seconds_now(self) -> float:
        """For how long it has been doing what it does."""
        return time.monotonic() - self.since

    def seconds(self, *doings: Doing) -> float:
        """Seconds spent on these so far."""
        total = sum(self._times[1 + d] for d in doings)
        return total + (time.monotonic() - self.since if self.doing in doings else 0.0)
