"""A process that writes a replay file until it is killed, and says what has landed.

``python writer_child.py PATH REPORTS MODE``: REPORTS is a file of one int64 per stream, how many
blocks of it have landed. With MODE "deal" it also divides the memory anew all the time.
"""

from __future__ import annotations

import mmap
import random
import sys
from itertools import islice

import numpy as np

from mprunner.experience import CLOSING, ROW, TERMINATED, Rows
from mprunner.replay.memory import ReplayMemory

MAX_SIZE, SHAPE, HISTORY_LEN, NUM_STREAMS = 400, (24, 24), 3, 2
MOST_STREAMS = 5
MOST_BLOCKS = 400


def open_memory(path):
    return ReplayMemory(
        MAX_SIZE, SHAPE, HISTORY_LEN, "int32", path=path, num_streams=NUM_STREAMS, seed=0
    )


def blocks(stream):
    """The endless blocks of one stream: ``(rows of (tag, flags, age), provisional)``."""
    random_ = random.Random(stream)
    tag, age = stream * 10_000_000 + 1, 0
    while True:
        rows, over = [], False
        for _ in range(random_.randint(1, 40)):
            over = random_.random() < 0.1
            rows.append((tag, TERMINATED if over else 0, age))
            tag, age = tag + 1, min(age + 1, HISTORY_LEN - 1)
            if over:
                rows.append((tag, CLOSING, age))
                tag, age = tag + 1, 0
        if not over:
            rows.append((tag, CLOSING, age))
        yield rows, not over


def as_rows(rows, provisional):
    tags = np.array([row[0] for row in rows])
    meta = np.zeros(len(rows), ROW)
    meta["action"] = tags
    meta["reward"] = tags % 1000
    meta["flags"] = [row[1] for row in rows]
    meta["age"] = [row[2] for row in rows]
    state = np.broadcast_to(tags[:, None, None], (len(rows), *SHAPE)).astype(np.int32)
    return Rows(np.ascontiguousarray(state), meta, provisional)


def main(path, reports, mode):
    memory = open_memory(path)
    with open(reports, "r+b") as file:
        landed = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    if mode == "deal":
        for number in range(1_000_000):
            count = 1 + number % MOST_STREAMS
            memory.open_streams(count)
            for stream in range(count):
                source = blocks(number * MOST_STREAMS + stream)
                for _ in range(4):
                    memory.extend(stream, as_rows(*next(source)), [1.0])
            memory.close_streams()
            landed[0] += 1
    streams = [memory.claim_stream() for _ in range(NUM_STREAMS)]
    # Made before, so that a kill hits the memory and not the making of rows.
    made = [[as_rows(*block) for block in islice(blocks(s), MOST_BLOCKS)] for s in streams]
    for block in range(MOST_BLOCKS):
        for stream in streams:
            memory.extend(stream, made[stream][block], [1.0])
            landed[stream] += 1
    while True:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
