"""A pool of worker processes: events from pipes and sentinels, signals at the end."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import selectors
import signal
import time
import weakref
from functools import partial
from multiprocessing import connection
from typing import Any

from mprunner.backends.pool import RemotePool
from mprunner.backends.process import launch, worker
from mprunner.backends.process.channel import (
    MAX_SERVED_ACTIONS,
    Channel,
    ChannelSpec,
    SharedMemory,
)
from mprunner.backends.process.member import TERMINATE_S, ProcessMember
from mprunner.rows import BlockInfo, Rows
from mprunner.errors import ConfigurationError, WorkerRaised
from mprunner.experience import Array
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner
from mprunner.weights import WeightsBoard

#: Descriptors that a worker costs in the parent, and some more while it starts.
_FDS_PER_WORKER = 9
_FDS_SPARE = 24
#: Jobs in one worker's queue; with their size they fit in a pipe that nobody reads.
_MAX_JOBS = 512
#: Seconds to write a stack and to report it; to exit after SIGKILL.
_STACK_S = 0.3
_KILL_S = 2.0

_pools: weakref.WeakSet[ProcessBackend] = weakref.WeakSet()


class ProcessBackend(RemotePool[ProcessMember]):
    """A process per runner."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        method = launch.start_method(settings.start_method)
        _check_descriptors(len(self.runners))
        self._boards: dict[int, tuple[SharedMemory, WeightsBoard]] = {}
        self._environment = launch.worker_environment()
        max_jobs = min(settings.maximum_staleness, _MAX_JOBS)
        self.members = [
            ProcessMember(i, self.accounts[i], _channel_spec(runner, max_jobs), settings, method)
            for i, runner in enumerate(self.runners)
        ]
        limit = settings.step_timeout
        self.check_every_s = math.inf if limit is None else min(0.25, limit / 4)
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = connection.Pipe(duplex=False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._woken)
        _pools.add(self)

    def can_take(self, worker: int) -> bool:
        """See `Backend.can_take`."""
        return self.members[worker].can_take()

    def want_progress(self) -> None:
        """See `Backend.want_progress`."""
        for member in self.members:
            member.want_progress()

    def publish(self, predictor: LocalPredictor, packed: bytearray, version: int) -> None:
        """See `Backend.publish`."""
        self._boards[id(predictor)][1].publish(packed, version)

    # ---- start

    def prepare(self) -> None:
        """Make the boards of all weights."""
        for runner in self.runners:
            predictor = runner.predictor
            if isinstance(predictor, LocalPredictor) and id(predictor) not in self._boards:
                layout = predictor.layout
                shared = SharedMemory(WeightsBoard.size_bytes(layout))
                board = WeightsBoard(layout, shared.map)
                self._boards[id(predictor)] = shared, board
                board.publish(layout.pack(predictor.weights), 0)

    def launch(self, member: ProcessMember) -> None:
        """See `RemotePool.launch`."""
        board = self._boards.get(id(self.runners[member.index].predictor))
        member.start(
            worker.WorkerSpec(
                runner=self.pickles[member.index],
                seed=self.settings.seed_of(member.index, member.restarts),
                served=self.server.serves(member.index),
                environment=self._environment,
                weights=None if board is None else board[0],
            )
        )
        channel = member.channel
        assert channel is not None
        results = partial(self._take_results, member, channel)
        exited = partial(self._on_sentinel, member, channel)
        self._selector.register(channel.results.reader, selectors.EVENT_READ, results)
        self._selector.register(member.sentinel, selectors.EVENT_READ, exited)

    # ---- events

    def take_events(self, timeout: float) -> None:
        """See `RemotePool.take_events`."""
        for key, _ in self._selector.select(None if timeout == math.inf else timeout):
            key.data()

    def wake(self) -> None:
        """See `RemotePool.wake`."""
        self._wake_writer.send_bytes(b"")

    def _woken(self) -> None:
        self._wake_reader.recv_bytes()
        self.check_at = 0.0

    def _take_results(self, member: ProcessMember, channel: Channel) -> None:
        if member.channel is not channel or not member.alive:
            return  # its sentinel was in the same round, before this
        for kind, *rest in channel.results.get_all():
            if kind == "block":
                self._take_block(member, channel, rest[0], BlockInfo(None, *rest[1:]))
            elif kind == "ask":
                self.asking[member.index] = member.num_actions
            elif kind == "ready":
                self._take_ready(member, *rest)
            elif kind == "raised":
                self.check_at = 0.0
                member.expect_exit()
                self.fails(member, WorkerRaised(member.index, *rest))
            else:
                assert kind == "closed"
                self.check_at = 0.0
                member.leaving = True
                member.expect_exit()

    def _take_block(
        self, member: ProcessMember, channel: Channel, block: int, info: BlockInfo
    ) -> None:
        n = info.num_rows
        rows = Rows(channel.states[block][:n], channel.meta[block][:n], info.provisional)
        self.store(member.index, rows, info)
        channel.give_block(block)
        member.mark_active()

    def _take_ready(self, member: ProcessMember, num_actions: int) -> None:
        member.num_actions = num_actions
        if self.server.serves(member.index) and num_actions > MAX_SERVED_ACTIONS:
            self.policy.report(
                ConfigurationError(
                    f"worker {member.index}'s player has {num_actions} actions; a predictor in "
                    f"the parent can serve at most {MAX_SERVED_ACTIONS}: use a LocalPredictor"
                )
            )
        self.set_state(member, "running")

    def _on_sentinel(self, member: ProcessMember, channel: Channel) -> None:
        """A process has exited; what it had sent before is taken in first."""
        self._take_results(member, channel)
        self._selector.unregister(channel.results.reader)
        self._selector.unregister(member.sentinel)
        with self.lock:
            lost = member.lost()
            error = member.reap()
        self.exited(member, error, lost)

    def fetch(self, worker: int, out: Array) -> None:
        """See `RemotePool.fetch`."""
        channel = self.members[worker].channel
        assert channel is not None
        out[...] = channel.question

    def reply(self, worker: int, q: Array) -> None:
        """See `RemotePool.reply`."""
        member = self.members[worker]
        assert member.channel is not None
        member.mark_active()
        member.channel.answer(q)

    # ---- the end

    def all_exited(self) -> bool:
        """See `RemotePool.all_exited`."""
        return not any(member.alive for member in self.members)

    def report_late(self, limit: str) -> None:
        """See `RemotePool.report_late`."""
        for member in self.members:
            if member.alive and member.error is None and not member.leaving:
                member.report_late(limit)
        self.wake()
        self.wait(self.all_exited, time.monotonic() + _STACK_S)

    def end_all(self) -> None:
        """See `RemotePool.end_all`: SIGTERM, then SIGKILL, to the groups of all workers."""
        try:
            if self.all_exited():
                return
            self._signal_all(signal.SIGTERM)
            if self.wait(self.all_exited, time.monotonic() + TERMINATE_S):
                return
        finally:
            self._signal_all(signal.SIGKILL)
        self.wait(self.all_exited, time.monotonic() + _KILL_S)

    def _signal_all(self, signum: int) -> None:
        for member in self.members:
            member.signal_group(signum)

    def release(self) -> None:
        """See `RemotePool.release`."""
        for member in self.members:
            if member.alive:
                member.reap()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
        for shared, _ in self._boards.values():
            shared.close_fd()
        _pools.discard(self)

    def disown(self) -> None:
        """In a forked child: let go of what would keep the workers alive, touch nothing else."""
        for member in self.members:
            member.disown()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _disown_all() -> None:
    for pool in list(_pools):
        pool.disown()
    _pools.clear()


os.register_at_fork(after_in_child=_disown_all)


def _channel_spec(runner: EnvRunner, max_jobs: int) -> ChannelSpec:
    return ChannelSpec(runner.state_shape, runner.dtype, runner.history_len, max_jobs)


def _check_descriptors(num_workers: int) -> None:
    used = None
    with contextlib.suppress(OSError):
        used = len(os.listdir("/dev/fd"))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if used is None or limit == resource.RLIM_INFINITY:
        return
    needed = used + _FDS_PER_WORKER * num_workers + _FDS_SPARE
    if needed > limit:
        raise ConfigurationError(
            f"{num_workers} workers need {needed} file descriptors in this process, of which "
            f"{limit} are allowed; raise the limit (ulimit -n {needed}) or use fewer runners"
        )
