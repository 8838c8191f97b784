"""The pool on Ray: stored steps/s against processes, the driver's CPU, and how far that carries.

Breakout with two actors and 64-step jobs against the process backend on the same cores; the CPU
of the whole driver process, and of Ray's own processes here, per stored transition; what a
predictor in the driver adds to a step. From the driver's cost and the bytes per transition, both
measured, a model says how many actors one driver can feed from; its assumptions are printed.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil

from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.policies import predictor
from benchmarks.harness.pools import start_pool
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.workloads import SHAPE, factory
from mprunner.rows import ROW
from mprunner.settings import BackendName

ACTORS = 2
JOB_STEPS = 64
STORE_BYTES = 256 * 2**20
ROW_BYTES = ROW.itemsize + int(np.prod(SHAPE))
#: Of a link's nominal rate, what objects of half a megabyte reach.
LINK_SHARE = 0.7
LINKS_GBIT = (1, 10, 25)
#: Of the one core that Python's lock leaves a process, what taking rows in may use; the rest is
#: the learner's.
CPU_SHARE = 0.5
ASSUMPTIONS = (
    "each actor has a core of its own and plays at the rate measured here with two on two cores",
    f"the driver gives {CPU_SHARE:.0%} of one core to taking rows in, at the cost measured here",
    f"objects of about {JOB_STEPS * ROW_BYTES // 1024} KiB reach {LINK_SHARE:.0%} of the link, "
    "and nothing else uses it",
    "Ray's own processes on the driver's node have cores of their own",
    "jobs are as long as here, and enough are outstanding to hide the way there and back",
)


@dataclass(frozen=True)
class Reading:
    """One measurement, per stored transition where nothing else is said."""

    steps_per_s: float
    driver_us: float
    daemons_us: float = 0.0
    num_bytes: float = 0.0


class Pool:
    """A pool with jobs of one size; stays up between the repeats."""

    def __init__(
        self, backend: BackendName, workload: str, actors: int, policy: str | None = None
    ) -> None:
        staleness = 2 * actors * JOB_STEPS
        self.settings = {"actors": actors, "steps_per_job": JOB_STEPS, "staleness": staleness}
        self._exploration = 1.0 if policy is None else 0.0
        self._manager = start_pool(
            factory(workload), actors, staleness, backend=backend, predictor=predictor(policy)
        )
        self.measure(0.5)

    def measure(self, seconds: float) -> Reading:
        """Stored steps per second, and what they cost here."""
        manager, asked = self._manager, 0
        rows = sum(worker.rows for worker in manager.stats().workers)
        daemons = daemons_cpu_s()
        cpu, begin = time.process_time(), time.perf_counter()
        while time.perf_counter() - begin < seconds:
            manager.step(self._exploration, JOB_STEPS)
            asked += JOB_STEPS
        manager.join()
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
        daemons = daemons_cpu_s() - daemons
        rows = sum(worker.rows for worker in manager.stats().workers) - rows
        return Reading(
            asked / elapsed, cpu / asked * 1e6, daemons / asked * 1e6, rows * ROW_BYTES / asked
        )

    def close(self) -> None:
        """Stop the runners."""
        self._manager.close()


def daemons_cpu_s() -> float:
    """CPU that Ray's own processes on this machine have used so far."""
    total = 0.0
    for process in psutil.Process().children():
        try:
            if process.name() in ("raylet", "gcs_server"):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


POOLS: dict[str, tuple[Any, ...]] = {
    "mprunner, processes": ("process", "breakout", ACTORS),
    "mprunner, Ray": ("ray", "breakout", ACTORS),
    "null simulator, processes": ("process", "null", ACTORS),
    "null simulator, Ray": ("ray", "null", ACTORS),
    "predictor in the parent, processes": ("process", "null", 1, "trivial"),
    "predictor in the parent, Ray": ("ray", "null", 1, "trivial"),
}


def readings(seconds: float, repeats: int) -> dict[str, list[Reading]]:
    """Of all contenders, in turn; all stay up, and those whose turn it is not do nothing."""
    pools: dict[str, Pool] = {}
    try:
        for name, how in POOLS.items():
            pools[name] = Pool(*how)
        return interleaved(
            {name: partial(pool.measure, seconds) for name, pool in pools.items()}, repeats
        )
    finally:
        for pool in pools.values():
            pool.close()


@dataclass(frozen=True)
class Model:
    """How many actors one driver can feed from.

    Attributes:
        rate: steps/s of an actor.
        driver_us: the driver's CPU per transition.
        num_bytes: of a transition on its way.
    """

    rate: float
    driver_us: float
    num_bytes: float

    @property
    def by_cpu(self) -> float:
        """Actors at which the driver's CPU is used up."""
        return CPU_SHARE * 1e6 / self.driver_us / self.rate

    def by_link(self, gbit: float) -> float:
        """Actors at which the link to the driver's node is full."""
        return LINK_SHARE * gbit * 1e9 / 8 / self.num_bytes / self.rate

    @classmethod
    def of(cls, measured: Mapping[str, Sequence[Reading]]) -> Model:
        """From the readings: rate and bytes of Breakout on Ray, and the driver's cost there."""
        found = measured["mprunner, Ray"]
        return cls(
            statistics.median(reading.steps_per_s for reading in found) / ACTORS,
            statistics.median(reading.driver_us for reading in found),
            statistics.median(reading.num_bytes for reading in found),
        )


def checks(measured: Mapping[str, Sequence[Reading]], model: Model) -> list[Check]:
    """The figures."""
    rates = {name: [r.steps_per_s for r in found] for name, found in measured.items()}
    driver = {name: [r.driver_us for r in found] for name, found in measured.items()}
    daemons = [r.daemons_us for r in measured["mprunner, Ray"]]
    found = [
        Check(
            "ray.throughput",
            f"stored steps/s on Ray / in processes, Breakout, {JOB_STEPS}-step jobs",
            ratios(rates["mprunner, Ray"], rates["mprunner, processes"]),
            0.85,
        )
    ]
    for name in ("mprunner, Ray", "mprunner, processes", "null simulator, Ray"):
        figure = f"driver's CPU per transition: {name}"
        found.append(Check(f"ray.cpu.{name}", figure, driver[name], unit="us"))
    found.append(
        Check("ray.daemons", "CPU of Ray's own processes per transition", daemons, unit="us")
    )
    for name in ("predictor in the parent, Ray", "predictor in the parent, processes"):
        figure = f"one greedy step: {name}"
        values = [1e6 / rate for rate in rates[name]]
        found.append(Check(f"ray.greedy.{name}", figure, values, unit="us"))
    figure = f"model: actors by the driver's CPU ({CPU_SHARE:.0%} of a core)"
    found.append(Check("ray.model.cpu", figure, [model.by_cpu], unit="actors"))
    for gbit in LINKS_GBIT:
        figure = f"model: actors by a link of {gbit} Gbit/s"
        found.append(Check(f"ray.model.link_{gbit}", figure, [model.by_link(gbit)], unit="actors"))
    return found


def main() -> None:
    """Measure, print, write the record and the picture."""
    options = arguments(__doc__, "ray_scale", repeats=15, seconds=1.5).parse_args()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ray.init(
        address="local",
        num_cpus=sum(actors for backend, _, actors, *_ in POOLS.values() if backend == "ray"),
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        measured = readings(options.seconds, options.repeats)
    finally:
        ray.shutdown()
    model = Model.of(measured)
    found = checks(measured, model)
    series = [
        Series(name, "steps/s", [reading.steps_per_s for reading in got])
        for name, got in measured.items()
    ]
    print("\nThe model assumes:", *ASSUMPTIONS, sep="\n- ")
    run = {"repeats": options.repeats, "seconds": options.seconds, "job_steps": JOB_STEPS}
    publish(
        options.json, "ray_scale", run, series, found,
        model={
            "steps_per_s_of_an_actor": model.rate,
            "driver_us_per_transition": model.driver_us,
            "bytes_per_transition": model.num_bytes,
            "assumptions": ASSUMPTIONS,
        },
    )


if __name__ == "__main__":
    main()
