"""The contract: whole streams of tagged games."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mprunner import ConfigurationError, ReplayMemory
from mprunner.stats import Recorder
from tests.support.pool_case import TAGS, PoolCase
from tests.support.streams import RecordingMemory, check_streams
from tests.support.tagged import CLOSES, FACTORIES, TAG_SHAPE, Ledger, Tag, TagPlayer
from tests.support.toys import BitsPlayer, LegacyPlayer, probe_q
from tests.support.waiting import HANG_S


class Streams(PoolCase):
    """Whole streams: every row, every score, every sample."""

    @pytest.mark.parametrize("history_len", [1, 2, 3, 4])
    @pytest.mark.parametrize("num_runners", [1, 2, 3, 4])
    def test_streams(self, num_runners, history_len):
        tags = [TAGS[(history_len * 3 + i) % len(TAGS)] for i in range(num_runners)]
        memory = RecordingMemory(60, TAG_SHAPE, history_len, "int32")
        with self.pool(memory, [tag.factory() for tag in tags]) as manager:
            for i in range(60):
                manager.step(1.0)
                manager.step(1.0, num_steps=1 + i % 5)
            assert manager.join(HANG_S)
            asked = 60 + 12 * (1 + 2 + 3 + 4 + 5)
            assert memory.num_steps == manager.stats().steps_stored == asked
            check_streams(memory, tags)

    def test_every_kind_of_episode(self):
        memory = RecordingMemory(400, TAG_SHAPE, 4, "int32")
        players = [tag.factory() for tag in TAGS]
        with self.pool(memory, players, staleness=64, deterministic=True) as manager:
            for _ in range(70):
                manager.step(1.0, num_steps=10)
            assert manager.join(HANG_S)
            check_streams(memory, TAGS)
        assert [len(record.steps) for record in memory.records] == [100] * 7

    def test_old_gym_players(self):
        tags = [Tag(0, 6), Tag(1, 4, "truncated")]
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        with self.pool(memory, [tag.factory(LegacyPlayer) for tag in tags]) as manager:
            manager.step(1.0, num_steps=100)
            assert manager.join(HANG_S)
            check_streams(memory, tags)

    def test_dtypes_are_bit_exact(self):
        cases = [
            ("uint8", (84, 2)),
            ("float16", (7,)),
            ("float32", (3, 5)),
            ("float64", (2, 3, 4)),
            ("int16", (9,)),
            ("bool", (4, 4)),
        ]
        for dtype, shape in cases if self.thorough else cases[:2]:
            memory = RecordingMemory(300, shape, 2, dtype)
            player = BitsPlayer(shape, dtype)
            with self.pool(memory, [lambda: BitsPlayer(shape, dtype)]) as manager:
                manager.step(1.0, num_steps=250)
                assert manager.join(HANG_S)
            expected = np.stack([player.observation(at) for at in range(251)])
            assert memory.records[0].state.dtype == expected.dtype
            assert memory.records[0].state.tobytes() == expected.tobytes()

    def test_scores_are_exactly_those_played(self, monkeypatch):
        taken: list[list[float]] = []
        take_scores = Recorder.take_scores
        monkeypatch.setattr(
            Recorder, "take_scores", lambda self: taken.append(take_scores(self)) or taken[-1]
        )
        tags = [Tag(0, 3), Tag(1, 10, "truncated"), Tag(2, 25, lives=2)]
        memory = RecordingMemory(100, TAG_SHAPE, 4, "int32")
        windows = []
        with self.pool(memory, [tag.factory() for tag in tags]) as manager:
            for i in range(1, 2001):
                manager.step(1.0)
                if i % 7 == 0:
                    windows.append(manager.reset_stats())
            assert manager.join(HANG_S)
            windows.append(manager.reset_stats())
            windows.append(manager.reset_stats())
            check_streams(memory, tags)
            assert manager.stats().episodes == len(memory.scores)
        assert windows[-1] == (None, None)
        assert sorted(sum(taken, [])) == sorted(memory.scores)
        for (mean, best), scores in zip(windows, taken, strict=True):
            if scores:
                assert (mean, best) == (sum(scores) / len(scores), max(scores))
                assert type(mean) is type(best) is float
            else:
                assert mean is best is None

    def test_no_game_has_ended(self):
        memory = RecordingMemory(100, TAG_SHAPE, 4, "int32")
        with self.pool(memory, [Tag(0, 10**9).factory()]) as manager:
            assert manager.reset_stats() == (None, None)
            manager.step(1.0, num_steps=50)
            assert manager.join(HANG_S)
            assert manager.reset_stats() == (None, None)
            assert manager.reset_stats() == (None, None)
            assert len(memory) == 50  # they arrive while the game is running

    def test_the_original_loop(self):
        memory = ReplayMemory(600, TAG_SHAPE, 4, "int32")
        rng = np.random.RandomState(0)
        with self.pool(memory, [Tag(i, 12).factory() for i in range(2)], probe_q) as runner:
            while len(memory) < 200:
                runner.step(1.0)
            exploration = 0.1
            for _ in range(10):
                for _ in range(4):
                    runner.step(exploration)
                idx = rng.randint(len(memory) - memory.history_len - 1, size=32)
                batch_exp = [memory.sample(i) for i in idx]
                state = np.asarray([e[0] for e in batch_exp], dtype="int32")
                reward = np.asarray([e[1] for e in batch_exp], dtype="float32")
                action = np.asarray([e[2] for e in batch_exp], dtype="int8")
                is_over = np.asarray([e[3] for e in batch_exp], dtype="bool")
                assert state.shape == (32, *TAG_SHAPE, 5)
                assert reward.tolist() == [1.0] * 32
                np.testing.assert_array_equal(state[:, 3, 4], action)
                np.testing.assert_array_equal(state[:, 2, 4] == 12, is_over)
            mean, max_score = runner.reset_stats()
            assert mean == max_score == 12.0

    def test_an_environment_instead_of_a_factory(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        tags = [Tag(0, 5), Tag(1, 3)]
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        players = [tag.factory(ledger=ledger)() for tag in tags]
        with self.pool(memory, players) as manager:
            manager.step(1.0, num_steps=30)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
        assert ledger.total(FACTORIES) == ledger.total(CLOSES) == 2

    def test_a_class_made_in_a_function(self):
        class Local(TagPlayer):
            pass

        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        with self.pool(memory, [lambda i=i: Local(i, 5) for i in range(2)]) as manager:
            manager.step(1.0, num_steps=30)
            assert manager.join(HANG_S)
            check_streams(memory, [Tag(0, 5), Tag(1, 5)])

    def test_an_environment_that_cannot_be_sent(self):
        player = TagPlayer()
        player.lock = threading.Lock()
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        if not self.remote:
            self.pool(memory, [player]).close()
            return
        with pytest.raises(ConfigurationError, match=r"env_runners\[0\].*pass a factory"):
            self.pool(memory, [player])
