"""Steps become rows, and blocks are cut where they fill up, for every size of a block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mprunner.rows
from mprunner.rows import (
    CLOSING,
    MIN_BLOCK_ROWS,
    ROW,
    ROW_FORMAT,
    TERMINATED,
    BlockWriter,
    LocalEmitter,
    block_rows,
)
from tests.support.interrupt import interrupted
from tests.support.streams import Record


class Sink:
    """A record of one stream, fed by a writer."""

    def __init__(self, num_rows):
        self.record = Record()
        self.infos = []
        self.writer = BlockWriter(LocalEmitter(self.store, num_rows, (2,), np.dtype("int32")))

    def store(self, rows, info):
        assert len(rows) == info.num_rows
        assert info.num_steps == int((rows.flags & CLOSING == 0).sum()) > 0
        assert sum(info.versions.values()) == info.num_steps
        self.record.add(rows, info.scores)
        self.infos.append(info)


@pytest.mark.parametrize("flush_every", [1, 3, 10**9])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("num_rows", range(MIN_BLOCK_ROWS, 12))
def test_rows_are_the_same_for_every_size_of_a_block(num_rows, length, flush_every):
    sink = Sink(num_rows)
    writer = sink.writer
    buffer = np.zeros(2, np.int32)
    expected = []

    def show(episode, step):
        buffer[...] = (episode, step)
        return buffer

    episode = step = 0
    writer.observe(show(0, 0), 0)
    for count in range(1, 41):
        over = step + 1 == length
        flags = TERMINATED if over else 0
        writer.commit(count % 7, count / 2, count // 10, flags)
        expected.append(((episode, step), (count % 7, count / 2, count // 10, flags, step % 256)))
        step += 1
        if over:
            writer.close(show(episode, step), step % 256)
            writer.add_score(float(count))
            expected.append(((episode, step), (0, 0.0, count // 10, CLOSING, step % 256)))
            episode, step = episode + 1, 0
        writer.observe(show(episode, step), step % 256)
        if count % flush_every == 0:
            writer.flush()
    writer.flush()
    writer.flush()  # nothing has happened since
    assert len(sink.record.steps) == sum(info.num_steps for info in sink.infos) == 40
    assert all(info.num_rows <= num_rows for info in sink.infos)
    state, meta = sink.record.state, sink.record.meta
    # All but the last row, which is provisional and only says what is observed now.
    assert state[:-1].tolist() == [list(tag) for tag, _ in expected]
    assert meta[:-1].tolist() == [row for _, row in expected]
    assert state[-1].tolist() == [episode, step]
    assert meta["flags"][-1] == CLOSING
    assert sink.record.scores == [float(c) for c in range(1, 41) if c % length == 0]


def test_versions_of_a_block():
    sink = Sink(16)
    writer = sink.writer
    writer.observe(np.zeros(2), 0)
    for version in (1, 1, 2, 5, 5, 5):
        writer.commit(0, 0.0, version, 0)
        writer.observe(np.zeros(2), 0)
    writer.flush()
    assert sink.infos[0].versions == {1: 2, 2: 1, 5: 3}


def test_the_record_is_the_same_for_struct_and_numpy():
    import struct

    packed = struct.pack(ROW_FORMAT, -3, 1.5, 2**32 - 1, 7, 255)
    assert len(packed) == ROW.itemsize
    assert np.frombuffer(packed, ROW)[0].item() == (-3, 1.5, 2**32 - 1, 7, 255)


@pytest.mark.parametrize(
    "shape, dtype", [((84, 84), "uint8"), ((1,), "bool"), ((3, 512, 512), "float64")]
)
def test_size_of_a_block(shape, dtype):
    num_rows = block_rows(shape, np.dtype(dtype))
    row = ROW.itemsize + np.dtype(dtype).itemsize * int(np.prod(shape))
    assert MIN_BLOCK_ROWS <= num_rows <= 256
    assert num_rows == MIN_BLOCK_ROWS or num_rows * row <= 512 * 1024


@pytest.mark.parametrize("flags", [0, TERMINATED])
@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_an_episode_that_breaks_off_within_a_step(steps_before, flags):
    sink = Sink(16)
    writer = sink.writer
    for episode in range(2):
        writer.observe(np.array([episode, 0]), 0)
        for step in range(1, steps_before + 1):
            writer.commit(7, 1.0, 0, 0)
            writer.observe(np.array([episode, step]), step)
        if not episode:
            mark = writer.mark()
            writer.commit(8, 1.0, 0, flags)  # and nobody has seen what came of it
            writer.cut(mark)
            sink.record.seal()
    writer.flush()
    if not steps_before:
        assert not sink.infos  # nothing is whole
        return
    state, meta = sink.record.state, sink.record.meta
    kept = [[episode, step] for episode in range(2) for step in range(steps_before + 1)]
    assert state.tolist() == kept
    assert meta["flags"].tolist() == ([0] * steps_before + [CLOSING]) * 2
    assert 8 not in meta["action"]


def test_an_episode_that_breaks_off_after_its_end():
    sink = Sink(16)
    writer = sink.writer
    writer.observe(np.array([0, 0]), 0)
    writer.commit(7, 1.0, 0, TERMINATED)
    writer.close(np.array([0, 1]), 1)
    writer.cut(writer.mark())
    sink.record.seal()
    writer.observe(np.array([1, 0]), 0)
    writer.commit(7, 1.0, 0, 0)
    writer.observe(np.array([1, 1]), 1)
    writer.flush()
    assert sink.record.state.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert sink.record.meta["flags"].tolist() == [TERMINATED, CLOSING, 0, CLOSING]


class InterruptedSink(Sink):
    """Raises KeyboardInterrupt before or after it has taken a block, once."""

    def __init__(self, num_rows, when):
        self.when, self.numbers = when, []
        super().__init__(num_rows)

    def store(self, rows, info):
        when, self.when = self.when, None
        if when == "before":
            raise KeyboardInterrupt
        if info.number not in self.numbers:
            super().store(rows, info)
        self.numbers.append(info.number)
        if when == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flush_that_was_interrupted_sends_the_same_block_again(when):
    sink = InterruptedSink(16, when)
    writer = sink.writer
    writer.observe(np.array([0, 0]), 0)
    for step in (1, 2, 3):
        writer.commit(7, 1.0, 5, 0)
        writer.observe(np.array([0, step]), step)
    writer.add_score(2.5)
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    writer.flush()
    writer.commit(8, 1.0, 6, 0)
    writer.observe(np.array([0, 4]), 4)
    writer.flush()
    assert sorted(set(sink.numbers)) == [0, 1]
    assert sink.record.state.tolist() == [[0, step] for step in range(5)]
    assert sink.record.actions == [7, 7, 7, 8] and sink.record.scores == [2.5]
    assert [info.versions for info in sink.infos] == [{5: 3}, {6: 1}]


def test_interrupted_at_each_line_of_a_step():
    """Whatever line it is, no step is mixed up, and what comes after is stored."""
    for at in itertools.count(1):
        sink = InterruptedSink(4, None)
        writer = sink.writer
        writer.observe(np.array([0, 0]), 0)
        writer.commit(1, 1.0, 0, 0)
        writer.observe(np.array([0, 1]), 1)

        def work():
            writer.commit(2, 1.0, 0, 0)
            writer.observe(np.array([0, 2]), 2)

        mark = writer.mark()
        was = interrupted(at, work, mprunner.rows.__file__)
        writer.cut(mark)
        sink.record.seal()
        writer.observe(np.array([1, 0]), 0)
        for step in (1, 2, 3):
            writer.commit(5, 1.0, 0, 0)
            writer.observe(np.array([1, step]), step)
        writer.flush()
        state, meta = sink.record.state, sink.record.meta
        closing = meta["flags"] >= CLOSING
        assert (state[1:][~closing[:-1]] == state[:-1][~closing[:-1]] + [0, 1]).all()
        episode, step = state[~closing].T
        assert (meta["action"][~closing] == np.where(episode, 5, step + 1)).all()
        assert np.count_nonzero(episode) == 3 and np.count_nonzero(episode == 0) >= 1
        if not was:
            return
