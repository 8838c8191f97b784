"""Makes each benchmark's picture from its record, and from nothing else.

`draw` is called where a record is written, and for all records by `benchmarks.harness.report`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.measure import digits

Record = Mapping[str, Any]
Item = Mapping[str, Any]

OURS, OTHER, GOAL = "#c44e52", "#8c9bb0", "#2f6f4e"
#: The second is small and dark, as it may lie on the first.
_PEER_MARKS = (("s", OTHER), (".", "#333333"))
_STEPS = "steps/s (median; lines: lowest and highest)"


def draw(path: Path) -> None:
    """The picture of a record, beside it; nothing without matplotlib, or if it has none.

    Args:
        path: of the record, ``NAME.json``; the picture is ``NAME.png``.
    """
    record = json.loads(path.read_text())
    benchmark = str(record.get("benchmark", "")) if "checks" in record else ""
    drawer = _DRAWERS.get("peers" if benchmark.startswith("peers_") else benchmark)
    if drawer is not None and plotting() is not None:
        save(drawer(record), path.with_suffix(".png"))


def plotting() -> Any:
    """matplotlib.pyplot without a display, or None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed (the extra 'bench' has it)")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plotting().close(figure)
    print(f"drawn: {path}")


def _bars(
    title: str,
    series: Sequence[Item],
    *,
    label: str | None = None,
    lines: Mapping[str, float] | None = None,
) -> Any:
    """Medians and spreads, one bar per series.

    Args:
        title: above the picture.
        series: from top to bottom.
        label: of the value axis; None: the first series' unit.
        lines: label -> value, for targets.
    """
    size = (9, 1.4 + 0.38 * len(series))
    figure, axes = plotting().subplots(figsize=size, layout="constrained")
    medians, errors = _spreads([item["values"] for item in series])
    places = range(len(series))
    colors = [OURS if "mprunner" in item["name"] else OTHER for item in series]
    axes.barh(places, medians, xerr=errors, color=colors, ecolor="#333333", capsize=3)
    axes.set_yticks(places, [item["name"] for item in series])
    axes.invert_yaxis()
    for text, value in (lines or {}).items():
        axes.axvline(value, color=GOAL, linestyle="--", label=text, zorder=0.5)
    for place, item, median in zip(places, series, medians):
        axes.annotate(
            digits(median),
            (max(item["values"]), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.margins(x=0.12)
    axes.set_xlabel(label or series[0]["unit"])
    if lines:
        figure.legend(loc="outside lower right", fontsize=9)
    axes.set_title(title, fontsize=11)
    return figure


def _spreads(values: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Medians, and how far the lowest and the highest are from them."""
    medians = [statistics.median(v) for v in values]
    below = [m - min(v) for m, v in zip(medians, values)]
    return medians, [below, [max(v) - m for m, v in zip(medians, values)]]


def _peers(record: Record) -> Any:
    (ours,) = (item for item in record["series"] if item["name"] == "mprunner")
    return _bars(
        f"{record['settings']['workload']}:\ntransitions stored in a replay memory, 2 cores",
        record["series"],
        label=_STEPS,
        lines={"mprunner": statistics.median(ours["values"])},
    )


def _throughput(record: Record) -> Any:
    on_breakout = [item for item in record["series"] if "null" not in item["name"]]
    reference = statistics.median(on_breakout[0]["values"])
    return _bars(
        "Breakout: transitions stored in the replay memory",
        on_breakout,
        label=_STEPS,
        lines={"0.95 of two processes without a pool": 0.95 * reference},
    )


def _learner_side(record: Record) -> Any:
    settings = record["settings"]
    batch, every = settings["batch_size"], settings["steps_per_batch"]
    return _bars(
        f"Breakout, with a learner that samples {batch} every {every} steps",
        [item for item in record["series"] if item["unit"] == "steps/s"],
        label=f"stored steps/s (a batch for every {every})",
    )


def _atari_player(record: Record) -> Any:
    return _bars("One process, steps per CPU second", record["series"])


def _sample(record: Record) -> Any:
    others = ("priorit", "taking in", "memcpy of")
    shown = [i for i in record["series"] if not any(word in i["name"] for word in others)]
    return _bars("A batch of 64 x (4 + 1) frames of 84 x 84", shown)


def _predict(record: Record) -> Any:
    """One panel per predictor, bars by size."""
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for item in record["series"]:
        predictor, _, rest = item["name"].partition(": ")
        kind, _, size = rest.rpartition(", ")
        panels.setdefault(predictor, {}).setdefault(kind, {})[size] = item["values"]
    goals = {c["key"]: c["target"] for c in record["checks"] if c["target"] is not None}
    figure, found = plotting().subplots(
        1, len(panels), figsize=(5.5 * len(panels), 4.3), layout="constrained", squeeze=False
    )
    for axes, (predictor, kinds) in zip(found[0], panels.items()):
        _greedy(axes, predictor, kinds, goals.get(f"predict.{predictor}"))
    handles, labels = found[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _greedy(
    axes: Any, predictor: str, kinds: Mapping[str, Mapping[str, list[float]]], goal: float | None
) -> None:
    colors = [OURS, "#8f2f38", "#dd9a6f", OTHER, "#5f6f86"]
    for i, (kind, by_size) in enumerate(kinds.items()):
        medians, errors = _spreads(list(by_size.values()))
        places = [place + (i - (len(kinds) - 1) / 2) * 0.17 for place in range(len(by_size))]
        axes.bar(places, medians, 0.15, yerr=errors, capsize=2, color=colors[i], label=kind)
    theirs = kinds["AsyncVectorEnv"]
    if goal is not None:
        best = max(statistics.median(values) for values in theirs.values())
        text = f"{goal:g} x the best of AsyncVectorEnv"
        axes.axhline(goal * best, color=GOAL, linestyle="--", label=text)
    axes.set_xticks(range(len(theirs)), [f"{size} runners" for size in theirs])
    axes.set_title(f"{predictor} predictor", fontsize=11)
    axes.set_ylabel("greedy steps/s, stored")


def _scale(record: Record) -> Any:
    """Share of the ideal rate and the parent's CPU against the number of simulators."""
    figure, found = plotting().subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    sleep_ms = 1000 * record["settings"]["sleep_s"]
    jobs = f"mprunner, {record['settings']['steps_per_job']}-step jobs"
    for axes, what in zip(found, ("share of the ideal rate", "parent's CPU per transition")):
        ours, peers = _by_size(record, what)
        middle = [statistics.median(values) for values in ours.values()]
        lowest, highest = map(min, ours.values()), map(max, ours.values())
        axes.plot(list(ours), middle, "o-", color=OURS, label=jobs)
        axes.fill_between(list(ours), list(lowest), list(highest), color=OURS, alpha=0.2)
        for (name, (size, values)), (marker, color) in zip(peers.items(), _PEER_MARKS):
            axes.plot(size, statistics.median(values), marker, color=color, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ours), [str(size) for size in ours])
        axes.set_xlabel(f"simulators that sleep {sleep_ms:g} ms")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.set_ylabel(what)
    left, right = found
    for check in record["checks"]:
        if check["key"] == "scale.share_64":
            goal = check["target"]
            left.axhline(goal, color=GOAL, linestyle="--", label=f"target at 64: {goal:.2f}")
    left.set_ylim(0, 1.05)
    right.set_ylabel("CPU of the parent per transition, us")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("Sleeping simulators on 2 cores", fontsize=11)
    return figure


def _by_size(
    record: Record, what: str
) -> tuple[dict[int, list[float]], dict[str, tuple[int, list[float]]]]:
    """A figure of mprunner by the number of workers, and of each peer with its number."""
    ours: dict[int, list[float]] = {}
    peers: dict[str, tuple[int, list[float]]] = {}
    for item in record["series"]:
        name, _, figure = item["name"].partition(": ")
        if figure != what:
            continue
        if name.startswith("mprunner, "):
            ours[item["settings"]["workers"]] = item["values"]
        else:
            peers[name] = item["settings"]["num_envs"], item["values"]
    return dict(sorted(ours.items())), peers


def _ray_scale(record: Record) -> Any:
    """Steps/s stored over the number of actors, and the ceilings, by the model."""
    rate = record["model"]["steps_per_s_of_an_actor"]
    limits = {
        check["figure"].removeprefix("model: actors by "): check["median"]
        for check in record["checks"]
        if check["key"].startswith("ray.model.")
    }
    figure, axes = plotting().subplots(figsize=(8, 4.5), layout="constrained")
    actors = np.geomspace(1, max(10.0, *limits.values()), 200)
    axes.plot(actors, actors * rate, color=OTHER, label="what the actors play")
    colors = [OURS, "#55a868", "#4c72b0", "#8172b2"]
    for (text, limit), color in zip(limits.items(), colors):
        axes.axhline(limit * rate, color=color, linestyle="--", label=text)
    axes.set(xscale="log", yscale="log", xlabel="actors", ylabel="stored steps/s")
    axes.set_title("Model: what one driver can take in (Breakout, 84x84, 64-step jobs)")
    axes.legend(fontsize=9)
    return figure


_DRAWERS: dict[str, Callable[[Record], Any]] = {
    "atari_player": _atari_player,
    "learner_side": _learner_side,
    "peers": _peers,
    "predict": _predict,
    "ray_scale": _ray_scale,
    "sample": _sample,
    "scale": _scale,
    "throughput": _throughput,
}
