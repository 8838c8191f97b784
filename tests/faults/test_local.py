"""The failure policy of the backends that stay in this process."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from mprunner import PredictorError, WorkerError, WorkerRaised
from tests.support.faulty_players import EPISODES_PER_START, FaultyPlayer, Fuse
from tests.support.pools import pool, step_until, tags
from tests.support.whole import SealedMemory, check_survivors
from tests.support.tagged import CLOSES, EPISODE, FACTORIES, TAG_SHAPE, Ledger, TagPlayer
from tests.support.waiting import HANG_S, eventually

pytestmark = pytest.mark.parametrize("backend", ["inline", "thread"])


def memory() -> SealedMemory:
    return SealedMemory(5000, TAG_SHAPE, 3, "int32")


@pytest.mark.parametrize("way", ["raise", "unpicklable", "sys.exit"])
@pytest.mark.parametrize("stage", ["factory", "reset", "step"])
def test_a_player_that_raises_is_replaced(backend, way, stage, tmp_path, caplog):
    """Also with jobs behind the one in which it raises, and with nothing lost."""
    ledger, kept = Ledger(tmp_path / "ledger"), memory()
    told: list[WorkerError] = []
    # A factory is to fail in a replacement, so another fault comes before.
    first = way if stage == "factory" else None
    player = partial(
        Twice if first else FaultyPlayer, 0, 11, way=way, stage=stage,
        fuse=Fuse(tmp_path, 2), ledger=ledger,
    )
    with caplog.at_level(logging.WARNING, "mprunner"):
        with pool(
            [player, partial(TagPlayer, 1, 5, ledger=ledger)], memory=kept, backend=backend,
            on_failure="restart", on_restart=told.append, staleness=64,
        ) as manager:
            for i in range(40):
                manager.step(1.0, num_steps=1 + i % 7)
            step_until(manager, lambda: manager.stats().restarts == 2)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert stats.steps_stored == stats.steps_asked == kept.num_steps
            assert (stats.steps_lost, stats.outstanding) == (0, 0)
            assert stats.restarts == len(told) == 2
    check_survivors(kept, tags(11, 5), {0})
    assert len([r for r in caplog.records if "restarting" in r.message]) == 2
    starts = set(kept.records[0].state[:, EPISODE] // EPISODES_PER_START)
    assert len(starts) >= 2
    assert ledger.total(FACTORIES) - ledger.total(CLOSES) in (0, 1 if first else 0)


class Twice(FaultyPlayer):
    """Raises in its first step, and in the factory of its replacement."""

    def __init__(self, *args: Any, fuse: Fuse, **options: Any) -> None:
        self._begun = fuse.take("begun", 1) is not None
        super().__init__(*args, fuse=fuse, **options)

    def _due(self, stage: str) -> None:
        if self._begun:
            stage = "factory" if stage == "step" else "no stage"
        super()._due(stage)


def test_a_crash_loop_ends(backend, tmp_path):
    player = partial(FaultyPlayer, 0, way="raise", stage="step", fuse=Fuse(tmp_path, 100), at=3)
    began = time.monotonic()
    manager = pool([player], backend=backend, on_failure="restart", max_restarts=3)
    with pytest.raises(WorkerRaised, match="out of order"):
        while True:
            manager.step(1.0)
    assert time.monotonic() - began > 0.05 + 0.1 + 0.2, "no back-off"
    assert manager.stats().restarts == 3
    assert manager.stats().workers[0].state == "failed"
    manager.close()


def test_a_served_predictor_that_fails_is_no_players_fault(backend):
    def predictor(states: np.ndarray) -> np.ndarray:
        raise ValueError("no Q today")

    manager = pool([TagPlayer], predictor, backend=backend, on_failure="restart")
    with pytest.raises(PredictorError, match="no Q today"):
        while True:
            manager.step(0.0)
    assert manager.stats().restarts == 0
    manager.close()


def test_close_does_not_wait_for_a_back_off(backend, tmp_path):
    if backend == "inline":
        pytest.skip("its back-off is in the caller's own thread")
    player = partial(FaultyPlayer, 0, way="raise", stage="step", fuse=Fuse(tmp_path, 100), at=1)
    manager = pool([player], backend=backend, on_failure="restart", max_restarts=100)
    manager._ledger.accounts[0].ask(1.0, 100)
    manager._backend.send(0)
    eventually(lambda: manager.stats().restarts >= 6)
    manager._close(finish=False)


def test_other_exceptions_are_told_too(backend):
    """A thread that ends for any reason is not waited for."""
    if backend == "inline":
        pytest.skip("Ctrl-C is the caller's")
    manager = pool([Interrupting], backend=backend)
    with pytest.raises(WorkerRaised) as caught:
        while True:
            manager.step(1.0)
    assert caught.value.original_type == "KeyboardInterrupt"
    manager.close()


def test_ctrl_c_leaves_a_usable_pool(backend):
    if backend != "inline":
        pytest.skip("players are in threads of their own")
    with pool([Interrupting], backend=backend) as manager:
        assert threading.current_thread() is threading.main_thread()
        with pytest.raises(KeyboardInterrupt):
            manager.step(1.0, num_steps=5)
        for _ in range(20):
            manager.step(1.0)
        assert manager.join(HANG_S)
        stats = manager.stats()
        assert (stats.steps_stored, stats.steps_lost, stats.outstanding) == (22, 3, 0)


class Interrupting(TagPlayer):
    """Interrupted in its third step, once."""

    interrupted = False

    def step(self, action: int) -> Any:
        if self.at == 2 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().step(action)
