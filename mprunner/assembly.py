"""What a manager is made of, checked before anything starts.

Owns the checks of a manager's arguments and the names of the backends. Starts nothing.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mprunner.backends.base import Backend, Settings
from mprunner.checks import at_least, one_of, seconds
from mprunner.errors import ConfigurationError, WorkerError
from mprunner.player import is_environment
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner

_log = logging.getLogger("mprunner")

_BACKENDS = {
    "inline": "mprunner.backends.inline:InlineBackend",
    "thread": "mprunner.backends.thread:ThreadBackend",
    "process": "mprunner.backends.process:ProcessBackend",
    "ray": "mprunner.backends.ray:RayBackend",
}


def checked_settings(
    backend: str | None,
    seed: int | None,
    *,
    maximum_staleness: int,
    start_method: str | None,
    on_failure: str,
    on_restart: Callable[[WorkerError], None] | None,
    max_restarts: int,
    restart_window: float,
    step_timeout: float | None,
    start_timeout: float,
    close_timeout: float,
    deterministic: bool,
    max_batch_size: int | None,
    address: str | None,
    resources_per_runner: Mapping[str, float] | None,
) -> Settings:
    """A manager's arguments as settings; see `EnvRunnerManager` for each.

    Raises:
        ConfigurationError: one is out of range, or two cannot go together.
    """
    if backend != "ray" and not (address is None and resources_per_runner is None):
        raise ConfigurationError(
            "address and resources_per_runner are for backend='ray' alone; the backend is "
            f"{backend!r}"
        )
    if deterministic and on_failure == "restart":
        raise ConfigurationError(
            "deterministic=True cannot go with on_failure='restart': what a lost worker "
            "takes with it cannot be repeated"
        )
    return Settings(
        entropy=_entropy(seed),
        maximum_staleness=at_least("maximum_staleness", maximum_staleness, 1),
        start_method=start_method,
        on_failure=one_of("on_failure", on_failure, ("raise", "restart")),
        on_restart=on_restart,
        max_restarts=at_least("max_restarts", max_restarts, 0),
        restart_window_s=seconds("restart_window", restart_window),
        step_timeout=None if step_timeout is None else seconds("step_timeout", step_timeout),
        start_timeout=seconds("start_timeout", start_timeout),
        close_timeout=seconds("close_timeout", close_timeout),
        deterministic=bool(deterministic),
        max_batch_size=(
            None if max_batch_size is None else at_least("max_batch_size", max_batch_size, 1)
        ),
        ray_address=address,
        resources_per_runner=resources_per_runner or {"CPU": 1},
    )


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
    module, _, attribute = _BACKENDS[one_of("backend", name, tuple(_BACKENDS))].partition(":")
    kind: Callable[..., Backend] = getattr(importlib.import_module(module), attribute)
    return kind


def _entropy(seed: int | None) -> int:
    if seed is not None:
        return at_least("seed", seed, 0)
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    _log.info("seed=%d repeats this run's random numbers", entropy)
    return entropy
