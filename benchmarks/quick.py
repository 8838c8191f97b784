"""A guard in under two minutes: the key ratios, and an error if one is below a generous floor.

Ratios only, measured side by side, so that a slow or busy machine does not fail it. What misses
its floor is measured once more, for longer, before it counts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import sample
from benchmarks.harness.measure import Check, interleaved, ratios, show
from benchmarks.harness.record import arguments
from benchmarks.harness.workloads import SHAPE
from benchmarks.throughput import ALONE, Alone, Pool, Reading

WORKERS = 2
#: A load (runnable processes per core) before the start that spoils ratios of times.
BUSY = 1.0
POOLS: dict[str, tuple[Any, ...]] = {
    "mprunner, 16-step jobs": ("breakout", WORKERS, 16),
    "mprunner, 1-step jobs": ("breakout", WORKERS, 1),
    "mprunner, threads": ("breakout", WORKERS, 16, "thread"),
    "mprunner, null": ("null", WORKERS, 16),
}


def piped_us(num_frames: int) -> float:
    """CPU of sending one frame through a pipe and back, pickled: what the pool must not cost."""
    ours, theirs = multiprocessing.Pipe()
    frame = np.zeros(SHAPE, np.uint8)
    begin = time.process_time()
    for _ in range(num_frames):
        ours.send(frame)
        theirs.recv()
    return (time.process_time() - begin) / num_frames * 1e6


def pool_checks(repeats: int, seconds: float) -> list[Check]:
    """Throughput against no pool and against threads; the parent's CPU."""
    busy = os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
    ready: dict[str, Any] = {ALONE: Alone("breakout", WORKERS)}
    try:
        ready |= {name: Pool(*how) for name, how in POOLS.items()}
        tasks: dict[str, Callable[[], Reading]] = {
            name: partial(contender.measure, seconds) for name, contender in ready.items()
        }
        tasks["pipe"] = lambda: Reading(0.0, piped_us(5000))
        readings = interleaved(tasks, repeats)
    finally:
        for contender in ready.values():
            contender.close()
    rates = {name: [r.steps_per_s for r in got] for name, got in readings.items()}
    parent = {name: [r.parent_us for r in got] for name, got in readings.items()}
    total = {name: [r.total_us for r in got] for name, got in readings.items()}
    jobs_16, jobs_1 = "mprunner, 16-step jobs", "mprunner, 1-step jobs"
    if busy:
        print("the machine is busy: what depends on who gets the CPU is shown, not judged")
    by_time = [
        ("quick.jobs_16", "16-step jobs / no pool, steps/s", jobs_16, ALONE, 0.6),
        ("quick.jobs_1", "1-step jobs / no pool, steps/s", jobs_1, ALONE, 0.4),
        ("quick.threads", "processes / threads, steps/s", jobs_16, "mprunner, threads", 1.2),
    ]
    by_cpu = [
        ("quick.cpu_16", "16-step jobs / no pool, CPU per step", total[jobs_16], total[ALONE], 1.5),
        ("quick.cpu_1", "1-step jobs / no pool, CPU per step", total[jobs_1], total[ALONE], 2.0),
        (
            "quick.parent_cpu",
            "parent's CPU per transition / a frame piped",
            parent["mprunner, null"],
            parent["pipe"],
            1.0,
        ),
    ]
    return [
        Check(key, figure, ratios(rates[ours], rates[theirs]), None if busy else floor)
        for key, figure, ours, theirs, floor in by_time
    ] + [
        Check(key, figure, ratios(ours, theirs), limit, "<=")
        for key, figure, ours, theirs, limit in by_cpu
    ]


def sample_checks(repeats: int, seconds: float) -> list[Check]:
    """A batch of 64 x (4 + 1) frames against a copy of its bytes."""
    memory = sample.filled(20_000)
    out = memory.sample_batch(sample.BATCH)
    copies = sample.yardsticks(memory._streams.storage.state)
    tasks = {
        "ours": lambda: memory.sample_batch(sample.BATCH, out=out),
        "ring": copies[sample.RING],
    }
    timed = {
        name: partial(sample.microseconds, task, seconds / 10) for name, task in tasks.items()
    }
    found = interleaved(timed, repeats)
    ratio = ratios(found["ours"], found["ring"])
    return [Check("quick.sample", "a batch / a memcpy from the ring", ratio, 5.0, "<=")]


def main() -> None:
    """Measure, print, and exit with 1 if a floor is missed twice."""
    parser = arguments(__doc__, "quick", repeats=3, seconds=1.5)
    options = parser.parse_args()
    for attempt in range(2):
        factor = 1 + attempt
        found = pool_checks(options.repeats, factor * options.seconds)
        found += sample_checks(options.repeats, factor * options.seconds)
        show([], found)
        missed = [check for check in found if check.holds is False]
        if not missed:
            return
        print(f"below the floor: {', '.join(check.figure for check in missed)}")
    sys.exit(1)


if __name__ == "__main__":
    main()
