"""What a user would take instead: transitions stored in a replay memory per second.

The same work for all: frame skip 4, 84x84 gray, the maximum of two frames, random actions, each
frame stored once where the peer's memory can. A sweep finds the best configuration of each
contender; then the best ones run in interleaved repeats. Python pools step mprunner's own
player; beside that, in the rows "stock wrapper", gymnasium's, as their users do.

One record per workload: Breakout; a simulator in Python that takes 0.1, 1 or 5 ms of CPU per
step; one whose steps take 1 ms, and one in 50 of them 50 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.contenders.base import Contender
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.remote import Remote, measured, rate

WORKLOADS = {
    "breakout": "Breakout",
    "cpu_0.1": "a simulator in Python, 0.1 ms of CPU per step",
    "cpu_1": "a simulator in Python, 1 ms of CPU per step",
    "cpu_5": "a simulator in Python, 5 ms of CPU per step",
    "uneven": "a simulator in Python, 1 ms of CPU per step, one in 50 takes 50 ms",
}
STOCK = ", stock wrapper"
#: Those that step Python simulators and are compared with gymnasium's wrapper, too.
_LOCK_STEP = (
    "gymnasium AsyncVectorEnv",
    "SB3 SubprocVecEnv + ReplayBuffer",
    "tianshou ShmemVectorEnv + VectorReplayBuffer",
    "torchrl MultiAsyncCollector",
    "Ray actors",
)
#: DESIGN.md, section 7.
TARGETS = {
    "EnvPool, asynchronous": 1.10,
    "ALE AtariVectorEnv": 1.00,
    "mprunner, threads": 1.85,
    "gymnasium AsyncVectorEnv": 2.0,
    "SB3 SubprocVecEnv + ReplayBuffer": 2.0,
    "tianshou ShmemVectorEnv + VectorReplayBuffer": 2.0,
    "torchrl MultiAsyncCollector": 2.0,
}
OURS = "mprunner"
#: Needs a learner to make sense; `benchmarks.learner_side` has it.
LEFT_OUT = ("AsyncVectorEnv + SB3 ReplayBuffer",)
Best = dict[str, dict[str, Any]]


def contenders(workload: str, only: Sequence[str]) -> list[Contender]:
    """Those that are installed and can step these simulators."""
    found = []
    for contender in CONTENDERS.values():
        if contender.name in LEFT_OUT or not contender.plays(workload):
            continue
        if only and contender.name != OURS and not any(o in contender.name for o in only):
            continue
        if contender.installed:
            found.append(contender)
        else:
            print(f"without {contender.name}: {contender.module} is not installed")
    return found


def sweep(
    workload: str, found: Sequence[Contender], seconds: float
) -> tuple[Best, list[dict[str, Any]]]:
    """The best configuration of each contender, and every one that was tried."""
    best: Best = {}
    tried: list[dict[str, Any]] = []
    for contender in found:
        rates: list[tuple[float, int]] = []
        for i, settings in enumerate(contender.configurations):
            print(f"\r\033[K  sweep: {contender.name} {settings}", end="", file=sys.stderr)
            entry: dict[str, Any] = {"contender": contender.name, "settings": settings}
            try:
                reading = measured(
                    seconds, contender=contender.name, workload=workload, settings=settings
                )
                entry["steps_per_s"] = rate(reading)
                rates.append((entry["steps_per_s"], i))
            except RuntimeError as error:
                entry["error"] = str(error)[-400:]
                print(f"\n{error}", file=sys.stderr)
            tried.append(entry)
        if rates:
            best[contender.name] = contender.configurations[max(rates)[1]]
    print("\r\033[K", end="", file=sys.stderr)
    return best, tried


def repeats(workload: str, best: Best, times: int, seconds: float) -> dict[str, list[float]]:
    """Interleaved repeats of the best configurations; stock wrappers beside, for Breakout.

    A contender that fails is named on stderr and left out.
    """
    orders = {name: (name, workload, settings) for name, settings in best.items()}
    if workload == "breakout":
        for name in _LOCK_STEP:
            if name in best:
                orders[name + STOCK] = (name, "breakout_stock", best[name])
    tasks: dict[str, Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        for name, (contender, simulator, settings) in orders.items():
            print(f"\r\033[K  start: {name}", end="", file=sys.stderr)
            order: dict[str, Any] = {
                "contender": contender,
                "workload": simulator,
                "settings": settings,
            }
            if CONTENDERS[contender].restless:
                tasks[name] = partial(_rate_or_nan, partial(measured, seconds, **order))
                continue
            try:
                remote = Remote(**order)
            except RuntimeError as error:
                print(f"\n{error}", file=sys.stderr)
                continue
            stack.callback(remote.close)
            tasks[name] = partial(_rate_or_nan, partial(remote.play, seconds))
        rates = interleaved(tasks, times)
    return {name: got for name, got in rates.items() if not any(map(math.isnan, got))}


def _rate_or_nan(play: Callable[[], dict[str, Any]]) -> float:
    try:
        return rate(play())
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return math.nan


def checks(workload: str, rates: dict[str, list[float]]) -> list[Check]:
    """mprunner against each of the others."""
    found = []
    for name, values in rates.items():
        if name == OURS:
            continue
        target = TARGETS.get(name.removesuffix(STOCK)) if workload == "breakout" else None
        found.append(
            Check(
                f"peers.{workload}.{name}",
                f"mprunner / {name}",
                ratios(rates[OURS], values),
                target,
            )
        )
    return found


def compare(workload: str, options: argparse.Namespace) -> None:
    """Measure one workload, print, write its record and picture."""
    print(f"\n{WORKLOADS[workload]}")
    found = contenders(workload, options.only)
    best, tried = sweep(workload, found, options.sweep_seconds)
    rates = repeats(workload, best, options.repeats, options.seconds)
    by_rate = sorted(rates, key=lambda name: -statistics.median(rates[name]))
    series = [
        Series(name, "steps/s", rates[name], best[name.removesuffix(STOCK)]) for name in by_rate
    ]
    results = checks(workload, rates)
    path = options.json
    if len(options.workloads) > 1 or path.name == "peers.json":
        path = path.with_name(f"{path.stem}_{workload}.json")
    run = {
        "workload": WORKLOADS[workload],
        "repeats": options.repeats,
        "seconds": options.seconds,
        "sweep_seconds": options.sweep_seconds,
    }
    setups = {c.name: {"setup": c.setup, "doc": c.doc, "module": c.module} for c in found}
    name = f"peers_{workload}"
    publish(path, name, run, series, results, contenders=setups, sweep=tried)


def main() -> None:
    """Compare on each workload."""
    parser = arguments(__doc__, "peers", repeats=5, seconds=3.0)
    parser.add_argument(
        "--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS), metavar="NAME"
    )
    parser.add_argument("--sweep-seconds", type=float, default=1.5, help="default %(default)s")
    parser.add_argument(
        "--only", nargs="*", default=[], help="contenders whose names contain one of these"
    )
    options = parser.parse_args()
    for workload in options.workloads:
        compare(workload, options)


if __name__ == "__main__":
    main()
