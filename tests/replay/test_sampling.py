"""Drawing: uniform over what can be sampled, however little of a memory that is."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from mprunner.replay.memory import ReplayMemory
from mprunner.rows import TERMINATED, TRUNCATED
from tests.support.chi_square import chi_square_limit
from tests.support.replay_model import Writer, claim, make_rows


def chi_square(memory, batch_size, num_batches):
    counts = {}
    for _ in range(num_batches):
        for name in memory.sample_batch(batch_size).indices.tolist():
            counts[name] = counts.get(name, 0) + 1
    found = np.zeros(len(memory))
    found[: len(counts)] = list(counts.values())
    want = batch_size * num_batches / len(memory)
    assert ((found - want) ** 2 / want).sum() < chi_square_limit(len(memory) - 1)


@pytest.mark.parametrize(
    ("lengths", "history_len"), [((1,), 1), ((1, 7), 4), ((50,), 4), ((3, 400, 2), 2)]
)
def test_every_transition_is_as_likely(lengths, history_len):
    memory = ReplayMemory(100, (1,), history_len, "int32", seed=5, num_streams=3)
    tags = itertools.count(1)
    for writer in claim(memory, 3, 33, tags):
        for length in itertools.islice(itertools.cycle(lengths), 10 * (writer.stream.index + 1)):
            for step in range(length):
                writer.step(TERMINATED if step == length - 1 else 0)
            writer.flush()
    chi_square(memory, 11, 3000)


def test_uniform_also_where_next_to_nothing_can_be_sampled():
    memory = ReplayMemory(4000, (1,), 2, "int32", seed=6, num_streams=40)
    tags = itertools.count(1)
    for writer in claim(memory, 40, 100, tags):
        writer.step(TERMINATED)
        writer.flush()
        writer.release()
    # One ring of 4,000 slots of which 80 were ever written.
    memory.claim_streams(1)
    assert len(memory) == 40
    chi_square(memory, 10, 2000)


def drawn(memory):
    """All that can be sampled now, by name; each is drawn about 40 times."""
    batches = [memory.sample_batch(len(memory)) for _ in range(40)]
    rings = memory._streams.rings
    assert rings.total == rings.ends.sum()
    return {name for batch in batches for name in batch.indices.tolist()}


def test_what_has_just_stored_is_drawn_and_what_was_overwritten_is_not(tmp_path):
    options = {"path": tmp_path / "memory.mpr", "seed": 8, "num_streams": 2}
    memory = ReplayMemory(24, (1,), 2, "int32", **options)
    tags = itertools.count(1)
    for num_streams in (2, 3, 3):
        writers = claim(memory, num_streams, 8, tags)
        for step in range(60):
            writers[step % num_streams].step(TERMINATED if step % 7 == 6 else 0)
            writers[step % num_streams].flush()
            if len(memory):
                assert len(drawn(memory)) == len(memory)
        memory.close()
        memory = ReplayMemory(24, (1,), 2, "int32", **options)
        assert len(drawn(memory)) == len(memory)
    memory.close()


def test_a_thousand_streams():
    memory = ReplayMemory(20_000, (1,), 4, "int32", seed=7)
    writers = claim(memory, 1000, 20, itertools.count(1))
    for number in range(30):
        for writer in writers[:: 1 + number % 3]:
            writer.step(TERMINATED if number % 11 == 10 else 0)
            writer.flush()
    expected = [w.model.stack(e, t)[-1] for w in writers for e, t in w.model.transitions()]
    assert len(memory) == len(expected)
    batch = memory.sample_batch(5000)
    assert set(batch.state[:, 0, -1].tolist()) <= set(expected)
    assert memory.sample(len(memory) - 1)[0][0, -2] == expected[-1]


def test_the_same_seed_draws_the_same():
    drawn = []
    for _ in range(2):
        memory = ReplayMemory(100, (1,), 2, "int32", seed=11)
        writer = Writer(memory, memory.claim_stream(), 100, itertools.count(1))
        for number in range(90):
            writer.step(TRUNCATED if number % 8 == 7 else 0)
        writer.flush()
        drawn.append(memory.sample_batch(32).indices.tolist())
    assert drawn[0] == drawn[1]


def test_global_random_state_is_not_touched():
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    memory = ReplayMemory(100, (1,), 2, "int32")
    writer = Writer(memory, memory.claim_stream(), 100, itertools.count(1))
    writer.step(TERMINATED)
    writer.flush()
    memory.sample_batch(1)
    assert np.random.get_state()[1].tolist() == before


def sample_beside_writers(num_batches, seed=0):
    """Four writers and a sampler; every stack is of one stream, one episode, in order."""
    memory = ReplayMemory(8000, (8, 8), 4, "int64", seed=seed)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(writer):
        tag, age = writer.index * 10**12 + 1, 0
        random = np.random.default_rng(writer.index)
        while not stop.is_set():
            rows = []
            for over in (random.random(16) < 0.05).tolist():
                rows.append((tag, tag % 1000, 0.0, 0, TERMINATED if over else 0, age))
                tag, age = tag + 1, min(age + 1, 3)
                if over:
                    rows.append((tag, 0, 0.0, 0, 4, age))
                    tag, age = tag + 1, 0
            if not over:
                rows.append((tag, 0, 0.0, 0, 4, age))
            writer.extend(make_rows(memory, rows, not over))

    def guarded(call, *arguments):
        try:
            call(*arguments)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=guarded, args=(write, one)) for one in memory.claim_streams(4)
    ]
    for thread in threads:
        thread.start()
    batches, out = 0, None
    try:
        while batches < num_batches and not stop.is_set():
            if len(memory) < 64:
                continue
            out = memory.sample_batch(64, out=out)
            tags = out.frames[:, :, 0, 0]
            assert (out.frames == tags[:, :, None, None] * (np.arange(64).reshape(8, 8) + 1)).all()
            steps = tags[:, 1:] - tags[:, :-1]
            assert ((steps == 1) | (tags[:, :-1] == 0)).all()
            assert (out.action == tags[:, -2] % 1000).all()
            batches += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


def test_a_sampler_and_four_writers():
    sample_beside_writers(300)
