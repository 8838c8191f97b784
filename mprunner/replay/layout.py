"""Rows that stay when what surrounds them changes: mending torn blocks, dealing to new streams.

Owns the edits of records that keep a memory's promise, that no stack and no next state spans
two episodes, when neighbouring slots stop being neighbours in time. Observations are never
moved. Knows the rings and the record format; nothing of locks, files or sampling.

A *seam* is a slot whose row does not follow the row of the slot before it. The row before a seam
becomes CLOSING, as its successor is gone; rows behind it whose stack reaches across become
CLOSING too, as their history is. Each edit alone leaves a memory of the old division sound, so
a process may be killed between any two of them.
"""

from __future__ import annotations

import numpy as np

from mprunner.experience import CLOSING, TERMINATED, TRUNCATED, Array
from mprunner.replay.streams import Ring, Streams


def close_unfinished(ring: Ring, flags: Array) -> None:
    """Ends the unfinished episode at the head of a ring: its last transition is truncated."""
    if not ring.provisional:
        return
    before = ring.end - 2
    if before >= max(0, ring.end - ring.cap):
        slot = ring.slot(before)
        if not flags[slot] & (CLOSING | TERMINATED | TRUNCATED):
            flags[slot] |= TRUNCATED
    ring.provisional = False


def mend(ring: Ring, reserved: int, meta: Array, history_len: int) -> None:
    """Makes a ring whole whose writer died while it copied a block.

    Args:
        ring: as it was before the block.
        reserved: the row number after the block's last row; ``ring.end`` if none was begun.
        meta: ``(max_size,)`` records; the block may have overwritten some of the oldest.
        history_len: frames in a stack.
    """
    if reserved - ring.end >= ring.cap:
        ring.end = 0
        ring.provisional = False
        return
    whole = max(0, reserved - ring.cap)
    lost = np.arange(max(0, ring.end - ring.cap), whole)
    flags, age = meta["flags"], meta["age"]
    flags[ring.offset + lost % ring.cap] = CLOSING
    if len(lost):
        for row in range(whole, min(whole + history_len - 1, ring.end)):
            if age[ring.slot(row)] > row - whole:
                flags[ring.slot(row)] = CLOSING
    if ring.provisional:
        # The block's first record may have taken its place; the observation is the same.
        flags[ring.slot(ring.end - 1)] = CLOSING
        close_unfinished(ring, flags)


def cut(meta: Array, seams: Array, history_len: int, stop: int) -> None:
    """Makes the rows on both sides of each seam strangers.

    Args:
        meta: ``(max_size,)`` records.
        seams: slots in ascending order, none twice; ``stop`` may be one of them.
        history_len: frames in a stack.
        stop: rows from here on are left alone.
    """
    flags, age = meta["flags"], meta["age"]
    next_seam = np.append(seams[1:], stop)
    for distance in range(history_len - 1):
        slots = (seams + distance)[seams + distance < next_seam]
        flags[slots[age[slots] > distance]] = CLOSING
    before = seams[seams > 0] - 1
    before = before[flags[before] < CLOSING]
    flags[before] = CLOSING
    last = before[(before > 0) & ~np.isin(before, seams)] - 1
    flags[last[flags[last] == 0]] = TRUNCATED


def deal(old: Streams, num_streams: int, meta: Array, history_len: int) -> Streams:
    """Divides the same slots into another number of rings, and keeps what they hold.

    Args:
        old: the rings until now; no episode is unfinished.
        num_streams: how many there shall be.
        meta: ``(max_size,)`` records.
        history_len: frames in a stack.

    Returns:
        The new rings. What they overwrite first is an unused part of their region, else where
        an old write head was.
    """
    new = Streams(old.max_size, num_streams, old.next_name())
    stop = old.offsets + old.caps
    free = np.minimum(old.offsets + old.ends, stop)
    heads = old.offsets + old.ends % old.caps
    heads = heads[old.ends > old.caps]
    for low, high in zip(free.tolist(), stop.tolist()):
        meta["flags"][low:high] = CLOSING
    seams = np.unique(np.concatenate([old.offsets, free, heads, stop, new.offsets]))
    cut(meta, seams, history_len, old.max_size)
    for ring in new.rings:
        new.set_end(ring, _first_end(ring, free, stop, heads))
    first = new.rings[0]
    for ring in old.rings:
        first.games += ring.games
        first.score_sum += ring.score_sum
        first.score_max = max(first.score_max, ring.score_max)
    return new


def _first_end(ring: Ring, free: Array, stop: Array, heads: Array) -> int:
    """Where the head of a new ring stands, as rows written."""
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
