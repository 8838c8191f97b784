"""The arrays behind a replay memory that lives in RAM, and the check that they fit.

Owns `Arrays`, the interface that a memory's storage has, and where free memory is read from.
Knows nothing of streams or sampling.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprunner.errors import StorageError
from mprunner.experience import ROW, Array


@dataclass(frozen=True)
class Format:
    """What a memory's rows look like; two storages with equal formats hold equal bytes.

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
    def nbytes(self) -> int:
        """Bytes of all rows: observations and records."""
        return self.max_size * (self.state_bytes + ROW.itemsize)


class Arrays:
    """Rows in RAM: ``state (max_size, *state_shape)`` and ``meta (max_size,)`` of dtype `ROW`."""

    def __init__(self, form: Format) -> None:
        check_memory(form.nbytes, form)
        self.state: Array = np.zeros((form.max_size, *form.state_shape), form.dtype)
        self.meta: Array = np.zeros(form.max_size, ROW)


def check_memory(needed: int, form: Format) -> None:
    """Refuses to take more memory than there is.

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
    """Bytes that can be taken without swapping, by the system and its control group."""
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
