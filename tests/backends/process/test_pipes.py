"""The queues between the parent and one worker: order, bounds, halves of messages, ends."""

from __future__ import annotations

import os
import pickle
import struct
import threading

import numpy as np
import pytest

from mprunner.backends.process.pipes import OneWayQueue, ParentGone, ResultQueue
from tests.support.waiting import Background, eventually


@pytest.fixture
def jobs():
    """A queue for three items."""
    made = OneWayQueue(3, np.zeros(1, np.int64))
    yield made
    made.close()


@pytest.fixture
def results():
    made = ResultQueue()
    yield made
    made.close()


# ---- jobs


def test_first_in_first_out(jobs):
    for round_ in range(20):
        items = [(0.5, round_), None, "text"]
        for item in items:
            jobs.put(item)
        assert [jobs.get() for _ in items] == items
    assert not jobs.full()


def test_the_bound(jobs):
    for item in range(3):
        assert not jobs.full()
        jobs.put(item)
    assert jobs.full()
    jobs.put(None)  # nothing waits here: who keeps to the bound asks first
    assert [jobs.get() for _ in range(2)] == [0, 1]
    assert not jobs.full()
    assert [jobs.get() for _ in range(2)] == [2, None]


def test_there_is_no_feeder_thread(jobs):
    before = threading.enumerate()
    item = [1]
    jobs.put(item)
    item.append(2)  # too late: it was pickled at the call
    assert threading.enumerate() == before
    assert jobs.get() == [1]


def test_what_cannot_be_pickled_is_refused_at_the_call(jobs):
    with pytest.raises(Exception, match="pickle"):
        jobs.put(threading.Lock())
    jobs.put("next")
    assert jobs.get() == "next"


def test_get_waits_for_an_item(jobs):
    getting = Background(jobs.get)
    assert getting.running
    jobs.put("at last")
    assert getting.result() == "at last"


def test_the_end_of_the_writer_is_seen(jobs):
    jobs.put("last")
    jobs._writer.close()
    assert jobs.get() == "last"
    with pytest.raises(EOFError):
        jobs.get()


def test_the_end_of_the_reader_is_seen(jobs):
    jobs._reader.close()
    with pytest.raises(OSError):
        jobs.put("nobody hears")


def test_queues_travel_at_the_start_of_a_process_only(jobs, results):
    for one in (jobs, results):
        with pytest.raises(RuntimeError, match="inheritance"):
            pickle.dumps(one)


# ---- results


def test_messages_arrive_in_order(results):
    assert results.get_all() == []
    sent = [("ready", 4), ("block", 1, {"a": [1.5]}), ("closed",)]
    for message in sent:
        results.put(*message)
    assert results.get_all() == sent
    assert results.get_all() == []


@pytest.mark.parametrize("size", [1, 65531, 65536, 200_000])
def test_large_messages(results, size):
    putting = Background(lambda: results.put("raised", "x" * size))
    messages = []
    eventually(lambda: messages.extend(results.get_all()) or len(messages) == 1)
    putting.result()
    assert messages == [("raised", "x" * size)]


def test_half_a_message_is_kept_for_the_next_time(results):
    data = pickle.dumps(("block", 7))
    raw = struct.pack("<I", len(data)) + data
    raw = raw * 3
    expected = []
    for byte in range(len(raw)):
        os.write(results._writer.fileno(), raw[byte:byte + 1])
        expected.extend(results.get_all())
        assert len(expected) == (byte + 1) // (len(raw) // 3)
    assert expected == [("block", 7)] * 3


def test_a_writer_that_dies_in_a_message(results):
    results.put("block", 1)
    os.write(results._writer.fileno(), struct.pack("<I", 1000) + b"half")
    results.close_writer()
    assert results.get_all() == [("block", 1)]
    assert results.get_all() == []


def test_a_parent_that_is_gone(results):
    results.reader.close()
    with pytest.raises(ParentGone):
        results.put("anybody?")
    assert not issubclass(ParentGone, Exception)  # a user's act() must not catch it
