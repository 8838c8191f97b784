"""Runs each runner in a process of its own; the parent's side.

Owns the drain thread: it takes blocks into the memory, serves predictions, sees workers die
and stall, and applies the failure policy. No wait depends on what a worker does::

    submit() --> job queue i --> worker i --> result queue i --> drain thread --> memory
                                     '------> sentinel i ------------'
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import signal
import threading
import time
import weakref
from functools import partial
from multiprocessing import connection
from typing import Any

import cloudpickle
import numpy as np

from mprunner.backends import launch, worker
from mprunner.backends.base import Backend
from mprunner.backends.channel import MAX_SERVED_ACTIONS, ChannelSpec, SharedMemory
from mprunner.backends.member import Member
from mprunner.backends.serving import PredictionServer
from mprunner.blocks import BlockInfo
from mprunner.errors import ConfigurationError, WorkerError, WorkerRaised
from mprunner.experience import Array, Rows
from mprunner.predictors import LocalPredictor, Weights, WeightsBoard
from mprunner.runner import EnvRunner
from mprunner.stats import WorkerStats

_log = logging.getLogger("mprunner")

#: Descriptors that a worker costs in the parent, and some more while it starts.
_FDS_PER_WORKER = 8
_FDS_SPARE = 24
#: Jobs in one worker's queue; with their size they fit in a pipe that nobody reads.
_MAX_JOBS = 512
#: Seconds that a stop which nobody waits for gives the workers.
_HASTY_S = 1.0
_TERMINATE_S = 0.5
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
        self._pickles = [_pickled(i, runner) for i, runner in enumerate(self.runners)]
        self._boards: dict[int, tuple[SharedMemory, WeightsBoard]] = {}
        self._environment = launch.worker_environment()
        self._members = [
            Member(i, _channel_spec(runner, settings.maximum_staleness), settings, method)
            for i, runner in enumerate(self.runners)
        ]
        self.jobs = [member.jobs for member in self._members]
        self._owner = os.getpid()
        self._lock = threading.Lock()  # a member's jobs against its restart
        self._close_lock = threading.Lock()
        self._closed = False
        self._hasty = False
        self._closing = False
        self._quit = False
        self._start_error: BaseException | None = None
        self._started = False
        self._asking: dict[int, int] = {}
        self._serving = True
        self._selector = selectors.DefaultSelector()
        self._lifeline, self._lifeline_end = connection.Pipe(duplex=False)
        self._wake_reader, self._wake_writer = connection.Pipe(duplex=False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._woken)
        self._thread = threading.Thread(target=self._drain, name="mprunner-drain", daemon=True)
        _pools.add(self)

    # ---- what the manager calls

    def start(self) -> None:
        """See `Backend.start`."""
        try:
            self._make_boards()
            for member in self._members:
                self._launch(member)
            self._thread.start()
            changed = self.recorder.changed
            with changed:
                while self._start_error is None and any(
                    member.state == "starting" for member in self._members
                ):
                    changed.wait(0.5)
                self._started = self._start_error is None
        except BaseException:
            self.close(False)
            raise
        if self._start_error is not None:
            self.close(False)
            raise self._start_error

    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """See `Backend.submit`."""
        with self._lock:
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
            if member.channel is not None:
                member.channel.pace.want_progress()

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`."""
        self._boards[id(predictor)][1].publish(weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        member = self._members[worker]
        activity = None if member.channel is None else member.channel.activity
        return self.make_stats(worker, activity, member.pid, member.state, member.began)

    def close(self, finish: bool) -> None:
        """See `Backend.close`; does nothing in a process that has inherited the pool."""
        if os.getpid() != self._owner:
            return
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._stop_workers(finish)
            finally:
                self._release()

    # ---- the stop ladder: message, grace, terminate, kill

    def _stop_workers(self, finish: bool) -> None:
        grace = self.settings.close_timeout if finish else min(
            _HASTY_S, self.settings.close_timeout
        )
        deadline = time.monotonic() + grace
        self._closing, self._hasty = True, not finish
        self._quit = True
        self._wake()
        current = threading.current_thread()
        if self._thread.is_alive() and self._thread is not current:
            self._thread.join(grace)
        # From here on this thread does what the drain thread did, unless that one is stuck in
        # a predictor or in the memory.
        stuck = self._thread.is_alive() and self._thread is not current
        for member in self._members:
            member.ask_to_stop(finish)
        if not stuck:
            self._pump_until_gone(deadline)
        self._signal_all(signal.SIGTERM)
        if not stuck:
            self._pump_until_gone(time.monotonic() + _TERMINATE_S)
        self._signal_all(signal.SIGKILL)
        if not stuck:
            self._pump_until_gone(time.monotonic() + _KILL_S)

    def _pump_until_gone(self, deadline: float) -> None:
        while any(member.alive for member in self._members):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            try:
                self._pump(min(left, 0.05))
            except Exception as error:
                self._serving = False
                self.fail(error)

    def _signal_all(self, signum: int) -> None:
        for member in self._members:
            member.signal_group(signum)

    def _release(self) -> None:
        for member in self._members:
            if member.alive:
                member.reap()
            member.state = "closed"
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._wake_reader)
        self._selector.close()
        for end in (self._lifeline, self._lifeline_end, self._wake_reader, self._wake_writer):
            end.close()
        for shared, _ in self._boards.values():
            shared.close_fd()
        _pools.discard(self)

    # ---- the drain thread

    def _drain(self) -> None:
        try:
            while not self._quit:
                self._pump(self._patience())
        except BaseException as error:
            self._serving = False
            self._report(error)

    def _patience(self) -> float | None:
        """Seconds until something is due that no descriptor tells of."""
        if any(member.due for member in self._members):
            return 0.02
        limit = self.settings.step_timeout
        return None if limit is None else min(0.25, limit / 4)

    def _pump(self, timeout: float | None) -> None:
        """Take in all that is there, serve who asks, see who is late."""
        for key, _ in self._selector.select(timeout):
            key.data()
        if self._asking and self._serving:
            self._serve()
        now = time.monotonic()
        for member in self._members:
            if member.alive:
                stalled = member.look(now, member.index in self._asking)
                if stalled is not None and not self._may_restart:
                    self._report(stalled)
            elif member.state == "restarting" and now >= member.restart_at:
                self._restart(member)

    def _woken(self) -> None:
        self._wake_reader.recv_bytes()

    def _wake(self) -> None:
        self._wake_writer.send_bytes(b"")

    def _take_results(self, member: Member) -> None:
        assert member.channel is not None
        for kind, *rest in member.channel.results.get_all():
            if kind == "block":
                self._take_block(member, *rest)
            elif kind == "ask":
                self._asking[member.index] = member.num_actions
            elif kind == "ready":
                self._take_ready(member, *rest)
            elif kind == "raised":
                self._take_error(member, WorkerRaised(member.index, *rest))
            else:
                assert kind == "closed"
                member.leaving = True
                member.expect_end()

    def _take_block(self, member: Member, block: int, info: BlockInfo) -> None:
        channel = member.channel
        assert channel is not None
        n = info.num_rows
        member.landed += info.num_steps
        rows = Rows(channel.states[block][:n], channel.meta[block][:n], info.provisional)
        self.land(member.index, rows, info)
        channel.give_block(block)
        member.touch()

    def _take_ready(self, member: Member, num_actions: int) -> None:
        member.num_actions = num_actions
        if self._server.serves(member.index) and num_actions > MAX_SERVED_ACTIONS:
            self._report(
                ConfigurationError(
                    f"worker {member.index}'s player has {num_actions} actions; a predictor in "
                    f"the parent can serve at most {MAX_SERVED_ACTIONS}: use a LocalPredictor"
                )
            )
        with self.recorder.changed:
            member.state = "running"
            self.recorder.changed.notify_all()

    def _take_error(self, member: Member, error: WorkerError) -> None:
        member.error = member.error or error
        member.expect_end()
        if not self._may_restart:
            self._report(error)

    def _serve(self) -> None:
        asking, self._asking = self._asking, {}

        def fetch(worker: int, out: Array) -> None:
            channel = self._members[worker].channel
            assert channel is not None
            out[...] = channel.question

        def reply(worker: int, q: Array) -> None:
            member = self._members[worker]
            assert member.channel is not None
            member.touch()
            member.channel.answer(np.asarray(q, np.float64).tobytes())

        try:
            self._server.answer(asking.items(), fetch, reply)
        except Exception as error:
            self._serving = False
            self._report(error)

    # ---- death and replacement

    @property
    def _may_restart(self) -> bool:
        return self.settings.on_failure == "restart" and self._started and not self._closing

    def _on_sentinel(self, member: Member) -> None:
        """A process has ended; what it had sent before is taken in first."""
        assert member.channel is not None
        self._take_results(member)
        self._selector.unregister(member.channel.results.reader)
        self._selector.unregister(member.sentinel)
        self._asking.pop(member.index, None)
        with self._lock:
            told = member.error is not None
            ended_well = self._closing and member.leaving
            executed = member.channel.pace.executed
            error = member.reap()
            lost = executed - member.landed
            member.jobs.land(lost)
            self.memory.seal(member.index)
            if ended_well or self._hasty:
                member.state = "closed"
                return
            wait = member.budget.spend(time.monotonic()) if self._may_restart else None
            if wait is not None:
                member.state = "restarting"
                member.restart_at = time.monotonic() + wait
        if wait is None:
            member.state = "failed"
            self.recorder.add_lost(member.index, lost)
            if self._may_restart or not told:
                self._report(error)
            return
        _log.warning("%s; restarting it in %.2f s", str(error).splitlines()[0], wait)
        self.recorder.add_restart(member.index, lost)

    def _restart(self, member: Member) -> None:
        with self._lock:
            member.restarts += 1
            self._launch(member)

    def _launch(self, member: Member) -> None:
        member.start(partial(self._worker_spec, member.index))
        assert member.channel is not None
        results = member.channel.results.reader
        self._selector.register(
            results, selectors.EVENT_READ, partial(self._take_results, member)
        )
        self._selector.register(
            member.sentinel, selectors.EVENT_READ, partial(self._on_sentinel, member)
        )

    def _worker_spec(self, index: int, restart: int) -> worker.WorkerSpec:
        board = self._boards.get(id(self.runners[index].predictor))
        return worker.WorkerSpec(
            runner=self._pickles[index],
            seed=self.settings.seed(index, restart),
            served=self._server.serves(index),
            environment=self._environment,
            lifeline=self._lifeline,
            weights=None if board is None else board[0],
        )

    def _report(self, error: BaseException) -> None:
        if self._started:
            self.fail(error)
            return
        with self.recorder.changed:
            self._start_error = self._start_error or error
            self.recorder.changed.notify_all()

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
        for member in self._members:
            if member.channel is not None:
                member.channel.close()
        for end in (self._lifeline_end, self._wake_reader, self._wake_writer):
            end.close()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_all)


def _channel_spec(runner: EnvRunner, maximum_staleness: int) -> ChannelSpec:
    max_jobs = min(maximum_staleness, _MAX_JOBS)
    return ChannelSpec(runner.state_shape, runner.dtype, runner.history_len, max_jobs)


def _pickled(index: int, runner: EnvRunner) -> bytes:
    try:
        return cloudpickle.dumps(runner)  # type: ignore[no-any-return]
    except Exception as error:
        culprit = "player"
        with contextlib.suppress(Exception):
            cloudpickle.dumps(runner.player)
            culprit = "predictor" if runner.predictor is not None else "EnvRunner"
        raise ConfigurationError(
            f"the {culprit} of env_runners[{index}] cannot be sent to a worker "
            f"({type(error).__name__}: {error}); pass a factory, which makes it there"
        ) from error


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
