"""A pool of workers outside this process: start, one thread, failures, restarts, stop ladder.

What is special to processes and to Ray is in their own packages; here is what they share::

    send() ---------> member i ---> worker i
                                       | events: rows, questions, exits
    pool thread <----------------------'
       |-- rows ------> StreamWriter i of the replay memory
       |-- questions -> PredictionServer -> answer to member i
       '-- exits -----> FailurePolicy: replace or report

Only the pool's thread starts workers and sees them exit, so Ctrl-C, which Python raises in the
main thread, can't come between a start and its bookkeeping.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import cloudpickle

from mprunner.activity import Activity
from mprunner.backends.base import Backend
from mprunner.backends.failure import FailurePolicy
from mprunner.backends.serving import PredictionServer
from mprunner.errors import ConfigurationError, WorkerError
from mprunner.experience import Array
from mprunner.ledger import Account
from mprunner.runner import EnvRunner
from mprunner.stats import WorkerStats

#: Seconds that a stop which nobody waits for gives the workers.
_ABORT_S = 1.0
#: Seconds that the pool's thread has to end, unless it is stuck in a predictor.
_QUIT_S = 0.5


class Member(ABC):
    """One worker as the parent sees it, through all its restarts.

    Attributes:
        index: of the runner.
        account: its jobs and counts.
        state: "starting", "running", "restarting", "failed" or "closed".
        error: why it fails, known before it has exited.
        leaving: it has closed its player and said so.
        reported: its failure has been reported.
        restarts: so far.
        restart_at: when it is to be replaced, by `time.monotonic`.
        began: when it was started last.
        activity: what it does, or did last.
        num_actions: of its player, once it is ready.
    """

    def __init__(self, index: int, account: Account) -> None:
        self.index = index
        self.account = account
        self.state = "starting"
        self.error: WorkerError | None = None
        self.leaving = False
        self.reported = False
        self.restarts = 0
        self.restart_at = 0.0
        self.began = time.monotonic()
        self.activity: Activity | None = None
        self.num_actions = 0

    @property
    @abstractmethod
    def alive(self) -> bool:
        """It has a worker that has not been seen to exit."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Of the worker that runs now."""

    @abstractmethod
    def send(self) -> None:
        """Send the jobs that have not been sent; the pool's lock is held, a worker runs."""

    @abstractmethod
    def ask_to_stop(self, finish: bool) -> None:
        """Have the worker close its player and exit; without `finish`, after this step."""

    @abstractmethod
    def check(self, now: float, waits_for_us: bool) -> WorkerError | None:
        """Do what is due; return the error if the worker has turned out to have stalled.

        Args:
            now: by `time.monotonic`.
            waits_for_us: it waits for a prediction that the parent has not given.
        """

    @abstractmethod
    def is_late(self, now: float, waits_for_us: bool) -> bool:
        """It seems to have stalled, as far as is known of what it has sent."""

    @property
    @abstractmethod
    def due(self) -> bool:
        """Something is to be done soon without an event."""

    @property
    @abstractmethod
    def was_closing(self) -> bool:
        """It was closing its player when it exited, or may have been."""


M = TypeVar("M", bound=Member)


class RemotePool(Backend, Generic[M]):
    """The pool's side of workers outside this process.

    Attributes:
        members: one per worker.
        lock: a member's worker against its other users.
        asking: workers that wait for a prediction -> their number of actions.
    """

    #: Seconds between two checks of all members while nothing is due; set by a subclass.
    check_every_s: float
    #: The same while something is due.
    soon_s = 0.02

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        self.policy = FailurePolicy(settings, self.ledger, self.recorder, len(self.runners))
        self.server = PredictionServer(
            self.runners, self.recorder, settings.max_batch_size, settings.deterministic
        )
        self.pickles = [pickled(i, runner) for i, runner in enumerate(self.runners)]
        self.members: Sequence[M] = ()
        self.asking: dict[int, int] = {}
        # Re-entrant, since a signal handler that closes the pool may interrupt its holder.
        self.lock = threading.RLock()
        self.check_at = 0.0
        self._owner = os.getpid()
        self._close_lock = threading.RLock()
        self._released = False
        self._serving = True
        self._launching = False
        self._quit = False
        self.thread = threading.Thread(target=self._main, name="mprunner-drain", daemon=True)

    # ---- what a kind of pool does in its own way

    @abstractmethod
    def launch(self, member: M) -> None:
        """Start the member's worker; OSError and EOFError if that cannot be done now."""

    @abstractmethod
    def take_events(self, timeout: float) -> None:
        """Wait for events, at most `timeout` seconds (0: not at all), and handle them."""

    @abstractmethod
    def wake(self) -> None:
        """Have the pool's thread check all members at once."""

    @abstractmethod
    def fetch(self, worker: int, out: Array) -> None:
        """Copy the state that `worker` asks about."""

    @abstractmethod
    def reply(self, worker: int, q: Array) -> None:
        """Answer `worker`."""

    @abstractmethod
    def all_exited(self) -> bool:
        """No worker is left to wait for."""

    @abstractmethod
    def report_late(self, limit: str) -> None:
        """The workers have not exited within `limit`: report those that should have."""

    @abstractmethod
    def end_all(self) -> None:
        """End whatever has not exited by itself."""

    @abstractmethod
    def release(self) -> None:
        """Give back what the pool holds; its thread has ended, or is stuck in a predictor."""

    # ---- what the manager calls

    def start(self) -> None:
        """See `Backend.start`."""
        policy = self.policy
        try:
            self.prepare()
            self.thread.start()
            while not self.wait(
                lambda: policy.start_error is not None
                or all(member.state != "starting" for member in self.members),
                time.monotonic() + 1.0,
            ):
                pass
            policy.started = policy.start_error is None
        except BaseException:
            self.close(False)
            raise
        if policy.start_error is not None:
            self.close(False)
            raise policy.start_error

    def prepare(self) -> None:
        """Make what the workers share, before the first one starts."""

    def send(self, worker: int) -> None:
        """See `Backend.send`."""
        member = self.members[worker]
        with self.lock:
            if member.alive:
                member.send()

    def is_own_thread(self) -> bool:
        """See `Backend.is_own_thread`."""
        return threading.get_ident() == self.thread.ident

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        member = self.members[worker]
        return self.make_stats(worker, member.activity, member.pid, member.state, member.began)

    def close(self, finish: bool) -> None:
        """See `Backend.close`; does nothing in a process that has inherited the pool.

        May be called again after an exception: it goes on where the first call ended.
        """
        if os.getpid() != self._owner:
            return
        with self._close_lock:
            if self._released:
                return
            try:
                if self.thread.is_alive():
                    self._stop_workers(finish)
            except BaseException:
                self.policy.aborting = self.policy.closing = True
                raise
            finally:
                # Unless a signal handler has closed the pool meanwhile.
                if not self._released:
                    self.end_all()
                    self._end_thread()
                    for member in self.members:
                        member.state = "closed"
                        member.account.lose_open()
                    self.release()
                    self._released = True

    # ---- the stop ladder: finish, ask, wait, report, end

    def _stop_workers(self, finish: bool) -> None:
        policy, limit_s = self.policy, self.settings.close_limit_s
        deadline = time.monotonic() + (limit_s if finish else min(_ABORT_S, limit_s))
        if finish:
            self.wait(self._jobs_done, deadline)
        policy.aborting = not finish
        policy.closing = True
        # No worker must just be started that would miss the request. Not for ever: a start that
        # hangs must not keep us from ending the others.
        self.wait(lambda: not self._launching, time.monotonic() + _ABORT_S)
        for member in self.members:
            member.ask_to_stop(finish)
        if not self.wait(self.all_exited, deadline) and finish:
            self.report_late(f"close_timeout is {limit_s:g} s")

    def _jobs_done(self) -> bool:
        return self.policy.failed or not any(account.open for account in self.accounts)

    def wait(self, condition: Any, deadline: float) -> bool:
        """Wait for what the pool's thread does; False at the deadline, or if it never will."""
        thread = self.thread
        self.ledger.wait(lambda: condition() or not thread.is_alive(), deadline)
        return bool(condition())

    def _end_thread(self) -> None:
        self._quit = True
        if self.thread.is_alive():
            self.wake()
            self.thread.join(_QUIT_S)

    # ---- the pool's thread

    def _main(self) -> None:
        try:
            for member in self.members:
                self._launch(member)
            while not self._quit:
                self._round()
        except BaseException as error:
            if self._quit:  # it was stuck while the pool was closed
                return
            self.policy.report(error)
            self._go_on_without_service()

    def _go_on_without_service(self) -> None:
        """After a failure of our own: let workers write and exit, until the pool is closed."""
        self._serving = False
        try:
            while not self._quit:
                self._round()
        except BaseException as error:
            if not self._quit:
                self.policy.report(error)

    def _round(self) -> None:
        """Handle all events, answer who asks, check who is late."""
        self.take_events(max(0.0, self.check_at - time.monotonic()))
        if self.asking and self._serving:
            self._serve()
        if time.monotonic() >= self.check_at:
            self._check_members()

    def _serve(self) -> None:
        asking, self.asking = self.asking, {}
        try:
            self.server.answer(asking, self.fetch, self.reply)
        except Exception as error:
            self._serving = False
            if not self._quit:
                self.policy.report(error)

    def _check_members(self) -> None:
        now = time.monotonic()
        if any(member.is_late(now, member.index in self.asking) for member in self.members):
            # It may have waited for us, while a predictor or the memory's lock has held us up.
            self.take_events(0)
            now = time.monotonic()
        for member in self.members:
            if member.alive:
                error = member.check(now, member.index in self.asking)
                if error is not None:
                    self.fails(member, error)
            elif member.state == "restarting" and self.policy.closing:
                self.set_state(member, "closed")
            elif member.state == "restarting" and now >= member.restart_at:
                member.restarts += 1
                self._launch(member)
        soon = any(member.due for member in self.members)
        self.check_at = now + (self.soon_s if soon else self.check_every_s)

    def set_state(self, member: M, state: str) -> None:
        """Change a member's state, and wake who waits for that."""
        member.state = state
        self.ledger.notify()

    # ---- failure, exit and replacement

    def fails(self, member: M, error: WorkerError) -> None:
        """A worker fails and is still to exit; it is reported now if it won't be replaced."""
        first = member.error is None or member.error is error
        member.error = member.error or error
        if not first or not self.policy.replaces:
            self._report(member, error)

    def exited(self, member: M, error: WorkerError, lost: int) -> None:
        """A worker has exited, and what it had sent is stored.

        Args:
            member: has no worker any more.
            error: why.
            lost: steps that it had executed and that will never be stored.
        """
        account, policy = member.account, self.policy
        account.writer.seal()
        with self.lock:
            account.lose(lost)
            account.begin(None)
        self.asking.pop(member.index, None)
        wait_s = policy.replace_in(member.index, error)
        if wait_s is not None:
            member.restart_at = time.monotonic() + wait_s
            self.check_at = 0.0
            self.set_state(member, "restarting")
            return
        if not member.reported and not self._ends_well(member, error, lost):
            self._report(member, error)
        self.set_state(member, "closed" if policy.closing else "failed")

    def _ends_well(self, member: M, error: WorkerError, lost: int) -> bool:
        """It was to exit, or has died idle in a pool that replaces its workers."""
        if not self.policy.closing or member.error is not None:
            return False
        if self.policy.aborting or member.leaving:
            return True
        if member.was_closing or member.account.open:
            return False
        return self.policy.excuse(error, lost)

    def _report(self, member: M, error: WorkerError) -> None:
        member.reported = True
        self.policy.report(error)

    def _launch(self, member: M) -> None:
        failure = None
        # First the mark, then the question: who closes sets `closing` and then waits for the mark.
        self._launching = True
        try:
            if self.policy.closing:
                return self.set_state(member, "closed")
            member.error, member.leaving, member.reported = None, False, False
            with self.lock:
                self.launch(member)
        except (OSError, EOFError) as error:
            failure = WorkerError(
                member.index, f"worker {member.index} could not be started: {error!r}"
            )
            failure.__cause__ = error
        finally:
            self._launching = False
            self.ledger.notify()
        if failure is not None:
            self.exited(member, failure, 0)


def pickled(index: int, runner: EnvRunner) -> bytes:
    """A runner on its way to another process.

    Raises:
        ConfigurationError: some part of it cannot be sent.
    """
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
