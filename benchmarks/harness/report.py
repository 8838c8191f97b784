"""Every target and whether it holds, and the tables and pictures of both READMEs, from the records.

A table stands, in README.md or in benchmarks/README.md, between ``<!-- bench:NAME:begin -->`` and
``<!-- bench:NAME:end -->``, and is made from ``results/NAME.json`` alone; ``bench:targets`` has all
targets. Where a record is missing, the table says so: no figure without its record. The pictures
are those of `benchmarks.harness.pictures`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import pictures
from benchmarks.harness.measure import spread
from benchmarks.harness.readme import README, replace_between
from benchmarks.harness.record import RESULTS

#: The text with tables -> where it finds the pictures.
TEXTS = {README: "benchmarks/results", README.parent / "benchmarks" / "README.md": "results"}

Record = dict[str, Any]

#: What has a target: key of the check -> the benchmark that measures it.
EXPECTED = {
    "throughput.jobs_16": "throughput",
    "throughput.jobs_1": "throughput",
    "throughput.workers_4": "throughput",
    "peers.breakout.EnvPool, asynchronous": "peers_breakout",
    "peers.breakout.ALE AtariVectorEnv": "peers_breakout",
    "peers.breakout.gymnasium AsyncVectorEnv": "peers_breakout",
    "peers.breakout.SB3 SubprocVecEnv + ReplayBuffer": "peers_breakout",
    "peers.breakout.tianshou ShmemVectorEnv + VectorReplayBuffer": "peers_breakout",
    "peers.breakout.torchrl MultiAsyncCollector": "peers_breakout",
    "peers.breakout.mprunner, threads": "peers_breakout",
    "parent_cpu.breakout.jobs_64": "throughput",
    "parent_cpu.breakout.jobs_16": "throughput",
    "parent_cpu.breakout.jobs_1": "throughput",
    "runner.own_cost": "throughput",
    "scale.share_64": "scale",
    "scale.share_256": "scale",
    "scale.startup_64": "scale",
    "scale.pss": "scale",
    "predict.trivial": "predict",
    "predict.trivial.stock": "predict",
    "stats.random.caches cold": "stats_cost",
    "stats.greedy.caches cold": "stats_cost",
    "sample.warm": "sample",
    "sample.bytes": "sample",
    "ray.throughput": "ray_scale",
}


def load(folder: Path) -> dict[str, Record]:
    """Every record: file name without suffix -> contents."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if isinstance(record, dict) and "checks" in record:
            found[path.stem] = record
    return found


def verdict(check: Mapping[str, Any]) -> str:
    """In words."""
    return {True: "holds", False: "**missed**", None: ""}[check["holds"]]


def limit(check: Mapping[str, Any]) -> str:
    """The target, or nothing."""
    if check["target"] is None:
        return ""
    return f"{check['sense']} {check['target']:g} {_unit(check)}".strip()


def _unit(check: Mapping[str, Any]) -> str:
    return "" if check["unit"] == "x" else str(check["unit"])


def _value(check: Mapping[str, Any]) -> str:
    return f"{spread(check['values'])} {_unit(check)}".strip()


def targets(records: Mapping[str, Record]) -> list[str]:
    """The rows of the table of all targets, those without a record, too."""
    lines = ["| figure | measured | target | | by |", "|---|---|---|---|---|"]
    seen = set()
    for name, record in records.items():
        for check in record["checks"]:
            if check["target"] is None:
                continue
            seen.add(check["key"])
            lines.append(
                f"| {_cell(check['figure'])} | {_value(check)} "
                f"| {limit(check)} | {verdict(check)} | `{name}` |"
            )
    for key, name in EXPECTED.items():
        if key not in seen:
            lines.append(f"| {_cell(key)} | not measured yet | | | `{name}` |")
    return lines


def table(name: str, record: Record, folder: str) -> list[str]:
    """One benchmark: contenders, ratios, picture, machine."""
    lines = []
    setups = record.get("contenders", {})
    if record["series"]:
        lines += ["| contender | median (lowest to highest) | settings |", "|---|---|---|"]
    for item in record["series"]:
        settings = ", ".join(f"{key}={value}" for key, value in item["settings"].items())
        setup = setups.get(item["name"].removesuffix(", stock wrapper"))
        if setup:
            link = setup["doc"]
            where = f" ([doc]({link}))" if link.startswith("http") else ""
            settings = f"{settings}; {setup['setup']}{where}"
        value = f"{spread(item['values'])} {item['unit']}"
        lines.append(f"| {_cell(item['name'])} | {value} | {_cell(settings)} |")
    if record["checks"]:
        lines += ["", "| ratio or figure | measured | target | |", "|---|---|---|---|"]
    for check in record["checks"]:
        lines.append(
            f"| {_cell(check['figure'])} | {_value(check)} "
            f"| {limit(check)} | {verdict(check)} |"
        )
    if (RESULTS / f"{name}.png").exists():
        lines += ["", f"![{name}]({folder}/{name}.png)"]
    return [*lines, "", footer(record)]


def footer(record: Record) -> str:
    """Where and when."""
    machine = record["machine"]
    versions = ", ".join(f"{package} {found}" for package, found in record["versions"].items())
    settings = ", ".join(f"{key} {_short(value)}" for key, value in record["settings"].items())
    return (
        f"`{record['command']}` ({settings}); {machine['processor']}, {machine['num_cpus']} CPUs; "
        f"{versions}; {record['date'][:10]}."
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rebuild(text: str, records: Mapping[str, Record], folder: str) -> str:
    """The text with every marked table rebuilt; `folder` is where it finds the pictures."""
    for name in re.findall(r"<!-- bench:([\w.-]+):begin -->", text):
        if name == "targets":
            body = "\n".join(targets(records))
        elif name in records:
            body = "\n".join(table(name, records[name], folder))
        else:
            body = f"Not measured yet: there is no `benchmarks/results/{name}.json`."
        text = replace_between(text, f"bench:{name}", body)
    return text


def show(records: Mapping[str, Record]) -> None:
    """Print each target, its figure and whether it holds."""
    print(f"{'target':58} {'measured':>26}  {'must be':>10}")
    seen = set()
    for record in records.values():
        for check in record["checks"]:
            seen.add(check["key"])
            if check["target"] is None:
                continue
            word = verdict(check).strip("*").upper() if not check["holds"] else "holds"
            print(
                f"{check['figure'][:58]:58} {spread(check['values']):>26}  "
                f"{limit(check):>10}  {word}"
            )
    for key, name in EXPECTED.items():
        if key not in seen:
            print(f"{key[:58]:58} {'not measured':>26}  (results/{name}.json)")


def main() -> None:
    """Print, and rebuild the texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="default %(default)s")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a table has drifted"
    )
    options = parser.parse_args()
    records = load(options.results)
    show(records)
    for path, folder in TEXTS.items():
        before = path.read_text()
        after = rebuild(before, records, folder)
        if after == before:
            continue
        if options.check:
            sys.exit(f"{path} is not what the records say; run python -m benchmarks.harness.report")
        path.write_text(after)
        print(f"rebuilt: {path}")
    if not options.check and pictures.plotting() is not None:
        for name in records:
            pictures.draw(options.results / f"{name}.json")


if __name__ == "__main__":
    main()
