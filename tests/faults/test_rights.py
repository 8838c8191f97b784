"""The right to write a stream ends with its manager, whoever is left behind."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from mprunner import (
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    LocalPredictor,
    MprunnerError,
    WorkerStalled,
)
from tests.support.pools import pool
from tests.support.streams import check_record
from tests.support.tagged import TAG_SHAPE, Gate, Tag, TagPlayer
from tests.support.toys import GreedyModel, greedy
from tests.support.waiting import HANG_S, eventually
from tests.support.whole import SealedMemory


def memory() -> SealedMemory:
    return SealedMemory(5000, TAG_SHAPE, 3, "int32")


def runner_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("mprunner-runner")]


def test_a_thread_that_is_left_behind_writes_nothing(tmp_path):
    """It wakes up while another manager has the memory."""
    gate, kept = Gate(tmp_path / "gate"), memory()
    first = pool(
        [partial(TagPlayer, 0, 5, gate=gate)], memory=kept, backend="thread", close_timeout=0.1
    )
    first.step(1.0, num_steps=3)
    gate.open(1)
    with pytest.raises(WorkerStalled, match="in the player's step.*close_timeout is 0.1 s"):
        first.close()
    stats = first.stats()
    assert stats.steps_asked == 3 == stats.steps_stored + stats.steps_lost
    (left,) = runner_threads()
    with pool([Tag(1, 7).factory()], memory=kept, backend="thread") as second:
        second.step(1.0, num_steps=4)
        gate.open(20)
        left.join(HANG_S)
        assert not left.is_alive()
        second.step(1.0, num_steps=8)
        assert second.join(HANG_S)
        check_record(kept.records[0], Tag(1, 7), 3)
    assert first.stats().steps_stored == stats.steps_stored
    gate.close()


def test_a_thread_pool_that_aborts_counts_what_it_loses(tmp_path):
    gate = Gate(tmp_path / "gate")
    manager = pool([partial(TagPlayer, gate=gate)], backend="thread", staleness=8)
    manager.step(1.0, num_steps=8)
    gate.open(2)
    eventually(lambda: manager.stats().outstanding == 6)
    threading.Thread(target=gate.open, args=(20,)).start()
    manager._close(finish=False)
    stats = manager.stats()
    assert stats.steps_asked == 8 == stats.steps_stored + stats.steps_lost
    gate.close()


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_predictor_that_closes_the_pool(backend):
    """Whoever closes it as well returns when its workers have ended."""
    holder: list[Any] = []

    def predictor(states: np.ndarray) -> np.ndarray:
        holder[0].close()
        return np.zeros((len(states), 4))

    holder.append(pool([TagPlayer] * 2, predictor, backend=backend))
    with pytest.raises(Exception, match="closed"):
        while True:
            holder[0].step(0.0)
    holder[0].close()
    assert not runner_threads()
    assert {worker.state for worker in holder[0].stats().workers} == {"closed"}
    holder.clear()


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
@pytest.mark.parametrize("call", ["step", "join", "set_weights"])
def test_a_predictor_that_calls_the_manager(backend, call):
    holder: list[Any] = []
    calls = {
        "step": lambda manager: manager.step(1.0),
        "join": lambda manager: manager.join(),
        "set_weights": lambda manager: manager.set_weights({}),
    }

    def predictor(states: np.ndarray) -> np.ndarray:
        calls[call](holder[0])
        return np.zeros((len(states), 4))

    holder.append(pool([TagPlayer] * 2, predictor, backend=backend))
    with pytest.raises(MprunnerError, match="called from within"):
        while True:
            holder[0].step(0.0)
    holder[0].close()
    holder.clear()


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_weights_for_one_predictor_of_several(backend):
    kept = memory()
    one = LocalPredictor(GreedyModel, {"best": np.array([0], np.int32)})
    other = LocalPredictor(GreedyModel, greedy(1))
    players = [Tag(i, 5).factory() for i in range(2)]
    runners = [EnvRunner(player, p, kept, 3) for player, p in zip(players, (one, other))]
    with EnvRunnerManager(runners, 8, backend=backend, deterministic=True) as manager:
        manager.step(0.0)
        manager.step(0.0)
        assert manager.set_weights({"best": np.array([2], np.int32)}, one) == 1
        assert manager.set_weights(greedy(3), predictor=other) == 2
        manager.step(0.0)
        manager.step(0.0)
        assert manager.join(HANG_S)
        with pytest.raises(ConfigurationError, match="names"):
            manager.set_weights(greedy(0))
        with pytest.raises(ConfigurationError, match="not that of any runner"):
            manager.set_weights(greedy(0), LocalPredictor(GreedyModel, greedy(0)))
    assert [record.actions for record in kept.records] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("action", ["raise", "restart"])
def test_a_thread_that_stalls_is_reported(action, tmp_path):
    gate = Gate(tmp_path / "gate")
    manager = pool(
        [partial(TagPlayer, gate=gate)], backend="thread", step_timeout=0.3, close_timeout=0.1,
        on_failure=action,
    )
    with pytest.raises(WorkerStalled, match="player's step.*step_timeout is 0.3 s") as caught:
        manager.step(1.0, num_steps=2)
        manager.join(HANG_S)
    assert "self.gate.wait()" in str(caught.value)
    manager.close()
    gate.open(5)
    eventually(lambda: not runner_threads())
    gate.close()
