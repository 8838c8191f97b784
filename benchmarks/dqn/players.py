"""What the workers of a DQN run need: players, and a network in plain numpy.

Imported in the workers, so it must not import torch: a worker is ready in a fraction of the
time that such an import takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from benchmarks.dqn.config import Config
from benchmarks.harness.workloads import burn
from mprunner.atari import AtariPlayer

Array = npt.NDArray[Any]


class CpuHeavy(gym.Wrapper[Any, Any, Any, Any]):
    """Burns CPU time in Python at each step, as a simulator written in Python does.

    Args:
        env: to be wrapped.
        seconds: of CPU per step.
    """

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        burn(1000 * self._seconds)
        return self.env.step(action)


class FixedGames(gym.Wrapper[Any, Any, Any, Any]):
    """Plays a number of games and then stands still in one that never ends.

    So a pool scores exactly that many games, whoever of its runners is faster: to stop at the
    first so many games that end would favour the short ones.

    Args:
        env: whose episodes are whole games.
        games: to be played.
    """

    def __init__(self, env: gym.Env[Any, Any], games: int) -> None:
        super().__init__(env)
        self._left = games
        self._last: Any = None

    def reset(self, **options: Any) -> Any:
        """See `gymnasium.Env.reset`."""
        if self._left and self._last is not None:
            self._left -= 1
        if not self._left:
            return self._last, {}
        self._last, info = self.env.reset(**options)
        return self._last, info

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        if not self._left:
            return self._last, 0.0, False, False, {}
        outcome = self.env.step(action)
        self._last = outcome[0]
        return outcome


class MlpModel:
    """The network for vectors, `benchmarks.dqn.nets.VectorNet`, as a `LocalPredictor`'s model."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Array] = {}
        self._hidden: list[tuple[Array, Array]] = []
        self._scale: Array = np.ones(1, np.float32)

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Take over a ``state_dict`` as arrays."""
        self._scale = weights["body.0.scale"]
        layers = [n.removesuffix(".bias") for n in weights if n.startswith("body") and "bias" in n]
        self._hidden = [(weights[f"{n}.weight"].T, weights[f"{n}.bias"]) for n in layers]
        self._weights = weights

    def __call__(self, states: Array) -> Array:
        """``(B, *state_shape, history_len)`` to Q ``(B, num_actions)``."""
        x = np.moveaxis(states, -1, 1).reshape(len(states), -1) * self._scale
        for weight, bias in self._hidden:
            x = np.maximum(x @ weight + bias, 0)
        weights = self._weights
        q = x @ weights["advantage.weight"].T + weights["advantage.bias"]
        if "value.weight" in weights:
            value = x @ weights["value.weight"].T + weights["value.bias"]
            q = value + q - q.mean(axis=1, keepdims=True)
        return q


def training_player(config: Config) -> Any:
    """A factory of players that collect; a lost life ends an episode in Atari."""
    return partial(_make, config, True)


def evaluation_player(config: Config, games: int) -> Any:
    """A factory of players of whole games, so many and no more; at their natural speed."""
    return partial(_make_fixed, config, games)


def _make_fixed(config: Config, games: int) -> gym.Env[Any, Any]:
    return FixedGames(_make(config, False), games)


def _make(config: Config, training: bool) -> gym.Env[Any, Any]:
    if config.atari:
        return AtariPlayer(config.env, life_loss_terminates=training)
    env = gym.make(config.env, disable_env_checker=True)
    if training and config.step_cost_s:
        env = CpuHeavy(env, config.step_cost_s)
    return env
