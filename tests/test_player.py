"""One face for all players: what is understood, what is refused, and in which words."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from mprunner.errors import ConfigurationError, PlayerError
from mprunner.player import Player, check_player, is_environment
from tests.support.tagged import Discrete, TagPlayer
from tests.support.toys import FaultyPlayer

SHAPE = (2,)


class Scripted:
    """Returns what it is told to."""

    action_space = Discrete(3)

    def __init__(self, reset=None, step=None):
        self._reset, self._step = reset, step
        self.actions = []

    def reset(self, **options):
        return self._reset

    def step(self, action):
        self.actions.append(action)
        return self._step


def observation(*values, dtype="int16"):
    return np.array(values or (1, 2), dtype)


def played(step, dtype="int16", reset=(observation(), {})):
    """The outcome of one step that returns `step`."""
    player = Player(lambda: Scripted(reset, step), SHAPE, np.dtype(dtype))
    player.reset()
    return player.step(0)


# ---- factories and environments


def test_what_is_an_environment():
    assert is_environment(TagPlayer())
    assert is_environment(gym.make("CartPole-v1"))
    assert not is_environment(TagPlayer)
    assert not is_environment(lambda: TagPlayer())
    assert not is_environment(None)


@pytest.mark.parametrize("player", [None, "Breakout-v5", 3, object()])
def test_neither_a_factory_nor_an_environment(player):
    with pytest.raises(ConfigurationError, match=f"player is {type(player).__name__}.*factory"):
        check_player(player)


def test_the_factory_is_called_once():
    made = []
    player = Player(lambda: made.append(TagPlayer()) or made[-1], (4,), np.dtype("int32"))
    player.reset()
    player.step(0)
    player.close()
    player.close()
    assert len(made) == 1
    assert made[0].num_closed == 1


def test_a_factory_of_something_else():
    with pytest.raises(PlayerError, match="factory returned int; expected an environment"):
        Player(lambda: 3, SHAPE, np.dtype("int16"))


def test_a_factory_that_raises_is_heard():
    with pytest.raises(KeyError, match="mine"):
        Player(lambda: {}["mine"], SHAPE, np.dtype("int16"))


def test_an_environment_that_is_not_registered_here():
    with pytest.raises(gym.error.NameNotFound) as raised:
        Player(lambda: gym.make("NobodyKnowsThis-v0"), SHAPE, np.dtype("int16"))
    assert "NobodyKnowsThis" in str(raised.value)
    assert "register it inside the factory" in str(raised.value)


def test_a_player_without_close():
    Player(Scripted, SHAPE, np.dtype("int16")).close()


# ---- actions


@pytest.mark.parametrize(
    "space", [None, gym.spaces.Box(0, 1, (2,)), gym.spaces.MultiDiscrete([2, 2]), Discrete(0)]
)
def test_an_action_space_that_is_not_discrete(space):
    player = Scripted()
    player.action_space = space
    with pytest.raises(ConfigurationError, match="action space is .*; expected a Discrete space"):
        Player(player, SHAPE, np.dtype("int16"))


def test_actions_count_from_zero_whatever_the_space():
    env = Scripted((observation(), {}), (observation(), 0.0, False, False, {}))
    env.action_space = gym.spaces.Discrete(3, start=-1)
    player = Player(env, SHAPE, np.dtype("int16"))
    assert player.num_actions == 3
    for action in range(3):
        player.step(action)
    assert env.actions == [-1, 0, 1]


# ---- reset


@pytest.mark.parametrize(
    "result", [(observation(), {}), observation(), [1, 2], (1, 2), ((1, 2), {})]
)
def test_resets_that_are_understood(result):
    player = Player(Scripted(result), SHAPE, np.dtype("int64"))
    np.testing.assert_array_equal(player.reset(), [1, 2])


@pytest.mark.parametrize(
    "result, words",
    [
        (None, r"reset\(\) returned an observation of shape \(\)"),
        (observation(1, 2, 3), r"shape \(3,\); the memory's state_shape is \(2,\)"),
        ((observation(), {}, 1), "reset"),
        (([1, [2, 3]], {}), "shape"),
        ((np.zeros(2, "float64"), {}), "dtype float64, which the memory's dtype int16"),
    ],
)
def test_resets_that_are_refused(result, words):
    with pytest.raises(PlayerError, match=words):
        Player(Scripted(result), SHAPE, np.dtype("int16")).reset()


def test_a_seed_reaches_players_of_all_ages():
    class New(Scripted):
        def reset(self, *, seed=None, options=None):
            self.seeded = seed
            return observation(), {}

    class AnyOptions(Scripted):
        def reset(self, **options):
            self.seeded = options.get("seed")
            return observation(), {}

    class Old(Scripted):
        def seed(self, seed):
            self.seeded = seed

        def reset(self):
            return observation()

    class Unseeded(Scripted):
        seeded = 7

        def reset(self):
            return observation()

    for kind in (New, AnyOptions, Old, Unseeded):
        env = kind()
        Player(env, SHAPE, np.dtype("int16")).reset(seed=7)
        assert env.seeded == 7


def test_reset_without_a_seed_gives_none():
    class Strict(Scripted):
        def reset(self, **options):
            assert not options
            return observation(), {}

    Player(Strict(), SHAPE, np.dtype("int16")).reset()


# ---- step


@pytest.mark.parametrize(
    "step, outcome",
    [
        ((observation(), 1, False, False, {}), (1.0, False, False, False)),
        ((observation(), 1.5, True, False, {}), (1.5, True, False, True)),
        ((observation(), -1, False, True, {}), (-1.0, False, True, True)),
        ((observation(), 0, True, True, {}), (0.0, True, True, True)),
        ((observation(), np.float32(2), np.bool_(True), np.False_, {}), (2.0, True, False, True)),
        ([observation(), np.array(3), 1, 0, {}], (3.0, True, False, True)),
        # older gym
        ((observation(), 1, False, {}), (1.0, False, False, False)),
        ((observation(), 1, True, {}), (1.0, True, False, True)),
        ((observation(), 1, True, {"TimeLimit.truncated": True}), (1.0, False, True, True)),
        ((observation(), 1, True, {"TimeLimit.truncated": False}), (1.0, True, False, True)),
        ((observation(), 1, False, {"TimeLimit.truncated": True}), (1.0, False, False, False)),
        ((observation(), 1, True, None), (1.0, True, False, True)),
        # lives
        ((observation(), 1, True, False, {"lives": 2}), (1.0, True, False, False)),
        ((observation(), 1, True, False, {"ale.lives": 2}), (1.0, True, False, False)),
        ((observation(), 1, True, False, {"lives": 0}), (1.0, True, False, True)),
        ((observation(), 1, True, False, {"lives": None}), (1.0, True, False, True)),
        ((observation(), 1, True, False, {"lives": 0, "ale.lives": 3}), (1.0, True, False, True)),
        ((observation(), 1, True, True, {"lives": 2}), (1.0, True, True, True)),
        ((observation(), 1, False, True, {"lives": 2}), (1.0, False, True, True)),
        ((observation(), 1, False, False, {"lives": 0}), (1.0, False, False, False)),
        ((observation(), 1, True, {"ale.lives": 1}), (1.0, True, False, False)),
    ],
)
def test_steps_that_are_understood(step, outcome):
    found = played(step)
    np.testing.assert_array_equal(found.observation, [1, 2])
    assert found[1:] == outcome
    assert [type(item) for item in found[1:]] == [float, bool, bool, bool]


@pytest.mark.parametrize(
    "step, words",
    [
        (None, "returned NoneType; expected"),
        ((), "tuple of 0 items"),
        ((observation(), 1.0, False), "tuple of 3 items"),
        ((observation(), 1.0, False, False, {}, 1), "tuple of 6 items"),
        (3, "returned int"),
        ((observation(), None, False, False, {}), "the reward None; expected a finite number"),
        ((observation(), "much", False, False, {}), "the reward 'much'"),
        ((observation(), float("nan"), False, False, {}), "the reward nan"),
        ((observation(), float("inf"), False, False, {}), "the reward inf"),
        ((observation(), [1, 2], False, False, {}), r"the reward \[1, 2\]"),
        ((observation(1, 2, 3), 1.0, False, False, {}), r"step\(\) returned .* shape \(3,\)"),
        ((np.zeros(2), 1.0, False, False, {}), "dtype float64"),
        ((observation(), 1.0, True, False, {"lives": "three"}), "lives 'three'"),
    ],
)
def test_steps_that_are_refused(step, words):
    with pytest.raises(PlayerError, match=words):
        played(step)


def test_a_tuple_of_two_as_observation():
    found = played(((1, 2), 1.0, False, False, {}), dtype="int64", reset=((1, 2), {}))
    np.testing.assert_array_equal(found.observation, [1, 2])


# ---- dtypes


@pytest.mark.parametrize(
    "given, stored",
    [
        ("uint8", "uint8"),
        ("uint8", "float32"),
        ("bool", "uint8"),
        ("float16", "float32"),
        ("float32", "float64"),
        ("int16", "int32"),
    ],
)
def test_casts_that_lose_nothing(given, stored):
    found = played((observation(0, 1, dtype=given), 0.0, False, False, {}), stored,
                   (observation(0, 1, dtype=given), {}))
    assert found.observation.dtype == stored
    np.testing.assert_array_equal(found.observation, [0, 1])


@pytest.mark.parametrize(
    "given, stored",
    [
        ("float32", "uint8"),  # an image in [0, 1]
        ("float64", "float32"),
        ("int64", "int32"),
        ("uint8", "int8"),
        ("int8", "uint8"),
        ("uint8", "bool"),
        ("float32", "int32"),
        ("complex64", "float32"),
    ],
)
def test_casts_that_would_lose_something(given, stored):
    with pytest.raises(PlayerError, match=f"dtype {given}.*dtype {stored} cannot hold"):
        played((observation(0, 1, dtype=given), 0.0, False, False, {}), stored,
               (observation(0, 1, dtype=stored), {}))


def test_a_failing_step_is_heard():
    player = Player(lambda: FaultyPlayer(where="step", error=OSError("x")), (4,), np.dtype("int32"))
    player.reset()
    player.step(0)
    player.step(0)
    with pytest.raises(OSError, match="x"):
        player.step(0)


def test_real_gymnasium():
    env = gym.make("CartPole-v1")
    player = Player(env, (4,), np.dtype("float32"))
    first = player.reset(seed=5)
    np.testing.assert_array_equal(first, gym.make("CartPole-v1").reset(seed=5)[0])
    steps = 0
    while not player.step(1).terminated:
        steps += 1
    assert 5 < steps < 20
    player.close()
