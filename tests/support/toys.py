"""Players, predictors and runners that each prove one thing. Light, like `tests.support.tagged`."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from mprunner.runner import EnvRunner
from tests.support.tagged import TAG_SHAPE, Discrete, TagPlayer

NUM_ACTIONS = 4


class AwkwardError(Exception):
    """Cannot be pickled: two arguments, and something that only its process has."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"code {code} from {what}")
        self.lock = threading.Lock()


class FaultyPlayer(TagPlayer):
    """Raises at one place.

    Args:
        where: "factory", "reset" (the first), "next reset", "step" (the third) or "close".
        error: what is raised; None: an `AwkwardError`.
    """

    def __init__(
        self, *args: Any, where: str, error: BaseException | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._where, self._error = where, error
        self._raise_in("factory")

    def _raise_in(self, place: str) -> None:
        if place == self._where:
            raise self._error or AwkwardError(7, place)

    def reset(self, **options: Any) -> Any:
        self._raise_in("reset" if self.episode < 0 else "next reset")
        return super().reset(**options)

    def step(self, action: int) -> Any:
        if self.at == 2:
            self._raise_in("step")
        return super().step(action)

    def close(self) -> None:
        super().close()
        self._raise_in("close")


class InterruptedPlayer(TagPlayer):
    """Raises once, in its second episode.

    Args:
        where: "before step", "after step", "before reset" or "after reset", as to what is done.
        error: what is raised.
    """

    def __init__(self, *args: Any, where: str, error: BaseException, **options: Any) -> None:
        super().__init__(*args, **options)
        self._where, self._error = where, error

    def _pass(self, place: str) -> None:
        if place == self._where and self.episode >= 1 and self.at != 1:
            self._where = "nowhere"
            raise self._error

    def reset(self, **options: Any) -> Any:
        self._pass("before reset")
        result = super().reset(**options)
        self._pass("after reset")
        return result

    def step(self, action: int) -> Any:
        self._pass("before step")
        result = super().step(action)
        self._pass("after step")
        return result


class LegacyPlayer(TagPlayer):
    """As old gym: reset without a seed gives the observation alone, a step four things."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]

    def step(self, action: int) -> Any:  # type: ignore[override]
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated:
            info["TimeLimit.truncated"] = not terminated
        return observation, reward, terminated or truncated, info


class SeededPlayer:
    """Shows (runner, its seed, resets that were given one, a draw of its own)."""

    action_space = Discrete(1000)

    def __init__(self, runner: int) -> None:
        self._runner = runner
        self._seed, self._num_seeds, self._at = -1, 0, 0

    def _observe(self) -> np.ndarray:
        draw = int(self._rng.integers(2**31))
        return np.array([self._runner, self._seed, self._num_seeds, draw], np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._seed, self._num_seeds = seed, self._num_seeds + 1
            self._rng = np.random.default_rng(seed)
        self._at = 0
        return self._observe(), {}

    def step(self, action: int) -> Any:
        self._at += 1
        return self._observe(), float(action), self._at == 5, False, {}


class BitsPlayer:
    """Observations and rewards of random bits, the same for the same runner and step."""

    action_space = Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._at = 0

    def observation(self, at: int) -> np.ndarray:
        """The `at`-th, counted from 0."""
        size = int(np.prod(self._shape)) * self._dtype.itemsize
        raw = np.random.default_rng(at).integers(256, size=size, dtype=np.uint8)
        if self._dtype == np.bool_:
            raw &= 1
        return raw.view(self._dtype).reshape(self._shape)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation(self._at), {}

    def step(self, action: int) -> Any:
        self._at += 1
        return self.observation(self._at), 0.0, False, False, {}


class ThreadsPlayer(TagPlayer):
    """Shows how many threads OMP, OpenBLAS and MKL may have, and how many there are."""

    def _observe(self, action: int) -> np.ndarray:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        allowed = [int(os.environ.get(name, -1)) for name in names]
        return np.array([*allowed, len(os.listdir("/proc/self/task"))], self.dtype)


class FramesPlayer(TagPlayer):
    """Frames of 84x84, a new array each."""

    def _observe(self, action: int) -> np.ndarray:
        return np.full((84, 84), self.at % 256, np.uint8)


class EpsilonRunner(EnvRunner):
    """The action says which epsilon it was chosen with, in thousandths."""

    def act(self, state: np.ndarray, exploration: float) -> int:
        return round(exploration * 1000)


def probe(states: np.ndarray) -> np.ndarray:
    """An action for each state ``(B, 4, history_len)`` that depends on every number in it."""
    weights = np.arange(1, states[0].size + 1, dtype=np.int64).reshape(states.shape[1:])
    mixed = (states.astype(np.int64) + 11) * (weights * weights * 7919 + 13)
    return (mixed.sum(axis=tuple(range(1, states.ndim))) % 10007) % NUM_ACTIONS


def probe_q(states: np.ndarray) -> np.ndarray:
    """Q values whose best action is the `probe`."""
    return np.eye(NUM_ACTIONS)[probe(states)]


class ProbeModel:
    """`probe_q` beside the player."""

    def set_weights(self, weights: Any) -> None:
        pass

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return probe_q(states)


class GreedyModel:
    """Always the action that its weights name."""

    def set_weights(self, weights: Any) -> None:
        self._best = int(weights["best"][0])

    def __call__(self, states: np.ndarray) -> np.ndarray:
        q = np.zeros((len(states), NUM_ACTIONS), np.float32)
        q[:, self._best] = 1
        return q


class SlowModel(ProbeModel):
    """Takes longer than any player here."""

    def __call__(self, states: np.ndarray) -> np.ndarray:
        time.sleep(0.1)
        return super().__call__(states)


class RaisingModel:
    """Fails at its first state."""

    def set_weights(self, weights: Any) -> None:
        pass

    def __call__(self, states: np.ndarray) -> np.ndarray:
        raise AwkwardError(9, "the model")


class ScribblingModel(ProbeModel):
    """Normalises its input in place, as careless code does."""

    def __call__(self, states: np.ndarray) -> np.ndarray:
        q = probe_q(states)
        states[...] = 0
        return q


def greedy(best: int) -> Any:
    """The weights of a `GreedyModel`."""
    return {"best": np.array([best], np.int32), "ballast": np.full(TAG_SHAPE, best, np.float32)}
