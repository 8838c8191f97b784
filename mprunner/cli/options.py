"""The arguments of ``mprunner collect``: their names, checks and defaults."""

from __future__ import annotations

import argparse
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from mprunner.cli.policies import RANDOM

_POLICY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class CollectOptions:
    """What a run was asked for; None: a default that depends on the simulator."""

    env_id: str
    num_runners: int
    steps: int
    backend: str | None
    address: str | None
    exploration: float
    policy: str
    memory_size: int | None
    history_len: int | None
    seed: int
    num_steps_per_job: int
    maximum_staleness: int
    on_failure: str
    start_method: str | None
    save: Path | None
    tensorboard: Path | None
    json: bool
    verbose: bool

    @classmethod
    def from_namespace(
        cls, parser: argparse.ArgumentParser, namespace: argparse.Namespace
    ) -> CollectOptions:
        """Options from parsed arguments; ends the process with 2 if they contradict."""
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


def add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them all."""
    parser.add_argument(
        "env_id",
        metavar="ENV_ID",
        help="ALE/..., or any gymnasium id with a Box observation of 1 to 3 dimensions and a "
        "Discrete action space",
    )
    _add_work(parser.add_argument_group("the work"))
    _add_pool(parser.add_argument_group("the pool"))
    _add_output(parser.add_argument_group("the output"))


def _add_work(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--steps",
        type=_positive,
        default=20_000,
        metavar="N",
        help="to collect; default: 20000",
    )
    group.add_argument(
        "--exploration",
        type=_share,
        default=1.0,
        metavar="EPSILON",
        help="share of random actions, 0 to 1; default: 1",
    )
    group.add_argument(
        "--policy",
        type=_policy,
        default=RANDOM,
        metavar="MODULE:FUNCTION",
        help="a function without arguments that makes a predictor, or random, which is the default",
    )
    group.add_argument(
        "--memory-size",
        type=_positive,
        metavar="ROWS",
        help="rows of the replay memory; default: enough for every step, up to 1 GiB",
    )
    group.add_argument(
        "--history-len",
        type=_positive,
        metavar="N",
        help="frames per state; default: 4 for images, 1 for vectors",
    )
    group.add_argument(
        "--seed",
        type=_natural,
        metavar="N",
        help="of the simulators and actions; default: a new one, shown at the end",
    )


def _add_pool(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--num-runners",
        type=_positive,
        default=2,
        metavar="N",
        help="simulators, one worker each; default: 2",
    )
    group.add_argument(
        "--backend",
        choices=("process", "thread", "inline", "ray"),
        help="default: process; inline for one runner; ray: in a Ray cluster",
    )
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the Ray cluster; default: the one that runs here, else a new one",
    )
    group.add_argument(
        "--num-steps-per-job",
        type=_positive,
        default=16,
        metavar="N",
        help="that a runner is asked for at once; default: 16",
    )
    group.add_argument(
        "--maximum-staleness",
        type=_positive,
        metavar="N",
        help="the most steps asked for and not yet executed; default: two jobs per runner",
    )
    group.add_argument(
        "--on-failure",
        choices=("raise", "restart"),
        default="raise",
        help="of a runner: end with its error, or replace it; default: raise",
    )
    group.add_argument(
        "--start-method",
        choices=("forkserver", "spawn", "fork"),
        help="of the processes; default: forkserver, or spawn where there is none",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--save", type=Path, metavar="FILE", help="write the memory, however the run ends"
    )
    group.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the statistics for TensorBoard"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    group.add_argument(
        "--verbose",
        action="store_true",
        help="a table of the workers (percent of their time in the player, waiting for a job, "
        "for a prediction, for a free block), log messages, and tracebacks of errors",
    )


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
