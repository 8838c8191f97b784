"""Who may write a stream, and that a block is stored as a whole or not at all."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import types
from itertools import islice

import numpy as np
import pytest

import mprunner.replay
from mprunner.errors import ClosedError, ConfigurationError
from mprunner.experience import Experience
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.priorities import Priority
from tests.support import writer_child as child
from tests.support.interrupt import interrupted
from tests.support.replay_model import Writer, claim

REPLAY = os.path.dirname(mprunner.replay.__file__)
STEP = Experience(np.zeros(2, "uint8"), 0, 0.0, True)


def memory_of(**options):
    return ReplayMemory(32, (2,), 4, "int32", **options)


def test_each_stream_is_claimed_once():
    memory = memory_of(num_streams=2)
    writers = [memory.claim_stream(), memory.claim_stream()]
    assert [writer.index for writer in writers] == [0, 1]
    with pytest.raises(ConfigurationError, match="num_streams="):
        memory.claim_stream()
    with pytest.raises(ConfigurationError, match="in use"):
        memory.claim_streams(2)
    with pytest.raises(ConfigurationError, match="claimed"):
        memory.append(STEP)


def test_a_stream_that_was_given_back_can_be_claimed_again():
    memory = memory_of(num_streams=2)
    first, second = memory.claim_stream(), memory.claim_stream()
    first.release()
    again = memory.claim_stream()
    assert (again.index, again.active, first.active, second.active) == (0, True, False, True)
    # The right that has ended stays ended, whoever has the stream now.
    first.release()
    first.seal()
    assert again.active


def test_the_last_release_makes_the_memory_free():
    memory = memory_of()
    with pytest.raises(ConfigurationError, match="need at least 35"):
        memory.claim_streams(7)
    first, *others = memory.claim_streams(6)
    assert memory.num_streams == 6
    for writer in others:
        writer.release()
    with pytest.raises(ConfigurationError, match="1 stream.* in use"):
        memory.claim_streams(6)
    first.release()
    assert len(memory.claim_streams(3)) == memory.num_streams == 3


def test_a_stream_whose_writer_was_deleted_is_free_and_sealed():
    memory = memory_of()
    writer = Writer(memory, memory.claim_stream(), 32, itertools.count(1))
    writer.step()
    writer.flush()
    del writer
    gc.collect()
    memory.append(Experience(np.full(2, 9, "int32"), 0, 0.0, True))
    batch = memory.sample_batch(2)
    assert len(memory) == 2
    assert (batch.truncated == (batch.state[:, 0, -1] == 1)).all()
    assert (batch.terminated == (batch.state[:, 0, -1] == 9)).all()


@pytest.mark.parametrize("end", ["release", "close"])
def test_a_writer_whose_right_has_ended_stores_nothing(end):
    """As does a thread that a manager had to leave behind."""
    memory = memory_of()
    writer = Writer(memory, memory.claim_streams(1)[0], 32, itertools.count(1))
    stale = writer.stream
    writer.step()
    if end == "release":
        stale.release()
        writer.stream = memory.claim_streams(1)[0]
    else:
        memory.close()
    raised = []

    def write():
        try:
            stale.extend(child_rows(writer))
        except ClosedError as error:
            raised.append(error)
        stale.seal()
        stale.release()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert raised and not stale.active and stale.num_steps == 0
    if end == "release":
        assert writer.stream.active and len(memory) == 0


def child_rows(writer):
    """What a writer would send now."""
    kept = []
    sink = types.SimpleNamespace(extend=lambda *block: kept.append(block))
    real, writer.stream = writer.stream, sink
    writer.flush()
    writer.stream = real
    return kept[0][0]


def test_release_truncates_the_unfinished_episode():
    memory = memory_of()
    writer = Writer(memory, memory.claim_stream(), 32, itertools.count(1))
    for _ in range(3):
        writer.step()
    writer.flush()
    writer.release()
    batch = memory.sample_batch(3)
    assert (batch.truncated == (batch.state[:, 0, -1] == 3)).all()


def test_a_writer_counts_what_it_has_stored():
    memory = memory_of()
    first = memory.claim_stream()
    writer = Writer(memory, first, 32, itertools.count(1))
    for flags in (0, 1, 0, 2, 0):
        writer.step(flags)
    writer.flush()
    assert (first.num_steps, first.num_blocks) == (5, 1)
    first.release()
    assert (first.num_steps, memory.claim_stream().num_steps) == (5, 0)


def test_a_number_that_was_stored_is_ignored():
    memory = child_memory()
    writer = memory.claim_stream()
    made = [child.as_rows(*block) for block in islice(child.blocks(0), 3)]
    assert writer.extend(made[0], [1.0], 0) and not writer.extend(made[0], [1.0], 0)
    assert writer.extend(made[1], [1.0], 1) and not writer.extend(made[0], [1.0], 0)
    assert writer.num_steps == len(memory) + (~(made[1].flags[-2:] < 4)).sum() - 1
    assert memory._streams.rings[0].games == 2
    # A seal ends the count: whoever plays on is another one.
    writer.seal()
    assert writer.extend(made[2], [1.0], 0)


def test_the_number_of_streams_changes_without_losing_whole_episodes():
    memory = memory_of()
    for writer in claim(memory, 2, 16, itertools.count(1)):
        for _ in range(2):
            writer.step()
            writer.step(1)
        writer.flush()
        writer.release()
    before = len(memory)
    memory.claim_streams(1)
    assert memory.num_streams == 1 and before - 2 <= len(memory) <= before


# ---- KeyboardInterrupt at each line


def child_memory(path=None, priority=None):
    return ReplayMemory(
        child.MAX_SIZE, child.SHAPE, child.HISTORY_LEN, "int32", path=path, seed=0,
        num_streams=child.NUM_STREAMS, priority=priority,
    )


def check_samples(memory):
    """Every transition and some batches are of one episode, with consecutive tags."""
    for index in range(len(memory)):
        state, _, action, _ = memory.sample(index)
        stack = state[0, 0].tolist()
        assert (state == np.array(stack)).all()
        assert stack[-2:] == [action, action + 1]
        assert all(a == b - 1 or a == 0 for a, b in zip(stack, stack[1:]))
    if len(memory):
        for _ in range(3):
            batch = memory.sample_batch(min(64, len(memory)), n_step=2)
            assert (batch.state[:, 0, 0, -1] == batch.action).all()
            steps = batch.next_state[:, 0, 0, -1] - batch.action
            assert ((steps == 1) | (steps == 2)).all()


def newest(memory, num):
    """The newest transitions of a memory with one stream in use."""
    return [memory.sample(index)[2] for index in range(len(memory))][-num:]


@pytest.mark.parametrize("priority", [None, Priority()])
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("num_blocks", [0, 3, 30])
def test_interrupted_at_each_line_of_a_block(tmp_path, num_blocks, in_file, priority):
    """Of an empty ring, of one that has room, and of one that has wrapped."""
    made = [child.as_rows(*block) for block in islice(child.blocks(0), num_blocks + 2)]
    path = tmp_path / "memory.mpr" if in_file else None
    whole = None
    for at in itertools.count(1):
        memory = child_memory(path, priority)
        writer = memory.claim_streams(child.NUM_STREAMS)[0]
        for number, rows in enumerate(made[:num_blocks]):
            writer.extend(rows, [1.0], number)
        if len(memory):
            memory.sample_batch(1)  # what is overwritten is known to the index
        before = newest(memory, 5), writer.num_steps

        def store():
            return writer.extend(made[num_blocks], [1.0], num_blocks)

        was = interrupted(at, store, REPLAY)
        if was and at % 2:
            # Half of the times something else comes first.
            check_samples(memory)
            assert writer.num_steps in (before[1], before[1] + steps_of(made[num_blocks]))
        if was:
            store()
        assert not store()
        check_samples(memory)
        found = newest(memory, 10), writer.num_steps, memory._streams.rings[0].games
        whole = whole or (expected(made[: num_blocks + 1]), found[1], num_blocks + 1)
        assert found == whole
        writer.extend(made[num_blocks + 1], [1.0], num_blocks + 1)
        check_samples(memory)
        assert newest(memory, 10) == expected(made)
        memory.close()
        if path is not None:
            with child_memory(path) as again:
                check_samples(again)
                assert newest(again, 10) == expected(made)
            path.unlink()
        if not was:
            assert at > 30
            return


def steps_of(rows):
    return int((rows.flags < 4).sum())


def expected(made):
    """The actions of the newest transitions of these blocks."""
    return [a for rows in made for a, f in zip(rows.action.tolist(), rows.flags) if f < 4][-10:]


@pytest.mark.parametrize("num_blocks", [3, 30])
def test_interrupted_at_each_line_and_never_repeated(num_blocks):
    """The stream is sealed or goes to somebody else; nothing wrong is on offer."""
    made = [child.as_rows(*block) for block in islice(child.blocks(0), num_blocks + 1)]
    for at in itertools.count(1):
        memory = child_memory()
        writer = memory.claim_streams(child.NUM_STREAMS)[0]
        for rows in made[:num_blocks]:
            writer.extend(rows, [1.0])
        memory.sample_batch(1)
        was = interrupted(at, lambda: writer.extend(made[num_blocks], [1.0]), REPLAY)
        if at % 2:
            writer.seal()
        writer.release()
        check_samples(memory)
        memory.claim_streams(3)
        check_samples(memory)
        if not was:
            return


@pytest.mark.parametrize("priority", [None, Priority()])
def test_interrupted_at_each_line_of_sampling(priority):
    made = [child.as_rows(*block) for block in islice(child.blocks(0), 30)]
    for at in itertools.count(1):
        memory = child_memory(priority=priority)
        writer = memory.claim_streams(1)[0]
        for number, rows in enumerate(made):
            writer.extend(rows)
            if number == 20:
                memory.sample_batch(1)
        was = interrupted(at, lambda: memory.sample_batch(8), REPLAY)
        check_samples(memory)
        assert newest(memory, 10) == expected(made)
        if not was:
            return


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("num_blocks", [0, 12])
def test_interrupted_at_each_line_of_a_resize(tmp_path, num_blocks, in_file):
    path = tmp_path / "memory.mpr" if in_file else None
    made = [child.as_rows(*block) for block in islice(child.blocks(0), num_blocks)]
    extra = child.as_rows(*next(child.blocks(1)))
    for at in itertools.count(1):
        memory = child_memory(path, Priority())
        writer = memory.claim_streams(child.NUM_STREAMS)[0]
        for rows in made:
            writer.extend(rows)
        writer.release()
        was = interrupted(at, lambda: memory.claim_streams(3), REPLAY)
        gc.collect()
        check_samples(memory)
        assert memory.num_streams in (child.NUM_STREAMS, 3)
        # What is stored now is in the file that is there afterwards.
        memory.claim_streams(3)[2].extend(extra)
        check_samples(memory)
        left = sorted(memory.sample(index)[2] for index in range(len(memory)))
        memory.close()
        if path is not None:
            with child_memory(path) as again:
                found = sorted(again.sample(index)[2] for index in range(len(again)))
                assert found == left and again.num_streams == 3
            assert [one.name for one in tmp_path.iterdir()] == [path.name]
            path.unlink()
        if not was:
            assert at > 30
            return
