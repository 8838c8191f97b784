"""Every option of a manager, once: its default, its check, and the backends that have it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mprunner.checks import at_least, one_of, seconds
from mprunner.errors import ConfigurationError, WorkerError

BackendName = Literal["inline", "thread", "process", "ray"]
FailureAction = Literal["raise", "restart"]
StartMethod = Literal["forkserver", "spawn"]

_log = logging.getLogger("mprunner")
_WATCHED = ("thread", "process", "ray")
#: Options that only some backends can keep. Elsewhere they are refused, unless left at None.
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "start_method": ("process",),
    "step_timeout": _WATCHED,
    "start_timeout": _WATCHED,
    "close_timeout": _WATCHED,
    "address": ("ray",),
    "resources_per_runner": ("ray",),
}


@dataclass(frozen=True)
class Settings:
    """What a manager was asked for; see `EnvRunnerManager` for the meaning of each option.

    Raises:
        ConfigurationError: an option is out of range, or two cannot go together.
    """

    maximum_staleness: int
    backend: BackendName
    seed: int | None = None
    start_method: StartMethod | None = None
    on_failure: FailureAction = "raise"
    on_restart: Callable[[WorkerError], None] | None = None
    max_restarts: int = 3
    restart_window: float = 60.0
    step_timeout: float | None = None
    start_timeout: float | None = None
    close_timeout: float | None = None
    deterministic: bool = False
    max_batch_size: int | None = None
    address: str | None = None
    resources_per_runner: Mapping[str, float] | None = None
    #: Of all random numbers: the seed, or fresh entropy.
    entropy: int = field(init=False)

    def __post_init__(self) -> None:
        one_of("backend", self.backend, ("inline", "thread", "process", "ray"))
        for name, backends in _ONLY_FOR.items():
            if getattr(self, name) is not None and self.backend not in backends:
                raise ConfigurationError(
                    f"{name} is for {_either(backends)}; the backend is {self.backend!r}"
                )
        self._set("maximum_staleness", at_least("maximum_staleness", self.maximum_staleness, 1))
        self._set("entropy", _entropy(self.seed))
        if self.start_method is not None:
            _check_start_method(self.start_method)
        one_of("on_failure", self.on_failure, ("raise", "restart"))
        self._set("max_restarts", at_least("max_restarts", self.max_restarts, 0))
        self._set("restart_window", seconds("restart_window", self.restart_window))
        if self.step_timeout is not None:
            self._set("step_timeout", seconds("step_timeout", self.step_timeout))
        for name, default in (("start_timeout", 60.0), ("close_timeout", 5.0)):
            value = getattr(self, name)
            self._set(name, default if value is None else seconds(name, value))
        if self.max_batch_size is not None:
            self._set("max_batch_size", at_least("max_batch_size", self.max_batch_size, 1))
        if self.deterministic and self.on_failure == "restart":
            raise ConfigurationError(
                "deterministic=True cannot go with on_failure='restart': what a lost worker "
                "takes with it cannot be repeated"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def start_limit_s(self) -> float:
        """Seconds until a player must stand at its first observation."""
        assert self.start_timeout is not None
        return self.start_timeout

    @property
    def close_limit_s(self) -> float:
        """Seconds that the workers have to finish when the pool closes."""
        assert self.close_timeout is not None
        return self.close_timeout

    def seed_of(self, worker: int, restart: int = 0) -> np.random.SeedSequence:
        """The seed of one start of one runner; never the same twice in a run."""
        return np.random.SeedSequence(self.entropy, spawn_key=(worker, restart))


def _either(backends: tuple[str, ...]) -> str:
    names = [f"backend={name!r}" for name in backends]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _check_start_method(method: str) -> None:
    if method == "fork":
        raise ConfigurationError(
            "start_method is 'fork'; expected 'forkserver' or 'spawn': the parent has threads, so "
            "a forked child may inherit a lock that is held and wait for it for ever"
        )
    one_of("start_method", method, ("forkserver", "spawn"))


def _entropy(seed: int | None) -> int:
    if seed is not None:
        return at_least("seed", seed, 0)
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    _log.info("seed=%d repeats this run's random numbers", entropy)
    return entropy
