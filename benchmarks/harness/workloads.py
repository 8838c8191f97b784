"""The simulators that the benchmarks step, by name: Breakout, and some of a known cost.

All observations are 84x84 gray. A workload is a name; contenders turn it into a factory.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SHAPE = (84, 84)
EPISODE_STEPS = 1000
NUM_ACTIONS = 4

Environment = Any
Factory = Callable[[], Environment]


class Simulator(gymnasium.Env[np.ndarray, int]):
    """Gives one frame again and again; `cost` says what a step takes.

    Args:
        cost: called in each step with the step's number; computes or sleeps.
    """

    observation_space = spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = spaces.Discrete(NUM_ACTIONS)  # type: ignore[assignment]

    def __init__(self, cost: Callable[[int], None] | None = None) -> None:
        self._cost = cost
        self._frame = np.full(SHAPE, 7, np.uint8)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode of `EPISODE_STEPS` steps."""
        return self._frame, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pay the cost."""
        self._steps += 1
        if self._cost is not None:
            self._cost(self._steps)
        return self._frame, 0.0, self._steps % EPISODE_STEPS == 0, False, {}


def burn(milliseconds: float) -> None:
    """Compute in Python, holding the GIL.

    Args:
        milliseconds: of this thread's own CPU time, so that waiting for the GIL doesn't count.
    """
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        for _ in range(20):
            pass


def burn_evenly(milliseconds: float, step: int) -> None:
    """The same in every step."""
    burn(milliseconds)


def sleep_5_ms(step: int) -> None:
    """A simulator that waits for something else, without the CPU."""
    time.sleep(0.005)


class Uneven(Simulator):
    """Most steps take 1 ms of CPU, one in 50, drawn at random, 50 ms."""

    def __init__(self) -> None:
        slow = (np.random.default_rng().random(10_007) < 1 / 50).tolist()
        super().__init__(lambda step: burn(50.0 if slow[step % len(slow)] else 1.0))


def breakout() -> Environment:
    """Breakout as mprunner plays it: frame skip 4, 84x84 gray, maximum of two frames."""
    from mprunner.atari import AtariPlayer

    return AtariPlayer("breakout")


def breakout_stock() -> Environment:
    """The same with gymnasium's own wrapper, as its documentation sets it up."""
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    return AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)


_FACTORIES: dict[str, Factory] = {
    "breakout": breakout,
    "breakout_stock": breakout_stock,
    "null": Simulator,
    "cpu_0.1": functools.partial(Simulator, functools.partial(burn_evenly, 0.1)),
    "cpu_1": functools.partial(Simulator, functools.partial(burn_evenly, 1.0)),
    "cpu_5": functools.partial(Simulator, functools.partial(burn_evenly, 5.0)),
    "uneven": Uneven,
    "sleep_5": functools.partial(Simulator, sleep_5_ms),
}


def factory(workload: str) -> Factory:
    """A factory of the simulator called `workload`."""
    return _FACTORIES[workload]
