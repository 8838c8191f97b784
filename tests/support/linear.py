"""A linear Q function and its learner in numpy, for tests that learn without torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from mprunner.experience import Array


class LinearModel:
    """Q = phi(state) @ weights; the model of a `LocalPredictor`, or a served predictor itself."""

    def __init__(self, weights: Array | None = None) -> None:
        self.weights = weights

    def __call__(self, states: Array) -> Array:
        """``(B, *state_shape, history_len)`` to ``(B, num_actions)``."""
        assert self.weights is not None
        return features(states) @ self.weights

    def set_weights(self, weights: Any) -> None:
        """Take over what was published."""
        self.weights = weights["w"]


def features(states: Array) -> Array:
    """All that a state holds, in a row."""
    return states.reshape(len(states), -1).astype(np.float32)


class LinearLearner:
    """Semi-gradient Q learning on batches; float32 throughout, the same on each run.

    Args:
        num_features: of a flattened state.
        num_actions: of the player.
        rate: the step size.
        discount: per step.
    """

    def __init__(
        self, num_features: int, num_actions: int, rate: float, discount: float = 0.99
    ) -> None:
        self.weights = np.zeros((num_features, num_actions), np.float32)
        self.rate, self.discount = rate, discount

    def published(self) -> dict[str, Array]:
        """A copy, in the form that `LinearModel` takes."""
        return {"w": self.weights.copy()}

    def learn(
        self, state: Array, action: Array, reward: Array, next_state: Array, discount: Array
    ) -> Array:
        """One step; returns the TD errors, ``(B,)``."""
        x, y = features(state), features(next_state)
        rows = np.arange(len(action))
        target = reward + discount * (y @ self.weights).max(axis=1)
        error = target - (x @ self.weights)[rows, action]
        # Summed by action and feature, so that one-hot features make it tabular Q learning
        # with the average error of each entry.
        total = np.zeros_like(self.weights)
        count = np.zeros_like(self.weights)
        np.add.at(total.T, action, x * error[:, None])
        np.add.at(count.T, action, x * x)
        self.weights += np.float32(self.rate) * total / np.maximum(count, 1)
        return error.astype(np.float32)


class OneHot(gym.ObservationWrapper[Array, int, int]):
    """A discrete observation as a row of zeros and a one."""

    def __init__(self, env: gym.Env[int, int]) -> None:
        super().__init__(env)
        self.size = int(env.observation_space.n)  # type: ignore[attr-defined]
        self.observation_space = gym.spaces.Box(0, 1, (self.size,), np.uint8)

    def observation(self, observation: int) -> Array:
        """``(size,)`` uint8."""
        row = np.zeros(self.size, np.uint8)
        row[observation] = 1
        return row
