"""How far a worker is with its jobs, in cells that the worker and the parent share."""

from __future__ import annotations

from mprunner.activity import Cells
from mprunner.runner import Loop


class Pace:
    """The progress of one start of a worker; each cell has one writer.

    Args:
        cells: `NUM_CELLS` integers, zero at first; shared memory between processes.
    """

    NUM_CELLS = 4
    _SENT, _EXECUTED, _WAKE_AT, _STOP = range(4)

    def __init__(self, cells: Cells[int] | None = None) -> None:
        self._cells: Cells[int] = [0] * self.NUM_CELLS if cells is None else cells
        self._flushed_at = 0

    @property
    def executed(self) -> int:
        """Steps executed since the start."""
        return self._cells[self._EXECUTED]

    @property
    def stopping(self) -> bool:
        """The worker is to leave out the jobs that it has not begun."""
        return bool(self._cells[self._STOP])

    def send(self, end: int) -> None:
        """Parent: steps up to `end`, counted from the start, are about to be sent."""
        self._cells[self._SENT] = end

    def stop(self) -> None:
        """Parent: ask for no further step."""
        self._cells[self._STOP] = 1

    def want_progress(self) -> None:
        """Parent: have a block sent half-way through the steps that are left."""
        cells = self._cells
        executed = cells[self._EXECUTED]
        left = cells[self._SENT] - executed
        if left > 0 and cells[self._WAKE_AT] <= executed:
            cells[self._WAKE_AT] = executed + (left + 1) // 2

    def done(self) -> bool:
        """Worker: count one more step; True if the block is to be sent now."""
        cells = self._cells
        executed = cells[self._EXECUTED] = cells[self._EXECUTED] + 1
        if executed >= cells[self._SENT] or self._flushed_at < cells[self._WAKE_AT] <= executed:
            self._flushed_at = executed
            return True
        return False


def run_job(loop: Loop, pace: Pace, exploration: float, end: int) -> None:
    """Worker: execute steps up to `end`, on the weights that are newest at the start.

    A job that has been executed already does nothing, so that a parent whose send was
    interrupted may send it again.
    """
    loop.refresh()
    while pace.executed < end:
        if pace.stopping:
            return
        loop.step(exploration)
        if pace.done():
            loop.writer.flush()
