"""From rows to batches: uniform drawing, and the one gather that copies what was drawn.

The caller holds the memory's lock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mprunner.errors import ConfigurationError, NotEnoughRows
from mprunner.experience import Array, Batch
from mprunner.replay.index import TransitionIndex
from mprunner.replay.rings import Rings
from mprunner.rows import CLOSING, TERMINATED, TRUNCATED

#: After so many rounds the index finds what has not been drawn yet.
_ROUNDS = 3


class Picked(NamedTuple):
    """Transitions that were drawn.

    Attributes:
        stream, row: ``(B,)``, where they are.
        cap, offset: ``(B,)``, of their rings.
        meta: ``(B,)`` of dtype `ROW`.
        weights: ``(B,)``; None if all are 1.
    """

    stream: Array
    row: Array
    cap: Array
    offset: Array
    meta: Array
    weights: Array | None = None


def located(
    rings: Rings, meta: Array, stream: Array, row: Array, weights: Array | None = None
) -> Picked:
    """Complete the picked transitions of which the stream and the row are known."""
    cap, offset = rings.caps.take(stream), rings.offsets.take(stream)
    return Picked(stream, row, cap, offset, meta.take(row % cap + offset), weights)


class UniformPicker:
    """Draws transitions with equal probability, independently, with replacement.

    Args:
        rings: the memory's.
        meta: ``(max_size,)`` records of dtype `ROW`.
        index: of the same rings.
        history_len: frames in a stack.
        rng: draws.
    """

    def __init__(
        self,
        rings: Rings,
        meta: Array,
        index: TransitionIndex,
        history_len: int,
        rng: np.random.Generator,
    ) -> None:
        self._rng = rng
        self._rings = rings
        self._meta = meta
        self._index = index
        self._counted = 0
        self._counted_at = 0
        self._blocked = len(rings) * (history_len - 1)
        # Of all retained rows, stream by stream, oldest first: where each stream's end, and how
        # many there are.
        self._bounds = np.zeros(len(rings), np.int64)
        self._retained = 0.0
        # By stream, what a draw needs to find its row: shift (row - draw), oldest, cap, offset.
        self._table = np.zeros((4, len(rings)), np.int64)
        self._table[2:] = rings.caps, rings.offsets
        self._table_at = -1

    def pick(self, num: int) -> Picked:
        """Draw ``num`` transitions.

        Uniform rows are drawn, and those that cannot be sampled are rejected; where few can,
        the index finds what is missing. Either way each transition has the same chance.

        Raises:
            NotEnoughRows: fewer than ``num`` transitions can be sampled.
        """
        self._check_enough(num)
        if self._table_at != self._rings.total:
            self._refresh_table()
        parts, missing = [], num
        for _ in range(_ROUNDS):
            # 53 random bits a draw: the chances of two of 2 ** 20 rows differ by 1 in 2 ** 33.
            draw = self._rng.random(missing + missing // 8 + 1)
            draw *= self._retained
            parts.append(self._accepted(draw.astype(np.int64), missing))
            missing -= len(parts[-1].row)
            if not missing:
                break
        else:
            order = self._rng.integers(0, self._index.count(), size=missing)
            parts.append(located(self._rings, self._meta, *self._index.find_many(order)))
        if len(parts) == 1:
            return parts[0]
        stream = np.concatenate([part.stream for part in parts])
        row = np.concatenate([part.row for part in parts])
        return located(self._rings, self._meta, stream, row)

    def _refresh_table(self) -> None:
        rings = self._rings
        shift, oldest = self._table[:2]
        np.maximum(rings.ends - rings.caps, 0, out=oldest)
        np.cumsum(rings.ends - oldest, out=self._bounds)
        # A row is as far from its stream's end as its draw from the stream's bound.
        np.subtract(rings.ends, self._bounds, out=shift)
        self._retained = float(self._bounds[-1])
        self._table_at = rings.total

    def _accepted(self, draw: Array, most: int) -> Picked:
        stream = self._bounds.searchsorted(draw, side="right")
        shift, oldest, cap, offset = self._table.take(stream, axis=1)
        row = draw + shift
        meta = self._meta.take(row % cap + offset)
        fits = meta["age"] <= row - oldest
        fits &= meta["flags"] < CLOSING
        good = fits.nonzero()[0][:most]
        return Picked(*(of_all.take(good) for of_all in (stream, row, cap, offset, meta)))

    def _check_enough(self, num: int) -> None:
        # A row that is stored can take one transition away, and the write head of a ring a few
        # more; so the index need not be asked each time.
        total = self._rings.total
        if self._counted - (total - self._counted_at) - self._blocked >= num:
            return
        self._counted = self._index.count()
        self._counted_at = total
        check_enough(num, self._counted)


class Gatherer:
    """Copies transitions out of the memory's arrays into batches.

    Args:
        rings: the memory's.
        state: ``(max_size, *state_shape)``.
        meta: ``(max_size,)`` records of dtype `ROW`.
        history_len: frames in a stack.
    """

    def __init__(self, rings: Rings, state: Array, meta: Array, history_len: int) -> None:
        self._rings = rings
        self._state = state
        self._flat_state = state.reshape(len(state), -1)
        self._meta = meta
        self._history_len = history_len
        self._lags = np.arange(1 - history_len, 1)
        self._positions = np.arange(history_len)
        self._one_step = np.arange(1 - history_len, 2)

    def frames(self, stream: int, row: int) -> Array:
        """Copy the stack of a row and its successor: ``(history_len + 1, *state_shape)``."""
        ring = self._rings[stream]
        frames: Array = self._state[(row + self._one_step) % ring.cap + ring.offset]
        frames[: self._history_len - 1 - int(self._meta["age"][ring.slot(row)])] = 0
        return frames

    def batch(self, picked: Picked, n_step: int, discount: float, out: Batch | None) -> Batch:
        """Gather a batch; see `ReplayMemory.sample_batch`."""
        batch = self._room_for(len(picked.row), n_step, out)
        stream, row, cap, offset, meta, weights = picked
        age = meta["age"]
        batch.action[...] = meta["action"]
        batch.version[...] = meta["version"]
        if n_step == 1:
            batch.reward[...] = meta["reward"]
            np.multiply(_ends(batch, meta["flags"]), discount, out=batch.discount)
            self._gather(batch.frames, self._slots(row, self._one_step, cap, offset))
            self._blank(batch.frames, age)
        else:
            self._many_steps(batch, row, cap, offset, age, n_step, discount)
        self._rings.names(stream, row, batch.indices)
        batch.weights[...] = 1 if weights is None else weights
        return batch

    def _many_steps(
        self,
        batch: Batch,
        row: Array,
        cap: Array,
        offset: Array,
        age: Array,
        n_step: int,
        discount: float,
    ) -> None:
        n_step = min(n_step, int(cap.max()))
        steps = np.arange(n_step + 1)
        meta = self._meta[self._slots(row, steps, cap, offset)]
        # Where an episode ends, and where a stream does, a CLOSING row follows.
        closing = meta["flags"][:, 1:] >= CLOSING
        used = np.where(closing.any(axis=1), closing.argmax(axis=1) + 1, n_step)
        counts = steps[:-1] < used[:, None]
        rewards = np.where(counts, meta["reward"][:, :-1], 0).astype(np.float64)
        batch.reward[...] = rewards @ (discount ** steps[:-1].astype(np.float64))
        going_on = _ends(batch, meta["flags"][np.arange(len(row)), used - 1])
        batch.discount[...] = going_on * discount**used
        slots = [self._slots(r, self._lags, cap, offset) for r in (row, row + used)]
        self._gather(batch.frames, np.concatenate(slots, axis=1))
        self._blank(batch.frames[:, : self._history_len], age)
        self._blank(batch.frames[:, self._history_len :], age + used)

    @staticmethod
    def _slots(row: Array, lags: Array, cap: Array, offset: Array) -> Array:
        slots: Array = row[:, None] + lags
        slots %= cap[:, None]
        slots += offset[:, None]
        return slots

    def _gather(self, frames: Array, slots: Array) -> None:
        flat = frames.reshape(slots.size, -1)
        # mode: the slots are right; "raise" would gather into a buffer first.
        np.take(self._flat_state, slots.reshape(-1), axis=0, out=flat, mode="clip")

    def _blank(self, frames: Array, age: Array) -> None:
        history_len = self._history_len
        if np.count_nonzero(age < history_len - 1):
            before = self._positions < history_len - 1 - age.astype(np.int64)[:, None]
            frames[:, :history_len][before] = 0

    def _room_for(self, batch_size: int, n_step: int, out: Batch | None) -> Batch:
        num_frames = self._history_len + 1 if n_step == 1 else 2 * self._history_len
        shape, dtype = self._state.shape[1:], self._state.dtype
        if out is None:
            return Batch.empty(batch_size, num_frames, self._history_len, shape, dtype)
        expected = (batch_size, num_frames, *shape)
        if out.frames.shape != expected or out.frames.dtype != dtype:
            raise ConfigurationError(
                f"out= holds frames of shape {out.frames.shape} and dtype {out.frames.dtype}; "
                f"this batch needs {expected} and {dtype}"
            )
        return out


def _ends(batch: Batch, flags: Array) -> Array:
    """Set a batch's two kinds of end; return where there is something to bootstrap."""
    batch.terminated[...] = flags & TERMINATED
    batch.truncated[...] = flags & TRUNCATED
    return ~batch.terminated


def check_enough(num: int, count: int) -> None:
    """Refuse to draw more transitions than there are.

    Raises:
        NotEnoughRows: ``count`` is less than ``num``.
    """
    if count < num:
        raise NotEnoughRows(
            f"{num} transitions were asked for, and the replay memory can sample {count} so "
            f"far: collect more before sampling"
        )
