"""Runs each runner in a process of its own; the parent's side.

Owns what is asked of the pool as a whole: its start, its stop ladder and the checks before
them. No wait depends on what a worker does::

    submit() --> job queue i --> worker i --> result queue i --> drain thread --> memory
                                     '------> sentinel i ------------'
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
import weakref
from typing import Any

from mprunner.backends import launch, worker
from mprunner.backends.base import Backend, pickled
from mprunner.backends.channel import ChannelSpec, SharedMemory
from mprunner.backends.drain import Drain
from mprunner.backends.member import TERMINATE_S, Member
from mprunner.backends.serving import PredictionServer
from mprunner.errors import ConfigurationError
from mprunner.predictors import LocalPredictor, Weights, WeightsBoard
from mprunner.runner import EnvRunner
from mprunner.stats import WorkerStats

#: Descriptors that a worker costs in the parent, and some more while it starts.
_FDS_PER_WORKER = 9
_FDS_SPARE = 24
#: Jobs in one worker's queue; with their size they fit in a pipe that nobody reads.
_MAX_JOBS = 512
#: Seconds that a stop which nobody waits for gives the workers.
_HASTY_S = 1.0
#: Seconds to write a stack and to tell of it; to be gone after SIGKILL.
_STACK_S = 0.3
_KILL_S = 2.0

_pools: weakref.WeakSet[ProcessBackend] = weakref.WeakSet()


class ProcessBackend(Backend):
    """A process per runner and one thread that looks after them."""

    remote = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        method = launch.start_method(settings.start_method)
        _check_descriptors(len(self.runners))
        self._server = PredictionServer(
            self.runners, self.recorder, settings.max_batch_size, settings.deterministic
        )
        self._pickles = [pickled(i, runner) for i, runner in enumerate(self.runners)]
        self._boards: dict[int, tuple[SharedMemory, WeightsBoard]] = {}
        self._environment = launch.worker_environment()
        self._members = [
            Member(i, _channel_spec(runner, settings.maximum_staleness), settings, method)
            for i, runner in enumerate(self.runners)
        ]
        self.jobs = [member.jobs for member in self._members]
        self._owner = os.getpid()
        self._close_lock = threading.Lock()
        self._closed = False
        self._drain = Drain(
            self._members,
            self._server,
            self.recorder,
            self.memory,
            settings,
            self.land,
            self._worker_spec,
            self.fail,
        )
        _pools.add(self)

    # ---- what the manager calls

    def start(self) -> None:
        """See `Backend.start`."""
        drain, changed = self._drain, self.recorder.changed
        try:
            self._make_boards()
            drain.thread.start()
            with changed:
                while drain.start_error is None and any(
                    member.state == "starting" for member in self._members
                ):
                    changed.wait(0.5)
                drain.started = drain.start_error is None
        except BaseException:
            self.close(False)
            raise
        if drain.start_error is not None:
            self.close(False)
            raise drain.start_error

    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """See `Backend.submit`."""
        with self._drain.lock:
            self._members[worker].submit(exploration, num_steps)

    def can_submit(self, worker: int) -> bool:
        """See `Backend.can_submit`."""
        return self._members[worker].can_submit()

    def outstanding(self, worker: int) -> int:
        """See `Backend.outstanding`."""
        return self._members[worker].outstanding

    def want_progress(self) -> None:
        """See `Backend.want_progress`."""
        for member in self._members:
            member.want_progress()

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`."""
        self._boards[id(predictor)][1].publish(weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        member = self._members[worker]
        return self.make_stats(worker, member.activity, member.pid, member.state, member.began)

    def close(self, finish: bool) -> None:
        """See `Backend.close`; does nothing in a process that has inherited the pool."""
        if os.getpid() != self._owner:
            return
        if threading.current_thread() is self._drain.thread:
            # A predictor or a garbage collection has closed the pool from within: the thread
            # that would have to see the workers end is this one.
            threading.Thread(target=self.close, args=(False,), name="mprunner-close").start()
            return
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._stop_workers(finish)
            finally:
                self._signal_all(signal.SIGKILL)
                self._release()

    # ---- the stop ladder: message, grace, terminate, kill

    def _stop_workers(self, finish: bool) -> None:
        drain, grace = self._drain, self.settings.close_timeout
        deadline = time.monotonic() + (grace if finish else min(_HASTY_S, grace))
        if finish:
            drain.wait(self._jobs_done, deadline)
        self._forbid_starts(finish)
        for member in self._members:
            member.ask_to_stop(finish)
        if drain.wait(self._all_gone, deadline):
            return
        if finish:
            for member in self._members:
                if member.alive and member.error is None and not member.leaving:
                    member.too_late(f"close_timeout is {grace:g} s")
            drain.wake()
            drain.wait(self._all_gone, time.monotonic() + _STACK_S)
        self._signal_all(signal.SIGTERM)
        if not drain.wait(self._all_gone, time.monotonic() + TERMINATE_S):
            self._signal_all(signal.SIGKILL)
            drain.wait(self._all_gone, time.monotonic() + _KILL_S)

    def _forbid_starts(self, finish: bool) -> None:
        # The lock, so that no process is just being started that would miss the last job.
        # Not for ever: a fork server that hangs must not keep us from ending the others.
        locked = self._drain.lock.acquire(timeout=_HASTY_S)
        self._drain.hasty = not finish
        self._drain.closing = True
        if locked:
            self._drain.lock.release()

    def _jobs_done(self) -> bool:
        return self._drain.failed or not any(self.jobs)

    def _all_gone(self) -> bool:
        return not any(member.alive for member in self._members)

    def _signal_all(self, signum: int) -> None:
        for member in self._members:
            member.signal_group(signum)

    def _release(self) -> None:
        self._drain.quit()
        for shared, _ in self._boards.values():
            shared.close_fd()
        _pools.discard(self)

    # ---- what a worker is started with

    def _worker_spec(self, index: int, restart: int) -> worker.WorkerSpec:
        board = self._boards.get(id(self.runners[index].predictor))
        return worker.WorkerSpec(
            runner=self._pickles[index],
            seed=self.settings.seed(index, restart),
            served=self._server.serves(index),
            environment=self._environment,
            weights=None if board is None else board[0],
        )

    def _make_boards(self) -> None:
        for runner in self.runners:
            predictor = runner.predictor
            if isinstance(predictor, LocalPredictor) and id(predictor) not in self._boards:
                shared = SharedMemory(WeightsBoard.size_bytes(predictor.layout))
                board = WeightsBoard(predictor.layout, shared.map)
                self._boards[id(predictor)] = shared, board
                board.publish(predictor.weights, 0)

    def forget(self) -> None:
        """In a forked child: let go of what would keep the workers alive, touch nothing else."""
        own = launch.forked_process()
        for member in self._members:
            member.forget(own)
        self._drain.forget()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_all)


def _channel_spec(runner: EnvRunner, maximum_staleness: int) -> ChannelSpec:
    max_jobs = min(maximum_staleness, _MAX_JOBS)
    return ChannelSpec(runner.state_shape, runner.dtype, runner.history_len, max_jobs)


def _check_descriptors(num_workers: int) -> None:
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        return
    needed = used + _FDS_PER_WORKER * num_workers + _FDS_SPARE
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise ConfigurationError(
            f"{num_workers} workers need {needed} file descriptors in this process, of which "
            f"{limit} are allowed; raise the limit (ulimit -n {needed}) or use fewer runners"
        )
