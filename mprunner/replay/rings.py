"""Where the rows of each stream are: ring arithmetic, counters, and the copy of a block.

Row numbers of a stream only grow. Row ``k`` is in slot ``offset + k % cap``, and the newest
``min(end, cap)`` rows are retained.
"""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from mprunner.errors import ConfigurationError
from mprunner.experience import Array
from mprunner.rows import ROW

_ROW_BYTES = ROW.itemsize


class Ring:
    """The counters of one stream.

    Attributes:
        index: which stream.
        offset: its first slot.
        cap: how many slots it has.
        end: rows stored so far; the newest is row ``end - 1``.
        provisional: the newest row's place is taken by the first row of the next block.
        games, score_sum, score_max: of the games that ended in this stream.
    """

    __slots__ = (
        "index", "offset", "cap", "end", "provisional", "games", "score_sum", "score_max"
    )

    def __init__(self, index: int, offset: int, cap: int) -> None:
        self.index = index
        self.offset = offset
        self.cap = cap
        self.end = 0
        self.provisional = False
        self.games = 0
        self.score_sum = 0.0
        self.score_max = float("-inf")

    def slot(self, row: int) -> int:
        """Return the slot of a retained row."""
        return self.offset + row % self.cap

    def counters(self) -> tuple[Any, ...]:
        """Return what storing a block changes."""
        return self.end, self.provisional, self.games, self.score_sum, self.score_max

    def restore(self, counters: tuple[Any, ...]) -> None:
        """Take `counters` back."""
        self.end, self.provisional, self.games, self.score_sum, self.score_max = counters

    def add_scores(self, scores: Any) -> None:
        """Count the scores of games that have ended."""
        for score in scores:
            self.games += 1
            self.score_sum += score
            self.score_max = max(self.score_max, score)


class Rings:
    """All rings of a memory, as objects for writers and as arrays for samplers.

    Attributes:
        offsets, caps, ends: ``(num_streams,)`` int64, the rings' fields.
        total: rows stored so far, over all rings.
        first_name: the names of rows start here, so that none is used twice in a memory's life.
    """

    def __init__(self, max_size: int, num_streams: int, first_name: int = 0) -> None:
        size, longer = divmod(max_size, num_streams)
        self.max_size = max_size
        self.caps = np.full(num_streams, size, np.int64)
        self.caps[:longer] += 1
        self.offsets = np.cumsum(self.caps) - self.caps
        self.ends = np.zeros(num_streams, np.int64)
        # The same bytes again: single items of these are read faster than those of an array.
        self._end_items = self.ends.data
        self.total = 0
        self.first_name = first_name
        self._rings = [
            Ring(index, int(offset), int(cap))
            for index, (offset, cap) in enumerate(zip(self.offsets, self.caps))
        ]

    def __len__(self) -> int:
        return len(self._rings)

    def __getitem__(self, stream: int) -> Ring:
        return self._rings[stream]

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._rings)

    def set_end(self, ring: Ring, end: int) -> None:
        """Move a ring's write head."""
        ring.end = end
        self.total += end - self._end_items[ring.index]
        self._end_items[ring.index] = end

    def copy(self) -> Rings:
        """Return these rings as they are now."""
        rings = Rings(self.max_size, len(self), self.first_name)
        for ring, live in zip(rings, self):
            ring.restore(live.counters())
        rings.refresh()
        return rings

    def refresh(self) -> None:
        """Set the arrays and the total from the rings."""
        self.ends[:] = [ring.end for ring in self._rings]
        self.total = int(self.ends.sum())

    def names(self, stream: Array, row: Array, out: Array) -> None:
        """Write lasting names of rows to `out`."""
        np.multiply(row, len(self._rings), out=out)
        out += stream
        out += self.first_name

    def next_name(self) -> int:
        """Return a name behind those of all rows that were ever stored."""
        return self.first_name + (int(self.ends.max()) + 1) * len(self._rings)

    def rows_of_names(self, names: Array) -> tuple[Array, Array]:
        """Find the rows behind names; those that were overwritten are left out.

        Returns:
            ``(slots, kept)``: the slots of the rows still there, and where in ``names`` they are.
        """
        row, stream = np.divmod(names - self.first_name, len(self._rings))
        end, cap = self.ends[stream], self.caps[stream]
        kept = np.flatnonzero((row >= 0) & (row < end) & (row >= end - cap))
        row, stream = row[kept], stream[kept]
        return self.offsets[stream] + row % self.caps[stream], kept

    def rows_of_slots(self, slot: Array) -> tuple[Array, Array]:
        """Return the stream and the newest row of each slot, all of which were written."""
        stream = np.searchsorted(self.offsets, slot, side="right") - 1
        newest = self.ends[stream] - 1
        row = newest - (newest - slot + self.offsets[stream]) % self.caps[stream]
        return stream, row

    def retained_slots(self, stream: int) -> Array:
        """Return the slots of a stream's retained rows, oldest first."""
        ring = self._rings[stream]
        rows = np.arange(max(0, ring.end - ring.cap), ring.end)
        slots: Array = rows % ring.cap + ring.offset
        return slots

    def written_chunks(self, num_slots: int) -> Iterator[slice]:
        """Yield all slots that were ever written, at most ``num_slots`` at a time."""
        for ring in self._rings:
            stop = ring.offset + min(ring.end, ring.cap)
            for low in range(ring.offset, stop, num_slots):
                yield slice(low, min(low + num_slots, stop))


def smallest_size(num_streams: int, history_len: int) -> int:
    """Return the fewest slots with which something can be sampled from every stream."""
    return num_streams * (history_len + 1)


def check_streams(num_streams: int, max_size: int, history_len: int) -> None:
    """Refuse a number of streams that this memory cannot hold."""
    if num_streams < 1:
        raise ConfigurationError(f"num_streams is {num_streams}; expected at least 1")
    need = smallest_size(num_streams, history_len)
    if max_size < need:
        raise ConfigurationError(
            f"max_size is {max_size}; {num_streams} stream(s) with history_len={history_len} "
            f"need at least {need} rows"
        )


def copy_block(
    ring: Ring, state: Array, records: memoryview, new_state: Array, new_records: bytes
) -> None:
    """Copy a block to the head of a ring; only the newest rows of one longer than the ring.

    If the ring's newest row is provisional, the block's first row takes its place. It holds
    the same observation, so only its record is copied: the bytes of a stored observation
    never change while it is retained.

    Args:
        ring: the stream's ring; its counters are left as they are.
        state: the memory's observations.
        records: the bytes of the memory's records: numpy would copy them field by field.
        new_state: ``(N, *state_shape)``.
        new_records: of N rows.
    """
    num = len(new_state)
    skip = 1 if ring.provisional else 0
    first = ring.end - skip
    low = first % ring.cap
    if low + num <= ring.cap:
        low += ring.offset
        high = low + num
        state[low + skip : high] = new_state[skip:]
        records[low * _ROW_BYTES : high * _ROW_BYTES] = new_records
    else:
        _copy_wrapped(ring, state, new_state[skip:], first + skip, 1)
        _copy_wrapped(ring, records, new_records, first, _ROW_BYTES)


def _copy_wrapped(ring: Ring, target: Any, source: Any, first: int, size: int) -> None:
    """Copy rows of ``size`` items each, of which the first is row ``first``."""
    num = len(source) // size
    drop = max(0, num - ring.cap)
    low = (first + drop) % ring.cap
    head = min(num - drop, ring.cap - low)
    start, middle = ring.offset * size, (drop + head) * size
    target[start + low * size : start + (low + head) * size] = source[drop * size : middle]
    target[start : start + (num - drop - head) * size] = source[middle:]
