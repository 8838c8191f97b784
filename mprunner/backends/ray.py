"""Runs each runner in a Ray actor, on this machine or in a cluster; the driver's side.

Owns what is asked of the pool as a whole, and the thread that takes results in. Scheduling,
transport and the news of a death are Ray's own. A job is one actor call whose result brings its
blocks; a second call, `exchange`, is always under way: it carries the questions for a served
predictor, and fails when the actor dies::

    submit() --> actor i: run() --> Result, through the object store --> drain thread --> memory
                 actor i: exchange(answer) --> next question ---------------^
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from mprunner.backends.base import Backend, pickled
from mprunner.backends.failure import tell_restart
from mprunner.backends.policy import RestartBudget
from mprunner.backends.ray_actor import Result
from mprunner.backends.ray_cluster import (
    Watch,
    check_connected,
    check_room,
    checked_resources,
    free_resources,
    join,
    leave,
)
from mprunner.backends.ray_handle import Handle
from mprunner.backends.serving import PredictionServer
from mprunner.errors import ConfigurationError, WorkerDied, WorkerError, WorkerRaised
from mprunner.experience import ROW, Array, Rows
from mprunner.predictors import LocalPredictor, Weights
from mprunner.stats import WorkerStats

import ray  # isort: skip  (after ray_cluster, which says what to do if it is missing)

#: Seconds between two looks at what no result tells of.
_LOOK_EVERY_S = 0.05
#: Seconds that a stop which nobody waits for gives the actors.
_HASTY_S = 1.0


class RayBackend(Backend):
    """A Ray actor per runner, and one thread that takes their results in."""

    remote = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        self._resources = checked_resources(settings.resources_per_runner)
        self._server = PredictionServer(
            self.runners, self.recorder, settings.max_batch_size, settings.deterministic
        )
        self._pickles = [pickled(i, runner) for i, runner in enumerate(self.runners)]
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._handles = [
            Handle(
                i, RestartBudget(settings.max_restarts, settings.restart_window_s), self._news.put
            )
            for i in range(len(self.runners))
        ]
        self._asked = [0 for _ in self.runners]
        self._weights: dict[int, tuple[int, Any]] = {}  # id of a predictor -> version, reference
        self._owner = os.getpid()
        self._lock = threading.RLock()  # the calls of a handle against their other users
        self._close_lock = threading.Lock()
        self._closed = self._closing = self._hasty = self._quit = False
        self._started = self._failed = False
        self._start_error: BaseException | None = None
        self._looked = 0.0
        self._watch = Watch()
        self._thread = threading.Thread(target=self._main, name="mprunner-drain", daemon=True)
        self._joined = join(settings.ray_address)

    # ---- what the manager calls

    def start(self) -> None:
        """See `Backend.start`."""
        changed = self.recorder.changed
        try:
            check_room(len(self.runners), self._resources)
            for runner in self.runners:
                if isinstance(runner.predictor, LocalPredictor):
                    self._put_weights(runner.predictor, runner.predictor.weights, 0)
            for handle in self._handles:
                self._launch(handle)
            self._watch.start()
            self._thread.start()
            with changed:
                while self._start_error is None and any(
                    handle.state == "starting" for handle in self._handles
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
        check_connected()
        with self._lock:
            self._asked[worker] += num_steps
            self.jobs[worker].add(exploration, num_steps)
            handle = self._handles[worker]
            if handle.remote is not None:
                self._send(handle, exploration, num_steps)

    def outstanding(self, worker: int) -> int:
        """See `Backend.outstanding`; a job counts until its result is here."""
        return self._asked[worker] - self._handles[worker].executed

    def want_progress(self) -> None:
        """See `Backend.want_progress`; a job's result comes when it is done, and not before."""

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`; one `ray.put`, jobs asked for from now on bring it."""
        check_connected()
        with self._lock:
            self._put_weights(predictor, weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`; the time shares are as of its last result."""
        handle = self._handles[worker]
        return self.make_stats(worker, handle.activity, handle.pid, handle.state, handle.began)

    def close(self, finish: bool) -> None:
        """See `Backend.close`; does nothing in a process that has inherited the pool."""
        if os.getpid() != self._owner:
            return
        if threading.current_thread() is self._thread:
            # A predictor has closed the pool from within: the thread that would have to take
            # the last results in is this one.
            threading.Thread(target=self.close, args=(False,), name="mprunner-close").start()
            return
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._thread.is_alive():
                    self._stop_runners(finish)
            finally:
                self._release()

    # ---- the end: jobs, players, actors, Ray

    def _stop_runners(self, finish: bool) -> None:
        grace = self.settings.close_timeout
        # A start that has failed waits longer: players may be just being made.
        patient = finish or not self._started
        deadline = time.monotonic() + (grace if patient else min(_HASTY_S, grace))
        if finish:
            self._wait(self._jobs_done, deadline)
        with self._lock:
            self._hasty = not finish
            self._closing = True
            for handle in self._handles:
                with suppress(Exception):  # its actor is gone
                    handle.ask_to_close()
        if self._wait(self._all_closed, max(deadline, time.monotonic() + 0.2)) or not finish:
            return
        for handle in self._handles:
            if handle.calls and not self._failed:
                limit = f"close_timeout is {grace:g} s"
                late = time.monotonic() - handle.head_since
                self._report(handle.ask_where(limit) or handle.stalled("running", late, limit))

    def _jobs_done(self) -> bool:
        return self._failed or not any(self.jobs)

    def _all_closed(self) -> bool:
        return not any(handle.calls for handle in self._handles)

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        changed = self.recorder.changed
        with changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return condition()
                changed.wait(min(left, 0.05))
        return True

    def _release(self) -> None:
        self._quit = True
        self._news.put(None)
        if self._thread.is_alive():
            self._thread.join(0.5)
        lost = self._watch.lost() is not None
        for handle in self._handles:
            if lost:  # and nobody is there to be told
                handle.remote = None
            handle.drop()
            handle.state = "closed"
        self._weights.clear()
        self._watch.stop()
        if self._joined:
            leave()

    # ---- what an actor is sent

    def _launch(self, handle: Handle) -> None:
        index = handle.index
        with self._lock:
            handle.start(
                self._resources,
                self._pickles[index],
                self.settings.seed(index, handle.restarts),
                self._server.serves(index),
                weights=self._new_weights(handle),
            )
            for exploration, num_steps in self.jobs[index].left():
                self._send(handle, exploration, num_steps)

    def _send(self, handle: Handle, exploration: float, num_steps: int) -> None:
        may_keep = not self.settings.deterministic
        handle.run(exploration, num_steps, self._new_weights(handle), may_keep)

    def _put_weights(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        packed = np.frombuffer(predictor.layout.pack(weights), np.uint8)
        self._weights[id(predictor)] = version, ray.put((version, packed))

    def _new_weights(self, handle: Handle) -> Any:
        """A reference to the newest weights, if no job before has brought them."""
        found = self._weights.get(id(self.runners[handle.index].predictor))
        if found is None or found[0] == handle.weights_sent:
            return None
        handle.weights_sent = found[0]
        return found[1]

    # ---- the drain thread

    def _main(self) -> None:
        try:
            while not self._quit:
                self._round()
        except BaseException as error:
            if not self._quit:
                self._report(error)

    def _round(self) -> None:
        """Take in all that is there, serve who asks, see who is late or gone."""
        for index in self._wait_for_news():
            self._take(self._handles[index])
        waiting = [handle for handle in self._handles if handle.question is not None]
        if waiting and not self._failed:
            self._serve(waiting)
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._looked = now
            self._look_after(now)

    def _wait_for_news(self) -> set[int]:
        news: set[int | None] = set()
        with suppress(queue.Empty):
            news.add(self._news.get(timeout=_LOOK_EVERY_S))
            while True:
                news.add(self._news.get_nowait())
        return {index for index in news if index is not None}

    def _take(self, handle: Handle) -> None:
        # Results may arrive in another order than they were asked for in.
        while handle.calls and handle.calls[0].future.done():
            self._take_result(handle)
        if handle.exchange is None or not handle.exchange.done():
            return
        exchange, handle.exchange = handle.exchange, None
        if exchange.exception() is not None:
            self._lost(handle, handle.died(exchange.exception()))
        else:
            handle.question = exchange.result()

    def _take_result(self, handle: Handle) -> None:
        future = handle.calls[0].future
        if future.exception() is not None:
            return self._lost(handle, handle.died(future.exception()))
        result: Result = future.result()
        handle.times[:] = result.times
        handle.pid, handle.num_actions = result.pid, result.num_actions
        with self._lock:
            handle.told(result.executed, result.kept)
        for state, rows, info in result.blocks:
            self.land(handle.index, Rows(state, rows.view(ROW), info.provisional), info)
        with self._lock:
            call = handle.pop()
        if result.error is not None:
            return self._lost(handle, WorkerRaised(handle.index, *result.error))
        if call.last:
            self._end(handle, "closed")
        elif handle.state != "running" or not result.blocks:
            self._end(handle, "running")

    def _end(self, handle: Handle, state: str) -> None:
        with self.recorder.changed:
            handle.state = state
            self.recorder.changed.notify_all()

    def _serve(self, waiting: list[Handle]) -> None:
        def fetch(worker: int, out: Array) -> None:
            out[...] = self._handles[worker].question

        def reply(worker: int, q: Array) -> None:
            with self._lock:
                handle = self._handles[worker]
                handle.question = None
                if handle.remote is not None:
                    handle.talk(q.copy())

        try:
            asking = {handle.index: handle.num_actions for handle in waiting}
            self._server.answer(asking, fetch, reply)
        except Exception as error:
            self._report(error)

    def _look_after(self, now: float) -> None:
        lost = self._watch.lost()
        if lost is not None:
            raise lost
        settings = self.settings
        for handle in self._handles:
            if handle.state == "restarting":
                if self._closing:
                    self._end(handle, "closed")
                elif now >= handle.restart_at:
                    handle.restarts += 1
                    self._launch(handle)
            elif handle.state == "starting" and now - handle.began > settings.start_timeout:
                self._late_start(handle)
            elif handle.state == "running" and settings.step_timeout is not None:
                stalled = handle.look(now, settings.step_timeout)
                if stalled is not None:
                    self._lost(handle, stalled)

    def _late_start(self, handle: Handle) -> None:
        limit = f"start_timeout is {self.settings.start_timeout:g} s"
        stalled = handle.ask_where(limit)
        if stalled is not None:
            return self._lost(handle, stalled)
        waiting = [other for other in self._handles if other.state == "starting"]
        error = ConfigurationError(
            f"{len(waiting)} of {len(self.runners)} runners have found no place in the cluster "
            f"({limit}); each needs {self._resources}, free now: {free_resources()}"
        )
        for other in waiting:
            with self._lock:
                other.drop()
            self._end(other, "failed")
        self._report(error)

    # ---- failure and replacement

    def _lost(self, handle: Handle, error: WorkerError) -> None:
        """An actor is of no use any more: replace it or give up."""
        may = self.settings.on_failure == "restart" and self._started and not self._closing
        with self._lock:
            lost = handle.kept
            self.jobs[handle.index].land(lost)
            handle.drop()
        self.memory.seal(handle.index)
        wait = handle.budget.spend(time.monotonic()) if may else None
        if wait is not None:
            handle.restart_at = time.monotonic() + wait
            handle.state = "restarting"
            # What had not been told as done is done again.
            self.recorder.add_restart(handle.index, lost)
            tell_restart(self.settings, error, wait)
            return
        if not (self._hasty and isinstance(error, WorkerDied)):
            self._report(error)
        self.recorder.add_lost(handle.index, lost)
        self._end(handle, "closed" if self._closing else "failed")

    def _report(self, error: BaseException) -> None:
        with self.recorder.changed:
            self._failed = True
            if not self._started:
                self._start_error = self._start_error or error
            self.recorder.changed.notify_all()
        if self._started:
            self.fail(error)
