"""The runners of a manager, checked before anything starts, and the names of the backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from mprunner.backends.base import Backend
from mprunner.errors import ConfigurationError
from mprunner.player import is_environment
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner

_BACKENDS = {
    "inline": "mprunner.backends.local:InlineBackend",
    "thread": "mprunner.backends.thread:ThreadBackend",
    "process": "mprunner.backends.process.backend:ProcessBackend",
    "ray": "mprunner.backends.ray.backend:RayBackend",
}


def checked_runners(env_runners: Sequence[EnvRunner]) -> list[EnvRunner]:
    """The runners of one manager: some, each once, with one memory and players of their own."""
    runners = list(env_runners)
    if not runners:
        raise ConfigurationError("env_runners is empty; expected at least one EnvRunner")
    players: dict[int, int] = {}
    for i, runner in enumerate(runners):
        if not isinstance(runner, EnvRunner):
            raise ConfigurationError(
                f"env_runners[{i}] is {type(runner).__name__}; expected an EnvRunner"
            )
        if runner in runners[:i]:
            raise ConfigurationError(f"env_runners[{i}] is in the list twice")
        if runner.memory is not runners[0].memory:
            raise ConfigurationError(
                f"env_runners[{i}] has another memory than env_runners[0]; all runners of a "
                "manager share one"
            )
        if is_environment(runner.player):
            key = id(getattr(runner.player, "unwrapped", runner.player))
            if key in players:
                raise ConfigurationError(
                    f"env_runners[{players[key]}] and env_runners[{i}] have the same "
                    "environment; make one for each, or pass a factory"
                )
            players[key] = i
    return runners


def local_predictors(runners: Sequence[EnvRunner]) -> list[LocalPredictor]:
    """Each `LocalPredictor` that some of the runners have, once."""
    distinct: dict[int, LocalPredictor] = {}
    for runner in runners:
        if isinstance(runner.predictor, LocalPredictor):
            distinct[id(runner.predictor)] = runner.predictor
    return list(distinct.values())


def backend_class(name: str) -> Callable[..., Backend]:
    """The class behind a backend's name; it is imported only when it is asked for."""
    module, _, attribute = _BACKENDS[name].partition(":")
    kind: Callable[..., Backend] = getattr(importlib.import_module(module), attribute)
    return kind
