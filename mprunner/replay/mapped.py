"""The arrays behind a replay memory that lives in a file: mapped, locked, whole after a kill.

Owns opening, creating and reading such files; `copying` writes copies. Knows the format and the
rings; nothing of sampling or threads.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from pathlib import Path
from typing import Iterator

import numpy as np

from mprunner.errors import StorageError
from mprunner.experience import ROW, Array
from mprunner.replay import layout
from mprunner.replay.fileformat import MAGIC, PAGE, UNFINISHED, Counters, Plan, read_plan
from mprunner.replay.storage import Arrays, Format
from mprunner.replay.streams import Ring, Streams

_CHUNK_BYTES = 1 << 21
#: What a full disk is called.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MappedArrays:
    """Rows in a file.

    Attributes:
        path: of the file.
        form: what its rows look like.
        state, meta: as in `Arrays`; the bytes of the file.
        counters: which rows have landed.
    """

    def __init__(self, path: Path, plan: Plan, fd: int, writable: bool) -> None:
        # Owns the descriptor from here on, also if this fails.
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._owner = os.getpid()
        self.path = path
        self.form = form = plan.form
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, plan.nbytes, access=access)
        self.meta: Array = np.frombuffer(self._map, ROW, form.max_size, plan.records)
        values = form.max_size * int(np.prod(form.state_shape))
        flat = np.frombuffer(self._map, form.dtype, values, plan.observations)
        self.state: Array = flat.reshape(form.max_size, *form.state_shape)
        self.counters = Counters(self._map, plan, str(path))

    def streams(self) -> tuple[Streams, list[tuple[Ring, int]]]:
        """The file's rings as its counters have them, and up to where each may be torn."""
        made: list[Streams] = []

        def rings_of(num_streams: int) -> list[Ring]:
            made.append(Streams(self.form.max_size, num_streams))
            return made[0].rings

        found = self.counters.read(rings_of)
        for ring, _ in found:
            made[0].set_end(ring, ring.end)
        return made[0], found

    def flush(self) -> None:
        """Waits until all is on the disk, so that it survives a power failure as well."""
        self._map.flush()

    def close(self) -> None:
        """Lets go of the file. The arrays must not be used any more."""
        if self._close_fd.alive and os.getpid() == self._owner:
            # The map holds a copy of the descriptor, and with it the lock, until it is freed.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._close_fd()


def open_for_writing(path: Path, form: Format, num_streams: int) -> tuple[MappedArrays, Streams]:
    """Opens or creates the file of a memory, as its only writer.

    What a killed writer left is mended.

    Raises:
        StorageError: another writer has it, it holds something else, or there is no space.
    """
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        lock_file(fd, path)
        head = os.pread(fd, PAGE, 0)
        fresh = not head or head.startswith(UNFINISHED)
        if fresh:
            plan = Plan.of(form)
            _make_room(fd, path, plan)
        else:
            plan = read_plan(head, os.fstat(fd).st_size, str(path))
            _check_form(path, plan.form, form)
            _allocate(fd, path, plan)
    except BaseException:
        os.close(fd)
        raise
    arrays = MappedArrays(path, plan, fd, writable=True)
    if fresh:
        streams = Streams(form.max_size, num_streams)
        arrays.counters.begin(streams.rings)
        os.pwrite(fd, plan.header(), len(MAGIC))
        os.pwrite(fd, MAGIC, 0)
    else:
        streams, found = arrays.streams()
        mend_all(streams, found, arrays.meta, form.history_len)
        for ring in streams.rings:
            arrays.counters.write(ring, ring.end)
    return arrays, streams


def open_for_reading(path: Path) -> MappedArrays:
    """Maps a file read-only; a writer that has it open is not disturbed.

    Raises:
        StorageError: there is no such file, or it is none of ours.
    """
    fd = open_file(path, os.O_RDONLY)
    try:
        plan = read_plan(os.pread(fd, PAGE, 0), os.fstat(fd).st_size, str(path))
    except BaseException:
        os.close(fd)
        raise
    return MappedArrays(path, plan, fd, writable=False)


def load(path: Path) -> tuple[Arrays, Streams, Format]:
    """Reads a file into RAM, mended.

    Raises:
        StorageError: it is none of ours, its writer divided it anew meanwhile, or there is not
            enough memory.
    """
    source = open_for_reading(path)
    arrays = Arrays(source.form)
    streams, found = source.streams()
    for part in written_chunks(streams.rings, source.form):
        arrays.state[part] = source.state[part]
        arrays.meta[part] = source.meta[part]
    # A live writer may have gone on: what it may have overwritten is torn.
    later, after = source.streams()
    if len(later) != len(streams):
        raise StorageError(f"{path} was divided anew while it was read; read it again")
    torn = [(ring, reserved) for (ring, _), (_, reserved) in zip(found, after)]
    mend_all(streams, torn, arrays.meta, source.form.history_len)
    source.close()
    return arrays, streams, source.form


def mend_all(
    streams: Streams, found: list[tuple[Ring, int]], meta: Array, history_len: int
) -> None:
    """Closes what a writer that is gone left open; ``meta`` may be a copy of the file's."""
    for ring, reserved in found:
        layout.mend(ring, reserved, meta, history_len)
        streams.set_end(ring, ring.end)


def written_chunks(rings: list[Ring], form: Format) -> Iterator[slice]:
    """All slots that were ever written, in pieces of at most two megabytes."""
    step = max(1, _CHUNK_BYTES // (form.state_bytes + ROW.itemsize))
    for ring in rings:
        stop = ring.offset + min(ring.end, ring.cap)
        for low in range(ring.offset, stop, step):
            yield slice(low, min(low + step, stop))


def _make_room(fd: int, path: Path, plan: Plan) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, UNFINISHED, 0)
    try:
        _allocate(fd, path, plan)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def open_file(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        raise StorageError(f"{path} cannot be opened: {error.strerror}") from error


def lock_file(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{path} is being written by another replay memory, here or in another process; "
            f"one file has one writer"
        ) from None


def _check_form(path: Path, found: Format, wanted: Format) -> None:
    for field in ("max_size", "state_shape", "history_len", "dtype"):
        ours, theirs = getattr(wanted, field), getattr(found, field)
        if ours != theirs:
            raise StorageError(f"{path} has {field} {theirs}, and {ours} was asked for")


def _allocate(fd: int, path: Path, plan: Plan) -> None:
    """Takes the space now: a full disk shows as SIGBUS when a mapped page is written."""
    needed = plan.nbytes - os.fstat(fd).st_blocks * 512
    if needed > free_bytes(fd):
        raise no_space(path, plan.form, needed, free_bytes(fd))
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, plan.nbytes)
        return
    try:
        os.posix_fallocate(fd, 0, plan.nbytes)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise no_space(path, plan.form, needed, free_bytes(fd)) from error


def free_bytes(fd: int) -> int:
    """What is left on a file's disk."""
    stat = os.fstatvfs(fd)
    return stat.f_bavail * stat.f_frsize


def no_space(path: Path, form: Format, needed: int, available: int) -> StorageError:
    """The error that says so."""
    return StorageError(
        f"a replay file of {form.max_size} rows of shape {form.state_shape} and dtype "
        f"{form.dtype} needs {needed} more bytes at {path}, and {available} are available"
    )
