"""A learner that samples 64 transitions every 4 steps: what lands, and what it gets.

The learner draws batches of stacked states and their successors as fast as the rule allows and
does nothing with them. mprunner in processes and in threads; gymnasium's AsyncVectorEnv with
stable-baselines3's buffer, which has to store stacks to be able to sample them.
"""

from __future__ import annotations

from typing import Any

import contenders
import measure
import pictures
from measure import Check, Series
from session import Remote

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
    remotes: dict[str, Remote] = {}
    learner = {"batch_size": BATCH_SIZE, "every": EVERY}
    try:
        for name, (contender, settings) in CONTENDERS.items():
            if not contenders.CONTENDERS[contender].installed:
                print(f"without {name}: not installed (make bench-peers installs it)")
                continue
            remotes[name] = Remote(
                contender=contender, workload="breakout", settings=settings, learner=learner
            )
        tasks = {
            name: (lambda remote=remote: remote.play(seconds))
            for name, remote in remotes.items()
        }
        return measure.interleaved(tasks, repeats)
    finally:
        for remote in remotes.values():
            remote.close()


def main() -> None:
    """Measure, print, write the record and the picture."""
    parser = measure.arguments(__doc__, "learner_side")
    options = parser.parse_args()
    readings = measure_all(options.repeats, options.seconds)
    steps = {
        name: [r["landed"] / r["seconds"] for r in got] for name, got in readings.items()
    }
    batches = {
        name: [r["batches"] / r["seconds"] for r in got] for name, got in readings.items()
    }
    series = [
        Series(f"{name}: {what}", unit, values, CONTENDERS[name][1])
        for what, unit, rates in (
            ("landed", "steps/s", steps),
            ("sampled", "batches/s", batches),
        )
        for name, values in rates.items()
    ]
    found = [
        Check(
            f"learner.{name}",
            f"landed steps/s while it learns / {name}",
            measure.ratios(steps[OURS], values),
        )
        for name, values in steps.items()
        if name != OURS
    ]
    measure.show(series, found)
    run = {
        "repeats": options.repeats,
        "seconds": options.seconds,
        "batch_size": BATCH_SIZE,
        "steps_per_batch": EVERY,
    }
    measure.write(options.json, "learner_side", run, series, found)
    pictures.draw(options.json)


if __name__ == "__main__":
    main()
