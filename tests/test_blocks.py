"""Steps become rows, and blocks are cut where they fill up, for every size of a block."""

from __future__ import annotations

import numpy as np
import pytest

from mprunner.blocks import MIN_BLOCK_ROWS, BlockWriter, LocalEmitter, block_rows
from mprunner.experience import CLOSING, ROW, ROW_FORMAT, TERMINATED
from tests.streams import Record


class Landing:
    """A record of one stream, fed by a writer."""

    def __init__(self, num_rows):
        self.record = Record()
        self.infos = []
        self.writer = BlockWriter(LocalEmitter(self.land, num_rows, (2,), np.dtype("int32")))

    def land(self, rows, info):
        assert len(rows) == info.num_rows
        assert info.num_steps == int((rows.flags & CLOSING == 0).sum()) > 0
        assert sum(info.versions.values()) == info.num_steps
        self.record.add(rows, info.scores)
        self.infos.append(info)


@pytest.mark.parametrize("flush_every", [1, 3, 10**9])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("num_rows", range(MIN_BLOCK_ROWS, 12))
def test_rows_are_the_same_for_every_size_of_a_block(num_rows, length, flush_every):
    landing = Landing(num_rows)
    writer = landing.writer
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
    assert len(landing.record.steps) == sum(info.num_steps for info in landing.infos) == 40
    assert all(info.num_rows <= num_rows for info in landing.infos)
    state, meta = landing.record.state, landing.record.meta
    # All but the last row, which is provisional and only says what is observed now.
    assert state[:-1].tolist() == [list(tag) for tag, _ in expected]
    assert meta[:-1].tolist() == [row for _, row in expected]
    assert state[-1].tolist() == [episode, step]
    assert meta["flags"][-1] == CLOSING
    assert landing.record.scores == [float(c) for c in range(1, 41) if c % length == 0]


def test_versions_of_a_block():
    landing = Landing(16)
    writer = landing.writer
    writer.observe(np.zeros(2), 0)
    for version in (1, 1, 2, 5, 5, 5):
        writer.commit(0, 0.0, version, 0)
        writer.observe(np.zeros(2), 0)
    writer.flush()
    assert landing.infos[0].versions == {1: 2, 2: 1, 5: 3}


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
    landing = Landing(16)
    writer = landing.writer
    for episode in range(2):
        writer.observe(np.array([episode, 0]), 0)
        for step in range(1, steps_before + 1):
            writer.commit(7, 1.0, 0, 0)
            writer.observe(np.array([episode, step]), step)
        if not episode:
            writer.commit(8, 1.0, 0, flags)  # and nobody has seen what came of it
            writer.cut()
            landing.record.seal()
    writer.flush()
    if not steps_before:
        assert not landing.infos  # nothing is whole
        return
    state, meta = landing.record.state, landing.record.meta
    kept = [[episode, step] for episode in range(2) for step in range(steps_before + 1)]
    assert state.tolist() == kept
    assert meta["flags"].tolist() == ([0] * steps_before + [CLOSING]) * 2
    assert 8 not in meta["action"]


def test_an_episode_that_breaks_off_after_its_end():
    landing = Landing(16)
    writer = landing.writer
    writer.observe(np.array([0, 0]), 0)
    writer.commit(7, 1.0, 0, TERMINATED)
    writer.close(np.array([0, 1]), 1)
    writer.cut()
    landing.record.seal()
    writer.observe(np.array([1, 0]), 0)
    writer.commit(7, 1.0, 0, 0)
    writer.observe(np.array([1, 1]), 1)
    writer.flush()
    assert landing.record.state.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert landing.record.meta["flags"].tolist() == [TERMINATED, CLOSING, 0, CLOSING]
