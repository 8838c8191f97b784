"""A tagged player whose observations are large: some jobs of it fill an object of Ray's store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mprunner.experience import Rows
from mprunner.replay.memory import ReplayMemory
from tests.faults.whole import SealedMemory
from tests.tagged import TAG_SHAPE, TagPlayer

#: 32 KB of int32.
WIDE_SHAPE = (2000, *TAG_SHAPE)


class WidePlayer(TagPlayer):
    """Shows its tag many times over."""

    def _observe(self, action: int) -> np.ndarray:
        return np.tile(super()._observe(action), (WIDE_SHAPE[0], 1))


def narrowed(rows: Rows) -> Rows:
    """The same with the tags alone, if they are the same all over."""
    state = rows.state.reshape(len(rows.state), -1, *TAG_SHAPE)
    assert (state == state[:, :1]).all()
    return Rows(state[:, 0], rows.meta, rows.provisional)


class WideMemory(SealedMemory):
    """Keeps the tags alone of all that it was ever given."""

    def extend(self, stream: int, rows: Rows, scores: Sequence[float] = ()) -> None:
        ReplayMemory.extend(self, stream, rows, scores)
        self.records[stream].add(narrowed(rows), scores)
