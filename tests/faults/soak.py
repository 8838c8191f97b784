"""Soak: a seeded killer ends, stops and crashes workers while a learner samples.

Run by `make soak` and, a few kills long, by the tests. Every sampled stack must be whole, the
counts must add up exactly at the end, and memory and descriptors must stay flat.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from tests.support.faulty_players import FaultyPlayer, Fuse, die
from tests.support.whole import check_stack
from tests.support.tagged import TAG_SHAPE
from tests.support.waiting import HANG_S

NUM_RUNNERS = 4
STALENESS = 64
STEP_TIMEOUT_S = 0.5
#: From outside, as an operator or the kernel would; from within, as a simulator does.
OUTSIDE = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGTERM")
INSIDE = ("os._exit", "SIGKILL", "SIGSEGV", "raise", "unpicklable", "sys.exit", "hang")


class SoakPlayer(FaultyPlayer):
    """Meets a fault of its own now and then: in a step, a reset, a sending or holding a block.

    Args:
        seed: of its faults, with the number of its start.
        mean_steps: between them.
    """

    def __init__(self, runner: int, length: int, *, root: Path, seed: int, mean_steps: int) -> None:
        fuse = Fuse(root, 10**9)
        number = len(list(root.glob("start*")))
        self._random = random.Random(f"{seed} {runner} {number}")
        stage = self._random.choice(("step", "reset", "sending", "holding"))
        ways = INSIDE if stage in ("step", "reset") else ("os._exit", "SIGKILL", "SIGSEGV", "hang")
        at = 1 + int(self._random.expovariate(1 / mean_steps))
        super().__init__(
            runner, length, way=self._random.choice(ways), stage=stage, fuse=fuse, at=at
        )

    def _blow(self) -> None:
        if self._steps >= self._at:
            die(self._way)


@dataclass
class Report:
    """What a soak has seen."""

    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    stacks: int = 0
    asked: int = 0
    stored: int = 0
    lost: int = 0
    restarts: int = 0
    episodes: int = 0
    rss_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.seconds:.0f} s, {self.restarts} workers replaced, of them "
            f"{sum(self.kills.values())} killed from outside ({dict(self.kills)})",
            f"{self.asked} steps asked = {self.stored} stored + {self.lost} lost, "
            f"{self.episodes} games",
            f"{self.stacks} stacks sampled, all whole",
            f"memory {self.rss_mb[0]:.1f} -> {self.rss_mb[-1]:.1f} MB, "
            f"descriptors {self.descriptors[0]} -> {self.descriptors[-1]}",
        ]


def soak(seed: int, root: Path, *, num_kills: int = 0, duration_s: float = 0.0) -> Report:
    """Run one; AssertionError if anything is not as it must be.

    Args:
        seed: of the killer and of all faults.
        root: an empty directory.
        num_kills: to go on until so many workers have been killed from outside, and each has
            played.
        duration_s: to go on for at least so many seconds.
    """
    report, killer = Report(), random.Random(seed)
    memory = ReplayMemory(4000, TAG_SHAPE, 4, "int32", seed=seed)
    began = time.monotonic()
    with _pool(memory, seed, root) as manager:
        next_kill, next_look = began + 0.2, began
        while (
            time.monotonic() - began < duration_s
            or sum(report.kills.values()) < num_kills
            or not all(worker.steps for worker in manager.stats().workers)
        ):
            manager.step(1.0, num_steps=killer.choice((1, 4, 16)))
            now = time.monotonic()
            if now >= next_kill:
                _kill(manager, killer, report)
                next_kill = now + killer.expovariate(4.0)
            if now >= next_look:
                _sample(memory, report)
                manager.reset_stats()  # scores that nobody takes are kept
                _measure(report)
                next_look = now + max(0.05, duration_s / 400)
        _continue_all(manager)
        assert manager.join(HANG_S)
        _sample(memory, report)
        for index in range(len(memory)):
            _check(memory.sample(index)[0], report)
        _count(manager, report)
    report.seconds = time.monotonic() - began
    _check_flat(report)
    return report


def _pool(memory: ReplayMemory, seed: int, root: Path) -> EnvRunnerManager:
    runners = []
    for i in range(NUM_RUNNERS):
        own = root / str(i)
        own.mkdir()
        player = partial(SoakPlayer, i, 5 + 13 * i, root=own, seed=seed, mean_steps=4000)
        runners.append(EnvRunner(player, None, memory, memory.history_len))
    return EnvRunnerManager(
        runners,
        STALENESS,
        backend="process",
        seed=seed,
        on_failure="restart",
        max_restarts=10,
        restart_window=1.0,  # so that back-off grows, and the budget never ends
        step_timeout=STEP_TIMEOUT_S,
    )


def _kill(manager: EnvRunnerManager, killer: random.Random, report: Report) -> None:
    way, worker = killer.choice(OUTSIDE), killer.randrange(NUM_RUNNERS)
    stats = manager.stats().workers[worker]
    pid = stats.pid
    # One that is stopped while it starts would hold all up for as long as a start may take.
    if pid is None or (way == "SIGSTOP" and stats.state != "running"):
        return
    try:
        os.kill(pid, getattr(signal, way))
    except ProcessLookupError:
        return
    report.kills[way] += 1


def _continue_all(manager: EnvRunnerManager) -> None:
    """One that was stopped with nothing to do is missed by nobody, until it is to close."""
    for worker in manager.stats().workers:
        with contextlib.suppress(ProcessLookupError):
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGCONT)


def _sample(memory: ReplayMemory, report: Report) -> None:
    size = len(memory)
    if size < 64:
        return
    batch = memory.sample_batch(64)
    history_first = np.moveaxis(batch.state, -1, 1)
    for i in range(64):
        frames = np.concatenate([history_first[i], batch.next_state[i, ..., -1][None]])
        _check(np.moveaxis(frames, 0, -1), report)


def _check(frames: Any, report: Report) -> None:
    check_stack(np.moveaxis(frames, -1, 0))
    report.stacks += 1


def _measure(report: Report) -> None:
    report.rss_mb.append(psutil.Process().memory_info().rss / 1e6)
    report.descriptors.append(len(os.listdir("/proc/self/fd")))


def _count(manager: EnvRunnerManager, report: Report) -> None:
    stats = manager.stats()
    report.asked, report.stored = stats.steps_asked, stats.steps_stored
    report.lost, report.restarts = stats.steps_lost, stats.restarts
    report.episodes = stats.episodes
    assert report.asked == report.stored + report.lost, "a step is unaccounted for"
    assert stats.outstanding == 0 and stats.outstanding_peak <= STALENESS
    assert report.lost <= STALENESS * report.restarts


def _check_flat(report: Report) -> None:
    """The second half takes no more than the first, but for what one worker more would."""
    half = len(report.rss_mb) // 2
    if half < 100:  # too short to tell growth from the first rounds
        return
    early, late = report.rss_mb[half // 4:half], report.rss_mb[half:]
    assert max(late) < max(early) + 3.0, f"memory grows: {max(early):.1f} to {max(late):.1f} MB"
    early_fds, late_fds = report.descriptors[:half], report.descriptors[half:]
    assert max(late_fds) <= max(early_fds) + 9, "descriptors leak"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("mprunner").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        report = soak(options.seed, Path(root), duration_s=options.seconds)
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
