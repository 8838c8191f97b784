"""Edits of records that keep a memory's promise: no stack and no next state spans two episodes.

They are needed where neighbouring slots stop being neighbours in time: an episode that breaks
off, a block whose copy was interrupted, a memory that gets another number of streams.
Observations are never moved.
"""

from __future__ import annotations

import numpy as np

from mprunner.experience import Array
from mprunner.replay.rings import Ring, Rings
from mprunner.rows import CLOSING, TERMINATED, TRUNCATED


def close_unfinished(ring: Ring, flags: Array) -> None:
    """End the unfinished episode at the head of a ring: its last transition is truncated."""
    if not ring.provisional:
        return
    before = ring.end - 2
    if before >= max(0, ring.end - ring.cap):
        slot = ring.slot(before)
        if not flags[slot] & (CLOSING | TERMINATED | TRUNCATED):
            flags[slot] |= TRUNCATED
    ring.provisional = False


def drop_torn(ring: Ring, reserved: int, meta: Array, history_len: int) -> None:
    """Take the rows that an interrupted block may have overwritten off offer.

    The unfinished episode at the head goes on: the block can be stored again. Repeating the
    repair changes nothing, so it may be interrupted itself.

    Args:
        ring: as it was before the block.
        reserved: the row number after the block's last row; ``ring.end`` if none was begun.
        meta: ``(max_size,)`` records; the block may have overwritten some of the oldest.
        history_len: frames in a stack.
    """
    flags, age = meta["flags"], meta["age"]
    if reserved - ring.end >= ring.cap:
        flags[ring.offset : ring.offset + ring.cap] = CLOSING
        ring.provisional = False
        return
    whole = max(0, reserved - ring.cap)
    lost = np.arange(max(0, ring.end - ring.cap), whole)
    flags[ring.offset + lost % ring.cap] = CLOSING
    if len(lost):
        for row in range(whole, min(whole + history_len - 1, ring.end)):
            if age[ring.slot(row)] > row - whole:
                flags[ring.slot(row)] = CLOSING
    if ring.provisional:
        # The block's first record may have taken its place; the observation is the same.
        flags[ring.slot(ring.end - 1)] = CLOSING


def close_all(rings: Rings, reserved: list[int], meta: Array, history_len: int) -> None:
    """Repair and end what a writer that has exited left open; ``meta`` may be a copy."""
    for ring, end in zip(rings, reserved):
        drop_torn(ring, end, meta, history_len)
        close_unfinished(ring, meta["flags"])


def cut(meta: Array, seams: Array, history_len: int, stop: int) -> None:
    """Separate the rows on both sides of each seam.

    A *seam* is a slot whose row does not follow the row of the slot before it. The row before
    a seam becomes CLOSING, as its successor is lost; rows behind it whose stack reaches across
    become CLOSING too, as their history is.

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
