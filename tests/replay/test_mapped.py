"""Replay files: what is reopened, what is refused, copies."""

from __future__ import annotations

import errno
import itertools
import threading

import numpy as np
import pytest

from mprunner.errors import ClosedError, ConfigurationError, StorageError
from mprunner.experience import Experience
from mprunner.replay import files, rings, storage
from mprunner.replay.memory import ReplayMemory
from mprunner.rows import TERMINATED
from tests.support.replay_model import Writer, assert_stack


def written(path=None, num_rows=40, max_size=32, num_streams=2, **options):
    """A memory with two streams, and its writers."""
    memory = ReplayMemory(
        max_size, (2, 3), 2, "int32", path=path, num_streams=num_streams, seed=0, **options
    )
    tags = itertools.count(1)
    writers = [
        Writer(memory, memory.claim_stream(), max_size // num_streams, tags)
        for _ in range(num_streams)
    ]
    for number in range(1, num_rows + 1):
        for writer in writers:
            writer.step(TERMINATED if number % 7 == 0 else 0)
            if number % 5 == 0:
                writer.flush([float(number)])
    for writer in writers:
        writer.flush()
    return memory, writers


def content(memory):
    return [
        (sample[0].tobytes(), *sample[1:])
        for sample in (memory.sample(index) for index in range(len(memory)))
    ]


def test_a_reopened_file_holds_the_same(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, writers = written(path)
    before = content(memory)
    memory.close()
    for writer in writers:
        writer.running = True
    with ReplayMemory(32, (2, 3), 2, "int32", path=path) as again:
        assert content(again) == before
        assert again.num_streams == 2
        assert [ring.games for ring in again._streams.rings] == [8, 8]
        assert [ring.score_max for ring in again._streams.rings] == [40.0, 40.0]
        again.claim_streams(2)
        batch = again.sample_batch(len(again))
        assert_stack(batch.state[0], [int(batch.state[0, 0, 0, i]) for i in (0, 1)], again)


def test_an_unfinished_episode_is_truncated_when_it_is_reopened(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, _ = written(path, num_rows=3)
    # No close: as if the process had been killed.
    memory._streams.storage.close()
    with ReplayMemory(32, (2, 3), 2, "int32", path=path) as again:
        batch = again.sample_batch(6)
        for _ in range(20):
            batch = again.sample_batch(6)
            last = (batch.next_state[:, 0, 0, -1] >= 7) & ~batch.terminated
            np.testing.assert_array_equal(batch.truncated, last)


def test_appended_experiences_are_in_the_file(tmp_path):
    path = tmp_path / "replay.mpr"
    with ReplayMemory(16, (2,), 2, path=path) as memory:
        for number in range(1, 6):
            memory.append(Experience(np.full(2, number, "uint8"), number, number, number == 3))
        before = content(memory)
        assert len(before) == 4
    with ReplayMemory(16, (2,), 2, path=path) as memory:
        assert content(memory) == before
        memory.append(Experience(np.full(2, 9, "uint8"), 0, 0, True))
        assert len(memory) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_size": 64}, "max_size 32, and 64 was asked for"),
        ({"state_shape": (3, 2)}, r"state_shape \(2, 3\), and \(3, 2\)"),
        ({"history_len": 3}, "history_len 2, and 3"),
        ({"dtype": "float32"}, "dtype int32, and float32"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, change, message):
    path = tmp_path / "replay.mpr"
    written(path)[0].close()
    before = path.read_bytes()
    options = {"max_size": 32, "state_shape": (2, 3), "history_len": 2, "dtype": "int32"}
    with pytest.raises(StorageError, match=message):
        ReplayMemory(**{**options, **change}, path=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("opener", ["path", "load"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b"something else" + b[14:], "not a replay file"),
        (lambda b: b[:9000], "truncated: it has 9000 bytes"),
        (lambda b: b[:20], "truncated"),
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[:8] + b"\x07" + b[9:], "version 7; this release reads version 2"),
        (lambda b: b[:8] + b"\x01" + b[9:], "version 1; this release reads version 2"),
        (lambda b: b[:16] + b"\xff" + b[17:], "checksum"),
        (lambda b: b[:4096] + bytes(4096) + b[8192:], "no copy of its counters is whole"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, spoil, message, opener):
    path = tmp_path / "replay.mpr"
    written(path)[0].close()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(StorageError, match=message):
        if opener == "load":
            ReplayMemory.load(path)
        else:
            ReplayMemory(32, (2, 3), 2, "int32", path=path)


def test_a_missing_file_or_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match="cannot be opened: No such file"):
        ReplayMemory.load(tmp_path / "none.mpr")
    with pytest.raises(StorageError, match="cannot be opened"):
        ReplayMemory(32, (2, 3), 2, path=tmp_path / "none" / "a.mpr")


def test_a_creation_that_was_interrupted_is_begun_again(tmp_path):
    path = tmp_path / "replay.mpr"
    path.write_bytes(b"MPR-MAKE" + bytes(100))
    with ReplayMemory(32, (2, 3), 2, path=path) as memory:
        assert len(memory) == 0


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, _ = written(path)
    with pytest.raises(StorageError, match="one file has one writer"):
        ReplayMemory(32, (2, 3), 2, "int32", path=path)
    other, _ = written()
    with pytest.raises(StorageError, match="one file has one writer"):
        other.save(path)
    memory.close()
    ReplayMemory(32, (2, 3), 2, "int32", path=path).close()


def test_too_little_disk_is_an_error_with_both_numbers(tmp_path):
    path = tmp_path / "replay.mpr"
    with pytest.raises(StorageError, match=r"needs \d{16,} more bytes at .*, and \d+ are avail"):
        ReplayMemory(10**9, (1000, 1000), 4, "float64", path=path)
    assert not path.exists()


def test_too_little_memory_is_an_error_with_both_numbers(monkeypatch):
    with pytest.raises(StorageError, match=r"needs 8000016000000000 bytes .* and \d+ are avail"):
        ReplayMemory(10**9, (1000, 1000), 4, "float64")
    monkeypatch.setattr(storage, "available_memory", lambda: 16 * (8 * 6 + 16))
    ReplayMemory(16, (2, 3), 2, "float64")
    with pytest.raises(StorageError, match="and 1024 are available"):
        ReplayMemory(17, (2, 3), 2, "float64")


@pytest.mark.parametrize("in_file", [False, True])
def test_a_saved_copy_holds_the_same(tmp_path, in_file):
    memory, _ = written(tmp_path / "replay.mpr" if in_file else None)
    before = content(memory)
    path = tmp_path / "copy.mpr"
    path.write_bytes(b"what was there before")
    memory.save(path)
    assert content(ReplayMemory.load(path, seed=1)) == before
    with ReplayMemory(32, (2, 3), 2, "int32", path=path) as again:
        assert content(again) == before
    memory.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "replay.mpr") == ["copy.mpr"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    memory, _ = written()
    path = tmp_path / "copy.mpr"
    memory.save(path)
    before = path.read_bytes()

    def broken(*arguments):
        raise OSError("the disk is gone")

    monkeypatch.setattr(rings.Rings, "written_chunks", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        memory.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["copy.mpr"]


def test_a_disk_that_fills_up_during_a_save_is_named(tmp_path, monkeypatch):
    memory, _ = written()
    path = tmp_path / "copy.mpr"

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwrite", full)
        with pytest.raises(StorageError, match=r"needs \d+ more bytes at .*, and \d+ are avail"):
            memory.save(path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "free_bytes", lambda fd: 100)
        with pytest.raises(StorageError, match="and 100 are available"):
            memory.save(path)
    assert not list(tmp_path.iterdir())


def test_rows_stored_during_a_save_do_not_tear_it(tmp_path, monkeypatch):
    memory, writers = written()
    held = {w.model.stack(e, t)[-1] for w in writers for e, t in w.model.transitions()}
    chunks = rings.Rings.written_chunks

    def interrupted(*arguments):
        for part in chunks(*arguments):
            yield part
            for writer in writers:
                writer.step()
                writer.step(TERMINATED)
                writer.flush()

    monkeypatch.setattr(rings.Rings, "written_chunks", interrupted)
    memory.save(tmp_path / "copy.mpr")
    monkeypatch.undo()
    copy = ReplayMemory.load(tmp_path / "copy.mpr")
    tags = {int(copy.sample(index)[0][0, 0, -2]) for index in range(len(copy))}
    assert tags <= held and len(tags) >= len(held) - 2 * 10
    for index in range(len(copy)):
        state = copy.sample(index)[0]
        assert_stack(state, state[0, 0].tolist(), copy)
        assert state[0, 0, -1] > state[0, 0, -2] > state[0, 0, -3] >= 0


def test_a_save_says_that_the_streams_have_changed(tmp_path, monkeypatch):
    memory, writers = written()
    chunks = rings.Rings.written_chunks

    def interrupted(*arguments):
        for part in chunks(*arguments):
            for writer in writers:
                writer.release()
            memory.claim_streams(3)
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(rings.Rings, "written_chunks", interrupted)
        with pytest.raises(StorageError, match="number of streams changed while it was saved"):
            memory.save(tmp_path / "copy.mpr")
    assert not list(tmp_path.iterdir())
    memory.save(tmp_path / "copy.mpr")
    copy = ReplayMemory.load(tmp_path / "copy.mpr")
    assert copy.num_streams == 3 and content(copy) == content(memory)


def test_a_file_has_room_for_so_many_streams(tmp_path, monkeypatch):
    monkeypatch.setattr("mprunner.replay.fileformat.MOST_STREAMS", 4)
    with ReplayMemory(1000, (2,), 1, path=tmp_path / "replay.mpr") as memory:
        memory.claim_streams(4)
        with pytest.raises(ConfigurationError, match="5 streams .* has room for 4"):
            memory.claim_streams(5)
        assert memory.num_streams == 4


@pytest.mark.parametrize("in_file", [False, True])
def test_after_close_everything_but_close_is_refused(tmp_path, in_file):
    memory, writers = written(tmp_path / "replay.mpr" if in_file else None)
    memory.close()
    memory.close()
    uses = [
        lambda: len(memory),
        lambda: memory.sample(0),
        lambda: memory.sample_batch(1),
        lambda: memory.claim_streams(1),
        lambda: memory.claim_stream(),
        lambda: memory.append(Experience(np.zeros((2, 3), "int32"), 0, 0, False)),
        lambda: memory.save(tmp_path / "copy.mpr"),
        lambda: memory.flush(),
        lambda: next(memory.batches(1)),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
    writers[0].step()
    with pytest.raises(ClosedError):
        writers[0].flush()


def test_an_abandoned_memory_gives_its_file_up(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, writers = written(path)
    before = content(memory)
    del memory, writers
    with ReplayMemory(32, (2, 3), 2, "int32", path=path) as again:
        assert content(again) == before
        again.flush()


def test_a_sampler_beside_a_writer_of_a_file(tmp_path):
    memory, writers = written(tmp_path / "replay.mpr", num_rows=10)
    stop = threading.Event()

    def sample():
        while not stop.is_set():
            batch = memory.sample_batch(8)
            stacks = batch.frames[:, :, 0, 0]
            assert ((stacks[:, 1:] > stacks[:, :-1]) | (stacks[:, :-1] == 0)).all()

    errors = []
    thread = threading.Thread(target=lambda: _collect(sample, errors))
    thread.start()
    for number in range(300):
        writers[number % 2].step(TERMINATED if number % 9 == 0 else 0)
        writers[number % 2].flush()
    stop.set()
    thread.join()
    memory.close()
    assert not errors


def _collect(call, errors):
    try:
        call()
    except BaseException as error:
        errors.append(error)
