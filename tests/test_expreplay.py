"""`ExpReplay`: filling, batches, pacing, exploration, seeds, its end; and that one learns by it."""

from __future__ import annotations

import io
import logging
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mprunner import ClosedError, ConfigurationError, ExpReplay, LocalPredictor, expreplay
from tests.support.envs import EPISODE, LAST_ACTION, STEP, TAG_SHAPE, TagEnv
from tests.support.linear import LinearLearner, LinearModel, OneHot

NUM_ACTIONS = 4


def constant_q(states: np.ndarray) -> np.ndarray:
    """Always prefers action 2."""
    return np.tile(np.array([0.0, 1.0, 3.0, 2.0]), (len(states), 1))


def make(predictor: Any = None, player: Any = TagEnv, **changes: Any) -> ExpReplay:
    options: dict[str, Any] = {
        "num_parallel_players": 2,
        "state_shape": TAG_SHAPE,
        "batch_size": 8,
        "memory_size": 1000,
        "init_memory_size": 50,
        "update_frequency": 4,
        "history_len": 2,
        "state_dtype": "int32",
        "backend": "thread",
        "seed": 3,
        **changes,
    }
    return ExpReplay(predictor, player, **options)


class TestBatches:
    def test_layout_is_the_original_s(self) -> None:
        with make(history_len=3) as replay:
            state, action, reward, is_over = next(iter(replay))
        assert state.shape == (8, *TAG_SHAPE, 4) and state.dtype == np.int32
        assert action.shape == reward.shape == is_over.shape == (8,)
        assert (action.dtype, reward.dtype, is_over.dtype) == (np.int64, np.float32, np.bool_)

    def test_states_are_views_of_one_contiguous_history_first_gather(self) -> None:
        with make() as replay:
            state = next(iter(replay))[0]
        assert not state.flags.owndata
        assert np.moveaxis(state, -1, 1).flags.c_contiguous

    def test_last_frame_is_the_next_observation(self) -> None:
        with make(player=partial(TagEnv, length=7)) as replay:
            batches = iter(replay)
            for _ in range(50):
                state, action, reward, is_over = next(batches)
                now, after = state[..., -2], state[..., -1]
                np.testing.assert_array_equal(after[:, STEP], now[:, STEP] + 1)
                np.testing.assert_array_equal(after[:, EPISODE], now[:, EPISODE])
                np.testing.assert_array_equal(after[:, LAST_ACTION], action)
                np.testing.assert_array_equal(is_over, after[:, STEP] == 7)
                assert (reward == 1).all()

    def test_a_truncated_episode_is_not_over(self) -> None:
        with make(player=partial(TagEnv, length=3, ending="truncated")) as replay:
            batches = iter(replay)
            assert not any(next(batches)[3].any() for _ in range(20))

    @pytest.mark.parametrize("backend", ["inline", "thread", "process"])
    def test_every_backend(self, backend: str) -> None:
        with make(constant_q, backend=backend) as replay:
            replay.exploration = 0.0
            actions = next(iter(replay))[1]
        assert (actions == 2).all()


class TestSteps:
    def test_fills_first_and_then_plays_the_frequency_per_batch(self) -> None:
        with make(init_memory_size=60, update_frequency=5) as replay:
            batches = iter(replay)
            next(batches)
            filled = replay.stats().steps_asked - 5
            assert 60 <= filled <= 64
            for _ in range(10):
                next(batches)
            assert replay.stats().steps_asked == filled + 5 * 11
            replay.manager.join()
            assert len(replay.memory) == filled + 5 * 11

    @pytest.mark.parametrize(("frequency", "players"), [(1, 2), (4, 2), (5, 2), (3, 4), (64, 2)])
    def test_a_round_is_dealt_to_all(self, frequency: int, players: int) -> None:
        with make(
            update_frequency=frequency, num_parallel_players=players, deterministic=True
        ) as replay:
            replay.fill()
            before = [worker.steps for worker in replay.stats().workers]
            replay.play()
            played = [
                worker.steps - steps for worker, steps in zip(replay.stats().workers, before)
            ]
        assert sum(played) == frequency
        assert frequency < players or min(played) > 0

    def test_short_episodes_that_leave_no_room_do_not_fill_for_ever(self) -> None:
        # Of three rows of an episode of two steps only two are transitions.
        with make(
            player=partial(TagEnv, length=2), memory_size=90, init_memory_size=80
        ) as replay:
            assert len(next(iter(replay))[0]) == 8
            assert replay.stats().steps_asked <= 4 * 90

    def test_a_filled_memory_is_not_filled_again(self, tmp_path: Any) -> None:
        options = {"memory_options": {"path": tmp_path / "replay.mpr"}}
        with make(**options) as replay:
            next(iter(replay))
        replay.memory.close()
        with make(**options) as replay:
            replay.fill()
            assert replay.stats().steps_asked == 0
        replay.memory.close()

    def test_play_after_close_is_refused(self) -> None:
        replay = make()
        batches = iter(replay)
        next(batches)
        replay.close()
        replay.close()
        with pytest.raises(ClosedError):
            next(batches)
        with pytest.raises(ClosedError):
            replay.play()
        assert len(replay.memory.sample_batch(4)) == 4


class TestExploration:
    def test_can_be_set_at_any_time(self) -> None:
        with make(constant_q, deterministic=True) as replay:
            assert replay.exploration == 1.0
            batches = iter(replay)
            next(batches)
            replay.exploration = 0.0
            before = len(replay.memory)
            for _ in range(20):
                next(batches)
            memory = replay.memory
            assert len(memory) == before + 80
            per_stream = len(memory) // 2
            greedy = [memory.sample(per_stream * (i + 1) - 1)[2] for i in range(2)]
        assert greedy == [2, 2]

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "a"])
    def test_bad_values(self, value: Any) -> None:
        with make(constant_q) as replay:
            with pytest.raises(ConfigurationError):
                replay.exploration = value
            assert replay.exploration == 1.0

    def test_must_stay_at_one_without_a_predictor(self) -> None:
        with make() as replay, pytest.raises(ConfigurationError, match="predictor is None"):
            replay.exploration = 0.5


class TestConfiguration:
    @pytest.mark.parametrize(
        "change",
        [
            {"num_parallel_players": 0},
            {"batch_size": 0},
            {"update_frequency": 0},
            {"memory_size": 0},
            {"init_memory_size": 7},
            {"init_memory_size": 1001},
            {"seed": -1},
            {"maximum_staleness": 0},
            {"backend": "carrier pigeons"},
        ],
    )
    def test_what_cannot_work_is_told(self, change: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            make(**change)

    def test_a_failed_start_lets_go_of_the_file(self, tmp_path: Any) -> None:
        path = {"memory_options": {"path": tmp_path / "replay.mpr"}}
        with pytest.raises(ConfigurationError):
            make(maximum_staleness=0, **path)
        make(**path).memory.close()

    def test_a_drawn_seed_is_logged_and_repeats_the_run(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def first_batch(seed: int | None) -> tuple[int, list[np.ndarray]]:
            with make(seed=seed, deterministic=True) as replay:
                return replay.seed, next(iter(replay))

        with caplog.at_level(logging.INFO, logger="mprunner"):
            seed, drawn = first_batch(None)
        assert f"seed={seed} " in caplog.text
        _, again = first_batch(seed)
        _, other = first_batch(None)
        assert all((a == b).all() for a, b in zip(drawn, again))
        assert not (drawn[0] == other[0]).all()


class TestStats:
    def test_scores_are_the_manager_s(self) -> None:
        with make(player=partial(TagEnv, length=10)) as replay:
            assert replay.reset_stats() == (None, None)
            next(iter(replay))
            replay.manager.join()
            assert replay.reset_stats() == (10.0, 10.0)
            assert replay.stats().as_dict()["episodes"] == replay.stats().episodes > 0

    def test_weights_reach_the_workers(self) -> None:
        weights = {"w": np.zeros((8, NUM_ACTIONS), np.float32)}
        with make(LocalPredictor(LinearModel, weights), deterministic=True) as replay:
            replay.fill()
            assert replay.set_weights(weights) == 1
            replay.play()
            assert replay.stats().version == 1
            newest = replay.memory.sample_batch(50).version
        assert set(newest.tolist()) <= {0, 1}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def test_the_bar_counts_stored_transitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("rich")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "120")
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        with make() as replay:
            replay.fill()
            stored = len(replay.memory)
        assert "filling the replay memory" in screen.getvalue()
        assert f"{stored}/50" in screen.getvalue()

    def test_nothing_is_drawn_where_there_is_no_terminal(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with make() as replay:
            replay.fill()
        assert capsys.readouterr() == ("", "")

    def test_a_line_in_the_log_without_rich(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "rich.console", None)
        with caplog.at_level(logging.INFO, logger="mprunner"), make() as replay:
            replay.fill()
        assert "filling the replay memory with 50 transitions" in caplog.text


class TestOtherProcess:
    def test_batches_only_where_it_was_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with make() as replay:
            monkeypatch.setattr(expreplay.os, "getpid", lambda: 1)
            with pytest.raises(ConfigurationError, match="num_workers=0"):
                next(iter(replay))
            monkeypatch.undo()


@pytest.mark.slow
class TestTorch:
    def test_data_loader(self) -> None:
        torch = pytest.importorskip("torch", reason="needs the extra torch")
        from torch.utils.data import DataLoader, IterableDataset

        with make(backend="process") as replay:
            assert isinstance(replay, IterableDataset)
            loader = DataLoader(replay, batch_size=None)
            for _, batch in zip(range(3), loader):
                state, action, reward, is_over = batch
                assert all(isinstance(item, torch.Tensor) for item in batch)
                assert tuple(state.shape) == (8, *TAG_SHAPE, 3)
                assert (action.dtype, is_over.dtype) == (torch.int64, torch.bool)


def frozen_lake() -> gym.Env[Any, int]:
    """The slippery 4x4 lake: random play reaches the goal in 1.5 % of games, the best in 74 %."""
    return OneHot(gym.make("FrozenLake-v1", disable_env_checker=True))


class TestLearning:
    def test_tabular_q_learning_on_two_processes(self) -> None:
        learner = LinearLearner(16, 4, rate=0.5, discount=0.97)
        with ExpReplay(
            LocalPredictor(LinearModel, learner.published()),
            frozen_lake,
            num_parallel_players=2,
            state_shape=(16,),
            batch_size=256,
            memory_size=20_000,
            init_memory_size=4_000,
            update_frequency=32,
            history_len=1,
            seed=1,
            backend="process",
            deterministic=True,
        ) as replay:
            for i, (state, action, reward, is_over) in zip(range(200), replay):
                replay.exploration = max(0.1, 1 - i / 100)
                learner.rate = 0.5 / (1 + i / 25)
                discount = learner.discount * ~is_over
                learner.learn(state[..., :-1], action, reward, state[..., 1:], discount)
                replay.set_weights(learner.published())
            replay.reset_stats()
            replay.exploration = 0.0
            before = replay.stats().episodes
            while replay.stats().episodes < before + 200:
                replay.play()
            mean, best = replay.reset_stats()
        assert mean is not None and mean > 0.6
        assert best == 1.0
