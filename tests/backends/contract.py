"""What every backend must do; each inherits this class in a test file of its own.

Whole streams are compared, never samples of them: a player tags its observations, a memory
keeps all that it is given, and `tests.streams` knows what must have come.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mprunner import (
    ClosedError,
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    LocalPredictor,
    PredictorError,
    ReplayMemory,
    WorkerRaised,
)
from mprunner.stats import Recorder
from tests.streams import RecordingMemory, check_record, check_streams
from tests.tagged import CLOSES, FACTORIES, STEPS, TAG_SHAPE, Gate, Ledger, Tag, TagPlayer
from tests.toys import (
    NUM_ACTIONS,
    BitsPlayer,
    EpsilonRunner,
    FaultyPlayer,
    GreedyModel,
    LegacyPlayer,
    ProbeModel,
    RaisingModel,
    ScribblingModel,
    SeededPlayer,
    greedy,
    probe,
    probe_q,
)
from tests.waiting import Background, eventually

#: One of each kind: long, one step, cut, both at once, with lives, without an end.
TAGS = [
    Tag(0, 23),
    Tag(1, 1, options={"reuse_buffer": True}),
    Tag(2, 4, "truncated"),
    Tag(3, 7, "both", options={"reuse_buffer": True}),
    Tag(4, 3, lives=3),
    Tag(5, 5, "truncated", lives=3, options={"lives_key": "ale.lives"}),
    Tag(6, 10**9),
]


class BackendContract:
    """The contract.

    Attributes:
        options: of the manager, to use the backend under test.
        synchronous: `step` returns when its steps are done.
        remote: players live in processes of their own.
        thorough: False where another class proves the same mechanism at a lower price.
    """

    options: dict[str, Any] = {}
    synchronous = False
    remote = False
    thorough = True

    def pool(
        self,
        memory: ReplayMemory,
        players: Sequence[Any],
        predictor: Any = None,
        *,
        staleness: int = 16,
        kind: type[EnvRunner] = EnvRunner,
        **options: Any,
    ) -> EnvRunnerManager:
        """A manager of one runner per player; a list of predictors has one for each."""
        predictors = predictor if isinstance(predictor, list) else [predictor] * len(players)
        runners = [
            kind(player, one, memory, memory.history_len)
            for player, one in zip(players, predictors)
        ]
        return EnvRunnerManager(runners, staleness, **{**self.options, **options})

    # ---- whole streams

    @pytest.mark.parametrize("history_len", [1, 2, 3, 4])
    @pytest.mark.parametrize("num_runners", [1, 2, 3, 4])
    def test_streams(self, num_runners, history_len):
        if not self.thorough and num_runners != history_len:
            pytest.skip("proved by another start method")
        tags = [TAGS[(history_len * 3 + i) % len(TAGS)] for i in range(num_runners)]
        memory = RecordingMemory(60, TAG_SHAPE, history_len, "int32")
        with self.pool(memory, [tag.factory() for tag in tags]) as manager:
            for i in range(60):
                manager.step(1.0)
                manager.step(1.0, num_steps=1 + i % 5)
            assert manager.join(30)
            asked = 60 + 12 * (1 + 2 + 3 + 4 + 5)
            assert memory.num_steps == manager.stats().steps_landed == asked
            check_streams(memory, tags)

    def test_every_kind_of_episode(self):
        memory = RecordingMemory(400, TAG_SHAPE, 4, "int32")
        players = [tag.factory() for tag in TAGS]
        with self.pool(memory, players, staleness=64, deterministic=True) as manager:
            for _ in range(70):
                manager.step(1.0, num_steps=10)
            assert manager.join(30)
            check_streams(memory, TAGS)
        assert [len(record.steps) for record in memory.records] == [100] * 7

    def test_old_gym_players(self):
        tags = [Tag(0, 6), Tag(1, 4, "truncated")]
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        with self.pool(memory, [tag.factory(LegacyPlayer) for tag in tags]) as manager:
            manager.step(1.0, num_steps=100)
            assert manager.join(30)
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
                assert manager.join(30)
            expected = np.stack([player.observation(at) for at in range(251)])
            assert memory.records[0].state.dtype == expected.dtype
            assert memory.records[0].state.tobytes() == expected.tobytes()

    # ---- acting

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
            assert manager.join(30)
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
            assert manager.join(30)
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
            assert manager.join(30)
            check_streams(memory, tags)
            assert [set(record.actions) for record in memory.records] == [{3}, {2}, {1}]

    def test_exactly_the_exploration_of_each_call_is_used(self):
        tags = [Tag(i, 9, options={"num_actions": 1001}) for i in range(3)]
        memory = RecordingMemory(600, TAG_SHAPE, 1, "int32")
        players = [tag.factory() for tag in tags]
        asked = [(i / 1000, 1 + i % 4) for i in range(120)]
        with self.pool(memory, players, probe_q, kind=EpsilonRunner) as manager:
            for exploration, num_steps in asked:
                manager.step(exploration, num_steps)
            assert manager.join(30)
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
            assert manager.join(30)
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
            assert manager.join(30)
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
                assert manager.join(30)
            refused = {"best": np.zeros(1, np.int32), "ballast": np.zeros(5, np.float32)}
            for weights in (refused, {"best": np.zeros(1, np.int32)}, [np.zeros(1)], "weights"):
                with pytest.raises(ConfigurationError):
                    manager.set_weights(weights)
            manager.step(0.0, num_steps=20)
            assert manager.join(30)
            check_streams(memory, tags)
            for record in memory.records:
                acted = list(zip(record.versions, record.actions))
                assert acted == sorted(acted)
                assert set(acted) == {(0, 0), (1, 3), (2, 1), (3, 2)} or self.synchronous
            stats = manager.stats()
            assert stats.version == 3
            assert stats.version_lag == {0: 100}

    # ---- statistics

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
            assert manager.join(30)
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
            assert manager.join(30)
            assert manager.reset_stats() == (None, None)
            assert manager.reset_stats() == (None, None)
            assert len(memory) == 50  # they arrive while the game is running

    # ---- pace

    @pytest.mark.parametrize("staleness", [1, 2, 7])
    def test_never_more_than_maximum_staleness(self, staleness, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        players = [Tag(i, 5).factory(ledger=ledger) for i in range(2)]
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with self.pool(memory, players, staleness=staleness) as manager:
            asked = 0
            for i in range(150):
                manager.step(1.0, num_steps=1 + i % 3)
                asked += 1 + i % 3
                assert asked - ledger.total(STEPS) <= staleness
            assert manager.join(30)
            stats = manager.stats()
            assert stats.steps_landed == ledger.total(STEPS) == asked
            assert stats.outstanding == 0
            assert 1 <= stats.outstanding_peak <= staleness
        assert ledger.total(STEPS) == asked

    def test_step_blocks_and_workers_do_only_what_they_are_asked(self, tmp_path):
        if self.synchronous:
            pytest.skip("nothing is ever outstanding")
        ledger = Ledger(tmp_path / "ledger")
        gates = [Gate(tmp_path / f"gate{i}") for i in range(2)]
        tags = [Tag(i, 5) for i in range(2)]
        players = [tag.factory(ledger=ledger, gate=gates[i]) for i, tag in enumerate(tags)]
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        returned = [0]

        def ask():
            for _ in range(30):
                manager.step(1.0)
                returned[0] += 1

        with self.pool(memory, players, staleness=5) as manager:
            asking = Background(ask)
            for executed in range(25):
                eventually(lambda: returned[0] == executed + 5)
                eventually(lambda: manager.stats().outstanding == 5)
                assert ledger.total(STEPS) == executed
                assert not manager.join(0)
                # Whichever has something to do.
                busy = int(np.argmax([5 * (executed % 2), 5 - 5 * (executed % 2)]))
                gates[busy].open()
                eventually(lambda: ledger.total(STEPS) == executed + 1, 10)
            asking.result()
            assert manager.stats().outstanding_peak == 5
            for gate in gates:
                gate.open(50)
            assert manager.join(30)
            assert ledger.total(STEPS) == memory.num_steps == 30
            check_streams(memory, tags)
        assert ledger.total(STEPS) == 30
        for gate in gates:
            gate.close()

    def test_join_waits_for_each_step_asked_before(self, tmp_path):
        if self.synchronous:
            pytest.skip("there is nothing to wait for")
        ledger = Ledger(tmp_path / "ledger")
        gates = [Gate(tmp_path / "gate"), None]
        tags = [Tag(i, 5) for i in range(2)]
        players = [tag.factory(ledger=ledger, gate=gates[i]) for i, tag in enumerate(tags)]
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with self.pool(memory, players) as manager:
            manager.step(1.0)
            manager.step(1.0)
            joining = Background(manager.join)
            manager.step(1.0, num_steps=3)
            manager.step(1.0, num_steps=3)
            eventually(lambda: len(memory.records[1].steps) == 4)
            assert joining.running and not manager.join(0.01)
            assert len(memory.records[0].steps) == 0
            gates[0].open(10)
            assert joining.result() is True
            assert manager.join()
            check_streams(memory, tags)
        gates[0].close()

    def test_jobs_larger_than_the_pace_are_dealt_out(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        tags = [Tag(i, 5) for i in range(3)]
        memory = RecordingMemory(900, TAG_SHAPE, 1, "int32")
        players = [tag.factory(ledger=ledger) for tag in tags]
        with self.pool(memory, players, staleness=6) as manager:
            manager.step(1.0, num_steps=200)
            assert manager.stats().outstanding_peak <= 6
            assert manager.join(30)
            assert memory.num_steps == 200
            assert all(record.actions for record in memory.records)
            check_streams(memory, tags)

    # ---- the end

    @pytest.mark.parametrize("with_predictor", [False, True])
    def test_a_thousand_steps_then_close(self, with_predictor, tmp_path):
        tags = [Tag(i, 11 + i) for i in range(2)]
        for repeat in range(3 if self.thorough else 1):
            ledger = Ledger(tmp_path / f"ledger{repeat}")
            memory = RecordingMemory(2500, TAG_SHAPE, 2, "int32")
            players = [tag.factory(ledger=ledger) for tag in tags]
            predictor = probe_q if with_predictor else None
            manager = self.pool(memory, players, predictor, staleness=64)
            for _ in range(500):
                manager.step(0.5 if with_predictor else 1.0, num_steps=2)
            manager.close()
            stats = manager.stats()
            assert (stats.steps_asked, stats.steps_landed, stats.steps_lost) == (1000, 1000, 0)
            assert ledger.total(STEPS) == memory.num_steps == len(memory) == 1000
            assert (ledger.total(FACTORIES), ledger.total(CLOSES)) == (2, 2)
            check_streams(memory, tags)
            mean, best = manager.reset_stats()
            assert mean == pytest.approx(np.mean(memory.scores))
            assert best == max(memory.scores)

    def test_after_close(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [Tag(i, 5).factory(ledger=ledger) for i in range(2)]
        closed = [self.pool(memory, players, LocalPredictor(GreedyModel, greedy(0)))]
        self.check_closed(closed[0])
        assert ledger.total(CLOSES) == 2
        # The memory is free for the next manager, and what it holds stays.
        with self.pool(memory, players) as following:
            following.step(1.0, num_steps=8)
            assert following.join(30)
            closed.pop()  # and the one before, when it goes, must not touch it
            gc.collect()
            following.step(1.0, num_steps=8)
            assert following.join(30)
            for i, record in enumerate(memory.records):
                check_record(record, Tag(i, 5), 2)
            assert len(memory) == 26

    def check_closed(self, manager: EnvRunnerManager) -> None:
        """Ten steps in games of five, and then no more."""
        manager.step(0.0, num_steps=10)
        manager.close()
        manager.close()
        for call in (
            lambda: manager.step(0.0),
            manager.join,
            manager.__enter__,
            lambda: manager.set_weights(greedy(1)),
        ):
            with pytest.raises(ClosedError):
                call()
        manager.close()
        assert manager.stats().steps_landed == 10
        assert manager.reset_stats() == (5.0, 5.0)
        assert [worker.state for worker in manager.stats().workers] == ["closed"] * 2

    def test_close_from_two_threads(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(500, TAG_SHAPE, 2, "int32")
        manager = self.pool(memory, [Tag(i, 5).factory(ledger=ledger) for i in range(2)])
        manager.step(1.0, num_steps=100)
        start = threading.Barrier(2)
        closing = [Background(lambda: (start.wait(10), manager.close())) for _ in range(2)]
        for call in closing:
            call.result()
        manager.close()
        assert ledger.total(CLOSES) == 2
        assert manager.stats().steps_landed == 100

    def test_context_manager(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [Tag(i, 5).factory(ledger=ledger) for i in range(2)]
        with self.pool(memory, players) as manager:
            manager.step(1.0, num_steps=7)
        assert memory.num_steps == 7
        with pytest.raises(ZeroDivisionError):
            with self.pool(memory, players) as manager:
                manager.step(1.0, num_steps=7)
                raise ZeroDivisionError
        with pytest.raises(ClosedError):
            manager.step(1.0)
        assert ledger.total(CLOSES) == ledger.total(FACTORIES) == 4

    def test_two_managers_do_not_know_of_each_other(self):
        tags = [Tag(0, 5), Tag(1, 9)]
        memories = [RecordingMemory(300, TAG_SHAPE, 2, "int32") for _ in range(2)]
        players = [tag.factory() for tag in tags]
        with self.pool(memories[0], players) as first:
            first.step(1.0, num_steps=20)
            with self.pool(memories[1], players) as second:
                second.step(1.0, num_steps=40)
                first.step(1.0, num_steps=20)
            first.step(1.0, num_steps=20)
            assert first.join(30)
            check_streams(memories[0], tags)
        assert [memory.num_steps for memory in memories] == [60, 40]

    # ---- seeds

    def test_seeds(self):
        def play(seed, backend=None, **options):
            memory = RecordingMemory(300, TAG_SHAPE, 1, "int64")
            players = [lambda i=i: SeededPlayer(i) for i in range(3)]
            options = {**options, **({"backend": backend} if backend else {})}
            with self.pool(memory, players, seed=seed, deterministic=True, **options) as manager:
                manager.step(1.0, num_steps=60)
                assert manager.join(30)
            return [(r.state.tolist(), r.meta.tolist()) for r in memory.records]

        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        first = play(1)
        assert np.random.get_state()[1].tolist() == before
        np.random.seed(0)
        others = play(2)
        np.random.seed(1)
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

    # ---- failures

    @pytest.mark.parametrize("where", ["factory", "reset"])
    def test_a_player_that_cannot_start(self, where, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [
            Tag(0).factory(ledger=ledger),
            Tag(1).factory(FaultyPlayer, where=where, ledger=ledger),
            Tag(2).factory(ledger=ledger),
        ]
        with pytest.raises(WorkerRaised) as raised:
            self.pool(memory, players)
        self.check_awkward(raised.value, 1, where)
        # What was made is closed; a factory that raised has made nothing.
        made = ledger.total(FACTORIES) - (where == "factory")
        assert ledger.total(CLOSES) == made
        with self.pool(memory, players[:1]) as manager:  # the memory's streams are free again
            manager.step(1.0)

    @pytest.mark.parametrize("where", ["next reset", "step"])
    def test_a_player_that_raises(self, where, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        tags = [Tag(0, 4), Tag(1, 4)]
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [
            tags[0].factory(ledger=ledger),
            tags[1].factory(FaultyPlayer, where=where, ledger=ledger),
        ]
        manager = self.pool(memory, players, staleness=4)
        with pytest.raises(WorkerRaised) as raised:
            for _ in range(500):
                manager.step(1.0)
            manager.join(30)
        self.check_awkward(raised.value, 1, where)
        for call in (lambda: manager.step(1.0), manager.join, manager.reset_stats):
            with pytest.raises(WorkerRaised) as again:
                call()
            assert again.value is raised.value
        assert manager.stats().steps_asked < 500
        manager.close()
        assert ledger.total(CLOSES) == 2
        # What it had done before is there.
        assert len(memory.records[1].steps) == {"next reset": 4, "step": 2}[where]
        if where == "step":
            check_streams(memory, tags)

    def check_awkward(self, error: WorkerRaised, worker: int, where: str) -> None:
        """The original is told, once, though it cannot be pickled."""
        assert error.worker == worker
        assert error.original_type == "AwkwardError"
        assert error.original_message == f"code 7 from {where}"
        assert "_raise_in" in error.original_traceback
        assert str(error).count(f"AwkwardError: code 7 from {where}") == 1
        assert f"worker {worker} raised AwkwardError while in the player's" in str(error)

    def test_a_player_that_raises_at_close_is_told(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [
            Tag(0).factory(FaultyPlayer, where="close", ledger=ledger),
            Tag(1).factory(ledger=ledger),
        ]
        with pytest.raises(WorkerRaised, match="in the player's close") as raised:
            with self.pool(memory, players) as manager:
                manager.step(1.0, num_steps=20)
        self.check_awkward(raised.value, 0, "close")
        assert ledger.total(CLOSES) == 2
        assert memory.num_steps == 20
        manager.close()

    def test_sys_exit_in_a_player(self):
        memory = RecordingMemory(100, TAG_SHAPE, 2, "int32")
        players = [
            Tag(0).factory(FaultyPlayer, where="step", error=SystemExit("enough")),
            Tag(1).factory(),
        ]
        with pytest.raises(WorkerRaised, match="SystemExit while .*step.*: enough"):
            with self.pool(memory, players) as manager:
                for _ in range(500):
                    manager.step(1.0)

    @pytest.mark.parametrize("fault", ["raises", "shape", "nan"])
    def test_a_served_predictor_that_fails(self, fault):
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        calls = [0]
        original = KeyError("the original")

        def predictor(states):
            calls[0] += 1
            if calls[0] < 5:
                return probe_q(states)
            if fault == "raises":
                raise original
            q = probe_q(states)
            return q[:, :3] if fault == "shape" else q * np.nan

        manager = self.pool(memory, [Tag(i, 5).factory() for i in range(2)], predictor)
        with pytest.raises(PredictorError) as raised:
            for _ in range(500):
                manager.step(0.0)
            manager.join(30)
        if fault == "raises":
            assert raised.value.__cause__ is original
            assert "KeyError: 'the original'" in str(raised.value)
        with pytest.raises(PredictorError) as again:
            manager.step(1.0)
        assert again.value is raised.value
        manager.close()
        assert manager.stats().steps_landed == memory.num_steps

    def test_a_local_predictor_that_fails(self):
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        predictor = LocalPredictor(RaisingModel, {"w": np.zeros(3)})
        players = [Tag(i, 5).factory() for i in range(2)]
        with pytest.raises(WorkerRaised, match="AwkwardError while in the predictor: code 9"):
            with self.pool(memory, players, predictor) as manager:
                manager.step(1.0, num_steps=5)
                for _ in range(500):
                    manager.step(0.0)

    def test_act_out_of_range(self):
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        players = [Tag(0, 5).factory()]
        with pytest.raises(WorkerRaised, match=r"act\(\) returned 500; .*from 0 to 3"):
            with self.pool(memory, players, probe_q, kind=EpsilonRunner) as manager:
                manager.step(0.5)
                manager.join(30)

    # ---- players

    def test_an_environment_instead_of_a_factory(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        tags = [Tag(0, 5), Tag(1, 3)]
        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        players = [tag.factory(ledger=ledger)() for tag in tags]
        with self.pool(memory, players) as manager:
            manager.step(1.0, num_steps=30)
            assert manager.join(30)
            check_streams(memory, tags)
        assert ledger.total(FACTORIES) == ledger.total(CLOSES) == 2

    def test_a_class_made_in_a_function(self):
        class Local(TagPlayer):
            pass

        memory = RecordingMemory(300, TAG_SHAPE, 2, "int32")
        with self.pool(memory, [lambda i=i: Local(i, 5) for i in range(2)]) as manager:
            manager.step(1.0, num_steps=30)
            assert manager.join(30)
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

    # ---- as in the original

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
