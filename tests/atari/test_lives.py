"""What AtariPlayer does where a lost life ends the episode, but not the game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mprunner.atari import AtariPlayer

pytest.importorskip("ale_py")
pytest.importorskip("cv2")


def lose_a_life(player: AtariPlayer, seed: int) -> tuple[list[int], dict[str, Any]]:
    """Play at random until a life is lost; the actions and the last info."""
    rng = np.random.default_rng(seed)
    actions = []
    while True:
        actions.append(int(rng.integers(player.action_space.n)))
        _, _, terminated, _, info = player.step(actions[-1])
        if terminated:
            return actions, info


def test_reset_after_a_lost_life_goes_on_with_the_same_game() -> None:
    player = AtariPlayer("breakout", life_loss_terminates=True)
    _, info = player.reset(seed=1)
    assert info["lives"] == 5
    seen = [5]
    while seen[-1]:
        _, lost = lose_a_life(player, seed=len(seen))
        seen.append(lost["lives"])
        _, info = player.reset()
        if lost["lives"]:
            # One step without action and one with fire.
            assert info["episode_frame_number"] == lost["episode_frame_number"] + 8
            assert info["lives"] == lost["lives"]
    assert seen == [5, 4, 3, 2, 1, 0]
    assert info["lives"] == 5 and info["episode_frame_number"] < 40


def test_a_seed_begins_a_new_game_after_a_lost_life() -> None:
    player = AtariPlayer("breakout", life_loss_terminates=True)
    first = player.reset(seed=1)
    lose_a_life(player, seed=1)
    again = player.reset(seed=1)
    assert np.array_equal(again[0], first[0])
    assert again[1] == first[1]


def test_a_reset_in_the_middle_of_a_life_begins_a_new_game() -> None:
    player = AtariPlayer("breakout", life_loss_terminates=True)
    player.reset(seed=1)
    lose_a_life(player, seed=1)
    player.reset()
    player.step(0)
    assert player.reset()[1]["lives"] == 5


def test_the_score_made_in_a_reset_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    player = AtariPlayer("breakout", life_loss_terminates=True)
    player.reset(seed=1)
    lose_a_life(player, seed=1)
    act = player.ale.act
    monkeypatch.setattr(player, "_act", lambda code: act(code) + 1)
    player.reset()
    monkeypatch.setattr(player, "_act", act)
    assert player.step(0)[1] == 8.0
    assert player.step(0)[1] == 0.0


def test_a_game_that_ends_in_the_reset_after_a_lost_life_ends_with_the_next_step() -> None:
    player = AtariPlayer("breakout", life_loss_terminates=True)
    player.reset(seed=1)
    actions, info = lose_a_life(player, seed=1)
    limited = AtariPlayer(
        "breakout", life_loss_terminates=True, max_num_frames=info["episode_frame_number"] + 2
    )
    limited.reset(seed=1)
    for action in actions:
        outcome = limited.step(action)
    assert outcome[2:4] == (True, False)
    limited.reset()
    assert limited.step(0)[1:4] == (0.0, False, True)
    assert limited.reset()[1]["lives"] == 5
