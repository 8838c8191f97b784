"""What the statistics cost, as a share of a step of Breakout.

One runner plays in this process, so that nothing else is in the figure. Games differ by more than
the statistics cost; so their cost is the difference between two pools, with and without them,
whose simulators always do the same: nothing at all, or a sweep through more memory than the
caches near a core hold, as an emulator leaves them. The pools take turns. Without statistics, a
runner does not tell what it is doing and the recorder only counts what lands.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from mprunner.activity import Activity
from mprunner.stats import Recorder

from measure import Check, Series, arguments, interleaved, show, write
from policies import predictor
from workloads import SHAPE, Simulator, factory

STEPS_PER_JOB = 64
HISTORY_LEN = 4
LIMIT_PERCENT = 1.0
IDLE, SWEEPER, BREAKOUT = "caches warm", "caches cold", "Breakout"
POLICIES = {"random": (None, 1.0), "greedy": ("trivial", 0.0)}


class SilentActivity(Activity):
    """Is told and forgets."""

    def enter(self, doing: int) -> None:
        """Nothing."""


class SilentRecorder(Recorder):
    """Counts what pacing needs."""

    def add_block(self, worker: int, num_steps: int, *_: Any) -> None:
        """The steps only."""
        with self.changed:
            self.landed[worker] += num_steps
            self.changed.notify_all()

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
    memory = ReplayMemory(20_000, SHAPE, HISTORY_LEN)
    runner = EnvRunner(player, predictor(policy), memory, HISTORY_LEN)
    with contextlib.ExitStack() as stack:
        if silent:
            for name, kind in SILENT.items():
                stack.enter_context(mock.patch(name, kind))
        return EnvRunnerManager([runner], STEPS_PER_JOB, backend="inline", seed=0)


def cpu_us(manager: EnvRunnerManager, exploration: float, seconds: float) -> float:
    """CPU per landed step, in microseconds."""
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


def main() -> int:
    """Run it; returns the exit status."""
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
    show(series, checks)
    settings = {"steps_per_job": STEPS_PER_JOB, "seconds": options.seconds}
    write(options.json, "stats_cost", settings, series, checks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
