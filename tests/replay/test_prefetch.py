"""Batches gathered ahead: order of events, errors, and no thread left."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

from mprunner.errors import ClosedError, ConfigurationError, NotEnoughRows
from mprunner.experience import Experience
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.prefetch import Batches
from tests.support.waiting import HANG_S


def memory_of(num_rows):
    memory = ReplayMemory(100, (2,), 2, seed=0)
    for number in range(num_rows):
        memory.append(Experience(np.full(2, number, "uint8"), number, number, False))
    return memory


def threads():
    return [t for t in threading.enumerate() if t.name == "mprunner-batches"]


def test_batches_are_those_that_sampling_gives():
    plain, ahead = memory_of(50), memory_of(50)
    with ahead.batches(8, n_step=2, discount=0.5) as batches:
        for batch in itertools.islice(batches, 20):
            np.testing.assert_array_equal(
                batch.frames, plain.sample_batch(8, n_step=2, discount=0.5).frames
            )
    assert not threads()


def test_no_more_than_prefetch_are_gathered_ahead():
    made, full = [], threading.Event()

    def sample():
        made.append(None)
        if len(made) == 3:
            full.set()
        return len(made)

    with Batches(sample, 3) as batches:
        assert full.wait(HANG_S)
        assert next(batches) == 1
        assert next(batches) == 2
        assert len(made) <= 5


def test_an_error_reaches_the_consumer_again_and_again():
    with memory_of(5).batches(8) as batches:
        for _ in range(2):
            with pytest.raises(NotEnoughRows, match="8 transitions"):
                next(batches)
    assert not threads()


def test_what_was_gathered_before_an_error_comes_first():
    items = iter([1, 2])
    with Batches(lambda: next(items), 5) as batches:
        assert [next(batches), next(batches)] == [1, 2]
        with pytest.raises(StopIteration):
            next(batches)


def test_after_close_it_says_so():
    batches = memory_of(50).batches(8)
    batches.close()
    batches.close()
    with pytest.raises(ClosedError):
        next(batches)
    assert not threads()


def test_an_abandoned_iterator_ends_its_thread():
    batches = memory_of(50).batches(8)
    next(batches)
    (thread,) = threads()
    del batches
    gc.collect()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_closing_the_memory_reaches_the_consumer():
    memory = memory_of(50)
    with memory.batches(8) as batches:
        next(batches)
        memory.close()
        with pytest.raises(ClosedError):
            for _ in range(10):
                next(batches)


def test_unusable_arguments_are_refused_at_once():
    memory = memory_of(50)
    with pytest.raises(ConfigurationError, match="out="):
        memory.batches(8, out=memory.sample_batch(8))
    with pytest.raises(ConfigurationError, match="prefetch"):
        memory.batches(8, prefetch=0)
    assert not threads()
