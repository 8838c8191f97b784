"""What a contender is: a session that plays, and a lean replay memory for those without one."""

from __future__ import annotations

import abc
import time
from typing import Any

import numpy as np

from benchmarks.harness.pools import MEMORY_ROWS

LEAD_IN_S = 0.25


class Session(abc.ABC):
    """A contender that is set up and plays.

    Attributes:
        pids: of its worker processes; empty where it has none.
    """

    pids: list[int] = []

    def __init__(self) -> None:
        self._counted = 0

    @abc.abstractmethod
    def turn(self) -> int:
        """Play a little; return the number of transitions that are or will be stored."""

    @property
    def stored(self) -> int:
        """Transitions so far; by default what the turns have given."""
        return self._counted

    def finish(self) -> None:
        """Wait until every transition asked for is stored."""

    def sample(self, batch_size: int) -> None:
        """Draw a batch of stacked states and their successors."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""

    def play(self, seconds: float, learner: dict[str, int] | None = None) -> dict[str, float]:
        """Play for a while, with or without a learner that samples meanwhile.

        What is counted begins after a lead-in and ends while everything is still at work, so
        that nobody is judged by how it starts or stops.

        Args:
            seconds: at least so long.
            learner: "batch_size", and "every": transitions per batch.
        """
        self._go(LEAD_IN_S, learner)
        stored, cpu, begin = self.stored, time.process_time(), time.perf_counter()
        batches = self._go(seconds, learner)
        result = {
            "stored": self.stored - stored,
            "seconds": time.perf_counter() - begin,
            "parent_cpu_s": time.process_time() - cpu,
            "batches": batches,
        }
        self.finish()
        return result

    def _go(self, seconds: float, learner: dict[str, int] | None) -> int:
        """Take turns for a while; returns how many batches were sampled."""
        batches, turned, end = 0, 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            new = self.turn()
            self._counted += new
            turned += new
            while learner and turned >= (batches + 1) * learner["every"]:
                self.sample(learner["batch_size"])
                batches += 1
        return batches


class Ring:
    """The leanest replay memory: one ring of frames per simulator, each frame once."""

    def __init__(self, num_envs: int, shape: tuple[int, ...] = (84, 84)) -> None:
        size = MEMORY_ROWS // num_envs
        self._size = size
        self._next = np.zeros(num_envs, np.int64)
        self._frames = np.zeros((num_envs, size, *shape), np.uint8)
        self._actions = np.zeros((num_envs, size), np.int32)
        self._rewards = np.zeros((num_envs, size), np.float32)
        self._ends = np.zeros((num_envs, size), np.uint8)

    def add(self, envs: Any, frames: Any, actions: Any, rewards: Any, ends: Any) -> None:
        """One row for each of `envs`: the frame, and what was done before it came."""
        at = self._next[envs]
        self._frames[envs, at] = frames
        self._actions[envs, at] = actions
        self._rewards[envs, at] = rewards
        self._ends[envs, at] = ends
        self._next[envs] = (at + 1) % self._size

    def extend(self, env: int, frames: Any, actions: Any, rewards: Any, ends: Any) -> None:
        """Many rows of one simulator."""
        at = (self._next[env] + np.arange(len(frames))) % self._size
        self._frames[env, at] = frames
        self._actions[env, at] = actions
        self._rewards[env, at] = rewards
        self._ends[env, at] = ends
        self._next[env] = (at[-1] + 1) % self._size
