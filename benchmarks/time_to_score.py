"""Threads against processes where it counts: time until the agent plays well.

The same learner, seeds and settings on both backends, on CartPole whose simulator burns 1 ms of
Python per step, with one update for eight steps. Both run with ``deterministic=True``: they learn
the same, bit for bit, and differ in nothing but time, so that luck plays no part. (It also costs
both the overlap of playing and learning: ``--free`` has that, and luck.) The clock leaves out the
evaluations.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.dqn.plots import plot_evaluations
from benchmarks.harness.record import arguments, environment, write_json
from benchmarks.train_table import run_dqn

BACKENDS = ("process", "thread")


def main() -> None:
    """Train on both backends, write the record and its picture."""
    parser = arguments(__doc__, "time_to_score")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-seconds", type=float, default=120.0, help="of one run (120)")
    parser.add_argument("--target-score", type=float, default=475.0)
    parser.add_argument("--free", action="store_true", help="without deterministic=True")
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for i, seed in enumerate(options.seeds):
        for backend in BACKENDS[:: -1 if i % 2 else 1]:
            print(f"seed {seed}, {backend} backend", flush=True)
            records.append(_run(options, seed, backend))
    if not options.free:
        _check_same(records)
    rows = [
        {"seed": seed, **{r["config"]["backend"]: _reached(r, options.target_score)
                          for r in records if r["config"]["seed"] == seed}}
        for seed in options.seeds
    ]
    write_json(
        options.json,
        {
            "benchmark": "time_to_score",
            "max_seconds": options.max_seconds,
            "target_score": options.target_score,
            "rows": rows,
            "runs": records,
            **environment(),
        },
    )
    plot_evaluations(
        options.json.with_suffix(".png"),
        "CartPole-v1 with 1 ms of Python per step, two simulators, two cores",
        records,
    )
    for row in rows:
        print(row)


def _run(options: argparse.Namespace, seed: int, backend: str) -> dict[str, Any]:
    return run_dqn(
        ["--seed", str(seed), "--backend", backend, "--step-cost-s", "0.001",
         *([] if options.free else ["--deterministic"]),
         # One update for eight steps: the simulators, not the learner, are what takes long.
         "--steps-per-round", "64", "--updates-per-round", "8",
         "--target-score", str(options.target_score), "--eval-every", "1000",
         "--final-episodes", "20", "--max-seconds", str(options.max_seconds)],
        timeout_s=options.max_seconds + 60,
    )


def _check_same(records: list[dict[str, Any]]) -> None:
    """Each seed's runs are one run, as far as the shorter goes."""
    for first in records:
        for other in records:
            if first["config"]["seed"] == other["config"]["seed"]:
                one, two = _by_steps(first), _by_steps(other)
                differ = [steps for steps in one.keys() & two.keys() if one[steps] != two[steps]]
                assert not differ, (first["config"], "is not repeated at", sorted(differ))


def _by_steps(record: dict[str, Any]) -> dict[int, float]:
    """The scheduled evaluations; the last one comes when the time is up."""
    scheduled = [e for e in record["evaluations"][:-2] if e["games"] == 20]
    return {e["steps"]: e["mean"] for e in reversed(scheduled)}


def _reached(record: dict[str, Any], target: float) -> float | None:
    """Seconds of training until an evaluation reached the target; None: none did."""
    for evaluation in record["evaluations"][:-1]:
        if evaluation["mean"] >= target:
            return float(evaluation["training_s"])
    return None


if __name__ == "__main__":
    main()
