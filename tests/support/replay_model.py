"""A slow, obviously right replay memory, and a writer that feeds it and the real one alike.

A stream is a list of episodes; an episode is its observations and steps. An observation is a
number that is never used twice, so that a frame tells where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mprunner.rows import CLOSING, ROW, TERMINATED, TRUNCATED, Rows


@dataclass
class Episode:
    observations: list[int]
    steps: list[tuple[int, float, int, int]] = field(default_factory=list)


@dataclass
class Expected:
    state: list[int]
    next_state: list[int]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    discount: float
    version: int


class ModelStream:
    """Episodes of one stream whose newest ``cap`` observations are kept."""

    def __init__(self, cap: int, history_len: int) -> None:
        self.cap = cap
        self.history_len = history_len
        self.episodes: list[Episode] = []

    def transitions(self) -> list[tuple[Episode, int]]:
        """Those that can be sampled, oldest first: their whole stack is kept."""
        rows = [(e, t) for e in self.episodes for t in range(len(e.observations))]
        oldest = len(rows) - self.cap
        return [
            (e, t)
            for k, (e, t) in enumerate(rows)
            if t < len(e.steps) and k - min(t, self.history_len - 1) >= oldest
        ]

    def stack(self, episode: Episode, step: int) -> list[int]:
        frames = range(step - self.history_len + 1, step + 1)
        return [episode.observations[t] if t >= 0 else 0 for t in frames]

    def expected(self, episode: Episode, step: int, n_step: int, discount: float) -> Expected:
        used = episode.steps[step : step + n_step]
        flags = used[-1][2]
        return Expected(
            state=self.stack(episode, step),
            next_state=self.stack(episode, step + len(used)),
            action=used[0][0],
            reward=sum(discount**j * one[1] for j, one in enumerate(used)),
            terminated=bool(flags & TERMINATED),
            truncated=bool(flags & TRUNCATED),
            discount=0.0 if flags & TERMINATED else discount ** len(used),
            version=used[0][3],
        )


class Writer:
    """One stream's writer: steps go to the model at once, to the memory by `flush`."""

    def __init__(self, memory, stream, cap, tags) -> None:
        self.memory = memory
        self.stream = stream  # a StreamWriter
        self.model = ModelStream(cap, memory.history_len)
        self.tags = tags
        self.waiting: list[tuple[int, int, float, int, int, int]] = []
        self.running = False

    def step(self, flags: int = 0) -> None:
        if not self.running:
            self.model.episodes.append(Episode([next(self.tags)]))
        episode = self.model.episodes[-1]
        tag = next(self.tags)
        step = (tag % 1000, float(tag % 17) - 8.0, flags, tag % 5)
        self._row(step[0], step[1], flags, step[3])
        episode.steps.append(step)
        episode.observations.append(tag)
        self.running = not flags
        if flags:
            self._row(0, 0.0, CLOSING, 0)

    def flush(self, scores=()) -> None:
        if not self.waiting:
            return
        if self.running:
            self._row(0, 0.0, CLOSING, 0)
        self.stream.extend(make_rows(self.memory, self.waiting, self.running), scores)
        self.waiting = []

    def seal(self) -> None:
        """The writer is gone: what it had not sent is lost, what it sent is truncated."""
        assert not self.waiting
        self.stream.seal()
        self._truncate()

    def release(self) -> None:
        """Give the stream back; what had not been sent is lost."""
        self.stream.release()
        self._truncate()

    def _truncate(self) -> None:
        if self.running:
            last = self.model.episodes[-1].steps
            last[-1] = (*last[-1][:2], TRUNCATED, last[-1][3])
        self.running = False

    def _row(self, action, reward, flags, version) -> None:
        episode = self.model.episodes[-1]
        age = min(len(episode.steps), self.memory.history_len - 1)
        observation = episode.observations[-1]
        self.waiting.append((observation, action, reward, version, flags, age))


def claim(memory, num_streams, cap, tags) -> list[Writer]:
    """Writers of all streams of a memory."""
    return [Writer(memory, one, cap, tags) for one in memory.claim_streams(num_streams)]


def make_rows(memory, rows, provisional) -> Rows:
    """Rows from ``(observation, action, reward, version, flags, age)``."""
    meta = np.array([row[1:] for row in rows], ROW)
    return Rows(paint([row[0] for row in rows], memory), meta, provisional)


def paint(observations, memory) -> np.ndarray:
    """Frames whose every element is made of the observation's number."""
    size = int(np.prod(memory.state_shape))
    base = np.asarray(observations, np.int64)[:, None] * (np.arange(size) + 1)
    return base.astype(memory.dtype).reshape(-1, *memory.state_shape)


def assert_stack(stack, observations, memory) -> None:
    """A stack, history last, holds exactly these observations."""
    np.testing.assert_array_equal(np.moveaxis(stack, -1, 0), paint(observations, memory))


def assert_batch(batch, memory, writers, n_step, discount, picks) -> None:
    """Every field of a batch is that of the transitions ``picks`` (writer, episode, step)."""
    for i, (writer, episode, step) in enumerate(picks):
        want = writer.model.expected(episode, step, n_step, discount)
        assert_stack(batch.state[i], want.state, memory)
        assert_stack(batch.next_state[i], want.next_state, memory)
        assert batch.action[i] == want.action
        np.testing.assert_allclose(batch.reward[i], want.reward, rtol=1e-6, atol=1e-6)
        assert batch.terminated[i] == want.terminated
        assert batch.truncated[i] == want.truncated
        assert batch.discount[i] == np.float32(want.discount)
        assert batch.version[i] == want.version
