"""`EnvRunner` alone: epsilon-greedy, what it acts on, what it stores, its seeds."""

from __future__ import annotations

import functools
import operator
from collections import Counter

import cloudpickle
import numpy as np
import pytest

from mprunner import (
    ClosedError,
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    LocalPredictor,
    MprunnerError,
    PlayerError,
    PredictorError,
    ReplayMemory,
)
from mprunner.checks import check_exploration
from tests.support.streams import RecordingMemory, check_joints, check_samples, check_streams
from tests.support.tagged import STEP, TAG_SHAPE, Tag, TagPlayer
from tests.support.toys import (
    GreedyModel,
    InterruptedPlayer,
    LegacyPlayer,
    ProbeModel,
    ScribblingModel,
    SeededPlayer,
    greedy,
    probe,
    probe_q,
)

KINDS = [
    Tag(0, 23),
    Tag(1, 1),
    Tag(2, 4, "truncated"),
    Tag(3, 7, "both"),
    Tag(4, 3, lives=3),
    Tag(5, 5, "truncated", lives=3),
    Tag(6, 10**9),
]


def memory_of(history_len=4, max_size=200, **options):
    return RecordingMemory(max_size, TAG_SHAPE, history_len, "int32", **options)


def alone(player, predictor=None, history_len=4, kind=EnvRunner, **options):
    memory = memory_of(history_len)
    return kind(player, predictor, memory, history_len, **options), memory


# ---- whole streams


@pytest.mark.parametrize("history_len", [1, 2, 3, 4])
@pytest.mark.parametrize("tag", KINDS, ids=lambda tag: f"{tag.ending}-{tag.length}-{tag.lives}")
def test_streams(tag, history_len):
    runner, memory = alone(tag.factory(reuse_buffer=True), history_len=history_len)
    for _ in range(100):
        runner.step(1.0)
        assert len(memory.records[0].steps) == memory.num_steps
    runner.close()
    assert memory.num_steps == 100
    check_streams(memory, [tag])


def test_each_step_is_in_memory_at_once():
    runner, memory = alone(Tag(0, 10**9).factory())
    for count in range(1, 50):
        runner.step(1.0)
        assert len(memory) == count
    runner.close()


def test_a_time_limit_while_lives_remain():
    runner, memory = alone(Tag(0, 10, "truncated", lives=3).factory())
    for _ in range(100):
        runner.step(1.0)
    runner.close()
    assert memory.scores == [10.0] * 10


def test_several_runners_without_a_manager():
    tags = KINDS[:3]
    memory = memory_of(num_streams=3)
    runners = [EnvRunner(tag.factory(), None, memory, 4) for tag in tags]
    for i in range(60):
        for runner in runners[:1 + i % 3]:
            runner.step(1.0)
    check_streams(memory, tags)
    extra = EnvRunner(TagPlayer, None, memory, 4)
    with pytest.raises(ConfigurationError, match="num_streams"):
        extra.step(1.0)
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_close_gives_the_stream_back(num_steps):
    """To a manager, and to another runner that is used alone."""
    runner, memory = alone(Tag(0, 5).factory())
    for _ in range(num_steps):
        runner.step(1.0)
    runner.close()
    batch = memory.sample_batch(num_steps)
    assert (batch.truncated == (batch.state[:, STEP, -1] == num_steps - 1)).all()
    other = EnvRunner(Tag(0, 5).factory(), None, memory, 4)
    other.step(1.0)
    other.close()
    with EnvRunnerManager([EnvRunner(Tag(0, 5).factory(), None, memory, 4)], 4) as manager:
        manager.step(1.0)
        manager.join()
    assert len(memory) == num_steps + 2


# ---- epsilon-greedy


def test_greedy_only_at_zero_and_random_only_at_one():
    def never(states):
        raise AssertionError("asked at exploration 1")

    runner, memory = alone(Tag(0, 9).factory(), never)
    for _ in range(500):
        runner.step(1.0)
    counts = Counter(memory.records[0].actions)
    assert all(abs(counts[action] - 125) < 5 * 125**0.5 for action in range(4))
    runner.close()

    runner, memory = alone(Tag(0, 9).factory(), probe_q)
    for _ in range(500):
        runner.step(0)
    assert memory.records[0].actions == probe(memory.records[0].stacks(4)).tolist()
    runner.close()


def test_epsilon_is_the_share_of_random_actions():
    runner, memory = alone(
        Tag(0, 9).factory(), lambda states: np.eye(4)[[2] * len(states)], seed=1
    )
    for _ in range(4000):
        runner.step(0.4)
    counts = Counter(memory.records[0].actions)
    for action, share in enumerate([0.1, 0.1, 0.7, 0.1]):
        assert abs(counts[action] - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5
    runner.close()


@pytest.mark.parametrize("history_len", [1, 2, 4])
@pytest.mark.parametrize("where", ["served", "local"])
def test_acting_sees_what_training_sees(where, history_len):
    predictor = probe_q if where == "served" else LocalPredictor(ProbeModel, {})
    runner, memory = alone(Tag(0, 23, lives=2).factory(), predictor, history_len)
    for _ in range(200):
        runner.step(0.0)
    runner.close()
    record = memory.records[0]
    assert record.actions == probe(record.stacks(history_len)).tolist()


@pytest.mark.parametrize("where", ["served", "local"])
def test_a_predictor_may_write_in_its_input(where):
    predictor = ScribblingModel() if where == "served" else LocalPredictor(ScribblingModel, {})
    runner, memory = alone(Tag(0, 23).factory(), predictor)
    for _ in range(100):
        runner.step(0.0)
    runner.close()
    record = memory.records[0]
    assert record.actions == probe(record.stacks(4)).tolist()


def test_a_predictor_sees_contiguous_frames():
    def predictor(states):
        assert states.shape == (1, 84, 83, 4)
        assert np.moveaxis(states, -1, 1).flags.c_contiguous
        return np.zeros((1, 2))

    class Frames(TagPlayer):
        def _observe(self, action):
            return np.zeros((84, 83), np.uint8)

    memory = ReplayMemory(100, (84, 83), 4)
    runner = EnvRunner(lambda: Frames(num_actions=2), predictor, memory, 4)
    for _ in range(40):
        runner.step(0.0)
    runner.close()


def test_a_local_predictor_alone():
    runner, memory = alone(Tag(0, 5).factory(), LocalPredictor(GreedyModel, greedy(3)))
    for _ in range(20):
        runner.step(0.0)
    runner.close()
    assert memory.records[0].actions == [3] * 20
    assert memory.records[0].versions == [0] * 20


def test_act_can_be_overridden():
    class Softmax(EnvRunner):
        def act(self, state, exploration):
            assert state.shape == (*TAG_SHAPE, 4)
            q = self.q_values(state)
            assert q.shape == (self.num_actions,)
            weights = np.exp(q / max(exploration, 1e-9))
            return int(self.rng.choice(self.num_actions, p=weights / weights.sum()))

    runner, memory = alone(Tag(0, 5).factory(), probe_q, kind=Softmax)
    for _ in range(50):
        runner.step(0.5)
    runner.close()
    check_streams(memory, [Tag(0, 5)])
    assert set(memory.records[0].actions) == {0, 1, 2, 3}


@pytest.mark.parametrize("action", [-1, 4, 1.5, 2**40])
def test_an_action_that_does_not_exist(action):
    class Wrong(EnvRunner):
        def act(self, state, exploration):
            return action

    runner, memory = alone(Tag(0, 5).factory(), kind=Wrong)
    with pytest.raises(PlayerError, match=r"act\(\) returned"):
        runner.step(1.0)
    runner.close()


@pytest.mark.parametrize("action", [np.int64(2), np.uint8(2), True + 1])
def test_an_action_of_numpy(action):
    class Fixed(EnvRunner):
        def act(self, state, exploration):
            return action

    runner, memory = alone(Tag(0, 5).factory(), kind=Fixed)
    for _ in range(7):
        runner.step(1.0)
    runner.close()
    check_streams(memory, [Tag(0, 5)])
    assert memory.records[0].actions == [2] * 7


def test_what_a_predictor_raises_is_heard():
    runner, _ = alone(Tag(0, 5).factory(), lambda states: {}["mine"])
    with pytest.raises(KeyError, match="mine"):
        runner.step(0.0)
    runner.close()
    runner, _ = alone(Tag(0, 5).factory(), lambda states: np.zeros((1, 3)))
    with pytest.raises(PredictorError, match=r"shape \(1, 3\)"):
        runner.step(0.0)
    runner.close()


# ---- rewards


def test_rewards_are_stored_as_float32_and_summed_up_whole():
    class Rewards(TagPlayer):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return (observation, 0.1 * self.at, *rest)

    runner, memory = alone(lambda: Rewards(0, 10))
    for _ in range(20):
        runner.step(1.0)
    runner.close()
    record = memory.records[0]
    expected = [0.1 * at for at in range(1, 11)]
    assert record.meta["reward"][record.steps].tolist() == np.float32(expected * 2).tolist()
    # One after the other, as they come; sum() makes up for rounding from Python 3.12 on.
    assert record.scores == [functools.reduce(operator.add, expected)] * 2


@pytest.mark.parametrize("reward", [1e39, -1e300, float("nan"), float("inf"), 10**400])
def test_a_reward_that_no_float32_can_hold(reward):
    class Rewards(TagPlayer):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return (observation, reward, *rest)

    runner, memory = alone(Rewards)
    with pytest.raises(PlayerError, match="the reward"):
        runner.step(1.0)
    runner.close()
    assert len(memory) == 0


# ---- seeds


def streams_of_seed(seed):
    memory = RecordingMemory(200, TAG_SHAPE, 1, "int64")
    runner = EnvRunner(lambda: SeededPlayer(0), None, memory, 1, seed=seed)
    for _ in range(40):
        runner.step(1.0)
    runner.close()
    return memory.records[0].state.tolist(), memory.records[0].actions


def test_the_same_seed_gives_the_same_game():
    np.random.seed(0)
    first = streams_of_seed(3)
    np.random.seed(0)
    assert streams_of_seed(3) == first
    others = [streams_of_seed(4), streams_of_seed(None), streams_of_seed(None)]
    states, actions = zip(first, *others)
    assert len({str(item) for item in states}) == len({str(item) for item in actions}) == 4


# ---- what is refused


@pytest.mark.parametrize("exploration", [-0.1, 1.1, float("nan"), None, "much", [1]])
def test_explorations_that_are_refused(exploration):
    with pytest.raises(ConfigurationError, match=r"exploration is .*\[0, 1\]"):
        check_exploration(exploration, True)


@pytest.mark.parametrize("exploration", [0, 1, 0.5, np.float32(0.25), "0.5", True])
def test_explorations_that_are_understood(exploration):
    assert check_exploration(exploration, True) == float(exploration)


def test_without_a_predictor_exploration_must_be_one():
    runner, _ = alone(TagPlayer)
    with pytest.raises(ConfigurationError, match="0.9, but the predictor is None"):
        runner.step(0.9)
    runner.step(1)
    runner.close()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"player": 3}, "player is int"),
        ({"predictor": 3}, "predictor is int"),
        ({"history_len": 3}, "history_len is 3; the memory's is 4"),
        ({"history_len": 0}, "history_len is 0"),
    ],
)
def test_arguments_that_are_refused(arguments, words):
    memory = memory_of()
    given = {"player": TagPlayer, "predictor": None, "history_len": 4, **arguments}
    with pytest.raises(ConfigurationError, match=words):
        EnvRunner(memory=memory, **given)


def test_a_runner_that_has_not_begun():
    runner, _ = alone(TagPlayer, probe_q)
    for call in (lambda: runner.rng, lambda: runner.num_actions,
                 lambda: runner.q_values(np.zeros((4, 4)))):
        with pytest.raises(MprunnerError, match="not begun"):
            call()
    runner.close()


def test_after_close():
    player = TagPlayer(0, 5)
    runner, memory = alone(player)
    runner.step(1.0)
    runner.close()
    runner.close()
    assert player.num_closed == 1
    with pytest.raises(ClosedError):
        runner.step(1.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("for once")])
@pytest.mark.parametrize(
    "where", ["before step", "after step", "before reset", "after reset"]
)
def test_one_may_go_on_after_an_exception(where, error):
    runner, memory = alone(lambda: InterruptedPlayer(0, 5, where=where, error=error))
    raised = 0
    for _ in range(60):
        try:
            runner.step(1.0)
        except (KeyboardInterrupt, OSError) as found:
            assert found is error
            raised += 1
    runner.close()
    assert raised == 1
    record = memory.records[0]
    check_joints(record, 4)
    check_samples(memory)
    assert len(record.steps) == 60 - (where in ("before step", "after step"))
    assert set(record.scores) == {5.0}  # that of the broken game is discarded


def test_an_action_that_fails_breaks_nothing_off():
    class Shy(EnvRunner):
        def act(self, state, exploration):
            if self.rng.random() < 0.3:
                raise KeyError("once more")
            return super().act(state, exploration)

    runner, memory = alone(Tag(0, 5).factory(), kind=Shy, seed=0)
    failures = 0
    for _ in range(60):
        try:
            runner.step(1.0)
        except KeyError:
            failures += 1
    runner.close()
    assert 5 < failures < 40
    assert memory.num_steps == 60 - failures
    check_streams(memory, [Tag(0, 5)])


def test_a_start_that_fails_can_be_tried_again():
    attempts = []

    class Shy(TagPlayer):
        def reset(self, **options):
            attempts.append(self)
            if len(attempts) == 1:
                raise OSError("not yet")
            return super().reset(**options)

    runner, memory = alone(lambda: Shy(0, 5))
    with pytest.raises(OSError, match="not yet"):
        runner.step(1.0)
    for _ in range(12):
        runner.step(1.0)
    runner.close()
    assert attempts[0].num_closed == attempts[1].num_closed == 1
    check_streams(memory, [Tag(0, 5)])


def test_an_old_gym_player():
    runner, memory = alone(Tag(0, 4, "truncated").factory(LegacyPlayer), seed=3)
    for _ in range(30):
        runner.step(1.0)
    runner.close()
    check_streams(memory, [Tag(0, 4, "truncated")])


# ---- size and cost


def test_what_is_sent_to_a_worker_is_small():
    memory = ReplayMemory(30_000, (84, 84), 4)  # 200 MB

    class Unsendable:
        def __call__(self, states):
            return memory

        def __reduce__(self):
            raise TypeError("stays here")

    runner = EnvRunner(TagPlayer, Unsendable(), memory, 4)
    assert len(cloudpickle.dumps(runner)) < 10_000
    local = EnvRunner(TagPlayer, LocalPredictor(GreedyModel, [np.zeros(10**6)]), memory, 4)
    assert len(cloudpickle.dumps(local)) < 10_000
    again = cloudpickle.loads(cloudpickle.dumps(runner))
    assert again.memory is again.predictor is None
    assert (again.history_len, again.state_shape, again.dtype) == (4, (84, 84), np.uint8)
