"""What must hold of a memory's contents, whatever has died."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mprunner.replay.memory import ReplayMemory
from mprunner.rows import CLOSING, TERMINATED, TRUNCATED
from tests.support.faulty_players import EPISODES_PER_START
from tests.support.streams import RecordingMemory, check_record, check_samples
from tests.support.tagged import EPISODE, RUNNER, STEP, Tag


class SealedMemory(RecordingMemory):
    """A recording memory that knows of seals, too; `seals[i]` has where stream i was cut."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seals: list[list[int]] = []

    def claim_streams(self, num_streams: int) -> list[Any]:
        writers = super().claim_streams(num_streams)
        self.seals = [[] for _ in writers]
        return writers

    def on_seal(self, stream: int) -> None:
        record = self.records[stream]
        if record.provisional:
            self.seals[stream].append(len(record.meta))
        super().on_seal(stream)


def check_survivors(memory: SealedMemory, tags: Sequence[Tag], faulty: set[int]) -> None:
    """Siblings' streams are exactly what was played; those of faulty runners are whole."""
    for i, (record, tag) in enumerate(zip(memory.records, tags)):
        if not record.num_blocks:
            continue
        if i in faulty:
            check_faulty(memory, i, tag)
        else:
            assert memory.seals[i] in ([], [len(record.meta)]), "cut before its end"
            check_record(record, tag, memory.history_len)
    check_samples(memory)


def check_faulty(memory: SealedMemory, stream: int, tag: Tag) -> None:
    """One stream of a runner that was replaced: each start in order, no step twice or torn."""
    record = memory.records[stream]
    state, meta = record.state, record.meta
    assert (state[:, RUNNER] == tag.runner).all()
    starts = state[:, EPISODE] // EPISODES_PER_START
    assert (np.diff(starts) >= 0).all()
    for row in record.steps:
        assert state[row + 1, EPISODE] == state[row, EPISODE]
        assert state[row + 1, STEP] == state[row, STEP] + 1
    check_ends(memory, stream)
    finished = np.count_nonzero(meta["flags"] & (TERMINATED | TRUNCATED))
    assert record.scores == [float(tag.length)] * int(finished), "a score is lost or made up"


def check_ends(memory: SealedMemory, stream: int) -> None:
    """Where it was cut, the last stored transition is truncated."""
    ring, record = memory._streams.rings[stream], memory.records[stream]
    total = len(record.meta)
    for end in memory.seals[stream]:
        row = end - 2
        if row >= max(0, total - ring.cap) and not record.meta["flags"][row] & CLOSING:
            assert memory._streams.storage.meta["flags"][ring.slot(row)] & TRUNCATED


def check_stacks(memory: ReplayMemory, indices: Sequence[int]) -> None:
    """Each sampled stack shows one runner, one episode and consecutive steps."""
    for index in indices:
        frames, reward, _, _ = memory.sample(index)
        check_stack(np.moveaxis(frames, -1, 0))
        assert reward == 1.0


def check_stack(frames: np.ndarray) -> None:
    """``(history_len + 1, 4)``; leading frames may be blank, before an episode's start."""
    shown = frames[len(list(itertools.takewhile(lambda frame: not frame.any(), frames))):]
    assert len(shown) > 1
    assert len({(frame[RUNNER], frame[EPISODE]) for frame in shown}) == 1, frames
    assert (np.diff(shown[:, STEP]) == 1).all(), frames
    assert len(shown) == len(frames) or shown[0][STEP] == 0, frames
