"""The arguments of ``mprunner collect``: names, checks, defaults, and what they stand for."""

from __future__ import annotations

import argparse
import importlib
import math
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mprunner.cli.simulators import Simulator
from mprunner.errors import ConfigurationError
from mprunner.rows import ROW
from mprunner.settings import BackendName, FailureAction, StartMethod
from mprunner.predictors import LocalPredictor, PredictorFn

RANDOM = "random"
_POLICY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_IMAGE_HISTORY = 4
#: The most that a memory takes by default.
_MEMORY_BYTES = 1 << 30
#: The fewest rows per runner by default, whatever their size.
_LEAST_ROWS = 256


@dataclass(frozen=True)
class CollectOptions:
    """What a run was asked for; None: a default that depends on the simulator."""

    env_id: str
    num_runners: int
    steps: int
    backend: BackendName | None
    address: str | None
    exploration: float
    policy: str
    memory_size: int | None
    history_len: int | None
    seed: int
    num_steps_per_job: int
    maximum_staleness: int
    on_failure: FailureAction
    start_method: StartMethod | None
    save: Path | None
    tensorboard: Path | None
    json: bool
    verbose: bool

    @classmethod
    def from_namespace(
        cls, parser: argparse.ArgumentParser, namespace: argparse.Namespace
    ) -> CollectOptions:
        """Return options from parsed arguments; exit with 2 if they contradict each other."""
        values = {name: getattr(namespace, name) for name in cls.__dataclass_fields__}
        if values["policy"] == RANDOM and values["exploration"] < 1.0:
            parser.error("--exploration below 1 needs a --policy to follow the rest of the time")
        if values["address"] is not None and values["backend"] != "ray":
            parser.error("--address is that of a Ray cluster: it needs --backend ray")
        if values["seed"] is None:
            values["seed"] = secrets.randbits(32)
        if values["maximum_staleness"] is None:
            values["maximum_staleness"] = 2 * values["num_runners"] * values["num_steps_per_job"]
        return cls(**values)

    @property
    def backend_name(self) -> str:
        """The backend that the manager uses."""
        return self.backend or ("inline" if self.num_runners == 1 else "process")

    def history_of(self, simulator: Simulator) -> int:
        """Return the frames per state: by default 4 of images, 1 of vectors."""
        if self.history_len is not None:
            return self.history_len
        return _IMAGE_HISTORY if simulator.is_image else 1

    def memory_rows(self, simulator: Simulator) -> int:
        """Return the rows of the memory: by default enough for every step, up to 1 GiB.

        An episode takes a row more than it has steps, so two rows per step are always enough,
        unless a runner does much more than its share.
        """
        if self.memory_size is not None:
            return self.memory_size
        row_bytes = math.prod(simulator.state_shape) * simulator.dtype.itemsize + ROW.itemsize
        least = (_LEAST_ROWS + self.history_of(simulator)) * self.num_runners
        return max(min(2 * self.steps, _MEMORY_BYTES // row_bytes), least)

    def predictor(self) -> PredictorFn | LocalPredictor | None:
        """Return what the policy's factory makes; None for random actions.

        Raises:
            ConfigurationError: there is no such function, it failed, or it made no predictor.
        """
        if self.policy == RANDOM:
            return None
        make = _policy_factory(self.policy)
        try:
            predictor = make()
        except Exception as error:
            raise ConfigurationError(
                f"--policy {self.policy} failed: {type(error).__name__}: {error}"
            ) from error
        if not callable(predictor) and not isinstance(predictor, LocalPredictor):
            raise ConfigurationError(
                f"--policy {self.policy} returned {type(predictor).__name__}; expected a "
                "callable or a LocalPredictor"
            )
        return predictor  # type: ignore[no-any-return]


def _policy_factory(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function_name, None)
    except Exception as error:
        raise ConfigurationError(
            f"--policy {name}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"--policy {name}: the module {module_name} has no function {function_name}"
        )
    return found  # type: ignore[no-any-return]


def add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them all."""
    parser.add_argument(
        "env_id",
        metavar="ENV_ID",
        help="ALE/..., or any gymnasium id with a Box observation of 1 to 3 dimensions and a "
        "Discrete action space",
    )
    _add_work(parser.add_argument_group("the work").add_argument)
    _add_pool(parser.add_argument_group("the pool").add_argument)
    _add_output(parser.add_argument_group("the output").add_argument)


def _add_work(add: Callable[..., Any]) -> None:
    add("--steps", type=_positive, default=20_000, metavar="N", help="to collect; default: 20000")
    add("--exploration", type=_share, default=1.0, metavar="EPSILON",
        help="share of random actions, 0 to 1; default: 1")
    add("--policy", type=_policy, default=RANDOM, metavar="MODULE:FUNCTION",
        help="a function without arguments that makes a predictor, or random, the default")
    add("--memory-size", type=_positive, metavar="ROWS",
        help="rows of the replay memory; default: enough for every step, up to 1 GiB")
    add("--history-len", type=_positive, metavar="N",
        help="frames per state; default: 4 for images, 1 for vectors")
    add("--seed", type=_natural, metavar="N",
        help="of the simulators and actions; default: a new one, shown at the end")


def _add_pool(add: Callable[..., Any]) -> None:
    add("--num-runners", type=_positive, default=2, metavar="N",
        help="simulators, one worker each; default: 2")
    add("--backend", choices=("process", "thread", "inline", "ray"),
        help="default: process; inline for one runner; ray: in a Ray cluster")
    add("--address", metavar="HOST:PORT",
        help="of the Ray cluster; default: the one that runs here, else a new one")
    add("--num-steps-per-job", type=_positive, default=16, metavar="N",
        help="that a runner is asked for at once; default: 16")
    add("--maximum-staleness", type=_positive, metavar="N",
        help="the most steps asked for and not yet executed; default: two jobs per runner")
    add("--on-failure", choices=("raise", "restart"), default="raise",
        help="of a runner: end with its error, or replace it; default: raise")
    add("--start-method", choices=("forkserver", "spawn"),
        help="of the processes; default: forkserver, or spawn where there is none")


def _add_output(add: Callable[..., Any]) -> None:
    add("--save", type=Path, metavar="FILE", help="write the memory, however the run ends")
    add("--tensorboard", type=Path, metavar="DIR", help="write the statistics for TensorBoard")
    add("--json", action="store_true", help="print one JSON object, for scripts")
    add("--verbose", action="store_true",
        help="a table of the workers (percent of their time in the player, waiting for a job, "
        "for a prediction, for a free block), log messages, and tracebacks of errors")


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, found {text!r}"
        )
    return value


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def _policy(text: str) -> str:
    if text != RANDOM and not _POLICY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION or {RANDOM}, found {text!r}")
    return text
