"""Runs each runner in a Ray actor, on this machine or in a cluster; the driver's side.

Owns the calls into Ray. Scheduling, transport and the news of a death are Ray's own. A job is
one actor call whose result brings its blocks; a second call, `exchange`, is always under way:
it carries the questions for a served predictor, and fails when the actor dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.backends.base import Backend
from mprunner.backends.policy import RestartBudget
from mprunner.backends.ray_actor import Result, RunnerActor
from mprunner.backends.serving import PredictionServer
from mprunner.errors import (
    ConfigurationError,
    MissingExtraError,
    MprunnerError,
    WorkerDied,
    WorkerError,
    WorkerRaised,
    WorkerStalled,
)
from mprunner.experience import ROW, Array, Rows
from mprunner.predictors import LocalPredictor, Weights
from mprunner.stats import WorkerStats

try:
    import ray
except ImportError:
    raise MissingExtraError("backend='ray'", "ray", "ray") from None

_log = logging.getLogger("mprunner")

#: Seconds without any news after which Ray is asked whether the cluster is there.
_SILENCE_S = 5.0
#: Seconds that the cluster's head has for an answer.
_ANSWER_S = 10.0
_HASTY_S = 1.0
_users_lock = threading.Lock()
_users = 0  # backends that use a Ray which this module has started


class _Actor:
    """One runner's actor as the driver sees it, through all its restarts."""

    def __init__(self, index: int, budget: RestartBudget) -> None:
        self.index = index
        self.budget = budget
        self.handle: Any = None
        self.state = "starting"
        self.restarts = 0
        self.restart_at = 0.0
        self.began = time.monotonic()
        self.head_since = 0.0
        self.pid: int | None = None
        self.num_actions = 0
        self.times = [0.0] * (1 + len(Doing))
        self.activity = Activity([Doing.STARTING], self.times)
        #: Calls under way, oldest first: (reference, steps).
        self.calls: deque[tuple[Any, int]] = deque()
        self.exchange: Any = None

    @property
    def outstanding(self) -> int:
        return sum(num_steps for _, num_steps in self.calls)

    def call(self, reference: Any, num_steps: int) -> None:
        """A call is under way."""
        if not self.calls:
            self.head_since = time.monotonic()
        self.calls.append((reference, num_steps))

    def pop(self) -> int:
        """The oldest call has ended; its steps."""
        self.head_since = time.monotonic()
        return self.calls.popleft()[1]

    def drop(self) -> None:
        """Let go of the actor and all its calls; the actor ends."""
        handle, self.handle = self.handle, None
        self.calls.clear()
        self.exchange = None
        if handle is not None:
            with contextlib.suppress(Exception):
                ray.kill(handle, no_restart=True)


class RayBackend(Backend):
    """A Ray actor per runner, and one thread that takes their results in."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        self._server = PredictionServer(
            self.runners, self.recorder, settings.max_batch_size, settings.deterministic
        )
        self._pickles = [self._pickled(i) for i in range(len(self.runners))]
        self._actors = [
            _Actor(i, RestartBudget(settings.max_restarts, settings.restart_window_s))
            for i in range(len(self.runners))
        ]
        self._weights: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._owner = os.getpid()
        self._started = False
        self._start_error: BaseException | None = None
        self._closing = self._closed = False
        self._last_news = time.monotonic()
        self._waiting: dict[int, Array] = {}
        self._we_started = _join(settings.ray_address)
        self._thread = threading.Thread(target=self._drain, name="mprunner-drain", daemon=True)

    # ---- what the manager calls

    def start(self) -> None:
        """See `Backend.start`."""
        try:
            self._check_resources()
            for runner in self.runners:
                if isinstance(runner.predictor, LocalPredictor):
                    self._put_weights(runner.predictor, runner.predictor.weights, 0)
            for actor in self._actors:
                self._launch(actor)
            self._thread.start()
            self._await_ready()
        except BaseException:
            self.close(False)
            raise

    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """See `Backend.submit`."""
        with self._lock:
            self.jobs[worker].add(exploration, num_steps)
            actor = self._actors[worker]
            if actor.handle is not None:
                self._send(actor, exploration, num_steps)
        self._changed.set()

    def outstanding(self, worker: int) -> int:
        """See `Backend.outstanding`; a job counts until its result is here."""
        return self.jobs[worker].num_steps

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`; one `ray.put`, jobs asked for from now on carry it."""
        with self._lock:
            self._put_weights(predictor, weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`; the time shares are as of its last result."""
        actor = self._actors[worker]
        return self.make_stats(worker, actor.activity, actor.pid, actor.state, actor.began)

    def close(self, finish: bool) -> None:
        """See `Backend.close`."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        grace = self.settings.close_timeout
        deadline = time.monotonic() + (grace if finish else min(grace, _HASTY_S))
        if finish and self._thread.is_alive():
            with self.recorder.changed:
                while any(a.outstanding for a in self._actors) and time.monotonic() < deadline:
                    self.recorder.changed.wait(0.05)
        self._closing = True
        self._changed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(max(0.5, deadline - time.monotonic()))
        self._close_players(deadline)
        for actor in self._actors:
            actor.drop()
            actor.state = "closed"
        if self._we_started:
            _leave()

    # ---- starting

    def _pickled(self, index: int) -> bytes:
        try:
            return cloudpickle.dumps(self.runners[index])  # type: ignore[no-any-return]
        except Exception as error:
            raise ConfigurationError(
                f"env_runners[{index}] cannot be sent to an actor "
                f"({type(error).__name__}: {error}); pass a factory as its player"
            ) from error

    def _check_resources(self) -> None:
        """Refuse at once what the cluster can never place."""
        have = ray.cluster_resources()
        for name, amount in self.settings.resources_per_runner.items():
            needed = amount * len(self.runners)
            if needed > have.get(name, 0.0):
                raise ConfigurationError(
                    f"{len(self.runners)} runners need {needed:g} {name}, the cluster has "
                    f"{have.get(name, 0.0):g} in all; use fewer runners, another "
                    "resources_per_runner, or add nodes"
                )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self.settings.start_timeout
        with self.recorder.changed:
            while self._start_error is None and any(
                actor.state == "starting" for actor in self._actors
            ):
                left = deadline - time.monotonic()
                if left <= 0:
                    waiting = sum(actor.state == "starting" for actor in self._actors)
                    free = {k: v for k, v in ray.available_resources().items() if "node" not in k}
                    self._start_error = ConfigurationError(
                        f"{waiting} of {len(self.runners)} runners have not started within "
                        f"start_timeout ({self.settings.start_timeout:g} s); each needs "
                        f"{dict(self.settings.resources_per_runner)}, free now: {free}"
                    )
                    break
                self.recorder.changed.wait(min(left, 0.5))
            self._started = self._start_error is None
        if self._start_error is not None:
            raise self._start_error

    def _launch(self, actor: _Actor) -> None:
        resources = dict(self.settings.resources_per_runner)
        options = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "max_restarts": 0,
            "concurrency_groups": {"talk": 3},
        }
        remote = ray.remote(**options)(_with_talk_group())
        index = actor.index
        actor.handle = remote.remote(
            self._pickles[index],
            self.settings.seed(index, actor.restarts),
            self._server.serves(index),
        )
        actor.state = "starting"
        actor.began = time.monotonic()
        actor.call(actor.handle.open.remote(self._weights_of(index)), 0)
        actor.exchange = actor.handle.exchange.remote(None)
        for exploration, num_steps in self.jobs[index].left():
            self._send(actor, exploration, num_steps)

    def _send(self, actor: _Actor, exploration: float, num_steps: int) -> None:
        weights = self._weights_of(actor.index)
        actor.call(actor.handle.run.remote(exploration, num_steps, weights), num_steps)

    def _put_weights(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        packed = np.frombuffer(predictor.layout.pack(weights), np.uint8)
        self._weights[id(predictor)] = ray.put((version, packed))

    def _weights_of(self, index: int) -> Any:
        return self._weights.get(id(self.runners[index].predictor))

    # ---- the drain thread

    def _drain(self) -> None:
        try:
            while not self._closing:
                self._round()
        except BaseException as error:
            if not self._closing:
                self._report(_cluster_lost(error))

    def _round(self) -> None:
        """Wait for news, take them in, look after those that are late or gone."""
        waiting: dict[Any, Callable[[], None]] = {}
        with self._lock:
            for actor in self._actors:
                if actor.handle is not None and actor.calls:
                    waiting[actor.calls[0][0]] = partial(self._take_call, actor)
                if actor.exchange is not None and actor.index not in self._waiting:
                    waiting[actor.exchange] = partial(self._take_question, actor)
        self._changed.clear()
        ready: list[Any] = []
        if waiting:
            refs = list(waiting)
            ready, _ = ray.wait(refs, num_returns=1, timeout=0.05)
            if ready:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        else:
            self._changed.wait(0.05)
        for reference in ready:
            waiting[reference]()
        now = time.monotonic()
        if ready:
            self._last_news = now
        if self._waiting:
            self._serve()
        self._look_after(now)

    def _take_call(self, actor: _Actor) -> None:
        reference = actor.calls[0][0]
        try:
            result: Result = ray.get(reference)
        except Exception as error:
            self._lost(actor, _died(actor, error))
            return
        actor.times[:] = result.times
        actor.pid, actor.num_actions = result.pid, result.num_actions
        for state, rows, info in result.blocks:
            self.land(actor.index, Rows(state, rows.view(ROW), info.provisional), info)
        with self._lock:
            actor.pop()
        if result.error is not None:
            self._lost(actor, WorkerRaised(actor.index, *result.error))
            return
        with self.recorder.changed:
            actor.state = "running"
            self.recorder.changed.notify_all()

    def _take_question(self, actor: _Actor) -> None:
        try:
            question = ray.get(actor.exchange)
        except Exception as error:
            self._lost(actor, _died(actor, error))
            return
        if question is not None:
            self._waiting[actor.index] = question

    def _serve(self) -> None:
        waiting, self._waiting = self._waiting, {}

        def fetch(worker: int, out: Array) -> None:
            out[...] = waiting[worker]

        def reply(worker: int, q: Array) -> None:
            actor = self._actors[worker]
            if actor.handle is not None:
                actor.exchange = actor.handle.exchange.remote(q.copy())

        try:
            self._server.answer(
                [(worker, self._actors[worker].num_actions) for worker in waiting], fetch, reply
            )
        except Exception as error:
            for worker in waiting:
                self._actors[worker].exchange = None
            self._report(error)

    def _look_after(self, now: float) -> None:
        limit = self.settings.step_timeout
        for actor in self._actors:
            if actor.state == "restarting" and now >= actor.restart_at:
                with self._lock:
                    actor.restarts += 1
                    self._launch(actor)
            elif limit is not None and actor.state == "running" and actor.calls:
                if now - actor.head_since > limit * max(1, actor.calls[0][1]):
                    self._lost(actor, self._stalled(actor, now))
        if now - self._last_news > _SILENCE_S and any(a.calls for a in self._actors):
            self._last_news = now
            _check_cluster()

    def _stalled(self, actor: _Actor, now: float) -> WorkerStalled:
        doing, seconds, stack = actor.activity.doing.label, now - actor.head_since, ""
        with contextlib.suppress(Exception):
            doing, seconds, stack = ray.get(actor.handle.where.remote(), timeout=1.0)
        limit = f"step_timeout is {self.settings.step_timeout:g} s"
        return WorkerStalled(actor.index, actor.pid, doing, seconds, limit, stack)

    def _lost(self, actor: _Actor, error: WorkerError) -> None:
        """An actor is of no use any more: replace it or give up."""
        restart = self.settings.on_failure == "restart" and self._started and not self._closing
        with self._lock:
            actor.drop()
            self._waiting.pop(actor.index, None)
            self.memory.seal(actor.index)
            wait = actor.budget.spend(time.monotonic()) if restart else None
            actor.state = "failed" if wait is None else "restarting"
            actor.restart_at = time.monotonic() + (wait or 0.0)
        if wait is None:
            self._report(error)
            return
        _log.warning("%s; restarting it in %.2f s", str(error).splitlines()[0], wait)
        # No step is lost: what had not landed is done again.
        self.recorder.add_restart(actor.index, 0)

    def _report(self, error: BaseException) -> None:
        if self._started:
            self.fail(error)
            return
        with self.recorder.changed:
            self._start_error = self._start_error or error
            self.recorder.changed.notify_all()

    def _close_players(self, deadline: float) -> None:
        """Have the players closed, as far as their actors still answer."""
        closing = {}
        for actor in self._actors:
            if actor.handle is not None:
                with contextlib.suppress(Exception):
                    actor.handle.release.remote()
                    closing[actor.handle.close.remote()] = actor
        if not closing:
            return
        left = max(0.5, deadline - time.monotonic())
        ready, _ = ray.wait(list(closing), num_returns=len(closing), timeout=left)
        for reference in ready:
            with contextlib.suppress(Exception):
                result: Result = ray.get(reference)
                for state, rows, info in result.blocks:
                    index = closing[reference].index
                    self.land(index, Rows(state, rows.view(ROW), info.provisional), info)
                if result.error is not None:
                    self.fail(WorkerRaised(closing[reference].index, *result.error))


def _with_talk_group() -> type:
    """The actor's class, with the methods that may run beside a job in a group of their own."""

    class Actor(RunnerActor):
        exchange = ray.method(concurrency_group="talk")(RunnerActor.exchange)
        release = ray.method(concurrency_group="talk")(RunnerActor.release)
        where = ray.method(concurrency_group="talk")(RunnerActor.where)

    return Actor


def _join(address: str | None) -> bool:
    """Use the Ray that runs in this process, or connect or start one; True if it is ours."""
    global _users
    with _users_lock:
        if ray.is_initialized() and not _users:
            return False
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigurationError(
                    f"no Ray cluster could be reached at {address!r}: {error}"
                ) from error
        _users += 1
        return True


def _leave() -> None:
    """The last of our backends shuts down what we started, or leaves what we joined."""
    global _users
    with _users_lock:
        _users -= 1
        if not _users:
            ray.shutdown()


def _died(actor: _Actor, error: BaseException) -> WorkerError:
    reason = str(error).strip().splitlines()
    doing = actor.activity.doing.label
    died = WorkerDied(actor.index, actor.pid, None, doing)
    died.args = (f"worker {actor.index} (a Ray actor) was lost: {' '.join(reason)[:500]}",)
    return died


def _check_cluster() -> None:
    """Raise if the cluster's head does not answer a question within bounded time."""
    answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            ray.nodes()
        except BaseException as error:
            answers.put(error)
        else:
            answers.put(None)

    threading.Thread(target=ask, name="mprunner-ray-check", daemon=True).start()
    try:
        error = answers.get(timeout=_ANSWER_S)
    except queue.Empty:
        error = ConnectionError(f"the head node has not answered for {_ANSWER_S:g} s")
    if error is not None:
        raise error


def _cluster_lost(error: BaseException) -> BaseException:
    if isinstance(error, MprunnerError):
        return error
    lost = MprunnerError(f"the connection to the Ray cluster failed: {error}")
    lost.__cause__ = error
    return lost
