"""Greedy steps/s with a predictor that costs nothing, and with a small torch network.

2, 4 and 8 runners, in processes and in threads, against gymnasium's AsyncVectorEnv in lock-step
with the same predictor, on Breakout. mprunner batches whatever waits; AsyncVectorEnv's batch is
all simulators. It plays twice: with the same player, and with gymnasium's own wrapper. mprunner
plays once more with the predictor in its workers, where nothing is asked or batched. Its jobs have
64 steps, as those of the best processes in `benchmarks.peers` on Breakout; threads are as fast
with 16. A served predictor acts on the newest weights however long a job is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.remote import Remote, rate

SIZES = (2, 4, 8)
TARGET = 1.5
JOB_STEPS = 64
OURS, THREADS, THEIRS = "mprunner, processes", "mprunner, threads", "AsyncVectorEnv"
STOCK = f"{THEIRS}, stock wrapper"
LOCAL = "mprunner, LocalPredictor"
KINDS = (OURS, LOCAL, THREADS, THEIRS, STOCK)
Rates = dict[str, list[float]]


def settings(kind: str, size: int) -> tuple[str, dict[str, Any]]:
    """The contender behind a name, and how it is set up."""
    if kind in (THEIRS, STOCK):
        return "gymnasium AsyncVectorEnv", {"num_envs": size, "copy": False, "overlap": False}
    if kind == THREADS:
        return "mprunner, threads", {"backend": "thread", "workers": size, "steps": JOB_STEPS}
    how = {"backend": "process", "workers": size, "steps": JOB_STEPS}
    return "mprunner", {**how, "predictor": "in the workers"} if kind == LOCAL else how


def measure_all(predictor: str, sizes: list[int], repeats: int, seconds: float) -> Rates:
    """Steps/s of every contender: "NAME, SIZE" -> one value per repeat."""
    tasks: dict[str, Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        for size in sizes:
            for kind in KINDS:
                contender, how = settings(kind, size)
                remote = Remote(
                    contender=contender,
                    workload="breakout_stock" if kind == STOCK else "breakout",
                    settings=how,
                    predictor=predictor,
                )
                stack.callback(remote.close)
                tasks[f"{kind}, {size}"] = partial(_rate, remote, seconds)
        return interleaved(tasks, repeats)


def _rate(remote: Remote, seconds: float) -> float:
    return rate(remote.play(seconds))


def _best(rates: Rates, kind: str, sizes: list[int]) -> list[float]:
    """Of the size with the highest median."""
    named = [rates[f"{kind}, {size}"] for size in sizes]
    return max(named, key=statistics.median)


def checks(predictor: str, rates: Rates, sizes: list[int]) -> list[Check]:
    """Best against best, and at each size."""
    target = TARGET if predictor == "trivial" else None
    ours, theirs = _best(rates, OURS, sizes), _best(rates, THEIRS, sizes)
    threads, stock = _best(rates, THREADS, sizes), _best(rates, STOCK, sizes)
    local = _best(rates, LOCAL, sizes)
    found = [
        Check(
            f"predict.{predictor}",
            f"{predictor}: best / best of AsyncVectorEnv",
            ratios(ours, theirs),
            target,
        ),
        Check(
            f"predict.{predictor}.stock",
            f"{predictor}: best / best of AsyncVectorEnv with its stock wrapper",
            ratios(ours, stock),
            target,
        ),
        Check(
            f"predict.{predictor}.threads",
            f"{predictor}: best / best of the thread backend",
            ratios(ours, threads),
        ),
        Check(
            f"predict.{predictor}.local",
            f"{predictor}: best with a LocalPredictor / best of AsyncVectorEnv",
            ratios(local, theirs),
            target,
        ),
        Check(
            f"predict.{predictor}.local.served",
            f"{predictor}: best with a LocalPredictor / best served by the parent",
            ratios(local, ours),
        ),
    ]
    for size in sizes:
        found.append(
            Check(
                f"predict.{predictor}.{size}",
                f"{predictor}: {size} runners / AsyncVectorEnv with {size}",
                ratios(rates[f"{OURS}, {size}"], rates[f"{THEIRS}, {size}"]),
            )
        )
    return found


def main() -> None:
    """Measure, print, write the record and the picture."""
    parser = arguments(__doc__, "predict", repeats=5, seconds=1.5)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--predictors", nargs="*", default=["trivial", "cnn"])
    options = parser.parse_args()
    all_rates: dict[str, Rates] = {}
    series: list[Series] = []
    found: list[Check] = []
    for predictor in options.predictors:
        if predictor == "cnn" and importlib.util.find_spec("torch") is None:
            print("without the network: torch is not installed")
            continue
        rates = measure_all(predictor, options.sizes, options.repeats, options.seconds)
        all_rates[predictor] = rates
        found += checks(predictor, rates, options.sizes)
        for name, values in rates.items():
            kind, _, size = name.rpartition(", ")
            how = settings(kind, int(size))[1]
            series.append(Series(f"{predictor}: {name}", "steps/s", values, how))
    run = {"repeats": options.repeats, "seconds": options.seconds, "torch_threads": 1}
    publish(options.json, "predict", run, series, found)


if __name__ == "__main__":
    main()
