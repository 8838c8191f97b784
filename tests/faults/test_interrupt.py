"""Ctrl-C at each line of a call, one after the other: nothing is left behind, counts stay true."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

import mprunner.manager
from mprunner import EnvRunnerManager, LocalPredictor
from tests.support.interrupt import Interrupt, interrupted
from tests.support.pools import pool, tags
from tests.support.whole import SealedMemory
from tests.support.streams import check_joints
from tests.support.tagged import TAG_SHAPE, TagPlayer
from tests.support.toys import GreedyModel, greedy
from tests.support.waiting import HANG_S

#: Where a line is interrupted: in what is ours, and where a pool's end is registered at its start.
OURS = str(Path(mprunner.__file__).parent)
PLACES = OURS, weakref.__file__
BACKENDS = ["inline", "thread", "process"]


def start(at: int, memory: SealedMemory, backend: str) -> EnvRunnerManager | None:
    """A pool, or None if its start was interrupted."""
    try:
        with Interrupt(at, *PLACES):
            return pool([TagPlayer, TagPlayer], memory=memory, backend=backend)
    except KeyboardInterrupt:
        return None


class Registered(set[Any]):
    """Stands for `atexit`, which tells nobody what is registered."""

    register = set.add
    unregister = set.discard


@pytest.mark.parametrize("backend", BACKENDS)
def test_at_each_line_of_the_start(backend, monkeypatch):
    registered = Registered()
    monkeypatch.setattr(mprunner.manager, "atexit", registered)
    at, manager = 0, None
    while manager is None:
        at += 1
        memory = SealedMemory(5000, TAG_SHAPE, 3, "int32")
        manager = start(at, memory, backend)
        if manager is None:
            assert not registered, f"line event {at}"
            memory.claim_stream().release()
    assert at > 60
    manager.step(1.0, num_steps=8)
    manager.close()
    assert len(memory) > 0


def learning_pool(backend: str, memory: SealedMemory) -> EnvRunnerManager:
    """Two runners with weights to set; their games tell whose each row is."""
    predictor = LocalPredictor(GreedyModel, greedy(0))
    players = [tag.factory() for tag in tags(7, 11)]
    return pool(players, predictor, memory=memory, backend=backend, staleness=5)


CALLS = {
    "step": lambda manager: manager.step(0.5, num_steps=2),
    "a step that has to wait": lambda manager: manager.step(0.5, num_steps=7),
    "join": lambda manager: manager.join(),
    "set_weights": lambda manager: manager.set_weights(greedy(1)),
    "stats": lambda manager: manager.stats(),
    "reset_stats": lambda manager: manager.reset_stats(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_at_each_line_of_a_call(backend, call):
    """The program goes on with the same manager, as in a notebook."""
    memory = SealedMemory(5000, TAG_SHAPE, 3, "int32")
    with learning_pool(backend, memory) as manager:
        for at in itertools.count(1):
            manager.step(0.5)
            came = interrupted(at, lambda: CALLS[call](manager), OURS)
            assert manager.join(HANG_S), f"line event {at}"
            stats = manager.stats()
            assert stats.steps_asked == stats.steps_stored + stats.steps_lost, f"line event {at}"
            assert stats.steps_stored == memory.num_steps and stats.outstanding == 0
            assert backend == "inline" or stats.steps_lost == 0, f"line event {at}"
            if not came:
                break
        assert at > 5
    for record in memory.records:
        check_joints(record, 3)


@pytest.mark.parametrize(
    "backend", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)]
)
def test_at_each_line_of_close(backend):
    memory = SealedMemory(5000, TAG_SHAPE, 3, "int32")
    for at in itertools.count(1):
        manager = learning_pool(backend, memory)
        manager.step(0.5, num_steps=5)
        came = interrupted(at, manager.close, OURS)
        manager.close()
        stats = manager.stats()
        assert stats.steps_asked == stats.steps_stored + stats.steps_lost, f"line event {at}"
        assert {worker.state for worker in stats.workers} == {"closed"}, f"line event {at}"
        memory.claim_stream().release()  # it is free again
        if not came:
            break
    assert at > 20
