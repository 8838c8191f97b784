"""How a memory is sampled: index, picker and gather over one division into rings."""

from __future__ import annotations

import numpy as np

from mprunner.errors import ConfigurationError
from mprunner.experience import Array, Batch
from mprunner.replay.index import TransitionIndex
from mprunner.replay.priorities import Priority, PriorityPicker
from mprunner.replay.rings import Rings
from mprunner.replay.sampling import Gatherer, UniformPicker
from mprunner.replay.storage import Storage
from mprunner.rows import TERMINATED


class Sampler:
    """Samples transitions; the caller holds the memory's lock.

    Args:
        storage, rings: what is sampled.
        history_len: frames in a stack.
        rng: draws.
        priority: samples by priority instead of uniformly.
        previous: the sampler of the same slots until now; its priorities are kept.
    """

    def __init__(
        self,
        storage: Storage,
        rings: Rings,
        history_len: int,
        rng: np.random.Generator,
        priority: Priority | None,
        previous: Sampler | None = None,
    ) -> None:
        meta = storage.meta
        self.index = TransitionIndex(rings, meta["flags"], meta["age"], history_len)
        self._rings = rings
        self._meta = meta
        self._history_len = history_len
        self._rng = rng
        self._priority = priority
        self._gatherer = Gatherer(rings, storage.state, meta, history_len)
        self._uniform = UniformPicker(rings, meta, self.index, history_len, rng)
        self._by_priority: PriorityPicker | None = None
        if priority is not None:
            self._by_priority = PriorityPicker(
                priority, rings, meta, self.index, history_len, rng,
                previous._by_priority if previous is not None else None,
            )

    def renewed(self, storage: Storage, rings: Rings) -> Sampler:
        """Return a sampler of the same slots with other rings, or with changed records."""
        return Sampler(storage, rings, self._history_len, self._rng, self._priority, self)

    @property
    def nbytes(self) -> int:
        """Bytes of the index and of the priorities."""
        by_priority = self._by_priority
        return self.index.nbytes + (by_priority.nbytes if by_priority is not None else 0)

    def one(self, order: int) -> tuple[Array, float, int, bool]:
        """Copy one transition; see `ReplayMemory.sample`."""
        stream, row = self.index.find(order)
        frames = self._gatherer.frames(stream, row)
        meta = self._meta[self._rings[stream].slot(row)]
        return (
            np.moveaxis(frames, 0, -1),
            float(meta["reward"]),
            int(meta["action"]),
            bool(meta["flags"] & TERMINATED),
        )

    def batch(
        self, batch_size: int, n_step: int, discount: float, beta: float | None, out: Batch | None
    ) -> Batch:
        """Draw and copy a batch; see `ReplayMemory.sample_batch`."""
        if self._by_priority is None and beta is None:
            picked = self._uniform.pick(batch_size)
        else:
            picked = self.by_priority.pick(batch_size, beta)
        return self._gatherer.batch(picked, n_step, discount, out)

    @property
    def by_priority(self) -> PriorityPicker:
        """The priorities.

        Raises:
            ConfigurationError: sampling is uniform.
        """
        if self._by_priority is None:
            raise ConfigurationError(
                "this memory samples uniformly; make it with priority=Priority() to prioritise"
            )
        return self._by_priority
