"""From rows to batches: which transitions are drawn, and the one gather that copies them.

Owns the drawing and the gather. Knows the rings and the index; nothing of locks (the caller
holds the memory's), threads or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mprunner.errors import ConfigurationError, NotEnoughRows
from mprunner.experience import CLOSING, TERMINATED, TRUNCATED, Array, Batch
from mprunner.replay.index import TransitionIndex
from mprunner.replay.streams import Streams

_ROUNDS = 3


@dataclass(frozen=True)
class Picked:
    """Transitions that were drawn, ``(B,)`` each: their slot and where their ring lies."""

    slot: Array
    stream: Array


class UniformPicker:
    """Draws transitions with equal probability, independently, with replacement."""

    def __init__(
        self,
        streams: Streams,
        flags: Array,
        age: Array,
        index: TransitionIndex,
        history_len: int,
    ) -> None:
        self._streams = streams
        self._flags = flags
        self._age = age
        self._index = index
        self._counted = 0
        self._counted_ends = 0
        self._blocked = len(streams) * (history_len - 1)

    def pick(self, num: int, rng: np.random.Generator) -> Picked:
        """Draws ``num`` transitions.

        Uniform rows are drawn, and those that cannot be sampled are rejected; where few can,
        the index finds what is missing. Either way each transition has the same chance.

        Raises:
            NotEnoughRows: fewer than ``num`` transitions can be sampled.
        """
        self._check_enough(num)
        streams = self._streams
        held = np.minimum(streams.ends, streams.caps)
        bounds = np.cumsum(held)
        slots, owners, missing = [], [], num
        for _ in range(_ROUNDS):
            draw = rng.integers(0, bounds[-1], size=missing + missing // 4 + 4)
            stream = np.searchsorted(bounds, draw, side="right")
            place = draw - (bounds - held)[stream]
            slot = place + streams.offsets[stream]
            accepted = np.flatnonzero(self._can_be_sampled(slot, stream, place))[:missing]
            slots.append(slot[accepted])
            owners.append(stream[accepted])
            missing -= len(accepted)
            if not missing:
                break
        else:
            stream, row = self._index.find_many(
                rng.integers(0, self._index.count(), size=missing)
            )
            slots.append(streams.offsets[stream] + row % streams.caps[stream])
            owners.append(stream)
        if len(slots) == 1:
            return Picked(slots[0], owners[0])
        return Picked(np.concatenate(slots), np.concatenate(owners))

    def _can_be_sampled(self, slot: Array, stream: Array, place: Array) -> Array:
        cap = self._streams.caps[stream]
        oldest = np.maximum(self._streams.ends[stream] - cap, 0)
        whole = self._age[slot] <= (place - oldest) % cap
        accepted: Array = whole & ((self._flags[slot] & CLOSING) == 0)
        return accepted

    def _check_enough(self, num: int) -> None:
        # A row that lands can take one transition away, and the write head of a ring a few
        # more; so the index need not be asked each time.
        written = int(self._streams.ends.sum()) - self._counted_ends
        if self._counted - written - self._blocked >= num:
            return
        self._counted = self._index.count()
        self._counted_ends = int(self._streams.ends.sum())
        if self._counted < num:
            raise NotEnoughRows(
                f"{num} transitions were asked for, and the replay memory can sample "
                f"{self._counted} so far: collect more before sampling"
            )


class Gatherer:
    """Copies transitions out of the memory's arrays into batches."""

    def __init__(self, streams: Streams, state: Array, meta: Array, history_len: int) -> None:
        self._streams = streams
        self._state = state
        self._rows_of_bytes = state.reshape(len(state), -1)
        self._meta = meta
        self._flags = meta["flags"]
        self._history_len = history_len

    def frames(self, slot: int, stream: int) -> Array:
        """``(history_len + 1, *state_shape)``: the stack of a row and its successor, copied."""
        history_len = self._history_len
        ring = self._streams.rings[stream]
        places = (slot - ring.offset + np.arange(1 - history_len, 2)) % ring.cap
        frames = self._state[places + ring.offset]
        frames[: history_len - 1 - int(self._meta["age"][slot])] = 0
        return frames

    def batch(
        self, picked: Picked, n_step: int, discount: float, out: Batch | None
    ) -> Batch:
        """Gathers a batch; see `ReplayMemory.sample_batch`."""
        batch = self._room_for(len(picked.slot), n_step, out)
        streams, slot = self._streams, picked.slot
        offset, cap = streams.offsets[picked.stream], streams.caps[picked.stream]
        place = slot - offset
        meta = self._meta[slot]
        self._gather(batch, meta["age"], place, offset, cap)
        batch.action[:] = meta["action"]
        batch.version[:] = meta["version"]
        batch.reward[:] = meta["reward"]
        batch.terminated[:] = meta["flags"] & TERMINATED
        batch.truncated[:] = meta["flags"] & TRUNCATED
        batch.discount[:] = np.where(batch.terminated, 0, discount)
        end = streams.ends[picked.stream]
        row = end - 1 - (end - 1 - place) % cap
        batch.indices[:] = streams.names(slot, row, cap)
        batch.weights[:] = 1
        return batch

    def _gather(
        self, batch: Batch, age: Array, place: Array, offset: Array, cap: Array
    ) -> None:
        history_len = self._history_len
        rows = place[:, None] + np.arange(1 - history_len, 2)
        rows %= cap[:, None]
        rows += offset[:, None]
        flat = batch.frames.reshape(rows.size, -1)
        # mode: the slots are right; "raise" would gather into a buffer first.
        np.take(self._rows_of_bytes, rows.reshape(-1), axis=0, out=flat, mode="clip")
        if history_len > 1 and int(age.min()) < history_len - 1:
            batch.frames[:, :-1][np.arange(history_len) < (history_len - 1 - age)[:, None]] = 0

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


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Checks an argument that counts something."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, found {value!r}")
    return int(value)
