"""What keeps the rows of a replay memory: the contract, and storage in RAM."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mprunner.errors import StorageError
from mprunner.experience import Array
from mprunner.replay.rings import Ring, Rings
from mprunner.rows import ROW


@dataclass(frozen=True)
class Format:
    """What the rows of a memory look like.

    Attributes:
        max_size: slots.
        state_shape: of one observation.
        history_len: frames in a stack.
        dtype: of an observation.
    """

    max_size: int
    state_shape: tuple[int, ...]
    history_len: int
    dtype: np.dtype[Any]

    @property
    def state_bytes(self) -> int:
        """Bytes of one observation."""
        return int(np.prod(self.state_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def rows_per_chunk(self) -> int:
        """Rows of two megabytes, at least one."""
        return max(1, (1 << 21) // (self.state_bytes + ROW.itemsize))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows: observations and records."""
        return self.max_size * (self.state_bytes + ROW.itemsize)


class Storage(Protocol):
    """Keeps the rows of a memory and the counters of its rings.

    Attributes:
        state: ``(max_size, *state_shape)`` observations.
        meta: ``(max_size,)`` records of dtype `ROW`.
        records: the bytes of ``meta``.
    """

    state: Array
    meta: Array
    records: memoryview

    def check_streams(self, num_streams: int) -> None:
        """Refuse more streams than there is room for.

        Raises:
            ConfigurationError: there is none.
        """

    def reserve(self, ring: Ring, reserved: int) -> None:
        """Note that a block is being copied which ends before row ``reserved``."""

    def commit(self, ring: Ring) -> None:
        """Note the ring's counters; no copy is under way any more."""

    def with_records(self, meta: Array, old: Rings, new: Rings) -> Storage:
        """Return storage of the same observations with other records and rings.

        This one stays as it is.

        Args:
            meta: ``(max_size,)`` records; they become the new storage's.
            old: this storage's rings.
            new: the rings that belong to ``meta``.

        Raises:
            StorageError: there is no space.
        """

    def publish(self, rings: Rings) -> None:
        """Make these the memory's rows and rings for whoever opens it later; may be repeated."""

    def flush(self) -> None:
        """Wait until all is on the disk."""

    def close(self) -> None:
        """Release what it holds. The arrays must not be used any more."""


class RamStorage:
    """Rows in RAM; see `Storage`."""

    def __init__(self, state: Array, meta: Array) -> None:
        self.state = state
        self.meta = meta
        self.records = meta.view(np.uint8).data

    @classmethod
    def empty(cls, form: Format) -> RamStorage:
        """Return room for a memory's rows.

        Raises:
            StorageError: there is not enough memory.
        """
        check_memory(form.nbytes, form)
        state: Array = np.zeros((form.max_size, *form.state_shape), form.dtype)
        return cls(state, np.zeros(form.max_size, ROW))

    def check_streams(self, num_streams: int) -> None:
        """See `Storage`; any number of counters fits."""

    def reserve(self, ring: Ring, reserved: int) -> None:
        """See `Storage`; the memory itself keeps this in mind."""

    def commit(self, ring: Ring) -> None:
        """See `Storage`; the ring itself is all there is."""

    def with_records(self, meta: Array, old: Rings, new: Rings) -> RamStorage:
        """See `Storage`; the observations are shared."""
        return RamStorage(self.state, meta)

    def publish(self, rings: Rings) -> None:
        """See `Storage`; nobody else can open it."""

    def flush(self) -> None:
        """See `Storage`; there is no disk."""

    def close(self) -> None:
        """See `Storage`; the arrays are freed with their last user."""


def check_memory(needed: int, form: Format) -> None:
    """Refuse to take more memory than there is.

    Raises:
        StorageError: names the bytes needed and the bytes available.
    """
    available = available_memory()
    if available is not None and needed > available:
        raise StorageError(
            f"a replay memory of {form.max_size} rows of shape {form.state_shape} and dtype "
            f"{form.dtype} needs {needed} bytes of memory, and {available} are available; "
            f"make max_size smaller, or keep the memory in a file with path="
        )


def available_memory() -> int | None:
    """Return the bytes that can be taken without swapping, by the system and its control group."""
    limits = [limit for limit in (_system_memory(), *_group_limits()) if limit is not None]
    return min(limits, default=None)


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _group_limits() -> list[int | None]:
    limits: list[int | None] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, limit, used = "/sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
            used = "memory.usage_in_bytes"
        else:
            continue
        # In a container the group's own directory is often mounted as the root.
        for folder in (Path(root + group), Path(root)):
            limits.append(_left(folder / limit, folder / used))
    return limits


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):
        return None
