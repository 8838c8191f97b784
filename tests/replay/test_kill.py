"""SIGKILL at each line, and at random instants: what was stored is there, whole, and no more.

The lines come one after the other, in a child that kills itself there; `make chaos` repeats the
random instants.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import mprunner.replay
from mprunner.replay.inspect import info
from mprunner.rows import CLOSING
from tests.support import writer_child as child
from tests.support.waiting import HANG_S

ROOT = Path(__file__).parents[2]
REPLAY = os.path.dirname(mprunner.replay.__file__)


def await_unlocked(path):
    """The system lets go of a killed process's files a moment after its end, if another program
    is just looking at its memory."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def write_and_kill(folder, mode, number):
    """Runs the child, kills it at some instant, returns its file and what it had reported."""
    path, reports = folder / f"{number}.mpr", folder / f"{number}.stored"
    reports.write_bytes(bytes(8 * child.NUM_STREAMS))
    stored = np.memmap(reports, np.int64, "r")
    random_ = random.Random(number)
    wanted = random_.randint(1, child.MOST_BLOCKS // 2 if mode == "write" else 30)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.writer_child", path, reports, mode], cwd=ROOT
    )
    deadline = time.monotonic() + HANG_S
    while stored[0] < wanted and process.poll() is None and time.monotonic() < deadline:
        os.sched_yield()
    instant = time.perf_counter() + random_.random() * 1e-3
    while time.perf_counter() < instant:
        pass
    process.kill()
    assert process.wait() == -signal.SIGKILL
    await_unlocked(path)
    assert stored[0] >= wanted
    return path, stored.tolist()


def expected_rows(stream, num_blocks):
    """``(tag, flags, age)`` of all rows of a stream after so many blocks, and then sealed."""
    rows, provisional = [], False
    for block, goes_on in islice(child.blocks(stream), num_blocks):
        rows[len(rows) - provisional :] = block
        provisional = goes_on
    return rows


def transitions(rows, cap):
    """``(tag, stack, next tag)`` of what a ring of ``cap`` rows can sample."""
    found = []
    for k in range(max(0, len(rows) - cap), len(rows)):
        tag, flags, age = rows[k]
        if not flags & CLOSING and k - age >= len(rows) - cap:
            found.append((tag, [tag - back for back in range(age, -1, -1)], rows[k + 1][0]))
    return found


def check_file(path, reported):
    """Each stream is a whole prefix of what was written: all reported blocks, at most one more."""
    cap = child.MAX_SIZE // child.NUM_STREAMS
    seen = info(path)
    with child.open_memory(path) as memory:
        got = [memory.sample(index) for index in range(len(memory))]
        games = [ring.games for ring in memory._streams.rings]
        assert seen.transitions == len(memory) and seen.games == sum(games)
        for stream, (stored, blocks) in enumerate(zip(games, reported)):
            assert blocks <= stored <= blocks + 1
            want = transitions(expected_rows(stream, stored), cap)
            mine = [one for one in got if one[2] // 10_000_000 == stream]
            lost = len(want) - len(mine)
            # A torn block may have begun to overwrite the oldest rows.
            torn = expected_rows(stream, stored + 1)[len(expected_rows(stream, stored)) - 1 :]
            assert 0 <= lost <= len(torn) + child.HISTORY_LEN
            for (state, reward, action, _), (tag, stack, following) in zip(mine, want[lost:]):
                frames = [0] * (child.HISTORY_LEN - len(stack)) + stack + [following]
                assert action == tag and reward == tag % 1000
                assert (state == np.array(frames)).all()
        if not got:
            return
        batch = memory.sample_batch(min(64, len(memory)))
        assert (batch.next_state[:, 0, 0, -1] == batch.action + 1).all()
        assert not (batch.terminated & batch.truncated).any()


def check_resized_file(path):
    with child.open_memory(path) as memory:
        for index in range(len(memory)):
            state, _, action, _ = memory.sample(index)
            stack = state[0, 0].tolist()
            assert (state == np.array(stack)).all()
            assert stack[-2:] == [action, action + 1]
            assert all(a == b - 1 or a == 0 for a, b in zip(stack, stack[1:]))
        assert len(memory) > 0


class KillAtLine:
    """A tracer that ends its process at line event number `at` of the replay memory."""

    def __init__(self, at):
        self._left = at

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(REPLAY):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def killed_at(at, path, work, prepare):
    """Do `work` in a child that dies at a line of it; False if it has no such line."""
    pid = os.fork()
    if pid == 0:
        try:
            memory = child.open_memory(path)
            prepared = prepare(memory)
            sys.settrace(KillAtLine(at))
            work(memory, prepared)
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    await_unlocked(path)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def check_each_line(path, work, check, least, prepare=lambda memory: None):
    """`check(path)` of the file that is left by a kill at each line of `work`."""
    before = path.read_bytes()
    for at in itertools.count(1):
        path.write_bytes(before)
        killed = killed_at(at, path, work, prepare)
        check(path)
        if not killed:
            assert at > least
            return


@pytest.mark.parametrize("num_blocks", [0, 3, 30])
def test_killed_at_each_line_of_a_block(tmp_path, num_blocks):
    """Of an empty ring, of one that has room, and of one that has wrapped."""
    path = tmp_path / "memory.mpr"
    made = [child.as_rows(*block) for block in islice(child.blocks(0), num_blocks + 1)]
    child.open_memory(path).close()

    def prepare(memory):
        writer = memory.claim_streams(child.NUM_STREAMS)[0]
        for rows in made[:num_blocks]:
            writer.extend(rows, [1.0])
        return writer

    def work(memory, writer):
        writer.extend(made[num_blocks], [1.0])

    check_each_line(path, work, lambda path: check_file(path, [num_blocks, 0]), 30, prepare)


@pytest.mark.slow
@pytest.mark.parametrize("num_streams", [1, 5])
def test_killed_at_each_line_of_a_resize(tmp_path, num_streams):
    """From three streams that have wrapped to fewer or more."""
    path = tmp_path / "memory.mpr"
    with child.open_memory(path) as memory:
        for writer in memory.claim_streams(3):
            for block in islice(child.blocks(writer.index), 20):
                writer.extend(child.as_rows(*block), [1.0])

    def check(path):
        check_resized_file(path)
        assert [left.name for left in tmp_path.iterdir()] == [path.name]

    check_each_line(path, lambda memory, _: memory.claim_streams(num_streams), check, 60)


@pytest.mark.parametrize("number", range(2))
def test_a_killed_writer_leaves_whole_blocks(tmp_path, number):
    check_file(*write_and_kill(tmp_path, "write", number))


def test_a_writer_killed_while_it_resizes_leaves_whole_stacks(tmp_path):
    check_resized_file(write_and_kill(tmp_path, "resize", 0)[0])
