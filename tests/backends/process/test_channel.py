"""The shared block of one worker: who writes where, and how each side learns of the other."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from mprunner.activity import Doing
from mprunner.backends.process.channel import NUM_BLOCKS, Channel, ChannelSpec, SharedMemory
from mprunner.backends.process.pipes import ParentGone
from mprunner.rows import ROW
from mprunner.pace import Pace
from tests.support.waiting import Background, eventually


def spec(shape=(84, 84), dtype="uint8", history_len=4, max_jobs=16):
    return ChannelSpec(shape, np.dtype(dtype), history_len, max_jobs)


@pytest.fixture
def channel():
    made = Channel(spec())
    yield made
    made.close()
    vars(made).clear()  # the mapping; pytest holds on to the channel itself for a while


# ---- shared memory


def test_shared_memory_is_zeroed_and_has_no_name():
    before = set(os.listdir("/dev/shm"))
    shared = SharedMemory(100_000)
    assert set(os.listdir("/dev/shm")) == before
    assert bytes(shared.map) == bytes(100_000)
    shared.map[5] = 7
    shared.close_fd()
    shared.close_fd()
    assert shared.map[5] == 7


def test_shared_memory_travels_at_the_start_of_a_process_only(channel):
    for one in (channel._shared, channel):
        with pytest.raises(RuntimeError, match="inheritance"):
            pickle.dumps(one)


def test_what_is_closed_is_given_back():
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    made = Channel(spec())
    assert open_files() > before
    made.close()
    del made
    assert open_files() == before


# ---- the layout


@pytest.mark.parametrize(
    "one",
    [
        spec(),
        spec((1,), "bool", 1),
        spec((3,), "float64", 255),
        spec((7, 5, 3), "float16", 3),
        spec((1000, 1000), "uint8", 2),
    ],
)
def test_no_two_parts_overlap(one):
    channel = Channel(one)
    parts = [
        np.frombuffer(channel._cells, np.uint8),
        np.frombuffer(channel._times, np.uint8),
        np.frombuffer(channel._busy, np.uint8),
        channel.question.reshape(-1).view(np.uint8),
        *[states.reshape(-1).view(np.uint8) for states in channel.states],
        *[meta.view(np.uint8) for meta in channel.meta],
    ]
    assert channel.question.shape == (one.history_len, *one.state_shape)
    assert len(channel.states) == len(channel.meta) == len(channel.meta_bytes) == NUM_BLOCKS
    for number, part in enumerate(parts, 1):
        part[...] = number
    for number, part in enumerate(parts, 1):
        assert (part == number).all()
    for states, meta in zip(channel.states, channel.meta):
        assert states.shape == (len(meta), *one.state_shape)
        assert states.dtype == one.dtype and meta.dtype == ROW
        for array in (states, meta):
            assert array.__array_interface__["data"][0] % 64 == 0
    for (a, b) in itertools.combinations(parts, 2):
        assert not np.shares_memory(a, b)
    del parts, part, a, b
    channel.close()


# ---- blocks


def test_blocks_belong_to_one_side_at_a_time(channel):
    taken = []
    for _ in range(NUM_BLOCKS):
        block = channel.free_block()
        assert block not in taken
        channel.take_block(block)
        taken.append(block)
    assert channel.free_block() is None
    channel.give_block(taken[2])
    assert channel.free_block() == channel.wait_for_block() == taken[2]


def test_a_worker_that_is_ahead_waits_for_a_block(channel):
    for block in range(NUM_BLOCKS):
        channel.take_block(block)
    waiting = Background(channel.wait_for_block)
    eventually(lambda: channel._cells[5] == 1)
    assert waiting.running
    channel.give_block(1)
    assert waiting.result() == 1
    assert channel._cells[5] == 0


def test_a_wake_up_that_is_missed_is_made_up_for(channel):
    for block in range(NUM_BLOCKS):
        channel.take_block(block)
    waiting = Background(channel.wait_for_block)
    eventually(lambda: channel._cells[5] == 1)
    channel._busy[3] = 0  # as if the parent had looked at the cell before it was set
    assert waiting.result() == 3


def test_a_late_wake_up_is_no_answer(channel):
    channel.wake()  # meant for a wait for a block that is over
    channel.answer(np.array([1.5, -2.0]))
    assert channel.wait_for_answer().tolist() == [1.5, -2.0]


# ---- answers and ends


def test_an_answer(channel):
    asking = Background(channel.wait_for_answer)
    assert asking.running
    channel.answer(np.array([0.25, 4.0, -1e300]))
    assert asking.result().tolist() == [0.25, 4.0, -1e300]


def test_a_stop_ends_the_wait_for_an_answer(channel):
    asking = Background(channel.wait_for_answer)
    assert asking.running
    channel.pace.stop()
    channel.wake()
    assert asking.result() is None


def test_a_stop_that_was_told_before_the_question(channel):
    channel.pace.stop()
    assert channel.wait_for_answer() is None


def test_the_parent_is_gone(channel):
    channel._answer_writer.close()
    channel.jobs._writer.close()
    for wait in (channel.wait_for_answer, channel.wait_for_job):
        with pytest.raises(ParentGone):
            wait()
    for block in range(NUM_BLOCKS):
        channel.take_block(block)
    with pytest.raises(ParentGone):
        channel.wait_for_block()


def test_an_answer_to_a_worker_that_is_gone(channel):
    channel._answer_reader.close()
    channel.answer(np.zeros(3))
    channel.give_block(0)


def test_jobs(channel):
    channel.jobs.put((0.5, 16))
    channel.jobs.put(None)
    assert channel.wait_for_job() == (0.5, 16)
    assert channel.wait_for_job() is None


# ---- what both sides see


def test_a_stack_never_blocks_its_writer(channel):
    assert channel.read_stack() == ""
    os.write(channel.stack_writer.fileno(), b"File \xff line 3\n")
    assert channel.read_stack() == "File \N{REPLACEMENT CHARACTER} line 3\n"
    with pytest.raises(BlockingIOError):
        while True:
            os.write(channel.stack_writer.fileno(), b"x" * 65536)


def test_clock_and_pace_lie_in_shared_memory(channel):
    shared = memoryview(channel._shared.map)
    other = Pace(shared[:8 * Pace.NUM_CELLS].cast("q"))
    channel.pace.send(5)
    channel.activity.begin()
    channel.activity.enter(Doing.STEP)
    assert [other.done() for _ in range(5)] == [False, False, False, False, True]
    assert channel.pace.executed == 5
    assert channel.activity.doing is Doing.STEP
    del other
    shared.release()
