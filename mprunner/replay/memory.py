"""`ReplayMemory`: one ring per runner, every observation stored once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from mprunner.checks import at_least
from mprunner.errors import ConfigurationError
from mprunner.experience import Array, Batch, Experience
from mprunner.replay import copying, mapped
from mprunner.replay.arguments import checked_format
from mprunner.replay.prefetch import Batches
from mprunner.replay.priorities import Priority
from mprunner.replay.rings import Rings, check_streams
from mprunner.replay.sampler import Sampler
from mprunner.replay.storage import Format, RamStorage, Storage
from mprunner.replay.streams import Contents, Streams, StreamWriter


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
        path: of a file that the rows are kept in; made if it is not there. What is stored in
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
        _check_priority(priority)
        storage: Storage
        if path is None:
            storage, rings = RamStorage.empty(form), Rings(form.max_size, num_streams)
        else:
            storage, rings = mapped.open_for_writing(Path(path), form, num_streams)
        self._hold(form, storage, rings, num_streams, seed, priority)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        seed: Any = None,
        num_streams: int = 1,
        priority: Priority | None = None,
    ) -> ReplayMemory:
        """Read a memory from a file into RAM; the file is not kept open.

        Args:
            path: of a file that `save` or ``path=`` made.
            seed, num_streams, priority: as for a new memory.

        Raises:
            StorageError: it is not a replay file, or there is not enough memory.
        """
        num_streams = at_least("num_streams", num_streams, 1)
        _check_priority(priority)
        storage, rings, form = copying.load(Path(path))
        memory = cls.__new__(cls)
        memory._hold(form, storage, rings, num_streams, seed, priority)
        return memory

    def _hold(
        self,
        form: Format,
        storage: Storage,
        rings: Rings,
        num_streams: int,
        seed: Any,
        priority: Priority | None,
    ) -> None:
        rng = np.random.default_rng(seed)
        sampler = Sampler(storage, rings, form.history_len, rng, priority)
        self._form = form
        self._streams = Streams(form, Contents(storage, rings, sampler), num_streams)
        self.writer_lock = self._streams.writer_lock

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
        with self.writer_lock:
            return len(self._streams.rings)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that grows with ``max_size``: rows, index and priorities."""
        with self.writer_lock:
            return self._form.nbytes + self._streams.current().sampler.nbytes

    def __len__(self) -> int:
        """How many transitions can be sampled now."""
        with self.writer_lock:
            return self._streams.current().sampler.index.count()

    def __bool__(self) -> bool:
        """True, also when empty: a memory is not a list."""
        return True

    def __repr__(self) -> str:
        return (
            f"ReplayMemory(max_size={self.max_size}, state_shape={self.state_shape}, "
            f"history_len={self.history_len}, dtype='{self.dtype}')"
        )

    def claim_streams(self, num_streams: int) -> list[StreamWriter]:
        """Claim all streams, one per runner; a manager calls it at its start.

        What the memory holds is kept. If the number of streams changes, a few transitions at
        the borders are lost, unused parts are filled first, and a file with rows is written
        anew beside the old one, which it then replaces: that takes its space twice for a while.

        Args:
            num_streams: how many.

        Returns:
            The right to write each stream; see `StreamWriter`.

        Raises:
            ConfigurationError: some are claimed already, or the memory is too small for them.
            StorageError: there is no space to write the file anew.
        """
        return self._streams.claim(num_streams)

    def claim_stream(self) -> StreamWriter:
        """Claim one stream, for a runner that is used without a manager.

        Returns:
            The right to write a stream that nobody else writes.

        Raises:
            ConfigurationError: all are taken.
        """
        return self._streams.claim_one()

    def append(self, exp: Experience) -> None:
        """Store one step, as the original does.

        It can be sampled once its successor has arrived; a terminal one at once (what follows
        it is unknown, and stored as zeros).

        Raises:
            ConfigurationError: an unusable item, or the memory's streams are claimed.
        """
        self._streams.append(exp)

    def sample(self, idx: int) -> tuple[Array, float, int, bool]:
        """Copy the ``idx``-th transition that can be sampled: streams end to end, oldest first.

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
            return self._streams.current().sampler.one(int(idx))

    def sample_batch(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        beta: float | None = None,
        out: Batch | None = None,
    ) -> Batch:
        """Draw transitions with replacement and copy them out in one gather.

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
            raise ConfigurationError(f"discount is {discount!r}; expected a number in [0, 1]")
        with self.writer_lock:
            sampler = self._streams.current().sampler
            return sampler.batch(batch_size, n_step, discount, beta, out)

    def update_priorities(self, indices: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Give transitions new priorities, commonly the size of their TD errors.

        Args:
            indices: ``(N,)`` as in `Batch.indices`. Those overwritten since are ignored.
            priorities: ``(N,)`` finite, not negative.

        Raises:
            ConfigurationError: the memory is not prioritised, or a priority is unusable.
        """
        with self.writer_lock:
            by_priority = self._streams.current().sampler.by_priority
            by_priority.update(np.asarray(indices), np.asarray(priorities))

    def batches(self, batch_size: int, prefetch: int = 2, **options: Any) -> Batches:
        """Return an endless iterator over batches that gathers ahead in a thread.

        Args:
            batch_size: as for `sample_batch`.
            prefetch: how many batches may wait, at least 1.
            options: as for `sample_batch`, but no ``out``.

        Returns:
            An iterator to use in ``with`` or to `close`.
        """
        if "out" in options:
            raise ConfigurationError("out= was given; batches() makes each batch anew")
        prefetch = at_least("prefetch", prefetch, 1)
        return Batches(lambda: self.sample_batch(batch_size, **options), prefetch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a copy to a file, atomically: ``path`` is as before, or whole.

        Writers may go on meanwhile; what they add is not in the file, and what they overwrite
        neither.

        Raises:
            StorageError: there is no space, another memory has this file open, or the number
                of streams changed meanwhile.
        """
        copying.save(Path(path), self._form, self._streams)

    def flush(self) -> None:
        """Wait until a memory in a file is on the disk; only a power failure needs it."""
        with self.writer_lock:
            self._streams.storage.flush()

    def close(self) -> None:
        """End all rights to write and release the file, or the RAM. Safe to call twice."""
        self._streams.close()

    def __enter__(self) -> ReplayMemory:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ReplayMemory stays in its process and is not pickled; use save() and load(), "
            "or give runners a stream of it"
        )


def _check_priority(priority: Priority | None) -> None:
    if priority is not None and not isinstance(priority, Priority):
        raise ConfigurationError(f"priority is {priority!r}; expected a Priority or None")
