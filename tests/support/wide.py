"""A tagged player whose observations are large: some jobs of it fill an object of Ray's store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mprunner.rows import Rows
from tests.support.streams import Record
from tests.support.tagged import TAG_SHAPE, TagPlayer
from tests.support.whole import SealedMemory

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


class NarrowRecord(Record):
    """Keeps the tags alone."""

    def add(self, rows: Rows, scores: Sequence[float]) -> None:
        super().add(narrowed(rows), scores)


class WideMemory(SealedMemory):
    """Keeps the tags alone of all that it was ever given."""

    def new_record(self) -> Record:
        return NarrowRecord()
