"""What the statistics cost, as a share of a step of Breakout.

One runner plays in this process, so that nothing else is in the figure. Games differ by more than
the statistics cost; so their cost is the difference between two pools, with and without them,
whose simulators always do the same: nothing at all, or a sweep through more memory than the
caches near a core hold, as an emulator leaves them. The pools take turns. Without statistics, a
runner does not tell what it is doing and the recorder only counts what is stored.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.harness.measure import Check, Series, interleaved
from benchmarks.harness.policies import predictor
from benchmarks.harness.pools import start_pool
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.workloads import Simulator, factory
from mprunner import EnvRunnerManager
from mprunner.activity import Activity
from mprunner.stats import Recorder

STEPS_PER_JOB = 64
LIMIT_PERCENT = 1.0
IDLE, SWEEPER, BREAKOUT = "caches warm", "caches cold", "Breakout"
POLICIES = {"random": (None, 1.0), "greedy": ("trivial", 0.0)}


class SilentActivity(Activity):
    """Records nothing."""

    def enter(self, doing: int) -> None:
        """Nothing."""


class SilentRecorder(Recorder):
    """Counts nothing; the ledger has what pacing needs."""

    def add_block(self, *_: Any) -> None:
        """Nothing."""

    def add_batch(self, size: int, latency_s: float) -> None:
        """Nothing."""


SILENT = {
    "mprunner.backends.local.Activity": SilentActivity,
    "mprunner.manager.Recorder": SilentRecorder,
}


class Sweeper(Simulator):
    """Leaves nothing of ours in the caches near the core."""

    def __init__(self) -> None:
        super().__init__(self._sweep)
        self._memory = np.zeros(4 * 2**20, np.uint8)

    def _sweep(self, step: int) -> None:
        self._memory.fill(step & 255)


PLAYERS = {IDLE: Simulator, SWEEPER: Sweeper, BREAKOUT: factory("breakout")}


def pool(player: Any, policy: str | None, silent: bool) -> EnvRunnerManager:
    """One runner, in this process."""
    with contextlib.ExitStack() as stack:
        if silent:
            for name, kind in SILENT.items():
                stack.enter_context(mock.patch(name, kind))
        return start_pool(
            player, 1, STEPS_PER_JOB, backend="inline", predictor=predictor(policy)
        )


def cpu_us(manager: EnvRunnerManager, exploration: float, seconds: float) -> float:
    """CPU per stored step, in microseconds."""
    steps, cpu, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        manager.step(exploration, STEPS_PER_JOB)
        steps += STEPS_PER_JOB
    return (time.process_time() - cpu) / steps * 1e6


def measured(seconds: float, repeats: int) -> dict[str, list[float]]:
    """CPU per step of every pool: "POLICY, PLAYER, with" or "... without"."""
    tasks, managers = {}, []
    try:
        for name, (policy, exploration) in POLICIES.items():
            for label, player in PLAYERS.items():
                for silent in (False, True)[:2 if label != BREAKOUT else 1]:
                    manager = pool(player, policy, silent)
                    managers.append(manager)
                    tasks[f"{name}, {label}, {'without' if silent else 'with'}"] = partial(
                        cpu_us, manager, exploration, seconds
                    )
        return interleaved(tasks, repeats)
    finally:
        for manager in managers:
            manager.close()


def main() -> None:
    """Measure, print and write the record."""
    options = arguments(__doc__, "stats_cost", repeats=41, seconds=0.15).parse_args()
    results = measured(options.seconds, options.repeats)
    series = [Series(name, "us", values) for name, values in results.items()]
    checks = []
    for name in POLICIES:
        step = statistics.median(results[f"{name}, {BREAKOUT}, with"])
        for label in (IDLE, SWEEPER):
            pairs = zip(
                results[f"{name}, {label}, with"],
                results[f"{name}, {label}, without"],
                strict=True,
            )
            checks.append(
                Check(
                    f"stats.{name}.{label}",
                    f"{name} actions: statistics / a step of Breakout, {label}",
                    [100 * (a - b) / step for a, b in pairs],
                    LIMIT_PERCENT,
                    sense="<=",
                    unit="%",
                )
            )
    settings = {"steps_per_job": STEPS_PER_JOB, "seconds": options.seconds}
    publish(options.json, "stats_cost", settings, series, checks)


if __name__ == "__main__":
    main()
