"""The record of a benchmark: a JSON file with every repeat, the machine, the versions and the date.

`python -m benchmarks.harness.report` makes the tables of the READMEs from the records, `pictures`
the pictures.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import pictures
from benchmarks.harness.measure import Check, Series, show

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
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


def arguments(
    doc: str | None, name: str, *, repeats: int | None = None, seconds: float | None = None
) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks share: --json, --repeats, --seconds.

    Args:
        doc: the benchmark's docstring; its first line is the description.
        name: of the record, ``results/NAME.json``.
        repeats, seconds: the defaults; None: the benchmark has no such option.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, help="default %(default)s")
    if seconds is not None:
        parser.add_argument(
            "--seconds", type=float, default=seconds, help="of one measurement; default %(default)s"
        )
    parser.add_argument(
        "--json", type=Path, default=RESULTS / f"{name}.json", help="default %(default)s"
    )
    return parser


def publish(
    path: Path,
    benchmark: str,
    settings: Mapping[str, Any],
    series: Sequence[Series],
    checks: Sequence[Check],
    **more: Any,
) -> None:
    """Print what was measured, write the record and draw its picture.

    Args:
        path: of the record; its folder is made.
        benchmark: name of the module.
        settings: of the whole run.
        series, checks: what was measured.
        more: further entries.
    """
    show(series, checks)
    write_json(
        path,
        {
            "benchmark": benchmark,
            **environment(),
            "command": command(),
            "settings": dict(settings),
            "series": [asdict(item) for item in series],
            "checks": [{**asdict(c), "median": c.median, "holds": c.holds} for c in checks],
            **more,
        },
    )
    print(f"\nwritten: {path}")
    pictures.draw(path)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Replace a record as a whole: it is the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=1, default=str) + "\n")
    os.replace(partial, path)


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
    """Return what runs this again, from the root; where the record goes is left out."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run it as python -m benchmarks.NAME"
    words = ["python", "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    if "--json" in words:
        at = words.index("--json")
        del words[at:at + 2]
    return " ".join(words)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
