"""One runner's actor as the driver sees it, through all its restarts.

Owns the calls under way to a single actor. Knows nothing of the other runners, of the memory
or of what a failure means for the pool.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from mprunner.activity import Activity, Doing
from mprunner.backends.policy import RestartBudget
from mprunner.backends.ray_actor import RunnerActor
from mprunner.backends.ray_cluster import actor_options
from mprunner.errors import WorkerDied, WorkerStalled
from mprunner.experience import Array

#: Seconds for an actor to say what it is doing, beside what it does.
_SAY_S = 1.0


@dataclass
class _Call:
    """A call whose result is to come.

    Attributes:
        future: of its result.
        num_steps: that it does.
        last: it closes the player.
    """

    future: Any
    num_steps: int = 0
    last: bool = False


class Handle:
    """Runner `index`.

    Args:
        index: of the runner.
        budget: of its restarts.
        news: told the index, in a thread of Ray's, whenever a call has ended.

    Attributes:
        state: "starting", "running", "restarting", "failed" or "closed".
        remote: the actor; None if there is none now.
        calls: under way, oldest first; an actor does one after the other.
        exchange: the call that brings the next question for a served predictor.
        question: that has no answer yet.
        head_since: when the oldest call became the oldest.
        weights_sent: the version that the newest job has brought.
        executed: steps of the runner, as far as results have told.
        kept: of these, those whose rows the actor still has.
    """

    def __init__(self, index: int, budget: RestartBudget, news: Callable[[int], None]) -> None:
        self.index = index
        self.budget = budget
        self.state = "starting"
        self.remote: Any = None
        self.calls: deque[_Call] = deque()
        self.exchange: Any = None
        self.question: Array | None = None
        self.restarts = 0
        self.restart_at = 0.0
        self.began = self.head_since = time.monotonic()
        self.weights_sent = -1
        self.executed = self.kept = 0
        self._executed_before = 0  # by the actors before this one
        self.pid: int | None = None
        self.num_actions = 0
        self.times = [0.0] * (1 + len(Doing))
        self.activity = Activity([Doing.STARTING], self.times)
        self._news = news
        self._probe: Any = None
        self._probed = 0.0

    def start(self, resources: dict[str, float], *arguments: Any, weights: Any) -> None:
        """Make the actor; `arguments` are those of `RunnerActor`."""
        remote = ray.remote(
            **actor_options(resources), max_restarts=0, concurrency_groups={"talk": 3}
        )(_actor_class())
        self.remote = remote.remote(*arguments)
        self.state = "starting"
        self.began = time.monotonic()
        self._call(self.remote.open.remote(weights))
        self.talk(None)

    def run(self, exploration: float, num_steps: int, weights: Any, may_keep: bool) -> None:
        """Send a job.

        Args:
            exploration: of its steps.
            num_steps: of the job.
            weights: a reference to (version, packed), or None.
            may_keep: its rows may come with a later result, if one is to be expected: that of a
                job that follows closely, as this one does.
        """
        # As few arguments as can be: Ray makes an object of each.
        job = exploration, num_steps, may_keep and bool(self.calls)
        arguments = (job,) if weights is None else (job, weights)
        self._call(self.remote.run.remote(*arguments), num_steps)

    def told(self, executed: int, kept: int) -> None:
        """A result says how far the actor is; if none is to follow, it has to bring the rest."""
        self.executed = self._executed_before + executed
        self.kept = kept
        if kept and len(self.calls) == 1:
            self._call(self.remote.bring.remote())

    def talk(self, answer: Array | None) -> None:
        """Answer the question, if there was one, and wait for the next."""
        self.exchange = self._watched(self.remote.exchange.remote(answer))

    def ask_to_close(self) -> None:
        """Have the job under way end at its next step, and the player be closed."""
        if self.remote is not None and ray.is_initialized():
            self.remote.release.remote()
            self._call(self.remote.close.remote(), last=True)

    def pop(self) -> _Call:
        """The oldest call has ended."""
        self.head_since = time.monotonic()
        self._probe = None
        return self.calls.popleft()

    def drop(self) -> None:
        """Let go of the actor and its calls; its process is ended."""
        remote, self.remote = self.remote, None
        self.calls.clear()
        self.exchange = self.question = self._probe = None
        self.weights_sent = -1
        self._executed_before, self.kept = self.executed, 0
        # A call without a connection would start a new Ray.
        if remote is not None and ray.is_initialized():
            with contextlib.suppress(Exception):
                ray.kill(remote, no_restart=True)

    def look(self, now: float, limit_s: float) -> WorkerStalled | None:
        """Tell if it has been in one step, or in one reset, for longer than `limit_s`.

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
            return None  # it is gone; its job tells
        code, seconds, stack = probe.result()
        if seconds < limit_s or code in (Doing.JOB_WAIT, Doing.PREDICTION_WAIT):
            return None
        return self.stalled(Doing(code).label, seconds, limit, stack)

    def ask_where(self, limit: str) -> WorkerStalled | None:
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

    def _call(self, reference: Any, num_steps: int = 0, last: bool = False) -> None:
        if not self.calls:
            self.head_since = time.monotonic()
        self.calls.append(_Call(self._watched(reference), num_steps, last))

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
