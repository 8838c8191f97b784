"""Whole streams: what a memory was given, row by row, against what must have been played."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mprunner.replay.memory import ReplayMemory
from mprunner.replay.streams import StreamWriter
from mprunner.rows import CLOSING, ROW, TERMINATED, TRUNCATED, Rows
from tests.support.tagged import EPISODE, LAST_ACTION, STEP, Tag

_FLAGS = {
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
    "both": TERMINATED | TRUNCATED,
}


class Record:
    """Every row of one stream, from the first on, whatever the ring still holds."""

    def __init__(self) -> None:
        self._states: list[np.ndarray] = []
        self._metas: list[np.ndarray] = []
        self.provisional = False
        self.scores: list[float] = []
        self.num_blocks = 0

    def add(self, rows: Rows, scores: Sequence[float]) -> None:
        """One block."""
        state, meta = rows.state.copy(), rows.meta.copy()
        assert len(state) == len(meta) > 0
        assert meta["flags"][-1] == CLOSING
        if self.provisional:
            assert state[0].tobytes() == self._states[-1][-1].tobytes()
            assert meta["age"][0] == self._metas[-1]["age"][-1]
            self._states[-1] = self._states[-1][:-1]
            self._metas[-1] = self._metas[-1][:-1]
        self._states.append(state)
        self._metas.append(meta)
        self.provisional = rows.provisional
        self.scores.extend(scores)
        self.num_blocks += 1

    def seal(self) -> None:
        """The episode goes no further; what comes next is the first row of another."""
        self.provisional = False

    @property
    def state(self) -> np.ndarray:
        """``(N, *state_shape)``."""
        return np.concatenate(self._states)

    @property
    def meta(self) -> np.ndarray:
        """``(N,)`` of `ROW`."""
        return np.concatenate(self._metas) if self._metas else np.zeros(0, ROW)

    @property
    def steps(self) -> np.ndarray:
        """The rows that are transitions."""
        return np.flatnonzero(self.meta["flags"] & CLOSING == 0)

    @property
    def actions(self) -> list[int]:
        """Of the transitions."""
        meta = self.meta
        return meta["action"][meta["flags"] & CLOSING == 0].tolist()

    @property
    def versions(self) -> list[int]:
        """Of the transitions."""
        meta = self.meta
        return meta["version"][meta["flags"] & CLOSING == 0].tolist()

    def stacks(self, history_len: int) -> np.ndarray:
        """``(transitions, *state_shape, history_len)``, the states that were acted on."""
        state, meta = self.state, self.meta
        rows = self.steps
        out = np.zeros((len(rows), *state.shape[1:], history_len), state.dtype)
        for back in range(history_len):
            there = meta["age"][rows] >= back
            out[there, ..., history_len - 1 - back] = state[rows[there] - back]
        return out


class RecordingWriter:
    """The right to write a stream of a `RecordingMemory`, which is told of all that is stored."""

    def __init__(self, writer: StreamWriter, memory: RecordingMemory) -> None:
        self._writer = writer
        self._memory = memory
        self._record = memory.records[writer.index]
        self._num_blocks = 0  # as the writer counts them

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def extend(
        self, rows: Rows, scores: Sequence[float] = (), number: int | None = None
    ) -> bool:
        try:
            return self._writer.extend(rows, scores, number)
        finally:
            # Ctrl-C may come after the block has been stored, or before, and it is undone.
            if self._writer._streams._unfinished is None:
                if self._writer.num_blocks > self._num_blocks:
                    self._num_blocks = self._writer.num_blocks
                    self._record.add(rows, scores)

    def seal(self) -> None:
        if self._writer.active:
            self._writer.seal()
            self._num_blocks = 0
            self._memory.on_seal(self._writer.index)

    def release(self) -> None:
        if self._writer.active:
            self._writer.release()
            self._record.seal()


class RecordingMemory(ReplayMemory):
    """A replay memory that also keeps all that it was ever given; `records[i]` has stream i."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.records: list[Record] = []

    def claim_streams(self, num_streams: int) -> list[Any]:
        writers = super().claim_streams(num_streams)
        self.records = [self.new_record() for _ in writers]
        return [RecordingWriter(writer, self) for writer in writers]

    def claim_stream(self) -> Any:
        writer = super().claim_stream()
        while writer.index >= len(self.records):
            self.records.append(self.new_record())
        return RecordingWriter(writer, self)

    def new_record(self) -> Record:
        """Of a stream that is claimed for the first time."""
        return Record()

    def on_seal(self, stream: int) -> None:
        """A stream's writer has been told to seal it."""
        self.records[stream].seal()

    @property
    def num_steps(self) -> int:
        """Transitions stored since the start."""
        return sum(len(record.steps) for record in self.records)

    @property
    def scores(self) -> list[float]:
        """Of all games, stream by stream."""
        return list(itertools.chain.from_iterable(record.scores for record in self.records))


def played(tag: Tag, actions: Sequence[int], history_len: int) -> tuple[np.ndarray, np.ndarray]:
    """The stream that `actions` must leave behind: states ``(N, 4)`` and rows ``(N,)``."""
    states, rows = [], []
    episode, at, last = 0, 0, -1
    for action in actions:
        flags = _FLAGS[tag.ending] if at + 1 == tag.length else 0
        states.append((tag.runner, episode, at, last))
        rows.append((action, 1.0, 0, flags, min(at, history_len - 1)))
        at, last = at + 1, action
        if flags:
            states.append((tag.runner, episode, at, last))
            rows.append((0, 0.0, 0, CLOSING, min(at, history_len - 1)))
            episode, at, last = episode + 1, 0, -1
    states.append((tag.runner, episode, at, last))
    rows.append((0, 0.0, 0, CLOSING, min(at, history_len - 1)))
    return np.array(states), np.array(rows, ROW)


def scores_of(tag: Tag, num_steps: int) -> list[float]:
    """The scores of the games that end within so many steps."""
    lives = tag.lives if tag.lives and tag.ending == "terminated" else 1
    game = tag.length * lives
    return [float(game)] * (num_steps // game)


def check_streams(memory: RecordingMemory, tags: Sequence[Tag]) -> None:
    """Every row of every stream, every score, and every transition that can be sampled."""
    assert len(memory.records) == len(tags)
    for record, tag in zip(memory.records, tags):
        check_record(record, tag, memory.history_len)
    check_samples(memory)


def check_record(record: Record, tag: Tag, history_len: int) -> None:
    """One stream is exactly what its player showed, in order."""
    if not record.num_blocks:
        return
    states, rows = played(tag, record.actions, history_len)
    np.testing.assert_array_equal(record.state, states)
    meta = record.meta
    for name in ("action", "reward", "flags", "age"):
        np.testing.assert_array_equal(meta[name], rows[name], err_msg=name)
    assert record.scores == scores_of(tag, len(record.actions))


def check_joints(record: Record, history_len: int) -> None:
    """A stream in which episodes may break off anywhere: each is whole as far as it goes."""
    state, meta = record.state, record.meta
    closing = meta["flags"] & CLOSING != 0
    assert closing[-1]
    begins = np.append(True, closing[:-1])
    assert (state[begins][:, STEP] == 0).all() and (state[begins][:, LAST_ACTION] == -1).all()
    before, after = state[:-1][~closing[:-1]], state[1:][~closing[:-1]]
    assert np.array_equal(after[:, EPISODE], before[:, EPISODE])
    assert np.array_equal(after[:, STEP], before[:, STEP] + 1)
    assert np.array_equal(after[:, LAST_ACTION], meta["action"][~closing])
    assert (np.diff(state[begins][:, EPISODE]) > 0).all()
    assert np.array_equal(meta["age"], np.minimum(state[:, STEP], history_len - 1))


def check_samples(memory: RecordingMemory) -> None:
    """`sample` of every index gives what was recorded, and the newest of it at that."""
    index, h = 0, memory.history_len
    num_streams = len(memory.records)
    for number, record in enumerate(memory.records):
        cap = memory.max_size // num_streams + (number < memory.max_size % num_streams)
        if not record.num_blocks:
            continue
        state, meta, steps = record.state, record.meta, record.steps
        stacks = record.stacks(h)
        oldest = max(0, len(meta) - cap)
        for k in np.flatnonzero(steps - meta["age"][steps] >= oldest):
            row = steps[k]
            frames, reward, action, is_over = memory.sample(index)
            assert np.array_equal(frames[..., :h], stacks[k])
            assert np.array_equal(frames[..., h], state[row + 1])
            assert (reward, action) == (meta["reward"][row], meta["action"][row])
            assert is_over == bool(meta["flags"][row] & TERMINATED)
            index += 1
    assert len(memory) == index
    for outside in (-1, index, index + memory.max_size):
        try:
            memory.sample(outside)
        except IndexError:
            continue
        raise AssertionError(f"sample({outside}) of {index} does not raise")
