"""AtariPlayer against gymnasium's wrapper, frame by frame, and what only AtariPlayer does."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import AtariPreprocessing

from mprunner.atari import AtariPlayer
from mprunner.atari.games import RESTORABLE
from mprunner.errors import ClosedError, ConfigurationError, MissingExtraError
from tests.support.waiting import HANG_S

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")
roms = pytest.importorskip("ale_py.roms")
gymnasium.register_envs(ale_py)

GAMES = [
    "breakout", "pong", "space_invaders", "seaquest", "ms_pacman", "enduro", "qbert", "freeway",
]
TWO_PLAYERS = ["combat", "joust", "maze_craze", "warlords"]
ALL_GAMES = sorted(set(roms.get_all_rom_ids()) - set(TWO_PLAYERS))


def gymnasium_id(rom: str) -> str:
    return f"ALE/{rom.title().replace('_', '')}-v5"


def wrapper(
    rom: str, *, sticky: float = 0.0, make: dict[str, Any] | None = None, **options: Any
) -> AtariPreprocessing:
    env = gymnasium.make(
        gymnasium_id(rom), frameskip=1, repeat_action_probability=sticky, **(make or {})
    )
    return AtariPreprocessing(env, **options)


def assert_same(ours: tuple[Any, ...], theirs: tuple[Any, ...], where: str) -> None:
    assert np.array_equal(ours[0], theirs[0]), where
    assert ours[1:] == theirs[1:], where


def compare(
    player: AtariPlayer,
    env: gymnasium.Env[Any, Any],
    num_steps: int,
    *,
    cut: int = 200,
    seed: int = 3,
) -> int:
    """Play the same in both; resets without a seed at each end and every `cut` steps.

    Returns:
        How many episodes ended by themselves.
    """
    rng = np.random.default_rng(seed)
    assert_same(player.reset(seed=seed), env.reset(seed=seed), "first reset")
    ended = 0
    for step in range(num_steps):
        action = int(rng.integers(player.action_space.n))
        ours, theirs = player.step(action), env.step(action)
        assert_same(ours, theirs, f"step {step}")
        over = ours[2] or ours[3]
        ended += over
        if over or step % cut == cut - 1:
            assert_same(player.reset(), env.reset(), f"reset after step {step}")
    player.close()
    env.close()
    return ended


# The same frames as gymnasium's wrapper


@pytest.mark.parametrize("sticky", [0.0, 0.25])
@pytest.mark.parametrize("game", GAMES)
def test_frames_rewards_and_infos_are_those_of_the_wrapper(game: str, sticky: float) -> None:
    player = AtariPlayer(game, fire_on_reset=False, repeat_action_probability=sticky)
    compare(player, wrapper(game, sticky=sticky), 300, cut=120)


@pytest.mark.slow
@pytest.mark.parametrize("game", ALL_GAMES)
def test_frames_are_those_of_the_wrapper_in_every_game(game: str) -> None:
    # The wrapper refuses to begin a game with idle frames if NOOP is not among its actions.
    noop_max = 0 if game in ("backgammon", "video_checkers") else 30
    for sticky, num_steps, cut in ((0.0, 500, 90), (0.25, 120, 50)):
        player = AtariPlayer(
            game, fire_on_reset=False, noop_max=noop_max, repeat_action_probability=sticky
        )
        compare(player, wrapper(game, sticky=sticky, noop_max=noop_max), num_steps, cut=cut)


def test_a_game_without_noop_among_its_actions_still_begins_with_idle_frames() -> None:
    player = AtariPlayer("backgammon", fire_on_reset=False)
    assert player.get_action_meanings()[0] != "NOOP"
    assert 1 <= player.reset(seed=1)[1]["episode_frame_number"] <= 30


@pytest.mark.parametrize("frame_skip", [1, 2, 3, 5])
def test_frame_skips(frame_skip: int) -> None:
    player = AtariPlayer("breakout", fire_on_reset=False, frame_skip=frame_skip)
    compare(player, wrapper("breakout", frame_skip=frame_skip), 300, cut=100)


@pytest.mark.parametrize("screen_size", [1, 36, 42, 64, 105, 210, 250])
def test_screen_sizes(screen_size: int) -> None:
    player = AtariPlayer("breakout", fire_on_reset=False, screen_size=screen_size)
    compare(player, wrapper("breakout", screen_size=screen_size), 60, cut=25)


def test_a_screen_of_another_height() -> None:
    compare(AtariPlayer("air_raid", fire_on_reset=False), wrapper("air_raid"), 80, cut=30)


def test_mode_difficulty_and_all_actions() -> None:
    make = {"mode": 4, "difficulty": 1, "full_action_space": True}
    player = AtariPlayer("breakout", fire_on_reset=False, **make)
    compare(player, wrapper("breakout", make=make), 300, cut=60)


def test_without_frames_at_the_start() -> None:
    player = AtariPlayer("breakout", fire_on_reset=False, noop_max=0)
    compare(player, wrapper("breakout", noop_max=0), 150, cut=40)


@pytest.mark.parametrize("max_num_frames", [1, 7, 30, 101])
def test_truncation(max_num_frames: int) -> None:
    player = AtariPlayer("pong", fire_on_reset=False, noop_max=8, max_num_frames=max_num_frames)
    env = wrapper("pong", noop_max=8, make={"max_num_frames_per_episode": max_num_frames})
    assert compare(player, env, 4 + max_num_frames) >= 2


def test_whole_games_end_alike() -> None:
    player = AtariPlayer("breakout", fire_on_reset=False)
    assert compare(player, wrapper("breakout"), 900, cut=900) >= 3


def test_fire_on_reset_is_one_step_of_fire() -> None:
    player, env = AtariPlayer("breakout"), wrapper("breakout")
    for seed in (5, None):
        ours = player.reset(seed=seed)
        env.reset(seed=seed)
        assert np.array_equal(ours[0], env.step(1)[0])
        assert player.step(2)[0].tobytes() == env.step(2)[0].tobytes()


def test_fire_is_pressed_only_where_the_game_has_it() -> None:
    # Freeway has no fire button, not even where all actions of the console are offered.
    player = AtariPlayer("freeway", full_action_space=True)
    assert_same(player.reset(seed=1), wrapper("freeway").reset(seed=1), "reset")


@pytest.mark.parametrize("game", ["breakout", "space_invaders"])
def test_a_lost_life_ends_the_episode_as_in_the_wrapper(game: str) -> None:
    player = AtariPlayer(game, fire_on_reset=False, life_loss_terminates=True)
    env = wrapper(game, terminal_on_life_loss=True)
    assert_same(player.reset(seed=2), env.reset(seed=2), "reset")
    rng = np.random.default_rng(2)
    for step in range(3000):
        action = int(rng.integers(player.action_space.n))
        ours = player.step(action)
        assert_same(ours, env.step(action), f"step {step}")
        if ours[2]:
            assert ours[4]["lives"] > 0
            return
    pytest.fail("no life was lost")


# The restored start


def play_both_ways(game: str, *, num_episodes: int, num_steps: int, **options: Any) -> None:
    """A player that restores its start against one that truly resets."""
    restoring, resetting = AtariPlayer(game, **options), AtariPlayer(game, **options)
    resetting._restorable = False
    rng = np.random.default_rng(4)
    for episode in range(num_episodes):
        seed = 6 if episode == 0 else None
        assert_same(restoring.reset(seed=seed), resetting.reset(seed=seed), f"reset {episode}")
        for step in range(num_steps):
            action = int(rng.integers(restoring.action_space.n))
            ours = restoring.step(action)
            assert_same(ours, resetting.step(action), f"episode {episode}, step {step}")
            assert np.array_equal(restoring.ale.getRAM(), resetting.ale.getRAM())
            assert np.array_equal(restoring.ale.getScreen(), resetting.ale.getScreen())
            if ours[2] or ours[3]:
                break
    assert (restoring._start_state is not None) == (game in RESTORABLE)


@pytest.mark.parametrize("game", ["breakout", "pong", "space_invaders", "ms_pacman", "qbert"])
def test_a_restored_start_is_a_true_one(game: str) -> None:
    play_both_ways(game, num_episodes=4, num_steps=120)


@pytest.mark.slow
@pytest.mark.parametrize("game", sorted(RESTORABLE))
def test_a_restored_start_is_a_true_one_in_every_game(game: str) -> None:
    play_both_ways(game, num_episodes=4, num_steps=80)
    play_both_ways(game, num_episodes=2, num_steps=300, full_action_space=True)
    # Many starts: the console's timer begins with one of 75 values, by chance.
    play_both_ways(game, num_episodes=80, num_steps=4, noop_max=3, fire_on_reset=False)


@pytest.mark.parametrize(
    "options",
    [{"repeat_action_probability": 0.25}, {"noop_max": 0}, {"mode": 0}, {"difficulty": 0}],
    ids=str,
)
def test_no_start_is_restored_where_it_could_differ(options: dict[str, Any]) -> None:
    player = AtariPlayer("breakout", **options)
    player.reset(seed=1)
    player.reset()
    assert player._start_state is None


def test_sticky_actions_differ_from_game_to_game() -> None:
    player = AtariPlayer("breakout", repeat_action_probability=0.5, noop_max=0)
    games = []
    for _ in range(2):
        player.reset()
        games.append(b"".join(player.step(2 + step % 2)[0].tobytes() for step in range(30)))
    assert games[0] != games[1]


# As an environment


@pytest.mark.parametrize(
    "options",
    [{}, {"life_loss_terminates": True}, {"render_mode": "rgb_array"}, {"frame_skip": 1}],
    ids=str,
)
def test_gymnasiums_checker_has_no_complaint(options: dict[str, Any]) -> None:
    player = AtariPlayer("breakout", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of no consequence: the checker wants environments that gymnasium.make() has made.
        warnings.filterwarnings("ignore", message=".*not having a spec.*")
        check_env(player, skip_render_check=not options.get("render_mode"))


def test_observations_are_not_overwritten() -> None:
    player = AtariPlayer("pong")
    observations = [player.reset(seed=1)[0]]
    copies = [observations[0].copy()]
    for _ in range(50):
        observations.append(player.step(2)[0])
        copies.append(observations[-1].copy())
    assert all(map(np.array_equal, observations, copies))


def test_rendering() -> None:
    player = AtariPlayer("breakout", render_mode="rgb_array", frame_skip=2)
    player.reset(seed=1)
    picture = player.render()
    assert picture is not None
    assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8 and picture.any()
    assert player.metadata["render_fps"] == 30
    plain = AtariPlayer("breakout")
    plain.reset()
    assert plain.render() is None


def test_actions_have_names() -> None:
    player = AtariPlayer("breakout")
    assert player.get_action_meanings() == ["NOOP", "FIRE", "RIGHT", "LEFT"]
    assert player.action_space.n == 4
    assert AtariPlayer("breakout", full_action_space=True).action_space.n == 18


@pytest.mark.parametrize("action", [-1, 4])
def test_an_action_that_is_none(action: int) -> None:
    player = AtariPlayer("breakout")
    player.reset()
    with pytest.raises(ConfigurationError, match=f"action is {action}; expected 0 to 3"):
        player.step(action)


def test_step_needs_a_reset() -> None:
    with pytest.raises(ResetNeeded, match="call reset"):
        AtariPlayer("breakout").step(0)


def test_closed() -> None:
    player = AtariPlayer("breakout")
    player.reset()
    player.close()
    player.close()
    for call in (player.reset, player.render, functools.partial(player.step, 0)):
        with pytest.raises(ClosedError, match="breakout"):
            call()


def test_a_factory_pickles_and_a_player_does_not() -> None:
    factory = pickle.loads(pickle.dumps(functools.partial(AtariPlayer, "breakout", noop_max=1)))
    player = factory()
    with pytest.raises(TypeError):
        pickle.dumps(player)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    AtariPlayer("breakout").reset(seed=1)
    assert capfd.readouterr() == ("", "")


def test_linear_interpolation() -> None:
    player = AtariPlayer("breakout", interpolation="linear", frame_skip=1, fire_on_reset=False)
    observation, _ = player.reset(seed=1)
    screen = player.ale.getScreenGrayscale()
    expected = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(observation, expected)


def test_the_number_of_threads_of_cv2_is_left_alone() -> None:
    before = cv2.getNumThreads()
    AtariPlayer("pong").reset()
    assert cv2.getNumThreads() == before


# Arguments


@pytest.mark.parametrize(
    "options, message",
    [
        ({"game": 3}, "game is 3; expected a name like"),
        ({"frame_skip": 0}, "frame_skip is 0; expected an integer >= 1"),
        ({"frame_skip": 2.0}, "frame_skip is 2.0; expected an integer >= 1"),
        ({"screen_size": True}, "screen_size is True; expected an integer >= 1"),
        ({"screen_size": (84, 84)}, "screen_size is (84, 84); expected an integer >= 1"),
        ({"noop_max": -1}, "noop_max is -1; expected an integer >= 0"),
        ({"max_num_frames": 0}, "max_num_frames is 0; expected an integer >= 1"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability is 1.5; expected a number"),
        ({"repeat_action_probability": "a"}, "repeat_action_probability is 'a'; expected a number"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'; expected one of 'area', 'linear'"),
        ({"mode": 3}, "mode is 3; this game has 0, 4, 8"),
        ({"difficulty": 2}, "difficulty is 2; this game has 0, 1"),
        ({"render_mode": "human"}, "render_mode is 'human'; expected 'rgb_array' or None"),
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        AtariPlayer(**{"game": "breakout", **options})


@pytest.mark.parametrize(
    "module, package", [("ale_py", "ale-py"), ("cv2", "opencv-python-headless")]
)
def test_a_missing_extra(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'mprunner\[atari\]'"):
        AtariPlayer("breakout")


def test_importing_the_module_needs_no_extra() -> None:
    script = "import sys, mprunner.atari; print([m for m in ('ale_py', 'cv2') if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert output.stdout == "[]\n"
