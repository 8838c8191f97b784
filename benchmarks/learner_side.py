"""A learner that samples 64 transitions every 4 steps: what is stored, and what it gets.

The learner draws batches of stacked states and their successors as fast as the rule allows and
does nothing with them. mprunner in processes and in threads; gymnasium's AsyncVectorEnv with
stable-baselines3's buffer, which has to store stacks to be able to sample them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.contenders.registry import CONTENDERS as ALL
from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.remote import Remote, rate

BATCH_SIZE = 64
EVERY = 4
OURS, THREADS = "mprunner, processes, 2 workers", "mprunner, threads, 2"
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("mprunner", {"backend": "process", "workers": 2, "steps": EVERY}),
    "mprunner, processes, 3 workers": (
        "mprunner",
        {"backend": "process", "workers": 3, "steps": EVERY},
    ),
    "mprunner, threads, 1": (
        "mprunner, threads",
        {"backend": "thread", "workers": 1, "steps": EVERY},
    ),
    THREADS: ("mprunner, threads", {"backend": "thread", "workers": 2, "steps": EVERY}),
    "AsyncVectorEnv + SB3 ReplayBuffer, 4": (
        "AsyncVectorEnv + SB3 ReplayBuffer",
        {"num_envs": 4, "copy": True, "overlap": True},
    ),
    "AsyncVectorEnv + SB3 ReplayBuffer, 8": (
        "AsyncVectorEnv + SB3 ReplayBuffer",
        {"num_envs": 8, "copy": True, "overlap": True},
    ),
}


def measure_all(repeats: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Every contender that is installed."""
    learner = {"batch_size": BATCH_SIZE, "every": EVERY}
    tasks: dict[str, Callable[[], dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        for name, (contender, settings) in CONTENDERS.items():
            if not ALL[contender].installed:
                print(f"without {name}: not installed (make bench-peers installs it)")
                continue
            remote = Remote(
                contender=contender, workload="breakout", settings=settings, learner=learner
            )
            stack.callback(remote.close)
            tasks[name] = partial(remote.play, seconds)
        return interleaved(tasks, repeats)


def main() -> None:
    """Measure, print, write the record and the picture."""
    parser = arguments(__doc__, "learner_side", repeats=5, seconds=3.0)
    options = parser.parse_args()
    readings = measure_all(options.repeats, options.seconds)
    steps = {name: [rate(r) for r in got] for name, got in readings.items()}
    batches = {
        name: [r["batches"] / r["seconds"] for r in got] for name, got in readings.items()
    }
    series = [
        Series(f"{name}: {what}", unit, values, CONTENDERS[name][1])
        for what, unit, rates in (
            ("stored", "steps/s", steps),
            ("sampled", "batches/s", batches),
        )
        for name, values in rates.items()
    ]
    found = [
        Check(
            f"learner.{name}",
            f"stored steps/s while it learns / {name}",
            ratios(steps[OURS], values),
        )
        for name, values in steps.items()
        if name != OURS
    ]
    run = {
        "repeats": options.repeats,
        "seconds": options.seconds,
        "batch_size": BATCH_SIZE,
        "steps_per_batch": EVERY,
    }
    publish(options.json, "learner_side", run, series, found)


if __name__ == "__main__":
    main()
