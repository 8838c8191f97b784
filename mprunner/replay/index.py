"""Which rows are transitions that can be sampled: how many, and which is the n-th oldest.

Owns one number per slot: how many transitions of the stream lie before it. It is brought up to
date only when someone asks, for all rows that have landed since at once, so that writers pay
nothing for it. Knows the rings; nothing of locks, files or batches.

A row is a transition unless it has the flag CLOSING. It can be sampled if its history is still
there: ``row - age >= oldest``. Because ``row - age`` never falls along a stream, the rows that
fail this are the first few after the write head, so those that can be sampled are a run.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from mprunner.experience import CLOSING, Array
from mprunner.replay.streams import Streams


class TransitionIndex:
    """Counts and finds the transitions that can be sampled.

    Args:
        streams: the rings.
        flags, age: ``(max_size,)`` uint8, fields of the memory's records.
        history_len: frames in a stack.
    """

    def __init__(self, streams: Streams, flags: Array, age: Array, history_len: int) -> None:
        num_streams = len(streams)
        self._streams = streams
        self._flags = flags
        self._age = age
        self._window = np.arange(history_len - 1)
        # Transitions of the stream before a slot's row, modulo 2 ** 32.
        self._rank = np.empty(streams.max_size, np.uint32)
        self._seen = np.zeros(num_streams, np.int64)
        self._last_rank = np.zeros(num_streams, np.int64)
        self._first = np.zeros(num_streams, np.int64)
        self._counts = np.zeros(num_streams, np.int64)
        self._bounds = np.zeros(num_streams, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of this index."""
        return int(self._rank.nbytes)

    def count(self) -> int:
        """How many transitions can be sampled now."""
        self.update()
        return int(self._bounds[-1])

    def find(self, order: int) -> tuple[int, int]:
        """The stream and row of the ``order``-th transition: streams end to end, oldest first.

        Raises:
            IndexError: there are not that many.
        """
        count = self.count()
        if not 0 <= order < count:
            raise IndexError(f"transition {order} of a memory that can sample {count}")
        stream = int(np.searchsorted(self._bounds, order, side="right"))
        target = order - int(self._bounds[stream] - self._counts[stream])
        ring, rank, first = self._streams.rings[stream], self._rank, int(self._first[stream])
        base = int(rank[ring.slot(first)])
        behind = bisect_right(
            range(first, ring.end),
            target,
            key=lambda row: (int(rank[ring.slot(row)]) - base) & 0xFFFFFFFF,
        )
        return stream, first + behind - 1

    def find_many(self, order: Array) -> tuple[Array, Array]:
        """`find` for an array of int64; every item must be in ``[0, count)``."""
        stream = np.searchsorted(self._bounds, order, side="right")
        target = (order - (self._bounds - self._counts)[stream]).astype(np.uint32)
        offset, cap = self._streams.offsets[stream], self._streams.caps[stream]
        low, high = self._first[stream], self._streams.ends[stream]
        base = self._rank[offset + low % cap]
        # The last row with at most ``target`` transitions before it is in [low, high).
        for _ in range(int(np.max(high - low)).bit_length()):
            middle = (low + high) // 2
            right = self._rank[offset + middle % cap] - base <= target
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return stream, low

    def update(self) -> None:
        """Takes in the rows that have landed since the last call."""
        dirty = np.flatnonzero(self._streams.ends != self._seen)
        if not dirty.size:
            return
        self._rank_rows(dirty)
        self._first[dirty] = self._first_whole_rows(dirty)
        slot = self._streams.offsets[dirty] + self._first[dirty] % self._streams.caps[dirty]
        self._counts[dirty] = self._last_rank[dirty].astype(np.uint32) - self._rank[slot]
        np.cumsum(self._counts, out=self._bounds)

    def _rank_rows(self, dirty: Array) -> None:
        streams = self._streams
        end, cap = streams.ends[dirty], streams.caps[dirty]
        # The last row seen was CLOSING then; it may have become a transition.
        known = np.maximum(self._seen[dirty] - 1, 0)
        low = np.maximum(known, end - cap)
        num = end - low
        stop = np.cumsum(num)
        start = stop - num
        row = np.arange(stop[-1]) + np.repeat(low - start, num)
        slot = row % np.repeat(cap, num) + np.repeat(streams.offsets[dirty], num)
        transition = (self._flags[slot] & CLOSING) == 0
        rank = np.cumsum(transition) - transition
        # Any base serves where no ranked row is retained: only differences are used.
        rank += np.repeat(self._last_rank[dirty] - rank[start], num)
        self._rank[slot] = rank
        self._last_rank[dirty] = rank[stop - 1]
        self._seen[dirty] = end

    def _first_whole_rows(self, dirty: Array) -> Array:
        streams = self._streams
        cap = streams.caps[dirty]
        oldest: Array = np.maximum(streams.ends[dirty] - cap, 0)
        if not oldest.any() or not self._window.size:
            return oldest
        slot = (oldest[:, None] + self._window) % cap[:, None] + streams.offsets[dirty][:, None]
        lacking = self._age[slot] > self._window
        lacking[oldest == 0] = False
        oldest += lacking.sum(axis=1)
        return oldest
