"""From 1 to 256 sleeping simulators: share of the ideal rate, CPU, start-up, memory, descriptors.

A simulator that sleeps 5 ms gives at most 200 steps/s. Each pool runs in a process of its own,
which imports torch first, as a learner's script does; gymnasium's AsyncVectorEnv and
stable-baselines3's SubprocVecEnv are measured beside it at 64.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.contenders.registry import CONTENDERS
from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.remote import measured, rate

STEP_S = 0.005
JOB_STEPS = 16
AT = 64
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gymnasium AsyncVectorEnv": (
        "gymnasium AsyncVectorEnv",
        {"num_envs": AT, "copy": False, "overlap": False},
    ),
    "SB3 SubprocVecEnv": (
        "SB3 SubprocVecEnv + ReplayBuffer",
        {"num_envs": AT, "start_method": "forkserver"},
    ),
}
Readings = dict[str, list[dict[str, Any]]]


def pool(workers: int, seconds: float) -> dict[str, Any]:
    """mprunner with so many workers."""
    settings = {"backend": "process", "workers": workers, "steps": JOB_STEPS}
    return run("mprunner", settings, seconds)


def run(contender: str, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One session in a process that has imported torch, where there is one."""
    return measured(
        seconds,
        contender=contender,
        workload="sleep_5",
        settings=settings,
        import_first="torch" if importlib.util.find_spec("torch") else None,
        resources=True,
    )


def share(reading: Mapping[str, Any]) -> float:
    """Of the rate at which the simulators would step if nothing else took time."""
    settings = reading["settings"]
    ideal = (settings.get("workers") or settings["num_envs"]) / STEP_S
    return float(rate(reading) / ideal)


def parent_us(reading: Mapping[str, Any]) -> float:
    """CPU of the parent per transition, microseconds."""
    return float(reading["parent_cpu_s"] / reading["stored"] * 1e6)


def _named(workers: int) -> str:
    return f"mprunner, {workers}"


def checks(readings: Readings) -> list[Check]:
    """The rows of DESIGN.md, section 7, that are measured here, and the comparisons."""
    found = []
    for workers, target in ((64, 0.90), (256, 0.85)):
        got = readings.get(_named(workers))
        if got:
            shares = [share(r) for r in got]
            text = f"share of the ideal rate, {workers} simulators"
            found.append(Check(f"scale.share_{workers}", text, shares, target))
    ours = readings.get(_named(AT))
    if not ours:
        return found
    started = [r["startup_s"] for r in ours]
    found += [
        Check("scale.startup_64", f"{AT} workers ready", started, 1.5, "<=", "s"),
        Check(
            "scale.pss", "PSS of an idle worker", [r["pss_mb"] for r in ours], 12.0, "<=", "MB"
        ),
        Check(
            "scale.parent_fds",
            "descriptors per worker, in the parent",
            [r["parent_fds"] for r in ours],
            unit="",
        ),
    ]
    for name in PEERS:
        theirs = readings.get(name)
        if theirs:
            key = name.split()[-1]
            found += [
                Check(
                    f"scale.rate_{key}",
                    f"steps/s at {AT} / {name}",
                    ratios([share(r) for r in ours], [share(r) for r in theirs]),
                ),
                Check(
                    f"scale.startup_{key}",
                    f"start-up time of {name} / ours",
                    ratios([r["startup_s"] for r in theirs], started),
                ),
            ]
    return found


def series(readings: Readings) -> list[Series]:
    """Every figure of every contender."""
    figures: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
        "share of the ideal rate": ("x", share),
        "parent's CPU per transition": ("us", parent_us),
        "start-up": ("s", lambda r: float(r["startup_s"])),
        "PSS per worker": ("MB", lambda r: float(r["pss_mb"])),
        "descriptors per worker, parent": ("", lambda r: float(r["parent_fds"])),
        "descriptors per worker, worker": ("", lambda r: float(r["worker_fds"])),
    }
    return [
        Series(f"{name}: {figure}", unit, [value(r) for r in got], got[0]["settings"])
        for figure, (unit, value) in figures.items()
        for name, got in readings.items()
    ]


def main() -> None:
    """Measure, print, write the record and the picture."""
    parser = arguments(__doc__, "scale", repeats=5, seconds=4.0)
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[1, 4, 16, 64, 256], metavar="N"
    )
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    options = parser.parse_args()
    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        _named(n): partial(pool, n, options.seconds) for n in options.workers
    }
    for name in options.peers:
        contender, settings = PEERS[name]
        if CONTENDERS[contender].installed:
            tasks[name] = partial(run, contender, settings, options.seconds)
    readings = interleaved(tasks, options.repeats)
    items, found = series(readings), checks(readings)
    run_settings = {
        "repeats": options.repeats,
        "seconds": options.seconds,
        "steps_per_job": JOB_STEPS,
        "sleep_s": STEP_S,
        "torch_imported_first": importlib.util.find_spec("torch") is not None,
    }
    publish(options.json, "scale", run_settings, items, found)


if __name__ == "__main__":
    main()
