"""One worker process as the parent sees it: its channel, its time limits and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from mprunner.activity import Doing
from mprunner.backends.pool import Member
from mprunner.backends.process import launch, worker
from mprunner.backends.process.channel import Channel, ChannelSpec
from mprunner.errors import WorkerDied, WorkerError, WorkerStalled
from mprunner.ledger import Account
from mprunner.settings import Settings

#: Seconds for a fault handler to write a stack; for SIGTERM to do its work.
_STACK_S = 0.2
TERMINATE_S = 0.5
#: Seconds for a worker that has said why it fails to close its player.
_LAST_WORDS_S = 1.0


class ProcessMember(Member):
    """Worker `index` of a pool of processes.

    Attributes:
        channel: of the process that runs now.
    """

    def __init__(
        self, index: int, account: Account, spec: ChannelSpec, settings: Settings, method: str
    ) -> None:
        super().__init__(index, account)
        self.channel: Channel | None = None
        self._spec = spec
        self._settings = settings
        self._method = method
        self._process: launch.WorkerProcess | None = None
        self._launching: Channel | None = None  # of a process that is being started
        self._active_at = 0.0  # when it was last given what it waited for
        self._late: str | None = None  # the limit that it has exceeded, in words
        self._closing_late = False
        self._next: tuple[float, Callable[[], None]] | None = None

    def start(self, spec: worker.WorkerSpec) -> None:
        """Start a process; jobs that are not settled are sent to it."""
        channel = Channel(self._spec)
        process = launch.WorkerProcess(
            target=worker.main, args=(channel, spec), name=f"mprunner-worker-{self.index}"
        )
        self._next, self._late = None, None
        self._launching = channel
        try:
            process.launch(self._method)
        except BaseException:
            channel.close()
            raise
        finally:
            self._launching = None
        channel.started()
        self.began = self._active_at = time.monotonic()
        self.account.begin(channel.pace)
        # Others read them without the lock, so they change when all of it is there.
        self.channel, self.activity, self.state = channel, channel.activity, "starting"
        self._process = process
        self.send()

    @property
    def alive(self) -> bool:
        """See `Member.alive`."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """See `Member.pid`."""
        process = self._process
        return None if process is None else process.pid

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process has exited."""
        assert self._process is not None
        return self._process.sentinel

    def send(self) -> None:
        """See `Member.send`."""
        channel, account = self.channel, self.account
        assert channel is not None
        base = account.base
        for job in account.unsent():
            if account.sent == account.settled:  # it was idle
                self._active_at = time.monotonic()
            channel.pace.send(job.end - base)
            # If an exception comes before the job counts as sent, it is sent twice, and the
            # worker, which knows it by its end, executes it once.
            with suppress(OSError):  # the worker has exited; its sentinel reports it
                channel.jobs.put((job.exploration, job.end - base))
            account.sent = job.end

    def can_take(self) -> bool:
        """False while its queue is full."""
        channel = self.channel
        if channel is not None:
            return not channel.jobs.full()
        return self.account.num_jobs < self._spec.max_jobs

    def want_progress(self) -> None:
        """See `Backend.want_progress`."""
        channel = self.channel
        if channel is not None:
            channel.pace.want_progress()

    def mark_active(self) -> None:
        """It has just been given what it waited for; its time counts from now on."""
        self._active_at = time.monotonic()

    def ask_to_stop(self, finish: bool) -> None:
        """See `Member.ask_to_stop`."""
        channel = self.channel
        if channel is None or not self.alive:
            return
        if not finish:
            channel.pace.stop()
            channel.wake()
        with suppress(OSError):
            channel.jobs.put(None)

    def signal_group(self, signum: int) -> None:
        """Signal the worker and all that it started."""
        process = self._process
        if process is not None:
            process.kill_group(signum)

    def expect_exit(self) -> None:
        """It has said that it exits; it is killed if it does not."""
        self._later(_LAST_WORDS_S, partial(self.signal_group, signal.SIGKILL))

    def check(self, now: float, waits_for_us: bool) -> WorkerStalled | None:
        """See `Member.check`."""
        if self._next is not None:
            if now >= self._next[0]:
                action, self._next = self._next[1], None
                action()
            if self._late is not None and self._next is None and self.error is None:
                return self._confirm(now, waits_for_us, self._late)
            return None
        limit = None if self.error is not None else self._limit_passed(now, waits_for_us)
        if limit is not None:
            self._ask_stack(limit)
        return None

    def _confirm(self, now: float, waits_for_us: bool, limit: str) -> WorkerStalled | None:
        """Its stack is here; but it may have moved on meanwhile, and was only slow."""
        if self._closing_late or self._limit_passed(now, waits_for_us) is not None:
            return self._stalled(now, limit)
        self._late = None
        assert self.channel is not None
        self.channel.read_stack()
        return None

    def is_late(self, now: float, waits_for_us: bool) -> bool:
        """See `Member.is_late`."""
        if not self.alive or self.error is not None:
            return False
        if self._late is not None:
            return True
        return self._next is None and self._limit_passed(now, waits_for_us) is not None

    def report_late(self, limit: str) -> None:
        """It has not exited in time: the next checks return the error.

        Args:
            limit: what it has exceeded, in words.
        """
        self._closing_late = True
        self._ask_stack(limit)

    def _ask_stack(self, limit: str) -> None:
        channel, pid = self.channel, self.pid
        if channel is None or pid is None:
            return
        self._late = limit
        # Not before it has begun: until its handler is there, the signal would end it.
        if worker.STACK_SIGNAL is not None and channel.activity.since:
            with suppress(ProcessLookupError):
                os.kill(pid, worker.STACK_SIGNAL)
        self._later(_STACK_S, lambda: None)

    def lost(self) -> int:
        """Steps that the process had executed and whose rows will never arrive."""
        # Stored may be one more than executed: a block may leave in the middle of the step
        # that fills it, and the step counts as executed only at its end.
        return max(0, self.account.executed - self.account.settled)

    def reap(self) -> WorkerError:
        """The process has exited: give back what it had; why it exited, as an error."""
        process, channel = self._process, self.channel
        assert process is not None and channel is not None
        process.wait_exit(1.0)
        process.kill_group(signal.SIGKILL)
        exitcode, pid = process.exitcode, process.pid
        stack = channel.read_stack()
        # Nothing may keep the channel, or its memory stays mapped.
        self.activity = channel.activity.copy()
        self._process = self.channel = self._next = None
        process.release()
        channel.close()
        doing = self.activity.doing.label
        return self.error or WorkerDied(self.index, pid, exitcode, doing, stack)

    def disown(self) -> None:
        """In a forked child: let go of what would keep the worker alive."""
        for channel in (self.channel, self._launching):
            if channel is not None:
                channel.close()

    @property
    def due(self) -> bool:
        """See `Member.due`."""
        return self._next is not None or self.state in ("starting", "restarting")

    @property
    def was_closing(self) -> bool:
        """See `Member.was_closing`."""
        return self.activity is not None and self.activity.doing is Doing.CLOSING

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._next = (time.monotonic() + seconds, action)

    def _limit_passed(self, now: float, waits_for_us: bool) -> str | None:
        """The limit that it has exceeded, in words."""
        channel, settings = self.channel, self._settings
        assert channel is not None
        if self.state == "starting":
            over = now - self.began > settings.start_limit_s
            return f"start_timeout is {settings.start_limit_s:g} s" if over else None
        limit = settings.step_timeout
        # It owes what is not settled: it may as well hang while it sends what it has executed.
        if limit is None or waits_for_us or not self.account.open:
            return None
        over = now - max(self._active_at, channel.activity.since) > limit
        return f"step_timeout is {limit:g} s" if over else None

    def _stalled(self, now: float, limit: str) -> WorkerStalled:
        channel = self.channel
        assert channel is not None
        began = max(self._active_at, channel.activity.since)
        label, stack = channel.activity.doing.label, channel.read_stack()
        error = WorkerStalled(self.index, self.pid, label, now - began, limit, stack)
        self.signal_group(signal.SIGTERM)
        self._later(TERMINATE_S, partial(self.signal_group, signal.SIGKILL))
        return error
