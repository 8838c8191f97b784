"""Where the rows of each stream lie: ring arithmetic and the counters.

Owns the division of the slots into regions, one ring per stream, and the copy of a block into
its ring. Row numbers of a stream only grow; row ``k`` lies in slot ``offset + k % cap``, and
the newest ``min(end, cap)`` rows are retained. Knows nothing of sampling, locks or files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mprunner.errors import ConfigurationError
from mprunner.experience import ROW, Array

_RECORD_BYTES = ROW.itemsize


class Ring:
    """The counters of one stream.

    Attributes:
        index: which stream.
        offset: its first slot.
        cap: how many slots it has.
        end: rows written so far; the newest is row ``end - 1``.
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
        """The slot of a retained row."""
        return self.offset + row % self.cap

    def add_scores(self, scores: Any) -> None:
        """Counts the scores of games that have ended."""
        for score in scores:
            self.games += 1
            self.score_sum += score
            self.score_max = max(self.score_max, score)


class Streams:
    """All rings of a memory, as objects for the writers and as arrays for the samplers.

    Attributes:
        rings: one `Ring` per stream.
        offsets, caps, ends: ``(num_streams,)`` int64, the rings' fields.
        total: rows written so far, over all rings.
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
        self.rings = [
            Ring(index, int(offset), int(cap))
            for index, (offset, cap) in enumerate(zip(self.offsets, self.caps))
        ]

    def __len__(self) -> int:
        return len(self.rings)

    def set_end(self, ring: Ring, end: int) -> None:
        """Moves a ring's write head."""
        ring.end = end
        self.total += end - self._end_items[ring.index]
        self._end_items[ring.index] = end

    def names(self, stream: Array, row: Array, out: Array) -> None:
        """Writes lasting names of rows to `out`."""
        np.multiply(row, len(self.rings), out=out)
        out += stream
        out += self.first_name

    def next_name(self) -> int:
        """A name behind those of all rows that were ever written."""
        return self.first_name + (int(self.ends.max()) + 1) * len(self.rings)

    def rows_of_names(self, names: Array) -> tuple[Array, Array]:
        """The stream and row behind each name, without those whose row is gone.

        Returns:
            ``(slots, kept)``: the slots of the rows still there, and where in ``names`` they are.
        """
        row, stream = np.divmod(names - self.first_name, len(self.rings))
        end, cap = self.ends[stream], self.caps[stream]
        kept = np.flatnonzero((row >= 0) & (row < end) & (row >= end - cap))
        row, stream = row[kept], stream[kept]
        return self.offsets[stream] + row % self.caps[stream], kept

    def rows_of_slots(self, slot: Array) -> tuple[Array, Array]:
        """The stream and the newest row of each slot; every slot must have been written."""
        stream = np.searchsorted(self.offsets, slot, side="right") - 1
        newest = self.ends[stream] - 1
        row = newest - (newest - slot + self.offsets[stream]) % self.caps[stream]
        return stream, row


def smallest_size(num_streams: int, history_len: int) -> int:
    """The fewest slots with which something can be sampled from every stream."""
    return num_streams * (history_len + 1)


def check_streams(num_streams: int, max_size: int, history_len: int) -> None:
    """Refuses a number of streams that this memory cannot hold."""
    if num_streams < 1:
        raise ConfigurationError(f"num_streams must be at least 1, found {num_streams}")
    need = smallest_size(num_streams, history_len)
    if max_size < need:
        raise ConfigurationError(
            f"a memory of max_size={max_size} is too small for {num_streams} stream(s) of "
            f"history_len={history_len}: it needs at least {need} rows"
        )


def copy_block(
    ring: Ring, state: Array, records: memoryview, new_state: Array, new_records: bytes
) -> int:
    """Copies a block to the head of a ring; only the newest rows of one longer than the ring.

    If the ring's newest row is provisional, the block's first row takes its place. It holds
    the same observation, so only its record is copied: the bytes of a landed observation
    never change while it is retained.

    Args:
        ring: the stream's ring; its counters are left as they are.
        state: the memory's observations.
        records: the bytes of the memory's records: numpy would copy them field by field.
        new_state: ``(N, *state_shape)``.
        new_records: of N rows.

    Returns:
        The row number after the block's last row.
    """
    num = len(new_state)
    skip = 1 if ring.provisional else 0
    first = ring.end - skip
    low = first % ring.cap
    if low + num <= ring.cap:
        low += ring.offset
        high = low + num
        state[low + skip : high] = new_state[skip:]
        records[low * _RECORD_BYTES : high * _RECORD_BYTES] = new_records
    else:
        _copy_wrapped(ring, state, new_state[skip:], first + skip, 1)
        _copy_wrapped(ring, records, new_records, first, _RECORD_BYTES)
    return first + num


def _copy_wrapped(ring: Ring, target: Any, source: Any, first: int, size: int) -> None:
    """Copies rows of ``size`` items each, of which the first is row ``first``."""
    num = len(source) // size
    drop = max(0, num - ring.cap)
    low = (first + drop) % ring.cap
    head = min(num - drop, ring.cap - low)
    start, middle = ring.offset * size, (drop + head) * size
    target[start + low * size : start + (low + head) * size] = source[drop * size : middle]
    target[start : start + (num - drop - head) * size] = source[middle:]
