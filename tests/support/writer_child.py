"""A process that writes a replay file until it is killed, and says what is stored.

``python writer_child.py PATH REPORTS MODE``: REPORTS is a file of one int64 per stream, how many
blocks of it are stored. With MODE "resize" it also changes the number of streams all the time.
"""

from __future__ import annotations

import mmap
import random
import sys
from itertools import islice

import numpy as np

from mprunner.replay.memory import ReplayMemory
from mprunner.rows import CLOSING, ROW, TERMINATED, Rows

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
        stored = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    if mode == "resize":
        for number in range(1_000_000):
            writers = memory.claim_streams(1 + number % MOST_STREAMS)
            for writer in writers:
                source = blocks(number * MOST_STREAMS + writer.index)
                for _ in range(4):
                    writer.extend(as_rows(*next(source)), [1.0])
            for writer in writers:
                writer.release()
            stored[0] += 1
    writers = memory.claim_streams(NUM_STREAMS)
    # Made before, so that a kill hits the memory and not the making of rows.
    made = [[as_rows(*block) for block in islice(blocks(w.index), MOST_BLOCKS)] for w in writers]
    for block in range(MOST_BLOCKS):
        for writer in writers:
            writer.extend(made[writer.index][block], [1.0])
            stored[writer.index] += 1
    while True:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
