"""Threads against processes: stored steps per second on simulators that hold the GIL.

On Breakout (`AtariPlayer`, extra ``atari``) and on a simulator in plain Python. With
``--update-readme`` the table in README.md is made from the record, and from nothing else;
``--no-run`` takes the record that is there.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Check, Series, interleaved, ratios, spread
from benchmarks.harness.readme import README, replace_between
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.simulators import Life
from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from mprunner.atari import AtariPlayer
from mprunner.settings import BackendName

NAME = "compare_threads"
NUM_STEPS_PER_JOB = 16
WARM_UP_STEPS = 200
#: Name -> factory and history length.
SIMULATORS: dict[str, tuple[Callable[[], Any], int]] = {
    "Breakout": (functools.partial(AtariPlayer, "breakout"), 4),
    "Life in plain Python": (Life, 1),
}
ALONE, THREADS, PROCESSES = "1 runner", "threads", "processes"


def stored_rate(
    make: Callable[[], Any],
    history_len: int,
    backend: BackendName,
    num_runners: int,
    seconds: float,
) -> float:
    """Stored steps per second of one pool that acts at random; its start is not counted.

    Args:
        make: the simulator's factory.
        history_len: of the memory.
        backend: of the manager.
        num_runners: at least 1.
        seconds: for which steps are asked; the clock runs until all of them are stored.
    """
    env = make()
    space = env.observation_space
    env.close()
    memory = ReplayMemory(20_000, space.shape, history_len, space.dtype)
    runners = [EnvRunner(make, None, memory, history_len) for _ in range(num_runners)]
    staleness = 2 * num_runners * NUM_STEPS_PER_JOB
    with EnvRunnerManager(runners, staleness, backend=backend, seed=0) as manager:
        manager.step(1.0, WARM_UP_STEPS)
        manager.join()
        began, num_steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            manager.step(1.0, NUM_STEPS_PER_JOB)
            num_steps += NUM_STEPS_PER_JOB
        manager.join()
        return num_steps / (time.perf_counter() - began)


def compare(
    name: str, num_runners: int, repeats: int, seconds: float
) -> tuple[list[Series], Check]:
    """All contenders on one simulator."""
    make, history_len = SIMULATORS[name]
    contenders: list[tuple[str, BackendName, int]] = [
        (ALONE, "inline", 1),
        (THREADS, "thread", num_runners),
        (PROCESSES, "process", num_runners),
    ]
    tasks = {
        kind: functools.partial(stored_rate, make, history_len, backend, number, seconds)
        for kind, backend, number in contenders
    }
    rates = interleaved(tasks, repeats)
    series = [
        Series(f"{name}, {kind}", "steps/s", values, {"simulator": name, "kind": kind})
        for kind, values in rates.items()
    ]
    against = ratios(rates[PROCESSES], rates[THREADS])
    return series, Check(f"{NAME}.{name}", f"{name}: processes against threads", against)


def render(record: Mapping[str, Any]) -> str:
    """A record as a table, in Markdown."""
    settings = record["settings"]
    number = settings["num_runners"]
    lines = [
        f"| stored steps/s | 1 runner, no pool | {number} threads | {number} processes | "
        "processes : threads |",
        "|---|---|---|---|---|",
    ]
    against = {check["key"]: check["values"] for check in record["checks"]}
    for name in dict.fromkeys(item["settings"]["simulator"] for item in record["series"]):
        cells = [
            spread(item["values"])
            for item in record["series"]
            if item["settings"]["simulator"] == name
        ]
        lines.append(f"| {name} | {' | '.join([*cells, spread(against[f'{NAME}.{name}'])])} |")
    machine = record["machine"]
    versions = ", ".join(f"{package} {found}" for package, found in record["versions"].items())
    lines += [
        "",
        f"Median (lowest to highest) of {settings['repeats']} interleaved repeats of "
        f"{settings['seconds']:g} s; random actions, {NUM_STEPS_PER_JOB} steps per call of "
        "`step()`; a pool's start is not counted; a ratio is that within a repeat. "
        f"{machine['processor']}, {machine['num_cpus']} CPUs; {versions}; {record['date'][:10]}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, record, render."""
    parser = arguments(__doc__, NAME, repeats=7, seconds=3.0)
    parser.add_argument("--simulators", nargs="+", choices=SIMULATORS, default=list(SIMULATORS))
    parser.add_argument("--num-runners", type=int, default=2, help="default %(default)s")
    parser.add_argument("--no-run", action="store_true", help="take the record that is there")
    parser.add_argument("--update-readme", action="store_true", help="rewrite the table there")
    parser.add_argument("--readme", type=Path, default=README, help="default %(default)s")
    options = parser.parse_args()
    if not options.no_run:
        load = os.getloadavg()[0]
        if load > 0.5:
            print(f"the machine is busy (load {load:.1f}): don't keep these figures")
        series: list[Series] = []
        checks: list[Check] = []
        for name in options.simulators:
            found, check = compare(name, options.num_runners, options.repeats, options.seconds)
            series += found
            checks.append(check)
        settings = {key: getattr(options, key) for key in ("num_runners", "repeats", "seconds")}
        publish(options.json, NAME, {**settings, "load": load}, series, checks)
    table = render(json.loads(options.json.read_text()))
    print(f"\n{table}")
    if options.update_readme:
        text = options.readme.read_text()
        options.readme.write_text(replace_between(text, NAME, table))


if __name__ == "__main__":
    main()
