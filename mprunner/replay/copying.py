"""Copies of a memory: into a file while writers go on, and out of a file into RAM."""

from __future__ import annotations

import os
from pathlib import Path

from mprunner.errors import StorageError
from mprunner.replay.files import FileWriter, check_unlocked, replace_file
from mprunner.replay.mapped import open_for_reading
from mprunner.replay.repair import close_all
from mprunner.replay.rings import Rings
from mprunner.replay.storage import Format, RamStorage
from mprunner.replay.streams import Streams


def save(path: Path, form: Format, streams: Streams) -> None:
    """Write a copy of a memory to a file, atomically.

    The memory's lock is held while two megabytes are copied, not while they are written.

    Args:
        path: of the file.
        form: what the rows look like.
        streams: the memory's.

    Raises:
        StorageError: there is no space, another memory has this file open, or the number of
            streams changed meanwhile.
    """
    lock = streams.writer_lock
    with lock:
        storage, live, _ = streams.current()
        rings = live.copy()
    check_unlocked(path)
    with FileWriter(path, path.with_name(f"{path.name}.{os.getpid()}.partial"), form) as target:
        target.expect(sum(min(ring.end, ring.cap) for ring in rings))
        for part in rings.written_chunks(form.rows_per_chunk):
            with lock:
                streams.current()
                state, meta = storage.state[part].copy(), storage.meta[part].copy()
            target.put_records(part.start, meta)
            target.put_states(part.start, state)
        with lock:
            # As if the blocks that were stored meanwhile had been torn.
            reserved = [ring.end for ring in live]
            if streams.current().rings is not live:
                raise StorageError(
                    f"the memory's number of streams changed while it was saved to {path}; "
                    f"save it again"
                )
        target.complete(rings, reserved)
        replace_file(target.partial, path)


def load(path: Path) -> tuple[RamStorage, Rings, Format]:
    """Read a file into RAM, repaired.

    Raises:
        StorageError: it is not a replay file, or there is not enough memory.
    """
    source = open_for_reading(path)
    form = source.form
    target = RamStorage.empty(form)
    rings, _ = source.counters.read()
    for part in rings.written_chunks(form.rows_per_chunk):
        target.state[part] = source.state[part]
        target.meta[part] = source.meta[part]
    # A live writer may have gone on: what it may have overwritten is torn.
    reserved = [source.counters.reserved(ring.index) for ring in rings]
    close_all(rings, reserved, target.meta, form.history_len)
    source.close()
    return target, rings, form
