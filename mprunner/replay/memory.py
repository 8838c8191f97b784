"""`ReplayMemory`: one ring per runner, every observation stored once.

Owns the public class and the half of it that learners see; the writers' half is `intake`'s.
What can be sampled is `index`' business, what is drawn and copied `sampling`'s and
`priorities`', files are `mapped`'s.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from mprunner.checks import at_least
from mprunner.errors import ConfigurationError
from mprunner.experience import TERMINATED, Array, Batch
from mprunner.replay import copying, mapped
from mprunner.replay.arguments import checked_format
from mprunner.replay.index import TransitionIndex
from mprunner.replay.intake import Intake
from mprunner.replay.prefetch import Batches
from mprunner.replay.priorities import Priority, PriorityPicker, checked_beta
from mprunner.replay.sampling import Gatherer, UniformPicker
from mprunner.replay.storage import Arrays
from mprunner.replay.streams import Streams, check_streams


class ReplayMemory(Intake):
    """A replay memory of ``max_size`` rows for transitions of ``history_len`` stacked frames.

    Each runner writes one stream, a ring of its own, so that neighbours in a ring are
    neighbours in time whatever the other runners do. Sampling is safe beside writers.

    Args:
        max_size: rows that are kept, over all streams. An episode of ``n`` steps takes
            ``n + 1``: its final observation is kept too.
        state_shape: shape of one observation, 1 to 3 dimensions.
        history_len: frames in a stack, 1 to 255.
        dtype: of an observation: bool, an integer or a float of native byte order.
        path: of a file that the rows are kept in; made if it is not there. What has landed in
            it survives when the process is killed. One memory at a time can have it open.
            Priorities are not kept in it.
        seed: of the sampling; anything that `numpy.random.default_rng` takes.
        num_streams: streams for runners that are used without a manager, see `claim_stream`.
        priority: samples by priority instead of uniformly.

    Attributes:
        writer_lock: held while a block is copied in or a batch out. A thread that holds it may
            call the memory's methods.

    Raises:
        ConfigurationError: an argument cannot work.
        StorageError: there is less memory or disk than is needed, or the file cannot be used.
    """

    def __init__(
        self,
        max_size: int,
        state_shape: Sequence[int],
        history_len: int,
        dtype: npt.DTypeLike = "uint8",
        *,
        path: str | os.PathLike[str] | None = None,
        seed: Any = None,
        num_streams: int = 1,
        priority: Priority | None = None,
    ) -> None:
        form = checked_format(max_size, state_shape, history_len, dtype)
        num_streams = at_least("num_streams", num_streams, 1)
        check_streams(num_streams, form.max_size, form.history_len)
        arrays: Arrays | mapped.MappedArrays
        if path is None:
            arrays, streams = Arrays(form), Streams(form.max_size, num_streams)
        else:
            arrays, streams = mapped.open_for_writing(Path(path), form, num_streams)
        self._sample_with(seed, priority)
        super().__init__(form, arrays, streams, num_streams)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        seed: Any = None,
        num_streams: int = 1,
        priority: Priority | None = None,
    ) -> ReplayMemory:
        """Reads a memory from a file into RAM; the file is not kept open.

        Args:
            path: of a file that `save` or ``path=`` made.
            seed, num_streams, priority: as for a new memory.

        Raises:
            StorageError: the file is none of ours, or there is not enough memory.
        """
        arrays, streams, form = mapped.load(Path(path))
        memory = cls.__new__(cls)
        memory._sample_with(seed, priority)
        num_streams = at_least("num_streams", num_streams, 1)
        Intake.__init__(memory, form, arrays, streams, num_streams)
        return memory

    def _sample_with(self, seed: Any, priority: Priority | None) -> None:
        if priority is not None and not isinstance(priority, Priority):
            raise ConfigurationError(f"priority must be a Priority or None, found {priority!r}")
        self._rng = np.random.default_rng(seed)
        self._priority = priority
        self._by_priority: PriorityPicker | None = None

    def _use(self, streams: Streams) -> None:
        super()._use(streams)
        meta, history_len = self._meta, self.history_len
        self._index = TransitionIndex(streams, meta["flags"], meta["age"], history_len)
        self._uniform = UniformPicker(streams, meta, self._index, history_len)
        self._gatherer = Gatherer(streams, self._state, meta, history_len)
        if self._by_priority is not None:
            self._by_priority.deal(streams, self._index)
        elif self._priority is not None:
            self._by_priority = PriorityPicker(
                self._priority, streams, meta, self._index, history_len
            )

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

    @property
    def nbytes(self) -> int:
        """Bytes of everything that grows with ``max_size``: rows, index and priorities."""
        by_priority = self._by_priority
        extra = self._index.nbytes + (by_priority.nbytes if by_priority is not None else 0)
        return self._form.nbytes + extra

    def __len__(self) -> int:
        """How many transitions can be sampled now."""
        with self.writer_lock:
            self._check_open()
            return self._index.count()

    def __bool__(self) -> bool:
        """True, also when empty: a memory is not a list."""
        return True

    def __repr__(self) -> str:
        return (
            f"ReplayMemory(max_size={self.max_size}, state_shape={self.state_shape}, "
            f"history_len={self.history_len}, dtype='{self.dtype}', "
            f"num_streams={self.num_streams})"
        )

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
            self._check_open()
            stream, row = self._index.find(int(idx))
            frames = self._gatherer.frames(stream, row)
            meta = self._meta[self._streams.rings[stream].slot(row)]
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
        beta: float | None = None,
        out: Batch | None = None,
    ) -> Batch:
        """Draws transitions with replacement and copies them out in one gather.

        Each transition is drawn uniformly, or, if the memory was made with ``priority=``, in
        proportion to its priority.

        Args:
            batch_size: how many; no more than can be sampled.
            n_step: rewards that are summed up per transition; see `Batch`.
            discount: per step, in [0, 1].
            beta: in [0, 1], of the importance weights; by default that of ``priority=``.
            out: a batch of the same sizes to overwrite, instead of a new one.

        Returns:
            A `Batch`; ``out`` if it was given.

        Raises:
            NotEnoughRows: fewer than ``batch_size`` transitions can be sampled.
            ConfigurationError: an argument cannot work.
        """
        batch_size = at_least("batch_size", batch_size, 1)
        n_step = at_least("n_step", n_step, 1)
        if not 0 <= discount <= 1:
            raise ConfigurationError(f"discount must be in [0, 1], found {discount!r}")
        if beta is not None:
            self._prioritised()
            checked_beta(beta)
        with self.writer_lock:
            self._check_open()
            if self._by_priority is None:
                picked = self._uniform.pick(batch_size, self._rng)
            else:
                picked = self._by_priority.pick(batch_size, self._rng, beta)
            return self._gatherer.batch(picked, n_step, discount, out)

    def update_priorities(self, indices: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Gives transitions new priorities, commonly the size of their TD errors.

        Args:
            indices: ``(N,)`` as in `Batch.indices`. Those overwritten since are ignored.
            priorities: ``(N,)`` finite, not negative.

        Raises:
            ConfigurationError: the memory is not prioritised, or a priority is unusable.
        """
        with self.writer_lock:
            self._check_open()
            self._prioritised().update(np.asarray(indices), np.asarray(priorities))

    def batches(self, batch_size: int, prefetch: int = 2, **options: Any) -> Batches:
        """An endless iterator over batches that gathers ahead in a thread.

        Args:
            batch_size: as for `sample_batch`.
            prefetch: how many batches may wait, at least 1.
            options: as for `sample_batch`, but no ``out``.

        Returns:
            An iterator to use in ``with`` or to `close`.
        """
        if "out" in options:
            raise ConfigurationError("batches() makes each batch anew; out= cannot be given")
        prefetch = at_least("prefetch", prefetch, 1)
        return Batches(lambda: self.sample_batch(batch_size, **options), prefetch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a copy to a file, atomically: ``path`` is as before, or whole.

        Writers may go on meanwhile; what they add is not in the file, and what they overwrite
        neither.

        Raises:
            StorageError: there is no space, or another memory has this file open.
        """
        copying.save(Path(path), self._form, self._snapshot, self.writer_lock)

    def _snapshot(self) -> tuple[Arrays | mapped.MappedArrays, Streams]:
        self._check_open()
        return self._arrays, self._streams

    def flush(self) -> None:
        """Waits until a memory in a file is on the disk; no need for it but a power failure."""
        with self.writer_lock:
            self._check_open()
            if isinstance(self._arrays, mapped.MappedArrays):
                self._arrays.flush()

    def close(self) -> None:
        """Gives up the streams and the file, or the RAM. Safe to call twice."""
        with self.writer_lock:
            if self._closed:
                return
            self.close_streams()
            self._closed = True
            if isinstance(self._arrays, mapped.MappedArrays):
                self._arrays.close()
            del self._arrays, self._state, self._meta, self._records, self._counters
            del self._index, self._uniform, self._gatherer, self._by_priority

    def __enter__(self) -> ReplayMemory:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ReplayMemory stays in its process and is not pickled; use save() and load(), "
            "or give runners a stream of it"
        )

    def _prioritised(self) -> PriorityPicker:
        if self._priority is None:
            raise ConfigurationError(
                "this memory samples uniformly; make it with priority=Priority() to prioritise"
            )
        assert self._by_priority is not None
        return self._by_priority
