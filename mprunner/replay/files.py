"""Replay files as the system sees them: opened, locked, given space, and written as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from pathlib import Path

from mprunner.errors import StorageError
from mprunner.experience import Array
from mprunner.replay.fileformat import MAGIC, Counters, Plan
from mprunner.replay.rings import Rings
from mprunner.replay.storage import Format
from mprunner.rows import ROW

#: What a full disk is called.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Descriptor:
    """An open file, closed by `close` or with its last user.

    Args:
        path: of the file.
        flags: for `os.open`.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        try:
            # One statement: an interruption must not leave a descriptor that nobody closes.
            self.close = weakref.finalize(self, os.close, fd := os.open(path, flags, 0o644))
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror}") from error
        self.fd = fd


def lock_file(fd: int, path: Path) -> None:
    """Become the file's only writer, until all descriptors and maps of it are closed.

    Raises:
        StorageError: it has a writer.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{path} is being written by another replay memory, here or in another process; "
            f"one file has one writer"
        ) from None


def unlock_file(fd: int) -> None:
    """Let another writer have the file, although a map still holds a copy of the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def check_unlocked(path: Path) -> None:
    """Refuse a file that has a writer.

    Raises:
        StorageError: it has.
    """
    if path.exists():
        file = Descriptor(path, os.O_RDONLY)
        try:
            lock_file(file.fd, path)
        finally:
            file.close()


def allocate(fd: int, path: Path, plan: Plan) -> None:
    """Take the space now: a full disk shows as SIGBUS when a mapped page is written.

    Raises:
        StorageError: there is not enough.
    """
    needed = plan.nbytes - os.fstat(fd).st_blocks * 512
    check_space(fd, path, plan.form, needed)
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, plan.nbytes)
        return
    try:
        os.posix_fallocate(fd, 0, plan.nbytes)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise _no_space(fd, path, plan.form, needed) from error


def check_space(fd: int, path: Path, form: Format, needed: int) -> None:
    """Refuse to take more bytes than a file's disk has.

    Raises:
        StorageError: names the bytes needed and the bytes available.
    """
    if needed > free_bytes(fd):
        raise _no_space(fd, path, form, needed)


def free_bytes(fd: int) -> int:
    """Return what is left on a file's disk."""
    stat = os.fstatvfs(fd)
    return stat.f_bavail * stat.f_frsize


def _no_space(fd: int, path: Path, form: Format, needed: int) -> StorageError:
    return StorageError(
        f"a replay file of {form.max_size} rows of shape {form.state_shape} and dtype "
        f"{form.dtype} needs {needed} more bytes at {path}, and {free_bytes(fd)} are available"
    )


class FileWriter:
    """Writes a whole replay file beside ``path``, and removes it unless `keep` is called.

    It writes instead of mapping: a disk that fills up meanwhile is an error then, not a signal.

    Args:
        path: of the file that it is to become.
        partial: of the file until then.
        form: what its rows look like.

    Attributes:
        file, plan, partial: of the file.
    """

    def __init__(self, path: Path, partial: Path, form: Format) -> None:
        self.plan = Plan.of(form)
        self.partial = partial
        self._path = path
        self._needed = self.plan.nbytes
        self._kept = False

    def __enter__(self) -> FileWriter:
        # One that an interruption has left there may still be mapped, and so locked.
        self.partial.unlink(missing_ok=True)
        self.file = Descriptor(self.partial, os.O_RDWR | os.O_CREAT)
        return self

    def __exit__(self, *details: object) -> None:
        if not self._kept:
            self.file.close()
            self.partial.unlink(missing_ok=True)

    def expect(self, num_rows: int) -> None:
        """Check that there is space for so many rows; the others become holes.

        Raises:
            StorageError: there is not.
        """
        plan = self.plan
        row_bytes = plan.form.state_bytes + ROW.itemsize
        self._needed = plan.records + num_rows * row_bytes
        check_space(self.file.fd, self._path, plan.form, self._needed)
        os.ftruncate(self.file.fd, plan.nbytes)

    def put_records(self, slot: int, meta: Array) -> None:
        """Write the records of consecutive slots."""
        self._write(meta.tobytes(), self.plan.records + slot * ROW.itemsize)

    def put_states(self, slot: int, state: Array) -> None:
        """Write the observations of consecutive slots."""
        plan = self.plan
        self._write(state.tobytes(), plan.observations + slot * plan.form.state_bytes)

    def complete(self, rings: Rings, reserved: list[int]) -> None:
        """Write which rows the file holds, and wait until all is on the disk.

        Args:
            rings: of the file.
            reserved: per stream up to which row slots may be torn.
        """
        head = bytearray(self.plan.records)
        counters = Counters(head, self.plan, str(self._path))
        counters.begin(rings)
        for ring, end in zip(rings, reserved):
            counters.write(ring, end)
        header = MAGIC + self.plan.header()
        head[: len(header)] = header
        self._write(head, 0)
        os.fsync(self.file.fd)

    def keep(self) -> None:
        """Leave the file open, and where it is."""
        self._kept = True

    def _write(self, body: bytes | bytearray, at: int) -> None:
        rest = memoryview(body)
        try:
            while rest:
                done = os.pwrite(self.file.fd, rest, at)
                rest, at = rest[done:], at + done
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            form, fd = self.plan.form, self.file.fd
            raise _no_space(fd, self._path, form, self._needed) from error


def replace_file(partial: Path, path: Path) -> None:
    """Put a complete file in the place of another one; atomic, and on the disk on return."""
    os.replace(partial, path)
    folder = Descriptor(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder.fd)
    finally:
        folder.close()
