"""Another number of streams for a memory that holds rows.

It happens while no stream is claimed, under the memory's lock, and builds new rings and new
records beside the old ones; `mprunner.replay.streams` changes over to them in one assignment.
"""

from __future__ import annotations

import numpy as np

from mprunner.experience import Array
from mprunner.replay.repair import cut
from mprunner.replay.rings import Ring, Rings
from mprunner.replay.storage import Storage
from mprunner.rows import CLOSING


def resized(
    storage: Storage, old: Rings, num_streams: int, history_len: int
) -> tuple[Storage, Rings]:
    """Divide the slots of a memory into another number of rings, and keep what they hold.

    A few transitions at the borders are lost. What the new rings overwrite first is an unused
    part of their region, else where an old write head was.

    Args:
        storage: the memory's; it and its records are left as they are.
        old: the rings until now; no episode is unfinished.
        num_streams: how many there shall be.
        history_len: frames in a stack.

    Returns:
        Storage with the records for the new rings, still to be published (`Storage.publish`),
        and these rings.

    Raises:
        ConfigurationError: the file has no room for so many streams.
        StorageError: there is no space for the new file.
    """
    storage.check_streams(num_streams)
    new = Rings(old.max_size, num_streams, old.next_name())
    if not old.total:
        return storage, new
    stop = old.offsets + old.caps
    free = np.minimum(old.offsets + old.ends, stop)
    heads = old.offsets + old.ends % old.caps
    heads = heads[old.ends > old.caps]
    meta = storage.meta.copy()
    for low, high in zip(free.tolist(), stop.tolist()):
        meta["flags"][low:high] = CLOSING
    seams = np.unique(np.concatenate([old.offsets, free, heads, stop, new.offsets]))
    cut(meta, seams, history_len, old.max_size)
    for ring in new:
        new.set_end(ring, _first_end(ring, free, stop, heads))
    first = new[0]
    for ring in old:
        first.games += ring.games
        first.score_sum += ring.score_sum
        first.score_max = max(first.score_max, ring.score_max)
    return storage.with_records(meta, old, new), new


def _first_end(ring: Ring, free: Array, stop: Array, heads: Array) -> int:
    """Return where the head of a new ring stands, as rows stored."""
    low, high = ring.offset, ring.offset + ring.cap
    starts, stops = np.clip(free, low, high), np.clip(stop, low, high)
    largest = int(np.argmax(stops - starts))
    start = int(starts[largest])
    if stops[largest] == high and start < high:
        return start - low
    if stops[largest] > start:
        return ring.cap + start - low
    inside = heads[(heads >= low) & (heads < high)]
    return ring.cap + (int(inside[0]) - low if len(inside) else 0)
