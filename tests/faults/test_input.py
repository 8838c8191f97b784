"""Bad input, seen through a worker: one clear sentence, and what was there before stays."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from mprunner import ConfigurationError, EnvRunner, MprunnerError
from tests.support.pools import pool
from tests.support.whole import SealedMemory
from tests.support.tagged import TAG_SHAPE, TagPlayer
from tests.support.waiting import HANG_S

GOOD = 5


class Bad(TagPlayer):
    """After `GOOD` steps, does as `spoil` says with what a step gives."""

    def __init__(self, spoil: Any) -> None:
        super().__init__(length=100)
        self._spoil = spoil

    def step(self, action: int) -> Any:
        result = super().step(action)
        return result if self.at <= GOOD else self._spoil(*result)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no")


SPOILS = {
    "another shape": (lambda o, r, e, c, i: (o[:2], r, e, c, i), r"shape \(2,\).*\(4,\)"),
    "a lossy dtype": (lambda o, r, e, c, i: (o + 0.5, r, e, c, i), "float64.*int32"),
    "NaN reward": (lambda o, r, e, c, i: (o, float("nan"), e, c, i), "reward nan.*finite"),
    "a reward that is none": (lambda o, r, e, c, i: (o, None, e, c, i), "reward None.*finite"),
    "three things": (lambda o, r, e, c, i: (o, r, e), "a tuple of 3 items"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_what_a_step_gives(name):
    spoil, text = SPOILS[name]
    memory = SealedMemory(1000, TAG_SHAPE, 1, "int32")
    manager = pool([partial(Bad, spoil)], memory=memory)
    with pytest.raises(MprunnerError, match=f"(?s)worker 0 raised PlayerError.*{text}"):
        manager.step(1.0, num_steps=8)
        manager.join(HANG_S)
    assert memory.num_steps == GOOD, "what was done before is kept"
    manager.close()


def test_an_info_that_cannot_be_pickled_does_not_matter():
    with pool([partial(Bad, _with_info)], staleness=16) as manager:
        manager.step(1.0, num_steps=16)
        assert manager.join(HANG_S)


def _with_info(o: Any, r: Any, e: Any, c: Any, i: Any) -> Any:
    return o, r, e, c, {"lock": Unpicklable()}


QS = {
    "another shape": (lambda states: np.zeros((len(states), 7)), r"\(\d, 7\).*\(\d, 4\)"),
    "NaN": (lambda states: np.full((len(states), 4), np.nan), "NaN among its Q"),
    "no numbers": (lambda states: "none", "expected Q values"),
}


@pytest.mark.parametrize("name", QS)
def test_what_a_predictor_gives(name):
    predictor, text = QS[name]
    manager = pool([TagPlayer, TagPlayer], predictor)
    with pytest.raises(MprunnerError, match=text):
        manager.step(0.0, num_steps=8)
        manager.join(HANG_S)
    manager.close()


class Wild(EnvRunner):
    def act(self, state: Any, exploration: float) -> int:
        return 4


def test_an_action_outside_the_space():
    manager = pool([TagPlayer, TagPlayer], kind=Wild)
    with pytest.raises(MprunnerError, match="act.. returned 4; expected an action from 0 to 3"):
        manager.step(1.0)
        manager.join(HANG_S)
    manager.close()


@pytest.mark.parametrize("exploration", [-0.1, 1.1, float("nan"), "much", None])
def test_an_exploration_outside(exploration):
    with pool([TagPlayer, TagPlayer]) as manager:
        with pytest.raises(ConfigurationError, match="exploration is .*expected a number in"):
            manager.step(exploration)
        manager.step(1.0, num_steps=8)
        assert manager.join(HANG_S)


def test_a_player_that_cannot_be_sent():
    player = TagPlayer()
    player.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"player of env_runners\[1\].*pass a factory"):
        pool([TagPlayer, player])
