"""`ReplayMemory`: one ring per runner, every observation stored once.

Owns the public class: the lock, the claims on streams, the checks of what comes in. Where rows
lie is `streams`' business, what can be sampled `index`' and `sampling`'s, what the arrays are
made of `storage`'s.
"""

from __future__ import annotations

import threading
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from mprunner.errors import ConfigurationError
from mprunner.experience import (
    CLOSING,
    MAX_HISTORY_LEN,
    ROW,
    TERMINATED,
    Array,
    Batch,
    Experience,
    Rows,
)
from mprunner.replay import streams as ring_math
from mprunner.replay.index import TransitionIndex
from mprunner.replay.sampling import Gatherer, UniformPicker, whole_number
from mprunner.replay.storage import Arrays, Format
from mprunner.replay.streams import OPAQUE_ROW, Ring, Streams


class ReplayMemory:
    """A replay memory of ``max_size`` rows for transitions of ``history_len`` stacked frames.

    Each runner writes one stream, a ring of its own, so that neighbours in a ring are
    neighbours in time whatever the other runners do. Sampling is safe beside writers.

    Args:
        max_size: rows that are kept, over all streams. An episode of ``n`` steps takes
            ``n + 1``: its final observation is kept too.
        state_shape: shape of one observation, 1 to 3 dimensions.
        history_len: frames in a stack, 1 to 255.
        dtype: of an observation: bool, an integer or a float of native byte order.
        seed: of the sampling; anything that `numpy.random.default_rng` takes.
        num_streams: streams for runners that are used without a manager, see `claim_stream`.

    Attributes:
        writer_lock: held while a block is copied in or a batch out. A thread that holds it may
            call the memory's methods.

    Raises:
        ConfigurationError: an argument cannot work.
        StorageError: there is less memory than is needed.
    """

    def __init__(
        self,
        max_size: int,
        state_shape: Sequence[int],
        history_len: int,
        dtype: npt.DTypeLike = "uint8",
        *,
        seed: Any = None,
        num_streams: int = 1,
    ) -> None:
        self._form = checked_format(max_size, state_shape, history_len, dtype)
        self._wanted_streams = whole_number(num_streams, "num_streams")
        ring_math.check_streams(self._wanted_streams, self.max_size, history_len)
        self.writer_lock = threading.RLock()
        self._rng = np.random.default_rng(seed)
        self._claims = 0
        self._pending = 0
        self._use(Arrays(self._form), Streams(self.max_size, self._wanted_streams))

    def _use(self, arrays: Arrays, streams: Streams) -> None:
        self._arrays = arrays
        self._streams = streams
        self._state = arrays.state
        self._meta = arrays.meta
        self._records = arrays.meta.view(OPAQUE_ROW)
        self._flags = arrays.meta["flags"]
        age = arrays.meta["age"]
        self._index = TransitionIndex(streams, self._flags, age, self.history_len)
        self._picker = UniformPicker(
            streams, self._flags, age, self._index, self.history_len
        )
        self._gatherer = Gatherer(streams, self._state, self._meta, self.history_len)

    @property
    def max_size(self) -> int:
        """Rows that are kept, over all streams."""
        return self._form.max_size

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self._form.state_shape

    @property
    def history_len(self) -> int:
        """Frames in a stack."""
        return self._form.history_len

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an observation."""
        return self._form.dtype

    @property
    def num_streams(self) -> int:
        """Into how many rings the rows are divided now."""
        return len(self._streams)

    def __len__(self) -> int:
        """How many transitions can be sampled now."""
        with self.writer_lock:
            return self._index.count()

    def __repr__(self) -> str:
        return (
            f"ReplayMemory(max_size={self.max_size}, state_shape={self.state_shape}, "
            f"history_len={self.history_len}, dtype='{self.dtype}', "
            f"num_streams={self.num_streams})"
        )

    def open_streams(self, num_streams: int) -> None:
        """Claims all streams, one per runner; a manager calls it at its start.

        What the memory holds is kept, and dealt to the new streams if their number changes.

        Args:
            num_streams: how many.

        Raises:
            ConfigurationError: they are claimed already, or the memory is too small for them.
        """
        num_streams = whole_number(num_streams, "num_streams")
        ring_math.check_streams(num_streams, self.max_size, self.history_len)
        with self.writer_lock:
            if self._claims:
                raise ConfigurationError(
                    f"{self._claims} stream(s) of this memory are in use by another manager or "
                    f"by runners of their own; close it first, or give each its own memory"
                )
            self._deal(num_streams)
            self._claims = num_streams

    def close_streams(self) -> None:
        """Gives the claimed streams up; unfinished episodes end as truncated."""
        with self.writer_lock:
            self._seal_all()
            self._claims = 0

    def claim_stream(self) -> int:
        """Claims one stream, for a runner that is used without a manager.

        Returns:
            The number of a stream that nobody else writes.

        Raises:
            ConfigurationError: all are taken.
        """
        with self.writer_lock:
            if not self._claims:
                self._deal(self._wanted_streams)
            if self._claims >= len(self._streams):
                raise ConfigurationError(
                    f"all {len(self._streams)} stream(s) of this memory are taken; make it "
                    f"with num_streams= as many runners as will use it without a manager"
                )
            self._claims += 1
            return self._claims - 1

    def extend(self, stream: int, rows: Rows, scores: Sequence[float] = ()) -> None:
        """Takes in one block of a stream.

        Args:
            stream: which, in ``[0, num_streams)``.
            rows: consecutive rows, at least one; the last is CLOSING. If the stream's newest
                row is provisional, the first of these holds the same observation, and takes
                its place. Of a block longer than the stream's ring the newest rows are kept.
            scores: of the games that ended in this block.

        Raises:
            ConfigurationError: no such stream, or rows of another shape or dtype.
        """
        state, meta = rows.state, rows.meta
        if state.dtype != self._state.dtype or state.shape[1:] != self._state.shape[1:]:
            self._refuse_rows(state)
        with self.writer_lock:
            if not 0 <= stream < len(self._streams.rings):
                raise ConfigurationError(
                    f"stream {stream} of a memory that has {len(self._streams)}"
                )
            ring = self._streams.rings[stream]
            self._land(ring, state, meta.view(OPAQUE_ROW), rows.provisional, scores)

    def _land(
        self, ring: Ring, state: Array, records: Array, provisional: bool, scores: Any = ()
    ) -> None:
        end = ring_math.copy_block(ring, self._state, self._records, state, records)
        ring.provisional = provisional
        if scores:
            ring.add_scores(scores)
        self._streams.set_end(ring, end)

    def seal(self, stream: int) -> None:
        """Ends a stream's unfinished episode as truncated; its writer is gone.

        The newest row stays as the final observation of the last transition. Does nothing if
        no episode is unfinished.

        Raises:
            ConfigurationError: no such stream.
        """
        if not 0 <= stream < len(self._streams):
            raise ConfigurationError(
                f"stream {stream} of a memory that has {len(self._streams)}"
            )
        with self.writer_lock:
            self._seal(self._streams.rings[stream])

    def _seal(self, ring: Ring) -> None:
        if ring.provisional:
            ring_math.close_unfinished(ring, self._flags)
            ring.provisional = False

    def _seal_all(self) -> None:
        for ring in self._streams.rings:
            self._seal(ring)

    def _deal(self, num_streams: int) -> None:
        self._seal_all()
        if num_streams == len(self._streams):
            return
        if self._streams.ends.any():
            raise ConfigurationError("the memory holds rows of another number of streams")
        self._use(self._arrays, Streams(self.max_size, num_streams))

    def append(self, exp: Experience) -> None:
        """Stores one step, as the original does.

        It can be sampled once its successor has arrived; a terminal one at once (what follows
        it is unknown, and stored as zeros).

        Raises:
            ConfigurationError: an unusable item, or the memory's streams are claimed.
        """
        state = self._checked_state(exp.state)
        action, reward = checked_step(exp)
        with self.writer_lock:
            if self._claims:
                raise ConfigurationError(
                    "append() cannot be mixed with runners: the memory's streams are claimed"
                )
            self._deal_for_append()
            ring = self._streams.rings[0]
            goes_on = ring.provisional
            rows = np.zeros(3, ROW)
            age = 0
            if goes_on:
                slot = ring.slot(ring.end - 1)
                rows[0] = self._meta[slot]
                rows["flags"][0] = 0
                age = min(int(rows["age"][0]) + 1, self.history_len - 1)
            flags = TERMINATED if exp.isOver else CLOSING
            rows[1] = (action, reward, 0, flags, age)
            rows[2] = (0, 0, 0, CLOSING, min(age + 1, self.history_len - 1))
            states = np.zeros((3, *self.state_shape), self.dtype)
            states[1] = state
            part = slice(0 if goes_on else 1, 3 if exp.isOver else 2)
            self._land(ring, states[part], rows[part].view(OPAQUE_ROW), not exp.isOver)

    def _deal_for_append(self) -> None:
        if len(self._streams) != 1:
            self._deal(1)

    def sample(self, idx: int) -> tuple[Array, float, int, bool]:
        """The ``idx``-th transition that can be sampled: streams end to end, oldest first.

        Args:
            idx: in ``[0, len(memory))``.

        Returns:
            ``(state, reward, action, isOver)``, copies. ``state`` is ``(*state_shape,
            history_len + 1)``: the stack and, as last frame, the next observation; frames from
            before the episode are zero. ``isOver`` is True if the episode *terminated*: after
            a truncation the next observation is known and its value counts, so a target
            ``reward + (1 - isOver) * discount * value`` is right for both.

        Raises:
            IndexError: outside.
        """
        with self.writer_lock:
            stream, row = self._index.find(int(idx))
            slot = self._streams.rings[stream].slot(row)
            frames = self._gatherer.frames(slot, stream)
            meta = self._meta[slot]
            return (
                np.moveaxis(frames, 0, -1),
                float(meta["reward"]),
                int(meta["action"]),
                bool(meta["flags"] & TERMINATED),
            )

    def sample_batch(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        out: Batch | None = None,
    ) -> Batch:
        """Draws transitions, uniformly and with replacement, and copies them out in one gather.

        Args:
            batch_size: how many.
            n_step: rewards that are summed up per transition; see `Batch`.
            discount: per step, in [0, 1].
            out: a batch of the same sizes to overwrite, instead of a new one.

        Returns:
            A `Batch`; ``out`` if it was given.

        Raises:
            NotEnoughRows: fewer than ``batch_size`` transitions can be sampled.
            ConfigurationError: an argument cannot work.
        """
        batch_size = whole_number(batch_size, "batch_size")
        n_step = whole_number(n_step, "n_step")
        if not 0 <= discount <= 1:
            raise ConfigurationError(f"discount must be in [0, 1], found {discount!r}")
        with self.writer_lock:
            picked = self._picker.pick(batch_size, self._rng)
            return self._gatherer.batch(picked, n_step, discount, out)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ReplayMemory stays in its process and is not pickled; use save() and load(), "
            "or give runners a stream of it"
        )

    def _refuse_rows(self, state: Array) -> None:
        raise ConfigurationError(
            f"rows of shape {state.shape[1:]} and dtype {state.dtype} for a memory of "
            f"{self.state_shape} and {self.dtype}"
        )

    def _checked_state(self, state: Any) -> Array:
        found = np.asarray(state)
        if found.shape != self.state_shape:
            raise ConfigurationError(
                f"a state of shape {found.shape} for a memory of shape {self.state_shape}"
            )
        if np.can_cast(found.dtype, self.dtype, "safe"):
            return found
        if found.dtype.kind in "iu" and self.dtype.kind in "iu":
            cast = found.astype(self.dtype)
            if np.array_equal(cast, found):
                return cast
        raise ConfigurationError(
            f"a state of dtype {found.dtype} cannot be stored in a memory of dtype "
            f"{self.dtype} without changing it; convert it, or make the memory with dtype="
        )


def checked_format(
    max_size: int, state_shape: Sequence[int], history_len: int, dtype: npt.DTypeLike
) -> Format:
    """Checks the arguments that fix what rows look like.

    Raises:
        ConfigurationError: one of them cannot work.
    """
    max_size = whole_number(max_size, "max_size")
    history_len = whole_number(history_len, "history_len")
    if history_len > MAX_HISTORY_LEN:
        raise ConfigurationError(
            f"history_len must be in 1..{MAX_HISTORY_LEN}, found {history_len}"
        )
    try:
        shape = tuple(whole_number(size, "each size in state_shape") for size in state_shape)
    except TypeError:
        raise ConfigurationError(f"state_shape must be a tuple, found {state_shape!r}") from None
    if not 1 <= len(shape) <= 3:
        raise ConfigurationError(f"state_shape must have 1 to 3 dimensions, found {shape}")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ConfigurationError(f"dtype {dtype!r} is not one that numpy knows") from None
    if kind.kind not in "biuf" or not kind.isnative:
        raise ConfigurationError(
            f"dtype must be bool, an integer or a float of native byte order, found {kind!r}"
        )
    return Format(max_size, shape, history_len, kind)


def checked_step(exp: Experience) -> tuple[int, float]:
    """The action and reward of an `Experience`.

    Raises:
        ConfigurationError: they cannot be stored.
    """
    try:
        action, reward = int(exp.action), float(exp.reward)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"action and reward must be numbers, found {exp.action!r} and {exp.reward!r}"
        ) from None
    if action != exp.action or not -(2**31) <= action < 2**31:
        raise ConfigurationError(f"action must be an int32, found {exp.action!r}")
    return action, reward
