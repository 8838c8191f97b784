"""A pool of Ray actors, on this machine or in a cluster; the driver's side.

Scheduling, transport and the news of a death are Ray's own. A job is one actor call whose result
brings its blocks; a second call, `exchange`, is always open: it carries the questions for a served
predictor, and fails when the actor dies::

    send() --> actor i: run() --> Result, through the object store --> pool thread --> memory
               actor i: exchange(answer) --> next question ---------------^
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import Any

import numpy as np

from mprunner.backends.pool import RemotePool
from mprunner.backends.ray.actor import Result
from mprunner.backends.ray.cluster import (
    Watch,
    check_connected,
    check_room,
    checked_resources,
    free_resources,
    join,
    leave,
)
from mprunner.backends.ray.handle import RayMember
from mprunner.errors import ConfigurationError, WorkerDied, WorkerError, WorkerRaised
from mprunner.experience import Array
from mprunner.rows import ROW, Rows
from mprunner.predictors import LocalPredictor

import ray  # isort: skip  (after the cluster, which says what to do if it is missing)

#: Seconds between two checks of what no result tells of.
_CHECK_EVERY_S = 0.05
#: Seconds that an actor has at least to close its player.
_CLOSE_S = 0.2


class RayBackend(RemotePool[RayMember]):
    """A Ray actor per runner."""

    check_every_s = soon_s = _CHECK_EVERY_S

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        self._resources = checked_resources(settings.resources_per_runner or {"CPU": 1})
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._weights: dict[int, tuple[int, Any]] = {}  # id of a predictor -> version, reference
        self.members = [
            RayMember(i, account, self._news.put, settings)
            for i, account in enumerate(self.accounts)
        ]
        self._watch = Watch()
        self._joined = join(settings.address)

    # ---- what the manager calls

    def prepare(self) -> None:
        """Check that there is room, put the first weights, watch the cluster."""
        check_room(len(self.runners), self._resources)
        for runner in self.runners:
            predictor = runner.predictor
            if isinstance(predictor, LocalPredictor) and id(predictor) not in self._weights:
                self._put_weights(predictor, predictor.layout.pack(predictor.weights), 0)
        self._watch.start()

    def send(self, worker: int) -> None:
        """See `Backend.send`."""
        check_connected()
        super().send(worker)

    def publish(self, predictor: LocalPredictor, packed: bytearray, version: int) -> None:
        """See `Backend.publish`; one `ray.put`, jobs asked for from now on bring it."""
        check_connected()
        with self.lock:
            self._put_weights(predictor, packed, version)

    def _put_weights(self, predictor: LocalPredictor, packed: bytearray, version: int) -> None:
        reference = ray.put((version, np.frombuffer(packed, np.uint8)))
        self._weights[id(predictor)] = version, reference
        for member, runner in zip(self.members, self.runners):
            if runner.predictor is predictor:
                member.weights = version, reference

    # ---- start

    def launch(self, member: RayMember) -> None:
        """See `RemotePool.launch`."""
        index = member.index
        member.start(
            self._resources,
            self.pickles[index],
            self.settings.seed_of(index, member.restarts),
            self.server.serves(index),
        )

    # ---- events

    def take_events(self, timeout: float) -> None:
        """See `RemotePool.take_events`."""
        news: set[int | None] = set()
        with suppress(queue.Empty):
            news.add(self._news.get(timeout=timeout) if timeout else self._news.get_nowait())
            while True:
                news.add(self._news.get_nowait())
        for index in news:
            if index is not None:
                self._take(self.members[index])
        lost = None if self.policy.failed else self._watch.lost()
        if lost is not None:
            raise lost

    def wake(self) -> None:
        """See `RemotePool.wake`."""
        self._news.put(None)

    def _take(self, member: RayMember) -> None:
        # Results may arrive in another order than they were asked for in.
        while member.calls and member.calls[0].future.done():
            self._take_result(member)
        if member.exchange is None or not member.exchange.done():
            return
        exchange, member.exchange = member.exchange, None
        if exchange.exception() is not None:
            self._lose(member, member.died(exchange.exception()))
        else:
            member.question = exchange.result()
            if member.question is not None:
                self.asking[member.index] = member.num_actions

    def _take_result(self, member: RayMember) -> None:
        future = member.calls[0].future
        if future.exception() is not None:
            return self._lose(member, member.died(future.exception()))
        result: Result = future.result()
        with self.lock:
            member.take_counts(result)
        for state, rows, info in result.blocks:
            info.number = None
            self.store(member.index, Rows(state, rows.view(ROW), info.provisional), info)
        with self.lock:
            call = member.pop()
        if result.error is not None:
            member.error = WorkerRaised(member.index, *result.error)
            return self._lose(member, member.error)
        if call.last:
            member.leaving = True
            self.set_state(member, "closed")
        elif member.state != "running" or not result.blocks:
            self.set_state(member, "running")

    def fetch(self, worker: int, out: Array) -> None:
        """See `RemotePool.fetch`."""
        out[...] = self.members[worker].question

    def reply(self, worker: int, q: Array) -> None:
        """See `RemotePool.reply`."""
        with self.lock:
            member = self.members[worker]
            member.question = None
            if member.alive:
                member.exchange_for(q.copy())

    # ---- failures

    def fails(self, member: RayMember, error: WorkerError) -> None:
        """An actor that has stalled is of no use any more; Ray ends it."""
        member.error = error
        if member.unplaced:
            waiting = [other for other in self.members if other.state == "starting"]
            limit = f"start_timeout is {self.settings.start_limit_s:g} s"
            self.policy.report(
                ConfigurationError(
                    f"{len(waiting)} of {len(self.runners)} runners have found no place in the "
                    f"cluster ({limit}); each needs {self._resources}, free now: "
                    f"{free_resources()}"
                )
            )
            for other in waiting:
                with self.lock:
                    other.drop()
                self.set_state(other, "failed")
            return
        self._lose(member, error)

    def _lose(self, member: RayMember, error: WorkerError) -> None:
        with self.lock:
            lost = member.kept
            member.drop()
        if not isinstance(error, WorkerDied):
            member.error = error
        self.exited(member, error, lost)

    # ---- the end

    def all_exited(self) -> bool:
        """See `RemotePool.all_exited`."""
        return not any(member.calls for member in self.members)

    def report_late(self, limit: str) -> None:
        """See `RemotePool.report_late`."""
        if self.wait(self.all_exited, time.monotonic() + _CLOSE_S):
            return
        for member in self.members:
            if member.calls and not self.policy.failed:
                late_s = time.monotonic() - member.head_since
                self.policy.report(
                    member.where(limit) or member.stalled("running", late_s, limit)
                )

    def end_all(self) -> None:
        """See `RemotePool.end_all`: Ray kills what is left, when the actors are dropped."""

    def release(self) -> None:
        """See `RemotePool.release`."""
        unreachable = self._watch.lost() is not None
        for member in self.members:
            if unreachable:  # nobody is there to take the request
                member.disown()
            member.drop()
        self._weights.clear()
        self._watch.stop()
        if self._joined:
            leave()
