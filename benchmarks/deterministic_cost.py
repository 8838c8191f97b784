"""What ``deterministic=True`` costs: batches per second of an `ExpReplay`, with and without.

Two players of Breakout act at random; the learner computes for some milliseconds on each batch.
Without it the simulators play while the learner computes; with it they play one after the other,
and only the simulators of one round overlap.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from benchmarks.harness.workloads import burn
from mprunner import ExpReplay
from mprunner.atari import AtariPlayer

STEPS_PER_BATCH = 32
LEARNER_S = (0.0, 0.01)


def batches_per_s(deterministic: bool, learner_s: float, seconds: float) -> float:
    """One measurement.

    Args:
        deterministic: of the pool.
        learner_s: CPU seconds of the learner for each batch.
        seconds: that it takes.
    """
    with ExpReplay(
        None,
        partial(AtariPlayer, "breakout"),
        num_parallel_players=2,
        state_shape=(84, 84),
        batch_size=32,
        memory_size=20_000,
        init_memory_size=1_000,
        update_frequency=STEPS_PER_BATCH,
        history_len=4,
        seed=0,
        backend="process",
        deterministic=deterministic,
    ) as replay:
        batches = iter(replay)
        next(batches)
        count, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            next(batches)
            burn(1000 * learner_s)
            count += 1
        return count / spent


def main() -> None:
    """Measure, print and write the record."""
    options = arguments(__doc__, "deterministic_cost", repeats=3, seconds=4.0).parse_args()
    names = {
        (mode, learner_s): f"{'deterministic' if mode else 'free'}, learner {learner_s * 1e3:g} ms"
        for learner_s in LEARNER_S
        for mode in (False, True)
    }
    results = interleaved(
        {
            name: partial(batches_per_s, mode, learner_s, options.seconds)
            for (mode, learner_s), name in names.items()
        },
        options.repeats,
    )
    series = [Series(name, "batches/s", values) for name, values in results.items()]
    checks = [
        Check(
            f"deterministic.learner_{learner_s * 1e3:g}_ms",
            f"deterministic against free, a learner of {learner_s * 1e3:g} ms per batch",
            ratios(results[names[True, learner_s]], results[names[False, learner_s]]),
        )
        for learner_s in LEARNER_S
    ]
    settings = {"steps_per_batch": STEPS_PER_BATCH, "seconds": options.seconds}
    publish(options.json, "deterministic_cost", settings, series, checks)


if __name__ == "__main__":
    main()
