"""Toy environments of gymnasium whose observations tell where they come from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.support.tagged import EPISODE, LAST_ACTION, RUNNER, STEP, TAG_SHAPE, TagPlayer

__all__ = ["EPISODE", "LAST_ACTION", "RUNNER", "STEP", "TAG_SHAPE", "TagEnv"]


class TagEnv(TagPlayer, gym.Env[np.ndarray, int]):
    """A `TagPlayer` with the spaces of a gymnasium environment."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.observation_space = gym.spaces.Box(-(2**15), 2**15 - 1, TAG_SHAPE, np.int64)
        self.action_space = gym.spaces.Discrete(self.action_space.n)
