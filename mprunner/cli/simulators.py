"""From an id to a simulator: its factory, and what a memory for it must hold.

An id names a game of the extra ``atari`` or anything that gymnasium makes. Workers import this
module, so it imports little.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from mprunner.atari import AtariPlayer
from mprunner.errors import ConfigurationError, MprunnerError

_ATARI = "ALE/"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Simulator:
    """A simulator that the pool can run.

    Attributes:
        make: a factory; it can be sent to a worker.
        state_shape: of an observation, 1 to 3 dimensions.
        dtype: of an observation.
        remarks: gymnasium's warnings when it was made.
    """

    make: Callable[[], Any]
    state_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    remarks: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Two or three dimensions."""
        return len(self.state_shape) > 1


def find_simulator(env_id: str) -> Simulator:
    """Make the simulator once, check its spaces, and close it.

    Args:
        env_id: "ALE/..." for an `AtariPlayer`, else an id that gymnasium knows
            ("CartPole-v1", "module:Env-v0").

    Raises:
        ConfigurationError: it can't be made, or has other spaces than a Box of 1 to 3
            dimensions and a Discrete.
    """
    make: Callable[[], Any]
    if env_id.startswith(_ATARI):
        make = functools.partial(AtariPlayer, env_id)
    else:
        make = functools.partial(make_gymnasium, env_id)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        env = _made(env_id, make)
        try:
            shape, dtype = _checked_spaces(env_id, env)
        finally:
            env.close()
    remarks = (_COLOUR.sub("", str(item.message)).removeprefix("WARN: ") for item in caught)
    return Simulator(make, shape, dtype, tuple(dict.fromkeys(remarks)))


def make_gymnasium(env_id: str) -> Any:
    """``gymnasium.make`` without its checks of each step; our own are made anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once, by the parent
        return gymnasium.make(env_id, disable_env_checker=True)


def _made(env_id: str, make: Callable[[], Any]) -> Any:
    try:
        if env_id.startswith(_ATARI):
            return make()
        return gymnasium.make(env_id, disable_env_checker=True)
    except MprunnerError:
        raise
    except gymnasium.error.Error as error:
        raise ConfigurationError(str(error)) from error
    except Exception as error:
        raise ConfigurationError(
            f"{env_id} can't be made: {type(error).__name__}: {error}"
        ) from error


def _checked_spaces(env_id: str, env: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    observations, actions = env.observation_space, env.action_space
    if not isinstance(observations, gymnasium.spaces.Box) or not (
        1 <= len(observations.shape) <= 3
    ):
        raise ConfigurationError(
            f"{env_id} has the observation space {_brief(observations)}; "
            "expected a Box of 1 to 3 dimensions"
        )
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise ConfigurationError(
            f"{env_id} has the action space {_brief(actions)}; expected a Discrete one"
        )
    return observations.shape, observations.dtype


def _brief(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
