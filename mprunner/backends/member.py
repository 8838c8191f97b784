"""One worker as the parent sees it: its process, its channel, how far it is and how it ends.

Owns starting, stopping and watching a single process. Knows nothing of the other workers, of
rows or of what a failure means for the pool.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from mprunner.activity import Activity
from mprunner.backends import launch, worker
from mprunner.backends.base import JobLog, Settings
from mprunner.backends.channel import Channel, ChannelSpec
from mprunner.backends.policy import RestartBudget
from mprunner.errors import WorkerDied, WorkerError, WorkerStalled

#: Seconds for a fault handler to write a stack; for SIGTERM to do its work.
_STACK_S = 0.2
TERMINATE_S = 0.5
#: Seconds for a worker that has said why it fails to close its player.
_LAST_WORDS_S = 1.0


class Member:
    """Worker `index` of a pool, through all its restarts.

    Attributes:
        state: "starting", "running", "restarting", "failed" or "closed".
        channel: of the process that runs now.
        activity: what the process that runs now does, or the last one did.
        jobs: what it was asked for and has not landed.
        landed: steps of this process that have landed.
        num_actions: of its player, once it is ready.
        error: why it fails, known before its process has ended.
        leaving: it has closed its player and said so.
        told: its failure has been reported.
    """

    def __init__(self, index: int, spec: ChannelSpec, settings: Settings, method: str) -> None:
        self.index = index
        self.state = "starting"
        self.jobs = JobLog()
        self.landed = 0
        self.num_actions = 0
        self.error: WorkerError | None = None
        self.leaving = False
        self.told = False
        self.restarts = 0
        self.restart_at = 0.0
        self.began = 0.0
        self.budget = RestartBudget(settings.max_restarts, settings.restart_window_s)
        self.channel: Channel | None = None
        self.activity: Activity | None = None
        self._spec = spec
        self._settings = settings
        self._method = method
        self._process: launch.WorkerProcess | None = None
        self._launching: tuple[launch.WorkerProcess, Channel] | None = None
        self._not_sent = 0  # steps asked for while there is no process
        self._touched = 0.0
        self._late: str | None = None
        self._closing = False
        self._next: tuple[float, Callable[[], None]] | None = None

    def start(self, make_spec: Callable[[int], worker.WorkerSpec]) -> None:
        """Start a process; jobs that have not landed are sent to it.

        Args:
            make_spec: what it is started with, by the number of restarts.
        """
        channel = Channel(self._spec)
        process = launch.WorkerProcess(
            target=worker.main,
            args=(channel, make_spec(self.restarts)),
            name=f"mprunner-worker-{self.index}",
        )
        self.error, self.landed, self.leaving, self.told = None, 0, False, False
        self._next, self._late = None, None
        self._launching = process, channel
        try:
            process.launch(self._method)
        except BaseException:
            channel.close()
            raise
        finally:
            self._launching = None
        channel.started()
        self.began = self._touched = time.monotonic()
        for exploration, num_steps in self.jobs.left():
            self._send(channel, exploration, num_steps)
        # Others read them without the lock, so they change when all of it is there.
        self.channel, self.activity, self.state = channel, channel.activity, "starting"
        self._process = process

    @property
    def alive(self) -> bool:
        """It has a process that has not been seen to end."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return None if process is None else process.pid

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process has ended."""
        assert self._process is not None
        return self._process.sentinel

    def submit(self, exploration: float, num_steps: int) -> None:
        """Add a job, and send it unless the worker is about to be replaced."""
        idle = not self.jobs
        self.jobs.add(exploration, num_steps)
        if not self.alive:
            self._not_sent += num_steps
            return
        assert self.channel is not None
        if idle:
            self._touched = time.monotonic()
        self._send(self.channel, exploration, num_steps)

    def can_submit(self) -> bool:
        """False while its queue is full."""
        channel = self.channel
        if channel is not None:
            return not channel.jobs.full()
        return len(self.jobs) < self._spec.max_jobs

    @property
    def outstanding(self) -> int:
        """Steps asked for and not yet executed."""
        # Any thread asks, without the lock; so this reads counters and no job log.
        channel = self.channel
        return self._not_sent if channel is None else channel.pace.outstanding

    def want_progress(self) -> None:
        """See `Backend.want_progress`."""
        channel = self.channel
        if channel is not None:
            channel.pace.want_progress()

    def touch(self) -> None:
        """It has just been given what it waited for; from now on it is on its own."""
        self._touched = time.monotonic()

    def ask_to_stop(self, finish: bool) -> None:
        """Send the last job; without `finish`, have those before it left out."""
        channel = self.channel
        if channel is None or not self.alive:
            return
        if not finish:
            channel.pace.stop()
            channel.wake()
        with suppress(OSError):
            channel.jobs.put_over(None)

    def signal_group(self, signum: int) -> None:
        """Signal the worker and all that it started."""
        process = self._process
        if process is not None:
            process.kill_group(signum)

    def expect_end(self) -> None:
        """It has said that it ends; it is helped after a while."""
        self._later(_LAST_WORDS_S, partial(self.signal_group, signal.SIGKILL))

    def look(self, now: float, waits_for_us: bool) -> WorkerStalled | None:
        """Do what is due; tell once if the worker has stalled.

        Args:
            now: by `time.monotonic`.
            waits_for_us: it waits for a prediction that the parent has not given.
        """
        if not self.alive:
            return None
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
        if self._closing or self._limit_passed(now, waits_for_us) is not None:
            return self._stalled(now, limit)
        self._late = None
        assert self.channel is not None
        self.channel.read_stack()
        return None

    def is_late(self, now: float, waits_for_us: bool) -> bool:
        """It seems to have stalled, as far as is known of what it has sent."""
        if not self.alive or self.error is not None:
            return False
        if self._late is not None:
            return True
        return self._next is None and self._limit_passed(now, waits_for_us) is not None

    def too_late(self, limit: str) -> None:
        """It has not ended in time: have that told with the next looks.

        Args:
            limit: what it has exceeded, in words.
        """
        self._closing = True
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

    def settle(self) -> int:
        """The process has ended and what it sent is taken in: take its counts to the log.

        Returns:
            Steps that it had executed and whose rows will never arrive.
        """
        assert self.channel is not None
        # Landed may be one more than executed: a block may leave in the middle of the step
        # that fills it, and the step counts as executed only at its end.
        lost = max(0, self.channel.pace.executed - self.landed)
        self.jobs.land(lost)
        self._not_sent = self.jobs.num_steps
        return lost

    def reap(self) -> WorkerError:
        """The process has ended: give back what it had; why it ended, as an error."""
        process, channel = self._process, self.channel
        assert process is not None and channel is not None
        process.wait_gone(1.0)
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

    def forget(self, own: launch.WorkerProcess | None) -> None:
        """In a forked child: let go of what would keep the worker alive.

        Args:
            own: what the child was forked for; it needs its channel.
        """
        if self.channel is not None:
            self.channel.close()
        if self._launching is not None and self._launching[0] is not own:
            self._launching[1].close()

    @property
    def due(self) -> bool:
        """Something is to be done soon without a message or a death."""
        return self._next is not None or self.state in ("starting", "restarting")

    def _send(self, channel: Channel, exploration: float, num_steps: int) -> None:
        channel.pace.send(num_steps)
        try:
            channel.jobs.put_over((exploration, num_steps))
        except OSError:
            pass  # it is gone; its sentinel tells, and the job is in the log

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._next = (time.monotonic() + seconds, action)

    def _limit_passed(self, now: float, waits_for_us: bool) -> str | None:
        """The limit that it has exceeded, in words."""
        channel, settings = self.channel, self._settings
        assert channel is not None
        if self.state == "starting":
            over = now - self.began > settings.start_timeout
            return f"start_timeout is {settings.start_timeout:g} s" if over else None
        limit = settings.step_timeout
        # It owes what has not landed: it may as well hang while it sends what it has done.
        if limit is None or waits_for_us or not self.jobs:
            return None
        over = now - max(self._touched, channel.activity.since) > limit
        return f"step_timeout is {limit:g} s" if over else None

    def _stalled(self, now: float, limit: str) -> WorkerStalled:
        channel = self.channel
        assert channel is not None
        began = max(self._touched, channel.activity.since)
        label, stack = channel.activity.doing.label, channel.read_stack()
        error = self.error = WorkerStalled(
            self.index, self.pid, label, now - began, limit, stack
        )
        self.signal_group(signal.SIGTERM)
        self._later(TERMINATE_S, partial(self.signal_group, signal.SIGKILL))
        return error
