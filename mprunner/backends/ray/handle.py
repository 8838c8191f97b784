"""One runner's actor as the driver sees it, through all its restarts."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from mprunner.activity import Activity, Doing
from mprunner.backends.pool import Member
from mprunner.backends.ray.actor import Result, RunnerActor
from mprunner.backends.ray.cluster import actor_options
from mprunner.errors import WorkerDied, WorkerStalled
from mprunner.experience import Array
from mprunner.ledger import Account
from mprunner.pace import Pace
from mprunner.settings import Settings

#: Seconds for an actor to say what it is doing, beside what it does.
_SAY_S = 1.0


@dataclass
class _Call:
    """A call whose result is to come.

    Attributes:
        future: of its result.
        last: it closes the player.
    """

    future: Any
    last: bool = False


class RayMember(Member):
    """Runner `index` of a pool of Ray actors.

    Args:
        index: of the runner.
        account: of its steps.
        news: called with the index, in a thread of Ray's, whenever a call has ended.
        settings: of the manager.

    Attributes:
        remote: the actor; None if there is none now.
        calls: open ones, oldest first; an actor executes one after the other.
        exchange: the call that brings the next question for a served predictor.
        question: that has no answer yet.
        head_since: when the oldest call became the oldest.
        weights: (version, reference) of the newest, None without a `LocalPredictor`.
        kept: executed steps whose rows the actor still has.
        unplaced: Ray has made no process for it within ``start_timeout``.
    """

    def __init__(
        self, index: int, account: Account, news: Callable[[int], None], settings: Settings
    ) -> None:
        super().__init__(index, account)
        self.remote: Any = None
        self.calls: deque[_Call] = deque()
        self.exchange: Any = None
        self.question: Array | None = None
        self.head_since = self.began
        self.weights: tuple[int, Any] | None = None
        self.kept = 0
        self._weights_sent = -1
        self._cells = [0] * Pace.NUM_CELLS
        self.unplaced = False
        self._pid: int | None = None
        self._times = [0.0] * (1 + len(Doing))
        self.activity = Activity([Doing.STARTING], self._times)
        self._news = news
        self._settings = settings
        self._probe: Any = None
        self._probed = 0.0

    @property
    def alive(self) -> bool:
        """See `Member.alive`."""
        return self.remote is not None

    @property
    def pid(self) -> int | None:
        """See `Member.pid`."""
        return self._pid

    def start(self, resources: dict[str, float], *arguments: Any) -> None:
        """Make the actor; `arguments` are those of `RunnerActor`. Open jobs are sent to it."""
        remote = ray.remote(
            **actor_options(resources), max_restarts=0, concurrency_groups={"talk": 3}
        )(_actor_class())
        self.remote = remote.remote(*arguments)
        self.state = "starting"
        self.began = time.monotonic()
        self._cells = [0] * Pace.NUM_CELLS
        self.account.begin(Pace(self._cells))
        self._call(self.remote.open.remote(self._new_weights()))
        self.exchange_for(None)
        self.send()

    def send(self) -> None:
        """See `Member.send`."""
        account = self.account
        may_keep = not self._settings.deterministic
        for job in account.unsent():
            # As few arguments as can be: Ray makes an object of each. Its rows may come with a
            # later result if one is to be expected: that of a job that follows closely, as this
            # one does. A job that is sent twice is executed once, as by a worker process.
            arguments = (
                job.exploration, job.end - account.base, may_keep and bool(self.calls)
            )
            weights = self._new_weights()
            references = (arguments,) if weights is None else (arguments, weights)
            self._call(self.remote.run.remote(*references))
            account.sent = job.end

    def _new_weights(self) -> Any:
        """A reference to the newest weights, if no job before has brought them."""
        if self.weights is None or self.weights[0] == self._weights_sent:
            return None
        self._weights_sent, reference = self.weights
        return reference

    def take_counts(self, result: Result) -> None:
        """A result says how far the actor is; if none is to follow, it has to bring the rest."""
        self._times[:] = result.times
        self._pid, self.num_actions = result.pid, result.num_actions
        self._cells[1] = result.executed
        self.kept = result.kept
        if self.kept and len(self.calls) == 1:
            self._call(self.remote.bring.remote())

    def exchange_for(self, answer: Array | None) -> None:
        """Answer the question, if there was one, and wait for the next."""
        self.exchange = self._watched(self.remote.exchange.remote(answer))

    def ask_to_stop(self, finish: bool) -> None:
        """See `Member.ask_to_stop`."""
        with contextlib.suppress(Exception):  # the actor is lost; Ray reports it
            if self.remote is not None and ray.is_initialized():
                self.remote.release.remote()
                self._call(self.remote.close.remote(), last=True)

    def pop(self) -> _Call:
        """The oldest call has ended."""
        self.head_since = time.monotonic()
        self._probe = None
        return self.calls.popleft()

    def disown(self) -> None:
        """Let go of an actor that cannot be reached any more."""
        self.remote = None

    def drop(self) -> None:
        """Let go of the actor and its calls; its process is ended."""
        remote, self.remote = self.remote, None
        self.calls.clear()
        self.exchange = self.question = self._probe = None
        self._weights_sent = -1
        self.kept = 0
        # A call without a connection would start a new Ray.
        if remote is not None and ray.is_initialized():
            with contextlib.suppress(Exception):
                ray.kill(remote, no_restart=True)

    @property
    def due(self) -> bool:
        """See `Member.due`: what is due is seen at the usual checks."""
        return False

    @property
    def was_closing(self) -> bool:
        """See `Member.was_closing`: once it is asked to, nobody knows how far it is."""
        return True

    def is_late(self, now: float, waits_for_us: bool) -> bool:
        """See `Member.is_late`: an actor is asked before it counts as late."""
        return False

    def check(self, now: float, waits_for_us: bool) -> WorkerStalled | None:
        """See `Member.check`."""
        settings = self._settings
        if self.state == "starting":
            if now - self.began <= settings.start_limit_s:
                return None
            limit = f"start_timeout is {settings.start_limit_s:g} s"
            found = self.where(limit)
            self.unplaced = found is None
            return found or self.stalled("starting", now - self.began, limit)
        if self.state == "running" and settings.step_timeout is not None:
            return self._check_step(now, settings.step_timeout)
        return None

    def _check_step(self, now: float, limit_s: float) -> WorkerStalled | None:
        """Report that it has been in one step, or in one reset, for longer than `limit_s`.

        The actor itself is asked, beside what it does, and not before it is late.
        """
        if not self.calls or self.question is not None or now - self.head_since < limit_s:
            return None
        if self._probe is None:
            if now - self._probed > limit_s / 4:
                self._probe = self._watched(self.remote.where.remote())
                self._probed = now
            return None
        limit = f"step_timeout is {limit_s:g} s"
        if not self._probe.done():
            late = now - self._probed > max(limit_s, _SAY_S)
            return self.stalled("running", now - self.head_since, limit) if late else None
        probe, self._probe = self._probe, None
        if probe.exception() is not None:
            return None  # the actor has died; its call reports it
        code, seconds, stack = probe.result()
        if seconds < limit_s or code in (Doing.JOB_WAIT, Doing.PREDICTION_WAIT):
            return None
        return self.stalled(Doing(code).label, seconds, limit, stack)

    def where(self, limit: str) -> WorkerStalled | None:
        """What it is doing now, as the error that it is late; None if it does not answer."""
        with contextlib.suppress(Exception):
            code, seconds, stack = ray.get(self.remote.where.remote(), timeout=_SAY_S)
            return self.stalled(Doing(code).label, seconds, limit, stack)
        return None

    def stalled(self, doing: str, seconds: float, limit: str, stack: str = "") -> WorkerStalled:
        """The error for a runner that is late."""
        return WorkerStalled(self.index, self.pid, doing, seconds, limit, stack)

    def died(self, error: BaseException) -> WorkerDied:
        """The error for an actor that Ray says is lost."""
        doing = "running" if self.calls else "waiting for a job"
        doing = "starting" if self.state == "starting" else doing
        died = WorkerDied(self.index, self.pid, None, doing)
        reason = " ".join(str(error).split())[:600]
        died.args = (
            f"worker {self.index} (pid {self.pid}, a Ray actor) was lost while {doing}: {reason}",
        )
        return died

    def _call(self, reference: Any, last: bool = False) -> None:
        if not self.calls:
            self.head_since = time.monotonic()
        self.calls.append(_Call(self._watched(reference), last))

    def _watched(self, reference: Any) -> Any:
        index, news = self.index, self._news
        future = reference.future()
        future.add_done_callback(lambda _: news(index))
        return future


def _actor_class() -> type:
    """The actor's class, with the methods that may run beside a job in a group of their own."""

    class Actor(RunnerActor):
        exchange = ray.method(concurrency_group="talk")(RunnerActor.exchange)
        release = ray.method(concurrency_group="talk")(RunnerActor.release)
        where = ray.method(concurrency_group="talk")(RunnerActor.where)

    return Actor
