"""One interface to gymnasium environments, older gym ones and anything like them, checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mprunner.errors import ConfigurationError, PlayerError
from mprunner.experience import Array

#: A row holds a float32.
_MAX_REWARD = float(np.finfo(np.float32).max)


class Outcome(NamedTuple):
    """What one step of a player gave.

    Attributes:
        observation: ``state_shape`` in the memory's dtype; may be the player's own buffer.
        reward: finite as float32, unclipped.
        terminated: the episode ended by its rules, or a life was lost.
        truncated: the episode was cut; always the end of the game.
        game_over: the score is complete. False at a lost life.
    """

    observation: Array
    reward: float
    terminated: bool
    truncated: bool
    game_over: bool


def is_environment(player: Any) -> bool:
    """True for an environment, False for a factory of one (a class is a factory)."""
    return not inspect.isclass(player) and hasattr(player, "step") and hasattr(player, "reset")


def check_player(player: Any) -> None:
    """Raise ConfigurationError unless `player` is an environment or a factory."""
    if not is_environment(player) and not callable(player):
        raise ConfigurationError(
            f"player is {type(player).__name__} {player!r:.80}; expected a factory (a callable "
            "without arguments that makes an environment) or an environment"
        )


class Player:
    """A simulator behind one set of calls.

    Args:
        source: a factory or an environment; a factory is called here, exactly once.
        state_shape: of one observation.
        dtype: of the memory; an observation is cast only where nothing can be lost.

    Attributes:
        num_actions: size of the action space.

    Raises:
        ConfigurationError: the action space is not Discrete.
    """

    def __init__(
        self, source: Any, state_shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        check_player(source)
        self._env = source if is_environment(source) else _made_by(source)
        self._shape = state_shape
        self._dtype = dtype
        self._closed = False
        if not is_environment(self._env):
            raise PlayerError(
                f"the player's factory returned {type(self._env).__name__}; expected an "
                "environment with reset() and step(action)"
            )
        self.num_actions, self._start = _discrete(self._env)
        self._step = self._env.step

    def reset(self, seed: int | None = None) -> Array:
        """Begin an episode.

        Args:
            seed: for the player's own randomness; pass it once, at the first reset.

        Returns:
            The first observation, ``state_shape``.

        Raises:
            PlayerError: the observation does not fit the memory.
        """
        if seed is None:
            result = self._env.reset()
        elif _takes_seed(self._env.reset):
            result = self._env.reset(seed=seed)
        else:
            if callable(getattr(self._env, "seed", None)):
                self._env.seed(seed)
            result = self._env.reset()
        # gymnasium gives (observation, info); gym gave the observation alone, which may itself
        # be a tuple of two, but never with a mapping in second place.
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
            result = result[0]
        return self._checked(result, "reset()")

    def step(self, action: int) -> Outcome:
        """Do one action, counted from 0 whatever the space's ``start``.

        Raises:
            PlayerError: the answer is no step of gymnasium or gym, the observation does not
                fit the memory, or the reward is not a finite number.
        """
        result = self._step(action + self._start)
        try:
            if len(result) == 5:
                observation, reward, terminated, truncated, info = result
                terminated, truncated = bool(terminated), bool(truncated)
            else:
                observation, reward, done, info = result
                truncated = bool(done) and bool(_get(info, "TimeLimit.truncated", False))
                terminated = bool(done) and not truncated
        except (TypeError, ValueError):
            raise PlayerError(
                f"step() returned {_describe(result)}; expected (observation, reward, "
                "terminated, truncated, info) or the older (observation, reward, done, info)"
            ) from None
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not abs(value) <= _MAX_REWARD:
            raise PlayerError(
                f"step() returned the reward {reward!r:.80}; expected a finite number (float32)"
            )
        game_over = truncated or (terminated and not _lives(info) > 0)
        return Outcome(
            self._checked(observation, "step()"), value, terminated, truncated, game_over
        )

    def close(self) -> None:
        """Close the environment; only the first call does."""
        if not self._closed:
            self._closed = True
            close = getattr(self._env, "close", None)
            if callable(close):
                close()

    def _checked(self, observation: Any, call: str) -> Array:
        if type(observation) is not np.ndarray:
            try:
                observation = np.asarray(observation)
            except ValueError:
                observation = np.empty(0, dtype=object)
        if observation.shape != self._shape:
            raise PlayerError(
                f"{call} returned an observation of shape {observation.shape}; "
                f"the memory's state_shape is {self._shape}"
            )
        # The same object, for the common types: asked first, as it is much cheaper.
        if observation.dtype is not self._dtype and observation.dtype != self._dtype:
            if not np.can_cast(observation.dtype, self._dtype, "safe"):
                raise PlayerError(
                    f"{call} returned an observation of dtype {observation.dtype}, which the "
                    f"memory's dtype {self._dtype} cannot hold without loss; "
                    "convert it in the player, or give the memory that dtype"
                )
            observation = observation.astype(self._dtype)
        return observation  # type: ignore[no-any-return]


def _made_by(factory: Callable[[], Any]) -> Any:
    """What `factory` makes; an environment unknown to gymnasium's registry gets a hint."""
    try:
        return factory()
    except Exception as error:
        if any(kind.__name__ == "UnregisteredEnv" for kind in type(error).__mro__):
            error.args = (
                f"{error} The factory runs where the player is stepped, maybe in another "
                "process: register it inside the factory.",
            )
        raise


def _discrete(env: Any) -> tuple[int, int]:
    """Number of actions and the first one, of a Discrete space."""
    space = getattr(env, "action_space", None)
    num_actions = getattr(space, "n", None)
    if not isinstance(num_actions, (int, np.integer)) or num_actions < 1:
        raise ConfigurationError(
            f"the player's action space is {space!r:.200}; expected a Discrete space"
        )
    return int(num_actions), int(getattr(space, "start", 0))


def _takes_seed(reset: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def _get(info: Any, key: str, default: Any) -> Any:
    return info.get(key, default) if isinstance(info, Mapping) else default


def _lives(info: Any) -> float:
    """Lives left, or 0 where the player doesn't tell."""
    lives = _get(info, "lives", None)
    if lives is None:
        lives = _get(info, "ale.lives", None)
    try:
        return 0 if lives is None else float(lives)
    except (TypeError, ValueError):
        raise PlayerError(
            f"step() returned an info with the lives {lives!r:.80}; expected a number"
        ) from None


def _describe(result: Any) -> str:
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)} items"
    return f"{type(result).__name__}"
