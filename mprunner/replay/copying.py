"""Copies of a memory in a file, made while writers go on, and put in place when complete.

Owns `save`. Knows the format and the rings; nothing of sampling.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Callable, ContextManager

from mprunner.experience import ROW, Array
from mprunner.replay.fileformat import MAGIC, Counters, Plan
from mprunner.replay.mapped import (
    NO_SPACE,
    MappedArrays,
    free_bytes,
    lock_file,
    no_space,
    open_file,
    written_chunks,
)
from mprunner.replay.storage import Arrays, Format
from mprunner.replay.streams import Ring, Streams

Snapshot = Callable[[], "tuple[Arrays | MappedArrays, Streams]"]


def save(path: Path, form: Format, snapshot: Snapshot, lock: ContextManager[Any]) -> None:
    """Writes a copy of a memory to a file, atomically.

    Args:
        path: of the file.
        form: what the rows look like.
        snapshot: gives the memory's arrays and rings; called under the lock.
        lock: the memory's; held while two megabytes are copied, not while they are written.

    Raises:
        StorageError: there is no space, or another memory has this file open.
    """
    with lock:
        _, streams = snapshot()
        num_rows = sum(min(ring.end, ring.cap) for ring in streams.rings)
    with _FileWriter(path, form, num_rows) as target:
        while not _copy(target, form, snapshot, lock):
            pass


def _copy(
    target: _FileWriter, form: Format, snapshot: Snapshot, lock: ContextManager[Any]
) -> bool:
    """Copies all rows; False if the memory was divided anew meanwhile."""
    with lock:
        source, streams = snapshot()
        rings = [copy.copy(ring) for ring in streams.rings]
    for part in written_chunks(rings, form):
        with lock:
            if snapshot()[1] is not streams:
                return False
            state, meta = source.state[part].copy(), source.meta[part].copy()
        target.put(part.start, state, meta)
    with lock:
        # As if the blocks that have landed meanwhile had been torn.
        reserved = [ring.end for ring in streams.rings]
        same = snapshot()[1] is streams
    target.publish(rings, reserved)
    return same


class _FileWriter:
    """Writes a file next to ``path`` and puts it there if its ``with`` block succeeds.

    It writes instead of mapping: a disk that fills up meanwhile is an error then, not a signal.
    """

    def __init__(self, path: Path, form: Format, num_rows: int) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self._plan = Plan.of(form)
        self._head = bytearray(self._plan.records)
        self._counters = Counters(self._head, self._plan, str(path))
        self._needed = len(self._head) + num_rows * (form.state_bytes + ROW.itemsize)

    def __enter__(self) -> _FileWriter:
        _refuse_live(self._path)
        self._fd = open_file(self._partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            available = free_bytes(self._fd)
            if self._needed > available:
                raise no_space(self._path, self._plan.form, self._needed, available)
            os.ftruncate(self._fd, self._plan.nbytes)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                header = MAGIC + self._plan.header()
                self._head[: len(header)] = header
                self._write(self._head, 0)
                os.fsync(self._fd)
                os.replace(self._partial, self._path)
                _sync_folder(self._path.parent)
        finally:
            self._discard()

    def put(self, slot: int, state: Array, meta: Array) -> None:
        """Writes the rows of consecutive slots."""
        plan = self._plan
        self._write(meta.tobytes(), plan.records + slot * ROW.itemsize)
        self._write(state.tobytes(), plan.observations + slot * plan.form.state_bytes)

    def publish(self, rings: list[Ring], reserved: list[int]) -> None:
        """Says which rows the file holds, and up to which they may have been overwritten."""
        self._counters.begin(rings)
        for ring, end in zip(rings, reserved):
            self._counters.write(ring, end)

    def _write(self, body: bytes | bytearray, at: int) -> None:
        rest = memoryview(body)
        try:
            while rest:
                done = os.pwrite(self._fd, rest, at)
                rest, at = rest[done:], at + done
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            form, available = self._plan.form, free_bytes(self._fd)
            raise no_space(self._path, form, self._needed, available) from error

    def _discard(self) -> None:
        os.close(self._fd)
        self._partial.unlink(missing_ok=True)


def _refuse_live(path: Path) -> None:
    if path.exists():
        fd = open_file(path, os.O_RDONLY)
        try:
            lock_file(fd, path)
        finally:
            os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
