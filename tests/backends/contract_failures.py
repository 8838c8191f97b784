"""The contract: failures."""

from __future__ import annotations

import numpy as np
import pytest

from mprunner import LocalPredictor, PredictorError, WorkerRaised
from tests.support.pool_case import PoolCase
from tests.support.streams import RecordingMemory, check_streams
from tests.support.tagged import CLOSES, FACTORIES, TAG_SHAPE, Ledger, Tag
from tests.support.toys import EpsilonRunner, FaultyPlayer, RaisingModel, probe_q
from tests.support.waiting import HANG_S


class Failures(PoolCase):
    """What a player or predictor raises reaches the user, once, and nothing is left."""

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
        # In turn, so that the one that fails gets there however the machine is loaded.
        manager = self.pool(memory, players, staleness=4, deterministic=True)
        with pytest.raises(WorkerRaised) as raised:
            for _ in range(500):
                manager.step(1.0)
            manager.join(HANG_S)
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
            with self.pool(memory, players, deterministic=True) as manager:
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
            manager.join(HANG_S)
        if fault == "raises":
            assert raised.value.__cause__ is original
            assert "KeyError: 'the original'" in str(raised.value)
        with pytest.raises(PredictorError) as again:
            manager.step(1.0)
        assert again.value is raised.value
        manager.close()
        assert manager.stats().steps_stored == memory.num_steps

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
                manager.join(HANG_S)
