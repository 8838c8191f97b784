"""SIGKILL at random instants: what had landed is there, whole, and nothing that had not."""

from __future__ import annotations

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

from mprunner.experience import CLOSING
from mprunner.replay.inspect import info
from tests.replay import writer_child as child

ROOT = Path(__file__).parents[2]


def write_and_kill(folder, mode, number):
    """Runs the child, kills it at some instant, returns its file and what it had reported."""
    path, reports = folder / f"{number}.mpr", folder / f"{number}.landed"
    reports.write_bytes(bytes(8 * child.NUM_STREAMS))
    landed = np.memmap(reports, np.int64, "r")
    random_ = random.Random(number)
    wanted = random_.randint(1, child.MOST_BLOCKS // 2 if mode == "write" else 30)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.replay.writer_child", path, reports, mode], cwd=ROOT
    )
    deadline = time.monotonic() + 50
    while landed[0] < wanted and process.poll() is None and time.monotonic() < deadline:
        os.sched_yield()
    instant = time.perf_counter() + random_.random() * 1e-3
    while time.perf_counter() < instant:
        pass
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert landed[0] >= wanted
    return path, landed.tolist()


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
        for stream, (landed, blocks) in enumerate(zip(games, reported)):
            assert blocks <= landed <= blocks + 1
            want = transitions(expected_rows(stream, landed), cap)
            mine = [one for one in got if one[2] // 10_000_000 == stream]
            lost = len(want) - len(mine)
            # A torn block may have begun to overwrite the oldest rows.
            torn = expected_rows(stream, landed + 1)[len(expected_rows(stream, landed)) - 1 :]
            assert 0 <= lost <= len(torn) + child.HISTORY_LEN
            for (state, reward, action, _), (tag, stack, following) in zip(mine, want[lost:]):
                frames = [0] * (child.HISTORY_LEN - len(stack)) + stack + [following]
                assert action == tag and reward == tag % 1000
                assert (state == np.array(frames)).all()
        batch = memory.sample_batch(min(64, len(memory)))
        assert (batch.next_state[:, 0, 0, -1] == batch.action + 1).all()
        assert not (batch.terminated & batch.truncated).any()


def check_dealt_file(path):
    with child.open_memory(path) as memory:
        for index in range(len(memory)):
            state, _, action, _ = memory.sample(index)
            stack = state[0, 0].tolist()
            assert (state == np.array(stack)).all()
            assert stack[-2:] == [action, action + 1]
            assert all(a == b - 1 or a == 0 for a, b in zip(stack, stack[1:]))
        assert len(memory) > 0


@pytest.mark.parametrize("number", range(6))
def test_a_killed_writer_leaves_whole_blocks(tmp_path, number):
    check_file(*write_and_kill(tmp_path, "write", number))


@pytest.mark.parametrize("number", range(2))
def test_a_writer_killed_while_it_deals_leaves_whole_stacks(tmp_path, number):
    check_dealt_file(write_and_kill(tmp_path, "deal", number)[0])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_200_killed_writers(tmp_path, part):
    for number in range(100 + 10 * part, 110 + 10 * part):
        check_file(*write_and_kill(tmp_path, "write", number))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_80_writers_killed_while_they_deal(tmp_path, part):
    for number in range(100 + 10 * part, 110 + 10 * part):
        check_dealt_file(write_and_kill(tmp_path, "deal", number)[0])
