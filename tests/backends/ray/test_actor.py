"""What a Ray actor's calls bring back, and when; without Ray, of which its class knows nothing."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

from mprunner import EnvRunner, ReplayMemory
from mprunner.backends.ray.actor import Result, RunnerActor
from mprunner.rows import ROW, Rows
from tests.support.streams import Record, check_joints
from tests.support.wide import WIDE_SHAPE, WidePlayer, narrowed

HISTORY_LEN = 3


def actor(player=WidePlayer, shape=WIDE_SHAPE):
    """One that stands at the first observation."""
    runner = EnvRunner(player, None, ReplayMemory(100, shape, HISTORY_LEN, "int32"), HISTORY_LEN)
    made = RunnerActor(cloudpickle.dumps(runner), np.random.SeedSequence(0), False)
    assert made.open(None).error is None
    return made


class Taken:
    """The rows of one runner, from all the results that have brought some."""

    def __init__(self) -> None:
        self.record = Record()
        self.executed = self.kept = 0

    def take(self, result: Result) -> int:
        """How many steps it brings."""
        for state, rows, info in result.blocks:
            wide = Rows(state, rows.view(ROW), info.provisional)
            self.record.add(narrowed(wide), info.scores)
        self.executed, self.kept = result.executed, result.kept
        assert len(self.record.steps) == result.executed - result.kept
        if self.record.num_blocks:
            check_joints(self.record, HISTORY_LEN)
        return sum(info.num_steps for _, _, info in result.blocks)


def test_rows_are_kept_until_they_are_worth_an_object():
    playing, taken = actor(), Taken()
    brought = [taken.take(playing.run((1.0, 4 * job, True))) for job in range(1, 13)]
    assert 0 in brought and max(brought) > 8
    assert taken.executed == 48
    last = taken.take(playing.run((1.0, 52, False)))
    assert last >= 4 and taken.kept == 0
    assert len(taken.record.steps) == 52


def test_small_results_are_not_kept():
    playing, taken = actor(), Taken()
    assert taken.take(playing.run((1.0, 1, True))) == 1


@pytest.mark.parametrize("way", ["bring", "close"])
def test_what_was_kept_comes(way):
    playing, taken = actor(), Taken()
    assert taken.take(playing.run((1.0, 4, True))) == 0
    assert taken.kept == 4
    assert taken.take(getattr(playing, way)()) == 4
    assert taken.kept == 0


def test_what_was_kept_comes_with_an_error():
    class Fails(WidePlayer):
        def step(self, action):
            if self.at == 6:
                raise ValueError("out of order")
            return super().step(action)

    playing, taken = actor(Fails), Taken()
    assert taken.take(playing.run((1.0, 4, True))) == 0
    failed = playing.run((1.0, 8, True))
    assert failed.error is not None and failed.error[1] == "ValueError"
    assert taken.take(failed) == 6
    assert taken.kept == 0
