"""Simulators for the benchmarks that need no package of their own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.uint8]


class Life(gymnasium.Env[Grid, int]):
    """Conway's game of life in plain Python: it computes under the GIL, as an Atari game does.

    An action brings three cells to life; the reward is the share of living cells. An episode is
    cut after 500 steps.

    Args:
        size: height and width of the torus; the time of a step grows with its square.
    """

    num_actions = 4
    max_steps = 500

    def __init__(self, size: int = 20) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self.num_actions)  # type: ignore[assignment]
        self._size = size
        self._rows: list[list[int]] = []
        self._at = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Grid, dict[str, Any]]:
        """A random grid."""
        super().reset(seed=seed)
        self._rows = (self.np_random.random((self._size, self._size)) < 0.3).astype(int).tolist()
        self._at = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Grid, float, bool, bool, dict[str, Any]]:
        """One generation."""
        size = self._size
        self._at += 1
        for i in range(3):
            self._rows[(self._at + i) % size][(action * size // self.num_actions) % size] = 1
        self._rows = [self._next_row(y) for y in range(size)]
        alive = sum(map(sum, self._rows)) / size**2
        return self._observe(), alive, False, self._at >= self.max_steps, {}

    def _next_row(self, y: int) -> list[int]:
        rows, size = self._rows, self._size
        above, here, below = rows[y - 1], rows[y], rows[(y + 1) % size]
        following = []
        for x in range(size):
            right = x + 1 if x + 1 < size else 0
            around = (
                above[x - 1] + above[x] + above[right]
                + here[x - 1] + here[right]
                + below[x - 1] + below[x] + below[right]
            )
            following.append(1 if around == 3 or (around == 2 and here[x]) else 0)
        return following

    def _observe(self) -> Grid:
        return np.array(self._rows, np.uint8)
