"""Shared by the benchmarks: interleaved repeats, ratios against targets, records.

A benchmark gives `interleaved` one task per contender; each repeat runs all of them, so that a
slow moment of the machine hits them alike. A ratio is that of one repeat, and its median is
what counts. `write` makes the record (JSON: every repeat, machine, versions, date) that
`report.py` builds the README's tables from, and `pictures.py` the pictures.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "mprunner",
    "numpy",
    "gymnasium",
    "ale-py",
    "opencv-python-headless",
    "cloudpickle",
    "torch",
    "stable-baselines3",
    "tianshou",
    "torchrl",
    "envpool",
    "ray",
)


@dataclass
class Series:
    """The repeats of one contender.

    Attributes:
        name: of the contender.
        unit: of the values ("steps/s").
        values: one per repeat.
        settings: how the contender was set up.
    """

    name: str
    unit: str
    values: list[float]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Check:
    """A figure and what it must reach.

    Attributes:
        key: stable name ("throughput.jobs_16"), by which `report.py` finds it.
        figure: what it is, in words.
        values: one per repeat; the median counts.
        target: what the median must reach; None where it is only told.
        sense: ">=" or "<=".
        unit: "x" for a ratio.
    """

    key: str
    figure: str
    values: list[float]
    target: float | None = None
    sense: str = ">="
    unit: str = "x"

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)

    @property
    def holds(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.sense == ">=" else self.median <= self.target


def interleaved(
    tasks: Mapping[str, Callable[[], T]], repeats: int, *, show: bool = True
) -> dict[str, list[T]]:
    """Run every task once per repeat; the order turns round each time.

    Args:
        tasks: name -> a call that measures once.
        repeats: at least 1.
        show: tell on stderr how far it is.

    Returns:
        name -> what each repeat gave.
    """
    results: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in range(repeats):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            if show:
                print(f"\r\033[K  {repeat + 1}/{repeats} {name}", end="", file=sys.stderr)
            results[name].append(tasks[name]())
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of each repeat."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float]) -> str:
    """"median (lowest to highest)" with three digits."""
    return f"{digits(statistics.median(values))} ({digits(min(values))} to {digits(max(values))})"


def digits(value: float) -> str:
    """Three significant digits, or all of an integer part."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """What the figures were measured on: date, machine and versions."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "num_cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        },
        "versions": versions,
    }


def command() -> str:
    """What runs this again, from the project's root; where the record goes is left out."""
    root = Path(__file__).resolve().parent.parent
    words = [os.path.relpath(sys.argv[0], root), *sys.argv[1:]]
    if "--json" in words:
        at = words.index("--json")
        del words[at:at + 2]
    return " ".join(["python", *words])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def arguments(
    doc: str | None, name: str, *, repeats: int = 5, seconds: float = 3.0
) -> argparse.ArgumentParser:
    """The options that every benchmark has: --repeats, --seconds, --json.

    Args:
        doc: the benchmark's docstring; its first line is the description.
        name: of the record, ``results/NAME.json``.
        repeats, seconds: the defaults.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=repeats, help="default %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="of one measurement; default %(default)s"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS / f"{name}.json", help="default %(default)s"
    )
    return parser


def write(
    path: Path,
    benchmark: str,
    settings: Mapping[str, Any],
    series: Sequence[Series],
    checks: Sequence[Check],
    **more: Any,
) -> None:
    """Write the record.

    Args:
        path: its folder is made.
        benchmark: name of the script.
        settings: of the whole run.
        series, checks: what was measured.
        more: further entries.
    """
    record = {
        "benchmark": benchmark,
        **environment(),
        "command": command(),
        "settings": dict(settings),
        "series": [asdict(item) for item in series],
        "checks": [{**asdict(c), "median": c.median, "holds": c.holds} for c in checks],
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(f"\nwritten: {path}")


def show(series: Sequence[Series], checks: Sequence[Check]) -> None:
    """Print what was measured, and whether the targets hold."""
    if series:
        print(f"\n{'contender':44} {'unit':>12}  median (lowest to highest)  settings")
    for item in series:
        settings = " ".join(f"{k}={v}" for k, v in item.settings.items())
        print(f"{item.name[:44]:44} {item.unit:>12}  {spread(item.values):26} {settings}")
    if checks:
        print(f"\n{'figure':64} {'value':>28}  {'target':>9}")
    for check in checks:
        target = "" if check.target is None else f"{check.sense} {check.target:g} {check.unit}"
        verdict = {None: "", True: "holds", False: "MISSED"}[check.holds]
        print(f"{check.figure[:64]:64} {spread(check.values):>28}  {target:>9}  {verdict}")
