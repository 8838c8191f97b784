"""Which rows are transitions that can be sampled: how many, and which is the n-th oldest.

The index keeps one number per slot: how many transitions of the stream precede it. It is brought
up to date only when someone asks, for all rows stored since at once, so that writers pay nothing.

A row is a transition unless it has the flag CLOSING. It can be sampled if its history is still
there: ``row - age >= oldest``. Along an episode ``row - age`` never falls, and what was cut
(see `repair`) has no transition that reaches across; so the transitions behind the first row that
meets this meet it too.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Callable

import numpy as np

from mprunner.experience import Array
from mprunner.replay.rings import Ring, Rings
from mprunner.rows import CLOSING

#: Up to so many new rows a plain loop is faster than a dozen array operations.
_FEW_ROWS = 64


class TransitionIndex:
    """Counts and finds the transitions that can be sampled.

    Args:
        rings: the memory's.
        flags, age: ``(max_size,)`` uint8, fields of the memory's records.
        history_len: frames in a stack.

    Attributes:
        on_rows: called by `update` before it takes in the rows of these streams.
    """

    def __init__(self, rings: Rings, flags: Array, age: Array, history_len: int) -> None:
        num_streams = len(rings)
        self.on_rows: Callable[[Array], None] | None = None
        self._rings = rings
        self._flags = flags
        self._age = age
        self._window = np.arange(history_len - 1)
        self._updating = False
        # Transitions of the stream before a slot's row, modulo 2 ** 32.
        self._rank = np.empty(rings.max_size, np.uint32)
        self._seen = np.zeros(num_streams, np.int64)
        self._last_rank = np.zeros(num_streams, np.int64)
        self._first = np.zeros(num_streams, np.int64)
        self._counts = np.zeros(num_streams, np.int64)
        self._bounds = np.zeros(num_streams, np.int64)
        # The same bytes again: single items of these are read faster than those of arrays.
        self._flag_items = flags.data
        self._age_items = age.data
        self._rank_items = self._rank.data

    @property
    def nbytes(self) -> int:
        """Bytes of this index."""
        return int(self._rank.nbytes)

    def count(self) -> int:
        """Return how many transitions can be sampled now."""
        self.update()
        return int(self._bounds[-1])

    def find(self, order: int) -> tuple[int, int]:
        """Find the stream and row of the ``order``-th transition: streams end to end, oldest first.

        Raises:
            IndexError: there are not that many.
        """
        count = self.count()
        if not 0 <= order < count:
            raise IndexError(f"transition {order} of a memory that can sample {count}")
        stream = int(self._bounds.searchsorted(order, side="right"))
        target = order - int(self._bounds[stream] - self._counts[stream])
        ring, rank, first = self._rings[stream], self._rank_items, int(self._first[stream])
        offset, cap, base = ring.offset, ring.cap, rank[ring.slot(first)]
        behind = bisect_right(
            range(first, ring.end),
            target,
            key=lambda row: (rank[offset + row % cap] - base) & 0xFFFFFFFF,
        )
        return stream, first + behind - 1

    def find_many(self, order: Array) -> tuple[Array, Array]:
        """`find` for an array of int64; every item must be in ``[0, count)``."""
        stream = np.searchsorted(self._bounds, order, side="right")
        target = (order - (self._bounds - self._counts)[stream]).astype(np.uint32)
        offset, cap = self._rings.offsets[stream], self._rings.caps[stream]
        low, high = self._first[stream], self._rings.ends[stream]
        base = self._rank[offset + low % cap]
        # The last row with at most ``target`` transitions before it is in [low, high).
        for _ in range(int(np.max(high - low)).bit_length()):
            middle = (low + high) // 2
            right = self._rank[offset + middle % cap] - base <= target
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return stream, low

    def stale(self) -> Array:
        """Return the streams in which rows were stored since the last `update`, ``(n,)``."""
        found: Array = (self._rings.ends != self._seen).nonzero()[0]
        return found

    def unseen(self, streams: Array) -> tuple[Array, Array, Array]:
        """Find the retained rows of some streams that no `update` has seen as they are now.

        Returns:
            ``(row, slot, num)``: row numbers and slots, stream by stream, and how many of each.
        """
        end, cap = self._rings.ends[streams], self._rings.caps[streams]
        # The last row seen was CLOSING then; it may have become a transition.
        low = np.maximum(np.maximum(self._seen[streams] - 1, 0), end - cap)
        num = end - low
        stop = np.cumsum(num)
        row = np.arange(stop[-1]) + np.repeat(low - stop + num, num)
        slot = row % np.repeat(cap, num) + np.repeat(self._rings.offsets[streams], num)
        return row, slot, num

    def first_rows(self, streams: Array) -> Array:
        """Return the oldest row of each of these streams whose history is still there."""
        cap = self._rings.caps[streams]
        oldest: Array = np.maximum(self._rings.ends[streams] - cap, 0)
        if not self._window.size or not oldest.any():
            return oldest
        offset = self._rings.offsets[streams]
        slot = (oldest[:, None] + self._window) % cap[:, None] + offset[:, None]
        lacking = self._age[slot] > self._window
        lacking[oldest == 0] = False
        oldest += np.logical_and.accumulate(lacking, axis=1).sum(axis=1)
        return oldest

    def update(self) -> None:
        """Take in the rows that were stored since the last call."""
        if self._updating:
            # Ctrl-C came in the middle of an update: take in all rows again.
            self._seen[:] = 0
        dirty = self.stale()
        if not dirty.size:
            return
        self._updating = True
        if self.on_rows is not None:
            self.on_rows(dirty)
        ends = self._rings.ends
        if int(ends[dirty].sum() - self._seen[dirty].sum()) + len(dirty) <= _FEW_ROWS:
            for stream in dirty.tolist():
                self._take_in_few(self._rings[stream])
        else:
            self._take_in_many(dirty)
        np.cumsum(self._counts, out=self._bounds)
        self._updating = False

    def _take_in_few(self, ring: Ring) -> None:
        flags, age, rank = self._flag_items, self._age_items, self._rank_items
        offset, cap, index = ring.offset, ring.cap, ring.index
        oldest = max(0, ring.end - cap)
        before = int(self._last_rank[index])
        for row in range(max(int(self._seen[index]) - 1, oldest), ring.end):
            slot = offset + row % cap
            last = before
            rank[slot] = before & 0xFFFFFFFF
            before += not flags[slot] & CLOSING
        first = oldest
        while oldest and age[offset + first % cap] > first - oldest:
            first += 1
        self._seen[index] = ring.end
        self._last_rank[index] = last
        self._first[index] = first
        self._counts[index] = (last - rank[offset + first % cap]) & 0xFFFFFFFF

    def _take_in_many(self, dirty: Array) -> None:
        _, slot, num = self.unseen(dirty)
        stop = np.cumsum(num)
        transition = (self._flags[slot] & CLOSING) == 0
        rank = np.cumsum(transition) - transition
        # Any base serves where no ranked row is retained: only differences are used.
        rank += np.repeat(self._last_rank[dirty] - rank[stop - num], num)
        self._rank[slot] = rank
        self._last_rank[dirty] = rank[stop - 1]
        self._seen[dirty] = self._rings.ends[dirty]
        first = self.first_rows(dirty)
        self._first[dirty] = first
        slot = self._rings.offsets[dirty] + first % self._rings.caps[dirty]
        self._counts[dirty] = self._last_rank[dirty].astype(np.uint32) - self._rank[slot]
