"""Writes a run's figures for TensorBoard (extra ``tensorboard``)."""

from __future__ import annotations

from pathlib import Path

from mprunner.cli.meter import Snapshot
from mprunner.errors import MissingExtraError


class Scalars:
    """Every few seconds all scalars of the manager's statistics, over the landed steps.

    Args:
        directory: where the event file goes.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    interval = 2.0

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise MissingExtraError("--tensorboard", "tensorboard", "tensorboard") from None
        self._writer = Writer(str(directory))

    def show(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        values = {**snapshot.stats.as_dict(), "steps_per_s": snapshot.rate}
        if snapshot.mean_score is not None and snapshot.max_score is not None:
            values.update({"score/mean": snapshot.mean_score, "score/max": snapshot.max_score})
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, snapshot.landed)
        self._writer.flush()

    def finish(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        self.show(snapshot)
        self._writer.close()
