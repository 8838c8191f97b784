"""Stopping a pool: from anywhere, at any time, once, and with all that it has started."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mprunner import ClosedError, ReplayMemory, WorkerDied, WorkerRaised
from mprunner.activity import Doing
from tests.support.faulty_players import AwkwardError, FaultyPlayer, Fuse
from tests.support.pools import doing, is_gone, pid_of, pool, tags
from tests.support.whole import SealedMemory, check_stacks
from tests.support.tagged import CLOSES, FACTORIES, TAG_SHAPE, Discrete, Ledger, TagPlayer
from tests.support.waiting import HANG_S, Background, eventually


class TestCalls:
    def test_after_close(self):
        manager = pool([TagPlayer, TagPlayer])
        manager.step(1.0, num_steps=8)
        manager.close()
        manager.close()
        for call in (lambda: manager.step(1.0), manager.join, manager.__enter__):
            with pytest.raises(ClosedError):
                call()
        stats = manager.stats()
        assert stats.steps_stored == 8
        assert {worker.state for worker in stats.workers} == {"closed"}

    def test_after_a_failure(self):
        manager = pool([TagPlayer, TagPlayer])
        os.kill(pid_of(manager, 0), signal.SIGKILL)
        with pytest.raises(WorkerDied):
            while True:
                manager.step(1.0)
        manager.close()
        manager.close()
        with pytest.raises(WorkerDied):
            manager.step(1.0)

    def test_from_another_thread_while_step_waits(self, tmp_path):
        fuse = Fuse(tmp_path)
        player = partial(FaultyPlayer, 0, way="hang", stage="step", fuse=fuse)
        manager = pool([player], close_timeout=0.3)
        stepping = Background(lambda: [manager.step(1.0) for _ in range(1000)])
        eventually(lambda: manager.stats().outstanding == 8 and fuse.fired() is not None)
        with pytest.raises(Exception, match="in the player's step"):
            Background(manager.close).result()
        with pytest.raises(Exception, match="closed|has been in the player's step"):
            stepping.result()

    def test_from_two_threads_at_once_both_wait(self):
        manager = pool([SlowToClose, SlowToClose])
        pids = [pid_of(manager, i) for i in range(2)]
        calls = [Background(lambda: (manager.close(), all(map(is_gone, pids)))) for _ in range(2)]
        assert [call.result()[1] for call in calls] == [True, True]

    def test_while_a_replacement_is_due(self, tmp_path):
        player = partial(
            FaultyPlayer, 0, way="os._exit", stage="step", fuse=Fuse(tmp_path, 100), at=1
        )
        manager = pool([player, TagPlayer], on_failure="restart", max_restarts=50)
        eventually(lambda: (manager.step(1.0), manager.stats().restarts >= 4)[1])
        manager._close(finish=False)

    def test_the_jobs_of_a_worker_that_dies_at_close_are_done(self):
        """`close()` does the steps under way, also those that need a replacement first."""
        for _ in range(3):
            manager = pool([TagPlayer, TagPlayer], on_failure="restart", staleness=400)
            manager.step(1.0, num_steps=200)
            manager.step(1.0, num_steps=200)
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            manager.close()
            stats = manager.stats()
            assert stats.steps_stored + stats.steps_lost == stats.steps_asked == 400

    @pytest.mark.parametrize("on_failure", ["restart", "raise"])
    def test_a_worker_that_dies_idle_at_close(self, on_failure, monkeypatch, caplog):
        """Where it would be replaced, but has nothing left to do, it is not missed."""
        manager = pool([TagPlayer, TagPlayer], on_failure=on_failure)
        manager.step(1.0, num_steps=8)
        assert manager.join(HANG_S)
        pid = pid_of(manager, 0)
        eventually(lambda: doing(manager, 0) is Doing.JOB_WAIT)
        member = manager._backend.members[0]

        def kill(finish: bool) -> None:
            os.kill(pid, signal.SIGKILL)

        monkeypatch.setattr(member, "ask_to_stop", kill)
        if on_failure == "restart":
            manager.close()
            assert "had nothing left to do, and 0 of its steps are lost" in caplog.text
        else:
            with pytest.raises(WorkerDied, match="SIGKILL while waiting for a job"):
                manager.close()
        stats = manager.stats()
        assert stats.steps_stored == stats.steps_asked == 8
        assert stats.workers[0].state == "closed"

    def test_nobody_refers_to_it_any_more(self):
        manager = pool([TagPlayer, TagPlayer])
        pids = [pid_of(manager, i) for i in range(2)]
        del manager
        gc.collect()
        eventually(lambda: all(map(is_gone, pids)))

    def test_a_closed_manager_leaves_the_memory_to_the_next(self):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        first = pool([TagPlayer, TagPlayer], memory=memory)
        first.step(1.0, num_steps=8)
        first.close()
        with pool([partial(TagPlayer, 0, 10**6), TagPlayer], memory=memory) as second:
            second.step(1.0, num_steps=8)
            assert second.join(HANG_S)
            del first
            gc.collect()
            assert not memory.seals[0]
            second.step(1.0, num_steps=8)
            assert second.join(HANG_S)
        check_stacks(memory, range(len(memory)))

    def test_a_stop_that_is_interrupted_still_ends_them(self, monkeypatch):
        manager = pool([SlowToClose, SlowToClose])
        pids = [pid_of(manager, i) for i in range(2)]

        def interrupt(*_: Any) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(manager._backend, "_stop_workers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager.close()
        assert all(map(is_gone, pids))


class SlowToClose(TagPlayer):
    def close(self):
        time.sleep(0.5)


class TestForked:
    """A child that inherited the pool: it may use none of it, and ends none of it."""

    def check(self, run: Any) -> None:
        manager = pool([TagPlayer, TagPlayer])
        manager.step(1.0, num_steps=8)
        run(manager)
        for _ in range(50):
            manager.step(1.0)
        assert manager.join(HANG_S)
        manager.close()
        assert manager.stats().steps_stored == 58

    @staticmethod
    def use(manager: Any) -> None:
        for call in (lambda: manager.step(1.0), manager.join, lambda: manager.set_weights({})):
            with pytest.raises(ClosedError):
                call()
        manager.close()
        manager.__exit__(None, None, None)
        manager.__exit__(ValueError, ValueError(), None)

    def test_os_fork(self):
        def run(manager: Any) -> None:
            pid = os.fork()
            if pid == 0:
                try:
                    self.use(manager)
                    del manager
                    gc.collect()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0

        self.check(run)

    def test_multiprocessing_fork(self):
        def run(manager: Any) -> None:
            child = multiprocessing.get_context("fork").Process(target=self.use, args=(manager,))
            child.start()
            child.join(HANG_S)
            assert child.exitcode == 0
            child.close()

        self.check(run)

    def test_while_a_lock_is_held(self):
        def run(manager: Any) -> None:
            held, done = threading.Event(), threading.Event()

            def hold() -> None:
                with manager._step_lock, manager._writers[0]._streams.writer_lock:
                    held.set()
                    done.wait(HANG_S)

            holder = Background(hold)
            held.wait(HANG_S)
            pid = os.fork()
            if pid == 0:
                signal.alarm(round(HANG_S))
                try:
                    self.use(manager)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            done.set()
            holder.result()

        self.check(run)

    def test_it_may_have_a_pool_of_its_own(self):
        def run(manager: Any) -> None:
            pid = os.fork()
            if pid == 0:
                try:
                    with pool([TagPlayer, TagPlayer]) as own:
                        own.step(1.0, num_steps=20)
                        assert own.join(HANG_S)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0

        self.check(run)

    def test_a_child_that_lives_on_does_not_keep_the_workers(self):
        """It has let go of their lifelines; see test_parent for what that is good for."""
        manager = pool([TagPlayer, TagPlayer])
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        lifelines = {
            os.readlink(f"/proc/self/fd/{member.channel._lifeline_end.fileno()}")
            for member in manager._backend.members
        }
        eventually(lambda: not lifelines & _open_files(pid))
        os.close(writer)
        os.close(reader)
        os.waitpid(pid, 0)
        manager.close()


def _open_files(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


class TestPlayers:
    def test_each_is_closed_once(self, tmp_path):
        for name, end in enumerate([lambda m: m.close(), lambda m: m._close(finish=False)]):
            ledger = Ledger(tmp_path / str(name))
            manager = pool([partial(TagPlayer, i, ledger=ledger) for i in range(3)])
            manager.step(1.0, num_steps=30)
            end(manager)
            assert ledger.total(FACTORIES) == ledger.total(CLOSES) == 3

    def test_one_that_raises_is_told_and_stops_nobody(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger")
        players = [partial(BadEnd if i == 1 else TagPlayer, i, ledger=ledger) for i in range(3)]
        manager = pool(players)
        manager.step(1.0, num_steps=30)
        with pytest.raises(WorkerRaised) as caught:
            manager.close()
        assert caught.value.worker == 1
        assert caught.value.original_type == "AwkwardError"
        assert manager.stats().steps_stored == 30
        assert ledger.total(CLOSES) == 3
        manager.close()

    def test_a_worker_that_does_not_leave_after_its_last_word(self):
        """Its player is closed; a thread that it has left behind keeps it from ending."""
        manager = pool([Lingering, TagPlayer])
        pids = [pid_of(manager, i) for i in range(2)]
        manager.step(1.0, num_steps=8)
        manager.close()
        assert all(map(is_gone, pids))

    @pytest.mark.parametrize("method", ["forkserver", "spawn"])
    @pytest.mark.parametrize("end", ["close", "kill"])
    def test_processes_of_a_simulator_go_with_it(self, method, end, tmp_path):
        memory = ReplayMemory(100, TAG_SHAPE, 1, "int32")
        manager = pool(
            [partial(Parent, tmp_path), TagPlayer], memory=memory, start_method=method
        )
        manager.step(1.0, num_steps=20)
        assert manager.join(HANG_S)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert len(pids) == 2 and not any(map(is_gone, pids))
        if end == "kill":
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            with pytest.raises(WorkerDied):
                while True:
                    manager.step(1.0)
        manager.close()
        eventually(lambda: all(map(is_gone, pids)))


class BadEnd(TagPlayer):
    def close(self):
        super().close()
        raise AwkwardError(3, "close")


class Lingering(TagPlayer):
    def close(self):
        threading.Thread(target=time.sleep, args=(3600,)).start()


class Parent(TagPlayer):
    """A simulator with processes of its own, of both kinds; it never stops them."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(target=time.sleep, args=(3600,)),
            subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"]),
        ]
        self._processes[0].start()
        for process in self._processes:
            (root / str(process.pid)).touch()


class Frames:
    """Large observations that nobody waits for."""

    action_space = Discrete(2)

    def __init__(self, shape: tuple[int, ...], length: int) -> None:
        self._frame, self._length, self._at = np.zeros(shape, np.uint8), length, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._at = 0
        return self._frame, {}

    def step(self, action: int) -> Any:
        self._at += 1
        self._frame[0] = self._at % 256
        return self._frame, 1.0, self._at == self._length, False, {}


class TestFull:
    def test_close_with_results_that_nobody_has_read(self):
        memory = ReplayMemory(400, (84, 84), 4)
        manager = pool(
            [partial(Frames, (84, 84), 100)] * 2, memory=memory, staleness=300
        )
        for _ in range(300):
            manager.step(1.0)
        manager.close()
        assert manager.stats().steps_stored == 300

    @pytest.mark.parametrize("length", [1, 5000])
    def test_steps_alone_with_large_observations(self, length):
        memory = ReplayMemory(40, (1024, 1024), 1)
        with pool(
            [partial(Frames, (1024, 1024), length)] * 2, memory=memory, staleness=1
        ) as manager:
            for _ in range(150):
                manager.step(1.0)
            assert manager.join(HANG_S)


def test_close_while_predictions_are_asked_for():
    """With the last job under way, and with it left out."""
    asked = threading.Event()

    def predictor(states: np.ndarray) -> np.ndarray:
        asked.set()
        return np.zeros((len(states), 4))

    for finish in (True, False):
        asked.clear()
        manager = pool([TagPlayer] * 3, predictor, staleness=60)
        for _ in range(6):
            manager.step(0.0, num_steps=10)
        assert asked.wait(HANG_S)
        manager._close(finish=finish)
        if finish:
            assert manager.stats().steps_stored == 60


def test_two_pools_share_nothing():
    with pool([tag.factory() for tag in tags(3, 4)]) as one:
        two = pool([tag.factory() for tag in tags(3, 4)])
        os.kill(pid_of(two, 0), signal.SIGKILL)
        with pytest.raises(WorkerDied):
            while True:
                two.step(1.0)
        two.close()
        one.step(1.0, num_steps=20)
        assert one.join(HANG_S)
