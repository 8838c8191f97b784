"""The clock of a worker."""

import pytest

from mprunner import activity
from mprunner.activity import Activity, Doing


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: now[0])
    return now


def test_time_goes_to_what_is_being_done(clock):
    worker = Activity()
    worker.begin()
    clock[0] += 1
    worker.enter(Doing.STEP)
    clock[0] += 2
    worker.enter(Doing.JOB_WAIT)
    clock[0] += 4
    worker.enter(Doing.STEP)
    clock[0] += 8
    assert worker.doing is Doing.STEP
    assert worker.since == 107.0
    assert worker.seconds(Doing.STARTING) == 1
    assert worker.seconds(Doing.JOB_WAIT) == 4
    assert worker.seconds(Doing.STEP) == 2 + 8  # what goes on counts, too
    assert worker.seconds(Doing.STEP, Doing.JOB_WAIT) == 14
    assert worker.seconds() == 0


def test_cells_can_be_shared(clock):
    code, times = [0], [0.0] * (1 + len(Doing))
    worker, onlooker = Activity(code, times), Activity(code, times)
    worker.begin()
    worker.enter(Doing.RESET)
    clock[0] += 3
    assert onlooker.doing is Doing.RESET
    assert onlooker.seconds(Doing.RESET) == 3


def test_words():
    assert len({doing.label for doing in Doing}) == len(Doing)
    assert Doing.STEP.label == "in the player's step()"
