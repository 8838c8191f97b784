"""Sampling and taking in: against memcpy, against the original's loop, and against peers.

A batch is 64 stacks of 4 + 1 frames of 84 x 84, from 100,000 rows. Two copies of the same bytes
are the yardsticks. *Warm*: the same block again and again, so that it comes from the cache. *From
the ring*: blocks at random places of the 700 MB that the rows take, which is the least that any
gather has to fetch. Peers are measured where they are installed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.sample_peers import peers
from benchmarks.harness.measure import Check, Series, interleaved, ratios
from benchmarks.harness.record import arguments, publish
from mprunner import ReplayMemory, Rows
from mprunner.replay.priorities import Priority
from mprunner.rows import CLOSING, ROW, TERMINATED

NAME = "sample"
FRAME, HISTORY_LEN, BATCH = (84, 84), 4, 64
FRAME_BYTES, EPISODE, BLOCKS = 84 * 84, 1000, (1, 4, 16, 64)
WARM, RING = "memcpy, warm", "memcpy, from the ring"
OURS, REUSED, BY_LOOP = "mprunner", "mprunner, out=", "the original's loop"
DRAW, ONE = "mprunner, drawing 64 of 1,000,000 by priority", "mprunner, sample(idx), one"

Task = Callable[[], Any]


def rows_of(num_steps: int, ended: bool) -> Rows:
    """Random frames: a whole episode, or a part of one in its middle."""
    num_rows = num_steps + 1
    meta = np.zeros(num_rows, ROW)
    meta["age"] = np.minimum(np.arange(num_rows), HISTORY_LEN - 1) if ended else HISTORY_LEN - 1
    meta["flags"][-2:] = TERMINATED if ended else 0, CLOSING
    frames = np.random.default_rng(0).integers(0, 256, (num_rows, *FRAME)).astype(np.uint8)
    return Rows(frames, meta, not ended)


def filled(max_size: int, **options: Any) -> ReplayMemory:
    """A full memory with one stream of episodes of 1,000 steps."""
    memory = ReplayMemory(max_size, FRAME, HISTORY_LEN, seed=0, **options)
    writer, rows = memory.claim_stream(), rows_of(EPISODE, ended=True)
    for _ in range(-(-max_size // len(rows))):
        writer.extend(rows)
    writer.release()
    return memory


def microseconds(task: Task, seconds: float) -> float:
    """Mean CPU time of a call, over about so long: nothing here waits, others may."""
    task()
    calls, elapsed, start = 0, 0.0, time.thread_time()
    while elapsed < seconds:
        for _ in range(20):
            task()
        calls += 20
        elapsed = time.thread_time() - start
    return elapsed / calls * 1e6


def yardsticks(state: np.ndarray[Any, Any]) -> dict[str, Task]:
    """Copies of one batch's bytes."""
    num_rows = BATCH * (HISTORY_LEN + 1)
    source, target = state[:num_rows].copy(), np.empty_like(state[:num_rows])
    starts = itertools.cycle(np.random.default_rng(1).integers(0, len(state) - num_rows, 999))

    def from_ring() -> None:
        start = next(starts)
        np.copyto(target, state[start : start + num_rows])

    return {WARM: lambda: np.copyto(target, source), RING: from_ring}


def by_loop(memory: ReplayMemory) -> Task:
    """A batch as the original makes one: index by index, frames stacked last, then stacked."""
    state = memory._streams.storage.state
    indices = itertools.cycle(np.random.default_rng(2).integers(0, len(state) - 9, (999, BATCH)))

    def stacked() -> np.ndarray[Any, Any]:
        return np.stack(
            [
                np.stack([state[i + k] for k in range(HISTORY_LEN + 1)], axis=-1)
                for i in next(indices)
            ]
        )

    return stacked


def sampling(memory: ReplayMemory, folder: str) -> dict[str, Task]:
    """Our ways to sample, and the original's."""
    reused = memory.sample_batch(BATCH)
    in_file = filled(memory.max_size, path=Path(folder) / "replay.mpr")
    in_order = itertools.cycle(range(0, len(memory), 997))
    return {
        OURS: lambda: memory.sample_batch(BATCH),
        REUSED: lambda: memory.sample_batch(BATCH, out=reused),
        "mprunner, n_step=3": lambda: memory.sample_batch(BATCH, n_step=3),
        "mprunner, in a file, out=": lambda: in_file.sample_batch(BATCH, out=reused),
        ONE: lambda: memory.sample(next(in_order)),
        BY_LOOP: by_loop(memory),
    }


def by_priority() -> tuple[ReplayMemory, dict[str, Task]]:
    """Drawing alone, from a memory whose observations are small."""
    memory = ReplayMemory(1_000_000, (1,), 1, seed=0, priority=Priority())
    writer = memory.claim_stream()
    meta = np.zeros(1001, ROW)
    meta["flags"][-1] = CLOSING
    rows = Rows(np.zeros((1001, 1), np.uint8), meta, False)
    for _ in range(1000):
        writer.extend(rows)
    batch = memory.sample_batch(BATCH)
    errors = np.random.default_rng(3).random(BATCH)
    return memory, {
        DRAW: lambda: memory.sample_batch(BATCH, out=batch),
        "mprunner, giving 64 new priorities": lambda: memory.update_priorities(
            batch.indices, errors
        ),
    }


def intake(memory: ReplayMemory) -> dict[str, Task]:
    """Taking in blocks, and copying the same frames to the same places."""
    tasks: dict[str, Task] = {}
    writer = memory.claim_stream()
    for num in BLOCKS:
        rows = rows_of(num, ended=False)
        places = itertools.cycle(range(0, memory.max_size - num, num))

        def copy(rows: Rows = rows, places: Any = places, num: int = num) -> None:
            start = next(places)
            memory._streams.storage.state[start : start + num] = rows.state[1:]

        tasks[f"memcpy of {num} frames"] = copy
        tasks[f"mprunner, taking in {num} steps"] = partial(writer.extend, rows)
    return tasks


def bytes_per_transition() -> float:
    """Of everything that grows with the memory, priorities included."""
    memory = filled(20_000, priority=Priority())
    return memory.nbytes / len(memory)


def main() -> None:
    parser = arguments(__doc__, NAME, repeats=7, seconds=0.3)
    parser.add_argument("--rows", type=int, default=100_000, help="default %(default)s")
    parser.add_argument("--no-peers", action="store_true", help="only our own")
    options = parser.parse_args()
    memory = filled(options.rows)
    prioritised, drawing = by_priority()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tasks = {**yardsticks(memory._streams.storage.state), **sampling(memory, folder), **drawing}
        if not options.no_peers:
            tasks.update(peers(options.rows, FRAME, HISTORY_LEN, BATCH))
        taking = intake(filled(options.rows // 4))
        timed = {
            name: partial(microseconds, task, options.seconds)
            for name, task in {**tasks, **taking}.items()
        }
        found = interleaved(timed, options.repeats)
    series = [Series(name, "CPU us", values) for name, values in found.items()]
    checks = checks_of(found)
    publish(options.json, NAME, {"rows": options.rows, "batch": BATCH}, series, checks)


def checks_of(found: dict[str, list[float]]) -> list[Check]:
    """Our figures against their targets."""
    ours, drawing = found[REUSED], found[DRAW]
    checks = [
        Check("sample.warm", "a batch against a warm memcpy", ratios(ours, found[WARM]), 2.2, "<="),
        Check("sample.ring", "the same against a memcpy from the ring", ratios(ours, found[RING])),
        Check("sample.loop", "the original's loop against it", ratios(found[BY_LOOP], ours)),
        Check("sample.priority", "64 of 1,000,000 by priority", drawing, 300, "<=", "CPU us"),
        Check("sample.bytes", "bytes per transition", [bytes_per_transition()], 7100, "<=", "B"),
    ]
    for num in BLOCKS:
        took, copied = found[f"mprunner, taking in {num} steps"], found[f"memcpy of {num} frames"]
        target = 1.3 if num >= 16 else None
        figure = f"taking in blocks of {num} against their memcpy"
        checks.append(Check(f"intake.{num}", figure, ratios(took, copied), target, "<="))
    return checks


if __name__ == "__main__":
    main()
