"""The contract: pace, and the end."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from mprunner import ClosedError, EnvRunnerManager, LocalPredictor
from tests.support.pool_case import PoolCase
from tests.support.streams import RecordingMemory, check_record, check_streams
from tests.support.tagged import CLOSES, FACTORIES, STEPS, TAG_SHAPE, Gate, Ledger, Tag
from tests.support.toys import GreedyModel, greedy, probe_q
from tests.support.waiting import HANG_S, Background, eventually


class Pace(PoolCase):
    """How far runners run ahead, what join() and close() wait for, and what is left then."""

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
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert stats.steps_stored == ledger.total(STEPS) == asked
            assert stats.outstanding == 0
            assert 1 <= stats.outstanding_peak <= staleness
        assert ledger.total(STEPS) == asked

    def test_jobs_larger_than_the_pace_are_dealt_out(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        tags = [Tag(i, 5) for i in range(3)]
        memory = RecordingMemory(900, TAG_SHAPE, 1, "int32")
        players = [tag.factory(ledger=ledger) for tag in tags]
        with self.pool(memory, players, staleness=6) as manager:
            manager.step(1.0, num_steps=200)
            assert manager.stats().outstanding_peak <= 6
            assert manager.join(HANG_S)
            assert memory.num_steps == 200
            assert all(record.actions for record in memory.records)
            check_streams(memory, tags)

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
            assert (stats.steps_asked, stats.steps_stored, stats.steps_lost) == (1000, 1000, 0)
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
            assert following.join(HANG_S)
            closed.pop()  # and the one before, when it goes, must not touch it
            gc.collect()
            following.step(1.0, num_steps=8)
            assert following.join(HANG_S)
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
        assert manager.stats().steps_stored == 10
        assert manager.reset_stats() == (5.0, 5.0)
        assert [worker.state for worker in manager.stats().workers] == ["closed"] * 2

    def test_close_from_two_threads(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        memory = RecordingMemory(500, TAG_SHAPE, 2, "int32")
        manager = self.pool(memory, [Tag(i, 5).factory(ledger=ledger) for i in range(2)])
        manager.step(1.0, num_steps=100)
        start = threading.Barrier(2)
        closing = [Background(lambda: (start.wait(HANG_S), manager.close())) for _ in range(2)]
        for call in closing:
            call.result()
        manager.close()
        assert ledger.total(CLOSES) == 2
        assert manager.stats().steps_stored == 100

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
            assert first.join(HANG_S)
            check_streams(memories[0], tags)
        assert [memory.num_steps for memory in memories] == [60, 40]


class RunAhead(PoolCase):
    """What only a backend can do whose step() returns before the step is done."""

    def test_step_blocks_and_workers_do_only_what_they_are_asked(self, tmp_path):
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
                eventually(lambda: ledger.total(STEPS) == executed + 1)
            asking.result()
            assert manager.stats().outstanding_peak == 5
            for gate in gates:
                gate.open(50)
            assert manager.join(HANG_S)
            assert ledger.total(STEPS) == memory.num_steps == 30
            check_streams(memory, tags)
        assert ledger.total(STEPS) == 30
        for gate in gates:
            gate.close()

    def test_join_waits_for_each_step_asked_before(self, tmp_path):
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
