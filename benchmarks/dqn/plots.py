"""Pictures of training runs: score against wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.pictures import plotting, save

_COLORS = {"process": "#c44e52", "thread": "#8c9bb0"}


def plot_run(path: Path, record: Mapping[str, Any]) -> None:
    """One run: the scores of training games, the evaluations, the final one.

    Args:
        path: of the PNG.
        record: of `dqn.record`.
    """
    pyplot = plotting()
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    points = [p for p in record["curve"] if p["score"] is not None]
    minutes = [p["elapsed_s"] / 60 for p in points]
    axes.plot(minutes, [p["score"] for p in points], ".", ms=3, color="#b9c3d0",
              label="training games (with exploration)")
    window = max(1, len(points) // 25)
    scores = [p["score"] for p in points]
    means = [sum(scores[max(0, i - window):i + 1]) / len(scores[max(0, i - window):i + 1])
             for i in range(len(scores))]
    axes.plot(minutes, means, color="#5b6b80", label=f"their mean over {window + 1} points")
    evaluations = record["evaluations"][:-1]
    axes.plot([e["elapsed_s"] / 60 for e in evaluations], [e["mean"] for e in evaluations], "o-",
              color="#c44e52", label="evaluations")
    final = record["final"]
    axes.axhline(final["mean"], color="#2f6f4e", linestyle="--",
                 label=f"final: {final['mean']:.1f} over {final['games']} games")
    axes.set_xlabel("wall time, minutes")
    axes.set_ylabel("score of a game")
    config = record["config"]
    axes.set_title(f"DQN on {config['env']}, seed {config['seed']}, "
                   f"{record['steps']:,} steps, {record['updates']:,} updates", fontsize=11)
    axes.legend(fontsize=9)
    save(figure, path)


def plot_evaluations(path: Path, title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Several runs: evaluations against wall time without evaluations, coloured by backend.

    Args:
        path: of the PNG.
        title: above the picture.
        records: of `dqn.record`.
    """
    pyplot = plotting()
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    labelled = set()
    for record in records:
        backend = record["config"]["backend"]
        evaluations = record["evaluations"][:-1]
        axes.plot([e["training_s"] for e in evaluations], [e["mean"] for e in evaluations], "o-",
                  ms=4, alpha=0.8, color=_COLORS.get(backend, "black"),
                  label=None if backend in labelled else f"{backend} backend")
        labelled.add(backend)
    target = records[0]["config"]["target_score"]
    if target is not None:
        axes.axhline(target, color="#2f6f4e", linestyle="--", label=f"target: {target:g}")
    axes.set_xlabel("wall time of training, s")
    axes.set_ylabel("mean score of an evaluation")
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=9)
    save(figure, path)
