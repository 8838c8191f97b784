"""Toy environments whose observations tell where they come from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

#: Columns of a TagEnv observation.
RUNNER, EPISODE, STEP, LAST_ACTION = range(4)
TAG_SHAPE = (4,)


class TagEnv(gym.Env[np.ndarray, int]):
    """Writes (runner, episode, step, last action) into its observation; reward 1 per step.

    Args:
        runner: the tag of whoever plays it.
        length: steps in an episode.
        ending: of an episode: "terminated", "truncated" or "both".
        lives: if above 0, every `length` steps cost a life, and the last one ends the game.
        lives_key: of the info.
        reuse_buffer: return the same array at every step.
        dtype: of the observation.
        num_actions: of the space.
    """

    def __init__(
        self,
        runner: int = 0,
        length: int = 10,
        *,
        ending: str = "terminated",
        lives: int = 0,
        lives_key: str = "lives",
        reuse_buffer: bool = False,
        dtype: Any = np.int32,
        num_actions: int = 4,
    ) -> None:
        self.observation_space = gym.spaces.Box(-(2**15), 2**15 - 1, TAG_SHAPE, np.int64)
        self.action_space = gym.spaces.Discrete(num_actions)
        self.runner, self.length, self.ending = runner, length, ending
        self.start_lives, self.lives_key, self.reuse_buffer = lives, lives_key, reuse_buffer
        self.dtype = np.dtype(dtype)
        self.episode, self.at, self.lives = -1, 0, 0
        self.num_closed = 0
        self._buffer = np.zeros(TAG_SHAPE, self.dtype)

    def _observe(self, action: int) -> np.ndarray:
        buffer = self._buffer if self.reuse_buffer else np.zeros(TAG_SHAPE, self.dtype)
        buffer[...] = (self.runner, self.episode, self.at, action)
        return buffer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.at = 0
        if self.lives == 0:
            self.lives = self.start_lives
        return self._observe(-1), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        info: dict[str, Any] = {}
        ended = self.at == self.length
        if self.start_lives:
            self.lives -= ended
            info[self.lives_key] = self.lives
        terminated = ended and self.ending in ("terminated", "both")
        truncated = ended and self.ending in ("truncated", "both")
        return self._observe(action), 1.0, terminated, truncated, info

    def close(self) -> None:
        self.num_closed += 1
