"""The contract: predictors, exploration, weights and seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mprunner import ConfigurationError, LocalPredictor
from tests.support.pool_case import PoolCase
from tests.support.streams import RecordingMemory, check_streams
from tests.support.tagged import TAG_SHAPE, Tag
from tests.support.toys import (
    NUM_ACTIONS,
    EpsilonRunner,
    GreedyModel,
    ProbeModel,
    ScribblingModel,
    SeededPlayer,
    SlowModel,
    greedy,
    probe,
    probe_q,
)
from tests.support.waiting import HANG_S


class Acting(PoolCase):
    """What is acted on, by which predictor, with which epsilon, weights and seed."""

    @pytest.mark.parametrize("where", ["served", "local"])
    @pytest.mark.parametrize("history_len", [1, 4])
    def test_acting_sees_what_training_sees(self, where, history_len):
        local = LocalPredictor(ProbeModel, {})
        tags = [Tag(0, 23), Tag(1, 2, "truncated"), Tag(2, 3, lives=2)]
        memory = RecordingMemory(600, TAG_SHAPE, history_len, "int32")
        players = [tag.factory(num_actions=NUM_ACTIONS) for tag in tags]
        predictor = probe_q if where == "served" else local
        with self.pool(memory, players, predictor) as manager:
            for _ in range(40):
                manager.step(0.0, num_steps=3)
                manager.step(0)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
            for record in memory.records:
                expected = probe(record.stacks(history_len))
                assert record.actions == expected.tolist()

    @pytest.mark.parametrize("where", ["served", "local"])
    def test_a_predictor_may_write_in_its_input(self, where):
        tags = [Tag(0, 23), Tag(1, 3)]
        memory = RecordingMemory(600, TAG_SHAPE, 3, "int32")
        predictor = (
            ScribblingModel() if where == "served" else LocalPredictor(ScribblingModel, {})
        )
        with self.pool(memory, [tag.factory() for tag in tags], predictor) as manager:
            manager.step(0.0, num_steps=80)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
            for record in memory.records:
                assert record.actions == probe(record.stacks(3)).tolist()

    def test_each_runner_has_its_own_predictor(self):
        tags = [Tag(0, 5), Tag(1, 9), Tag(2, 7)]
        memory = RecordingMemory(600, TAG_SHAPE, 2, "int32")
        predictors = [
            lambda states: np.eye(4)[np.full(len(states), 3)],
            lambda states: [np.eye(4)[np.full(len(states), 2)], "and more"],
            LocalPredictor(GreedyModel, greedy(1)),
        ]
        with self.pool(memory, [tag.factory() for tag in tags], predictors) as manager:
            manager.step(0.0, num_steps=60)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
            assert [set(record.actions) for record in memory.records] == [{3}, {2}, {1}]

    @pytest.mark.parametrize("where", ["served", "local"])
    def test_where_the_time_goes(self, where):
        """A slow predictor is told from a slow simulator."""
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        predictor = SlowModel() if where == "served" else LocalPredictor(SlowModel, {})
        with self.pool(memory, [Tag().factory()], predictor) as manager:
            manager.step(0.0, num_steps=5)
            assert manager.join(HANG_S)
            (worker,) = manager.stats().workers
        assert worker.share_prediction > worker.share_player > 0

    def test_exactly_the_exploration_of_each_call_is_used(self):
        tags = [Tag(i, 9, options={"num_actions": 1001}) for i in range(3)]
        memory = RecordingMemory(600, TAG_SHAPE, 1, "int32")
        players = [tag.factory() for tag in tags]
        asked = [(i / 1000, 1 + i % 4) for i in range(120)]
        with self.pool(memory, players, probe_q, kind=EpsilonRunner) as manager:
            for exploration, num_steps in asked:
                manager.step(exploration, num_steps)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
            expected = Counter({i: n for i, (_, n) in enumerate(asked)})
            assert sum((Counter(r.actions) for r in memory.records), Counter()) == expected
            for record in memory.records:  # and in the order of the calls
                assert record.actions == sorted(record.actions)

    def test_deterministic_deals_in_turn(self):
        tags = [Tag(i, 9, options={"num_actions": 1001}) for i in range(3)]
        memory = RecordingMemory(600, TAG_SHAPE, 1, "int32")
        players = [tag.factory() for tag in tags]
        options: dict[str, Any] = {"kind": EpsilonRunner, "deterministic": True}
        with self.pool(memory, players, probe_q, **options) as manager:
            for i in range(99):
                manager.step(i / 1000)
            assert manager.join(HANG_S)
            for i, record in enumerate(memory.records):
                assert record.actions == list(range(i, 99, 3))

    def test_a_served_predictor_acts_on_the_newest_weights(self):
        best = [0]
        memory = RecordingMemory(600, TAG_SHAPE, 1, "int32")
        players = [Tag(i, 50).factory() for i in range(2)]

        def predictor(states):
            return np.eye(4)[np.full(len(states), best[0])]

        with self.pool(memory, players, predictor, staleness=8) as manager:
            for value in range(4):
                best[0] = value
                for _ in range(40):
                    manager.step(0.0)
            assert manager.join(HANG_S)
            acted = sum((Counter(r.actions) for r in memory.records), Counter())
            for record in memory.records:
                assert record.actions == sorted(record.actions)
            for value in range(3):
                older = sum(acted[v] for v in range(value + 1))
                assert (value + 1) * 40 - 8 <= older <= (value + 1) * 40

    def test_local_weights_are_the_newest_at_the_next_job(self):
        tags = [Tag(0, 5), Tag(1, 9)]
        memory = RecordingMemory(600, TAG_SHAPE, 2, "int32")
        predictor = LocalPredictor(GreedyModel, greedy(0))
        with self.pool(memory, [tag.factory() for tag in tags], predictor) as manager:
            for version, best in enumerate([0, 3, 1, 2]):
                if version:
                    assert manager.set_weights(greedy(best)) == version
                manager.step(0.0, num_steps=10)
                manager.step(0.0, num_steps=10)
                assert manager.join(HANG_S)
            refused = {"best": np.zeros(1, np.int32), "ballast": np.zeros(5, np.float32)}
            for weights in (refused, {"best": np.zeros(1, np.int32)}, [np.zeros(1)], "weights"):
                with pytest.raises(ConfigurationError):
                    manager.set_weights(weights)
            manager.step(0.0, num_steps=20)
            assert manager.join(HANG_S)
            check_streams(memory, tags)
            for record in memory.records:
                acted = list(zip(record.versions, record.actions))
                assert acted == sorted(acted)
                assert set(acted) == {(0, 0), (1, 3), (2, 1), (3, 2)} or self.synchronous
            stats = manager.stats()
            assert stats.version == 3
            assert stats.version_lag == {0: 100}

    def test_seeds(self):
        def play(seed, backend=None, **options):
            memory = RecordingMemory(300, TAG_SHAPE, 1, "int64")
            players = [lambda i=i: SeededPlayer(i) for i in range(3)]
            options = {**options, **({"backend": backend} if backend else {})}
            with self.pool(memory, players, seed=seed, deterministic=True, **options) as manager:
                manager.step(1.0, num_steps=60)
                assert manager.join(HANG_S)
            return [(r.state.tolist(), r.meta.tolist()) for r in memory.records]

        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        first = play(1)
        assert np.random.get_state()[1].tolist() == before
        np.random.seed(0)
        others = play(2)
        np.random.seed(1)
        if self.thorough:
            assert play(1) == first
        if not self.synchronous:
            assert play(1, backend="inline", start_method=None) == first
        seen: dict[str, set[Any]] = {"seeds": set(), "draws": set(), "actions": set()}
        for states, rows in first + others:
            # Given at the first reset, and at that one only.
            assert {state[1] for state in states} == {states[0][1]}
            assert {state[2] for state in states} == {1}
            seen["seeds"].add(states[0][1])
            seen["draws"].add(tuple(state[3] for state in states))
            seen["actions"].add(tuple(row[0] for row in rows))
        assert {name: len(different) for name, different in seen.items()} == {
            "seeds": 6,
            "draws": 6,
            "actions": 6,
        }

    def test_without_a_seed_no_two_runs_are_alike(self):
        actions = []
        for _ in range(2):
            np.random.seed(0)
            memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
            players = [Tag(i, 5, options={"num_actions": 1000}).factory() for i in range(2)]
            with self.pool(memory, players, deterministic=True) as manager:
                manager.step(1.0, num_steps=40)
            actions.extend(tuple(record.actions) for record in memory.records)
        assert len(set(actions)) == 4
