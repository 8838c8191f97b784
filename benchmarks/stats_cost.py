"""What the statistics cost: CPU per landed step of a pool that keeps them, and of one without.

One player of Breakout acts at random or greedily, in this process, so that nothing else is in
the figure; the two pools take turns. Without statistics, a runner does not tell what it is
doing and the recorder only counts what lands.
"""

from __future__ import annotations

import sys
import time
from typing import Any
from unittest import mock

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from mprunner.activity import Activity
from mprunner.atari import AtariPlayer
from mprunner.stats import Recorder

from measure import Check, Series, arguments, interleaved, ratios, show, write
from policies import predictor

STEPS_PER_JOB = 64
HISTORY_LEN = 4
LIMIT = 1.01


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


def pool(policy: str | None, silent: bool) -> EnvRunnerManager:
    """One runner, in this process."""
    memory = ReplayMemory(20_000, (84, 84), HISTORY_LEN)
    runner = EnvRunner(AtariPlayer("breakout"), predictor(policy), memory, HISTORY_LEN)
    if not silent:
        return EnvRunnerManager([runner], STEPS_PER_JOB, backend="inline", seed=0)
    with (
        mock.patch("mprunner.backends.local.Activity", SilentActivity),
        mock.patch("mprunner.manager.Recorder", SilentRecorder),
    ):
        return EnvRunnerManager([runner], STEPS_PER_JOB, backend="inline", seed=0)


def cpu_us(manager: EnvRunnerManager, exploration: float, seconds: float) -> float:
    """CPU per landed step, in microseconds."""
    steps, cpu, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        manager.step(exploration, STEPS_PER_JOB)
        steps += STEPS_PER_JOB
    return (time.process_time() - cpu) / steps * 1e6


def main() -> int:
    """Run it; returns the exit status."""
    options = arguments(__doc__, "stats_cost", repeats=25, seconds=0.5).parse_args()
    tasks, managers = {}, []
    policies = {"random": (None, 1.0), "greedy": ("trivial", 0.0)}
    for name, (policy, exploration) in policies.items():
        for silent in (False, True):
            manager = pool(policy, silent)
            managers.append(manager)
            tasks[f"{name}, {'without' if silent else 'with'} statistics"] = (
                lambda manager=manager, e=exploration: cpu_us(manager, e, options.seconds)
            )
    results = interleaved(tasks, options.repeats)
    for manager in managers:
        manager.close()
    series = [Series(name, "us", values) for name, values in results.items()]
    checks = [
        Check(
            f"stats.{name}",
            f"{name} actions: CPU per step with statistics / without",
            ratios(results[f"{name}, with statistics"], results[f"{name}, without statistics"]),
            LIMIT,
            sense="<=",
        )
        for name in policies
    ]
    show(series, checks)
    settings = {"steps_per_job": STEPS_PER_JOB, "seconds": options.seconds}
    write(options.json, "stats_cost", settings, series, checks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
