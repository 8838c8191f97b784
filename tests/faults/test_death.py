"""Workers that die or stall: what is told, what is lost, and what goes on."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from mprunner import (
    EnvRunner,
    LocalPredictor,
    WorkerDied,
    WorkerError,
    WorkerRaised,
    WorkerStalled,
)
from mprunner.activity import Doing
from mprunner.backends.process import launch
from mprunner.backends.process.member import ProcessMember
from tests.support.faulty_players import EPISODES_PER_START, FaultyPlayer, Fuse
from tests.support.pools import doing, is_gone, pid_of, pool, step_until, tags
from tests.support.whole import SealedMemory, check_survivors
from tests.support.tagged import EPISODE, TAG_SHAPE, Gate, TagPlayer
from tests.support.toys import GreedyModel, SeededPlayer, greedy
from tests.support.waiting import HANG_S, Background, eventually


#: Seconds: what the pool is given to tell a hang by. Whatever is healthy takes microseconds.
LIMIT_S = 3.0
#: The same for a start, in which a process has to begin.
START_S = 8.0


def faulty(root: Any, **options: Any) -> Any:
    """A factory of runner 0's faulty player."""
    charges = options.pop("charges", 1)
    return partial(FaultyPlayer, 0, 11, fuse=Fuse(root, charges), **options)


class TestTold:
    @pytest.mark.parametrize("worker", range(3))
    def test_an_idle_worker_is_killed(self, worker):
        manager = pool([tag.factory() for tag in tags(5, 6, 7)], seed=0)
        manager.step(1.0, num_steps=30)
        assert manager.join(HANG_S)
        eventually(lambda: doing(manager, worker) is Doing.JOB_WAIT)
        pid = pid_of(manager, worker)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            while True:
                manager.step(1.0)
        assert caught.value.worker == worker
        for part in (f"worker {worker}", str(pid), "SIGKILL", "waiting for a job"):
            assert part in str(caught.value)
        with pytest.raises(WorkerDied):
            manager.join()
        manager.close()

    @pytest.mark.parametrize("worker", range(3))
    def test_an_idle_worker_is_killed_and_the_others_go_on(self, worker):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        lengths = tags(5, 6, 7)
        players = [tag.factory() for tag in lengths]
        with pool(players, memory=memory, on_failure="restart") as manager:
            manager.step(1.0, num_steps=30)
            assert manager.join(HANG_S)
            os.kill(pid_of(manager, worker), signal.SIGKILL)
            manager.step(1.0, num_steps=50)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert (stats.steps_stored, stats.steps_lost, stats.restarts) == (80, 0, 1)

    def test_killed_between_two_calls(self):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        manager = pool([tag.factory() for tag in tags(20, 30)], memory=memory)
        with pytest.raises(WorkerDied, match="worker 1 .* died of signal SIGKILL"):
            for i in itertools.count():
                manager.step(1.0)
                if i == 50:
                    os.kill(pid_of(manager, 1), signal.SIGKILL)
        manager.close()
        check_survivors(memory, tags(20, 30), {1})

    def test_a_broken_pipe_of_the_simulator_is_not_ours(self):
        for kind in (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            with pytest.raises(WorkerRaised) as caught:
                with pool([partial(Raising, kind), TagPlayer]) as manager:
                    manager.step(1.0, num_steps=50)
                    manager.join(HANG_S)
            assert caught.value.original_type == kind.__name__
            assert "the simulator's own" in caught.value.original_message

    def test_an_act_that_catches_everything_does_not_keep_us(self):
        class Hiding(EnvRunner):
            def act(self, state, exploration):
                try:
                    return super().act(state, exploration)
                except Exception:
                    return 0

        def predictor(states):
            raise ValueError("no Q today")

        manager = pool([TagPlayer, TagPlayer], predictor, kind=Hiding)
        with pytest.raises(Exception, match="no Q today"):
            manager.step(0.0, num_steps=50)
            manager.join(HANG_S)
        manager.close()

    def test_a_death_and_its_last_words_in_one_round(self):
        """The sentinel may come first; what was sent before is taken in, and only once."""
        with pool([tag.factory() for tag in tags(5, 6)], on_failure="restart") as manager:
            selector = manager._backend._selector
            select = selector.select
            sentinels = {member.sentinel for member in manager._backend.members}
            held = []

            def sentinel_first(timeout: Any = None) -> Any:
                held.append(select(timeout))
                return sorted(held[-1], key=lambda item: item[0].fd not in sentinels)

            selector.select = sentinel_first
            for deaths in (1, 2, 3):
                manager.step(1.0, num_steps=8)
                os.kill(pid_of(manager, 0), signal.SIGKILL)
                manager.step(1.0, num_steps=8)
                assert manager.join(HANG_S)
                eventually(lambda: manager.stats().restarts == deaths)
                eventually(lambda: manager.stats().workers[0].state == "running")
                sentinels.update(member.sentinel for member in manager._backend.members)
            assert manager.stats().restarts == 3


class Raising(TagPlayer):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self._kind = kind

    def step(self, action):
        raise self._kind("the simulator's own")


class TestReplaced:
    def test_a_crash_loop_ends(self, tmp_path, caplog):
        player = faulty(tmp_path, way="os._exit", stage="step", at=3, charges=100)
        told: list[WorkerError] = []
        with caplog.at_level(logging.WARNING, "mprunner"):
            with pytest.raises(WorkerDied, match="exit code 7"):
                with pool(
                    [player, TagPlayer], on_failure="restart", max_restarts=3,
                    on_restart=told.append,
                ) as manager:
                    began = time.monotonic()
                    while True:
                        manager.step(1.0)
        assert time.monotonic() - began > 0.05 + 0.1 + 0.2, "no back-off"
        assert manager.stats().restarts == 3 == len(told)
        lines = [record.message for record in caplog.records if "restarting" in record.message]
        assert len(lines) == 3
        assert "worker 0 (pid" in lines[0] and "exit code 7" in lines[0]

    def test_a_replacement_that_cannot_start(self, tmp_path):
        player = faulty(tmp_path, way="raise", stage="factory", start=1, charges=100)
        with pytest.raises(WorkerRaised, match="out of order"):
            with pool([player, TagPlayer], on_failure="restart", max_restarts=2) as manager:
                while True:
                    manager.step(1.0)
        assert manager.stats().restarts == 2

    def test_the_budget_is_for_a_window(self):
        with pool(
            [TagPlayer], on_failure="restart", max_restarts=1, restart_window=0.2
        ) as manager:
            for restarts in range(1, 4):
                os.kill(pid_of(manager, 0), signal.SIGKILL)
                manager.step(1.0, num_steps=20)
                eventually(lambda: manager.stats().restarts == restarts)
                assert manager.join(HANG_S)
                replaced = time.monotonic()
                eventually(lambda: time.monotonic() - replaced > 0.2)
            assert manager.stats().restarts == 3

    def test_a_replacement_has_a_new_seed_and_new_episodes(self):
        memory = SealedMemory(3000, TAG_SHAPE, 1, "int64")
        with pool(
            [partial(SeededPlayer, 0), partial(SeededPlayer, 1)], memory=memory,
            on_failure="restart", seed=5,
        ) as manager:
            manager.step(1.0, num_steps=40)
            assert manager.join(HANG_S)
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            eventually(lambda: manager.stats().restarts == 1)
            manager.step(1.0, num_steps=40)
            assert manager.join(HANG_S)
        seeds = [record.state[:, 1] for record in memory.records]
        assert len(set(seeds[0])) == 2 and len(set(seeds[1])) == 1
        assert not set(seeds[0]) & set(seeds[1])
        draws = memory.records[0].state[:, 3]
        assert len(set(draws[seeds[0] == seeds[0][0]]) & set(draws[seeds[0] == seeds[0][-1]])) == 0

    def test_an_unfinished_score_is_discarded(self, tmp_path):
        """Three deaths in the middle of games of 11: only whole games are told, each once."""
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        player = faulty(tmp_path, way="SIGKILL", stage="step", at=18, charges=3)
        scores: list[float] = []
        with pool([player, partial(TagPlayer, 1)], memory=memory, on_failure="restart") as manager:
            take = manager._recorder.take_scores
            manager._recorder.take_scores = lambda: scores.extend(new := take()) or new
            step_until(
                manager, lambda: (manager.reset_stats(), manager.stats().restarts == 3)[1]
            )
            pid_of(manager, 0)
            manager.step(1.0, num_steps=50)
            assert manager.join(HANG_S)
            manager.reset_stats()
            stats = manager.stats()
        assert stats.restarts == 3
        assert stats.steps_asked == stats.steps_stored + stats.steps_lost
        check_survivors(memory, tags(11, 10), {0})
        assert sorted(scores) == sorted(memory.scores)

    def test_a_replacement_acts_on_the_newest_weights(self):
        memory = SealedMemory(3000, TAG_SHAPE, 1, "int32")
        with pool(
            [TagPlayer, TagPlayer], LocalPredictor(GreedyModel, greedy(0)), memory=memory,
            on_failure="restart",
        ) as manager:
            manager.step(0.0, num_steps=20)
            assert manager.join(HANG_S)
            manager.set_weights(greedy(1))
            version = manager.set_weights(greedy(3))
            for worker in (0, 1):
                os.kill(pid_of(manager, worker), signal.SIGKILL)
            eventually(lambda: manager.stats().restarts == 2)
            manager.step(0.0, num_steps=20)
            assert manager.join(HANG_S)
            assert manager.stats().steps_stored == 40
        for record in memory.records:
            after = record.actions.index(3)
            assert set(record.actions[:after]) <= {0} and set(record.actions[after:]) == {3}
            assert set(record.versions[after:]) == {version}

    def test_more_jobs_than_the_queue_holds_are_sent_again(self, tmp_path):
        """512 wait in the queue and one is being done as the worker dies."""
        player = faulty(tmp_path, way="SIGKILL", stage="step", at=1)
        gate = Gate(tmp_path / "gate")
        with pool(
            [partial(Gated, player, gate), TagPlayer], staleness=2000, on_failure="restart"
        ) as manager:
            for _ in range(1500):
                manager.step(1.0)
            gate.open(2)  # for the one that dies and for its replacement
            step_until(manager, lambda: manager.stats().restarts == 1)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert (stats.steps_stored, stats.steps_lost) == (stats.steps_asked, 0)
        gate.close()

    def test_a_start_that_fails_is_tried_again(self, monkeypatch):
        plain, failures = launch.WorkerProcess.launch, iter([OSError(24, "no descriptor")])

        def refuse(process: Any, method: str) -> None:
            for failure in failures:
                raise failure
            plain(process, method)

        manager = pool([TagPlayer, TagPlayer], on_failure="restart")
        monkeypatch.setattr(launch.WorkerProcess, "launch", refuse)
        os.kill(pid_of(manager, 0), signal.SIGKILL)
        manager.step(1.0, num_steps=50)
        assert manager.join(HANG_S)
        assert manager.stats().restarts == 2
        monkeypatch.setattr(launch.WorkerProcess, "launch", _never)
        os.kill(pid_of(manager, 1), signal.SIGKILL)
        with pytest.raises(WorkerError, match="worker 1 could not be started: .*no desc"):
            while True:
                manager.step(1.0)
        manager.close()

    def test_the_fork_server_is_killed(self):
        """Its workers count as dead, are ended, and come back from a new server."""
        with pool([TagPlayer, TagPlayer], on_failure="restart") as manager:
            manager.step(1.0, num_steps=20)
            assert manager.join(HANG_S)
            workers = [pid_of(manager, i) for i in range(2)]
            (server,) = [s._forkserver_pid for s in launch._servers.values()]
            os.kill(server, signal.SIGKILL)
            eventually(lambda: manager.stats().restarts == 2)
            manager.step(1.0, num_steps=50)
            assert manager.join(HANG_S)
            assert not {pid_of(manager, i) for i in range(2)} & set(workers)
            eventually(lambda: all(map(is_gone, workers)))

    def test_a_callback_that_raises_is_logged(self, caplog):
        def callback(error: WorkerError) -> None:
            raise ValueError("not now")

        with pool([TagPlayer], on_failure="restart", on_restart=callback) as manager:
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            manager.step(1.0, num_steps=20)
            assert manager.join(HANG_S)
        assert "not now" in caplog.text
        caplog.clear()  # its records keep the traceback, and that the pool

    def test_a_replacement_closes_the_player_that_raised(self, tmp_path):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        player = faulty(tmp_path, way="raise", stage="step", charges=2)
        with pool([player, TagPlayer], memory=memory, on_failure="restart") as manager:
            step_until(manager, lambda: manager.stats().restarts == 2)
            pid_of(manager, 0)
            manager.step(1.0, num_steps=100)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert (stats.steps_stored, stats.steps_lost) == (stats.steps_asked, 0)
        starts = set(memory.records[0].state[:, EPISODE] // EPISODES_PER_START)
        assert starts == {0, 1, 2}


class Gated(TagPlayer):
    """Plays another player, but takes its first step only when it may."""

    def __init__(self, factory: Any, gate: Gate) -> None:
        super().__init__()
        self._player = factory()
        self._gate = gate
        self._first = True

    def reset(self, **options: Any) -> Any:
        return self._player.reset(**options)

    def step(self, action: int) -> Any:
        if self._first:
            self._gate.wait()
        self._first = False
        return self._player.step(action)


def _never(process: Any, method: str) -> None:
    raise OSError(24, "no descriptor")


class Stubborn(TagPlayer):
    """Hangs at one place and ignores SIGTERM."""

    def __init__(self, where: str, runner: int = 0) -> None:
        super().__init__(runner)
        self._where = where
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.linger("factory")

    def linger(self, where: str) -> None:
        while where == self._where:
            time.sleep(0.01)

    def step(self, action):
        if self.at == 3:
            self.linger("step")
        return super().step(action)

    def close(self):
        self.linger("close")


class TestStalled:
    def test_it_is_told_with_its_stack(self):
        manager = pool([partial(Stubborn, "step")], step_timeout=LIMIT_S)
        with pytest.raises(WorkerStalled) as caught:
            while True:
                manager.step(1.0)
        assert caught.value.worker == 0
        assert caught.value.seconds > LIMIT_S
        for part in ("in the player's step()", f"step_timeout is {LIMIT_S:g} s", "linger"):
            assert part in str(caught.value)
        manager.close()

    def test_it_is_replaced(self, tmp_path):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        player = faulty(tmp_path, way="hang", stage="step")
        with pool(
            [player, TagPlayer], memory=memory, step_timeout=LIMIT_S, on_failure="restart"
        ) as manager:
            step_until(manager, lambda: manager.stats().restarts >= 1)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert stats.steps_stored + stats.steps_lost == stats.steps_asked

    def test_a_factory_that_hangs(self):
        with pytest.raises(WorkerStalled) as caught:
            pool([partial(Stubborn, "factory")], start_timeout=START_S)
        limit = f"start_timeout is {START_S:g} s"
        for part in ("worker 0", "in the player's factory", limit, "linger"):
            assert part in str(caught.value)

    @pytest.mark.parametrize("where", ["step", "close"])
    def test_close_does_not_wait_for_it(self, where):
        manager = pool([partial(Stubborn, where)], close_timeout=LIMIT_S)
        manager.step(1.0, num_steps=8)
        with pytest.raises(WorkerStalled, match=f"in the player's {where}"):
            manager.close()
        manager.close()

    def test_one_that_moves_on_was_only_slow(self, monkeypatch, tmp_path):
        """Each step takes longer than the limit, and ends before the stack is looked at."""
        gate, late = Gate(tmp_path / "gate"), []
        confirm = ProcessMember._confirm

        def let_it_move_on(member: ProcessMember, *arguments: Any) -> Any:
            late.append(member.index)
            gate.open()
            eventually(lambda: member.channel.activity.doing is Doing.JOB_WAIT)
            return confirm(member, *arguments)

        monkeypatch.setattr(ProcessMember, "_confirm", let_it_move_on)
        with pool([partial(TagPlayer, gate=gate)], step_timeout=0.3) as manager:
            for _ in range(2):
                manager.step(1.0)
                assert manager.join(HANG_S)
        assert len(late) >= 2
        gate.close()

    def test_a_slow_predictor_is_not_the_workers_fault(self):
        """All wait for it longer than `step_timeout`: for answers, for blocks, for turns."""
        def predictor(states: np.ndarray) -> np.ndarray:
            time.sleep(1.3 * LIMIT_S)
            return np.zeros((len(states), 4))

        with pool(
            [TagPlayer] * 3, predictor, step_timeout=LIMIT_S, max_batch_size=1
        ) as manager:
            for _ in range(3):
                manager.step(0.0)
            assert manager.join(HANG_S)

    def test_a_learner_that_holds_the_memory_is_not_the_workers_fault(self):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        with pool(
            [TagPlayer] * 2, memory=memory, step_timeout=LIMIT_S, staleness=2000
        ) as manager:
            with memory.writer_lock:
                manager.step(1.0, num_steps=2000)
                time.sleep(2 * LIMIT_S)
            assert manager.join(HANG_S)

    def test_a_predictor_that_hangs_does_not_keep_close(self):
        let_go = Background(lambda: None)
        stop: list[int] = []

        def predictor(states: np.ndarray) -> np.ndarray:
            while not stop:
                time.sleep(0.01)
            return np.zeros((len(states), 4))

        manager = pool([TagPlayer] * 2, predictor, close_timeout=LIMIT_S)
        stepping = Background(lambda: [manager.step(0.0) for _ in range(100)])
        eventually(lambda: doing(manager, 0) is Doing.PREDICTION_WAIT)
        manager.close()
        with pytest.raises(Exception, match="the manager is closed"):
            stepping.result()
        stop.append(1)
        let_go.result()
        eventually(lambda: not manager._backend.thread.is_alive())

    def test_a_predictor_may_close_the_pool(self):
        holder: list[Any] = []

        def predictor(states: np.ndarray) -> np.ndarray:
            holder[0].close()
            return np.zeros((len(states), 4))

        holder.append(pool([TagPlayer] * 2, predictor))
        with pytest.raises(Exception, match="closed"):
            while True:
                holder[0].step(0.0)
        eventually(lambda: not holder[0]._backend.thread.is_alive())
        holder.clear()
