"""Storage of a replay memory in a file: mapped, locked, whole after a kill."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from mprunner.errors import StorageError
from mprunner.experience import Array
from mprunner.replay.fileformat import MAGIC, PAGE, UNFINISHED, Counters, Plan, read_plan
from mprunner.replay.files import (
    Descriptor,
    FileWriter,
    allocate,
    lock_file,
    replace_file,
    unlock_file,
)
from mprunner.replay.repair import close_all
from mprunner.replay.rings import Ring, Rings
from mprunner.replay.storage import Format
from mprunner.rows import ROW


class MappedStorage:
    """Rows in a file; see `Storage`.

    Args:
        path: of the file.
        plan: of the file.
        file: the open file.
        writable: whether its bytes may be changed.
        partial: where the file is until `publish` puts it at ``path``; None if it is there.

    Attributes:
        form: what its rows look like.
        state, meta, records: as in `Storage`; the bytes of the file.
        counters: which rows are stored.
    """

    def __init__(
        self,
        path: Path,
        plan: Plan,
        file: Descriptor,
        writable: bool,
        partial: Path | None = None,
    ) -> None:
        self._file = file
        self._owner = os.getpid()
        self._path = path
        self._partial = partial
        self.form = form = plan.form
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(file.fd, plan.nbytes, access=access)
        self.meta: Array = np.frombuffer(self._map, ROW, form.max_size, plan.records)
        self.records = self.meta.view(np.uint8).data
        values = form.max_size * int(np.prod(form.state_shape))
        flat = np.frombuffer(self._map, form.dtype, values, plan.observations)
        self.state: Array = flat.reshape(form.max_size, *form.state_shape)
        self.counters = Counters(self._map, plan, str(path))

    def check_streams(self, num_streams: int) -> None:
        """See `Storage`."""
        self.counters.check_streams(num_streams)

    def reserve(self, ring: Ring, reserved: int) -> None:
        """See `Storage`."""
        self.counters.write(ring, reserved)

    def commit(self, ring: Ring) -> None:
        """See `Storage`."""
        self.counters.write(ring, ring.end)

    def with_records(self, meta: Array, old: Rings, new: Rings) -> MappedStorage:
        """See `Storage`; a new file beside this one, locked before anybody can open it."""
        partial = _resized_name(self._path)
        with FileWriter(self._path, partial, self.form) as target:
            lock_file(target.file.fd, partial)
            allocate(target.file.fd, partial, target.plan)
            target.put_records(0, meta)
            for part in old.written_chunks(self.form.rows_per_chunk):
                target.put_states(part.start, self.state[part])
            target.complete(new, [ring.end for ring in new])
            storage = MappedStorage(self._path, target.plan, target.file, True, partial)
            storage.counters.read()
            target.keep()
        return storage

    def publish(self, rings: Rings) -> None:
        """See `Storage`."""
        if self._partial is not None:
            # An interrupted call may have moved it already.
            if self._partial.exists():
                replace_file(self._partial, self._path)
            self._partial = None
        if self.counters.num_streams != len(rings):
            self.counters.begin(rings)

    def flush(self) -> None:
        """See `Storage`."""
        self._map.flush()

    def close(self) -> None:
        """See `Storage`."""
        # A forked child has copies of the descriptor and the lock; the lock is its parent's.
        if self._file.close.alive and os.getpid() == self._owner:
            unlock_file(self._file.fd)
        self._file.close()


def open_for_writing(path: Path, form: Format, num_streams: int) -> tuple[MappedStorage, Rings]:
    """Open or create the file of a memory, as its only writer.

    What a killed writer left is repaired.

    Raises:
        StorageError: another writer has it, it holds something else, or there is no space.
    """
    file = Descriptor(path, os.O_RDWR | os.O_CREAT)
    fd = file.fd
    try:
        lock_file(fd, path)
        _check_current(fd, path)
        head = os.pread(fd, PAGE, 0)
        fresh = not head or head.startswith(UNFINISHED)
        if fresh:
            plan = Plan.of(form)
            _make_room(fd, path, plan)
        else:
            plan = read_plan(head, os.fstat(fd).st_size, str(path))
            _check_form(path, plan.form, form)
            allocate(fd, path, plan)
    except BaseException:
        file.close()
        raise
    _resized_name(path).unlink(missing_ok=True)
    storage = MappedStorage(path, plan, file, writable=True)
    if fresh:
        rings = Rings(form.max_size, num_streams)
        storage.counters.begin(rings)
        os.pwrite(fd, plan.header(), len(MAGIC))
        os.pwrite(fd, MAGIC, 0)
    else:
        rings, reserved = storage.counters.read()
        close_all(rings, reserved, storage.meta, form.history_len)
        for ring in rings:
            storage.commit(ring)
    return storage, rings


def open_for_reading(path: Path) -> MappedStorage:
    """Map a file read-only; a writer that has it open is not disturbed.

    Raises:
        StorageError: there is no such file, or it is not a replay file.
    """
    file = Descriptor(path, os.O_RDONLY)
    try:
        plan = read_plan(os.pread(file.fd, PAGE, 0), os.fstat(file.fd).st_size, str(path))
    except BaseException:
        file.close()
        raise
    return MappedStorage(path, plan, file, writable=False)


def _resized_name(path: Path) -> Path:
    # Always the same: only the file's one writer makes it, and the next one removes it.
    return path.with_name(f"{path.name}.resized.partial")


def _check_current(fd: int, path: Path) -> None:
    """Refuse a file whose writer has replaced it since it was opened here."""
    if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):
        raise StorageError(f"{path} was replaced while it was opened; try again")


def _make_room(fd: int, path: Path, plan: Plan) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, UNFINISHED, 0)
    try:
        allocate(fd, path, plan)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_form(path: Path, found: Format, wanted: Format) -> None:
    for field in ("max_size", "state_shape", "history_len", "dtype"):
        ours, theirs = getattr(wanted, field), getattr(found, field)
        if ours != theirs:
            raise StorageError(f"{path} has {field} {theirs}, and {ours} was asked for")
