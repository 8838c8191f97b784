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

from mprunner.backends import launch, worker
from mprunner.backends.base import JobLog, Settings
from mprunner.backends.channel import Channel, ChannelSpec
from mprunner.backends.policy import RestartBudget
from mprunner.errors import WorkerDied, WorkerError, WorkerStalled

#: Seconds for a fault handler to write a stack; for SIGTERM to do its work.
_STACK_S = 0.2
_TERMINATE_S = 0.5
#: Seconds for a worker that has said why it fails to close its player.
_LAST_WORDS_S = 1.0


class Member:
    """Worker `index` of a pool, through all its restarts.

    Attributes:
        state: "starting", "running", "restarting", "failed" or "closed".
        channel: of the process that runs now, or ran last.
        jobs: what it was asked for and has not landed.
        landed: steps of this process that have landed.
        num_actions: of its player, once it is ready.
        error: why it fails, known before its process has ended.
        leaving: it was sent its last job and has said that it is done.
    """

    def __init__(self, index: int, spec: ChannelSpec, settings: Settings, method: str) -> None:
        self.index = index
        self.state = "starting"
        self.jobs = JobLog()
        self.landed = 0
        self.num_actions = 0
        self.error: WorkerError | None = None
        self.leaving = False
        self.restarts = 0
        self.restart_at = 0.0
        self.began = 0.0
        self.budget = RestartBudget(settings.max_restarts, settings.restart_window_s)
        self.channel: Channel | None = None
        self._spec = spec
        self._settings = settings
        self._method = method
        self._process: launch.WorkerProcess | None = None
        self._touched = 0.0
        self._asked_stack = False
        self._next: tuple[float, Callable[[], None]] | None = None

    def start(self, make_spec: Callable[[int], worker.WorkerSpec]) -> None:
        """Start a process; jobs that have not landed are sent to it.

        Args:
            make_spec: what it is started with, by the number of restarts.
        """
        channel = self.channel = Channel(self._spec)
        process = self._process = launch.WorkerProcess(
            target=worker.main,
            args=(channel, make_spec(self.restarts)),
            name=f"mprunner-worker-{self.index}",
        )
        self.state, self.error, self.landed = "starting", None, 0
        self._next, self._asked_stack = None, False
        self.began = self._touched = time.monotonic()
        try:
            process.launch(self._method)
        except BaseException:
            self._process = None
            channel.close()
            raise
        channel.started()
        for exploration, num_steps in self.jobs.left():
            self._send(channel, exploration, num_steps)

    @property
    def alive(self) -> bool:
        """It has a process that has not been seen to end."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process has ended."""
        assert self._process is not None
        return self._process.sentinel

    def submit(self, exploration: float, num_steps: int) -> None:
        """Add a job, and send it unless the worker is about to be replaced."""
        self.jobs.add(exploration, num_steps)
        if self.channel is not None and self.alive:
            if not self.channel.pace.outstanding:
                self._touched = time.monotonic()
            self._send(self.channel, exploration, num_steps)

    def can_submit(self) -> bool:
        """False while its queue is full."""
        if self.alive and self.channel is not None:
            return not self.channel.jobs.full()
        return len(self.jobs) < self._spec.max_jobs

    @property
    def outstanding(self) -> int:
        """Steps asked for and not yet executed."""
        if self.alive and self.channel is not None:
            return self.channel.pace.outstanding
        return self.jobs.num_steps

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
            channel.answer(b"")
        with suppress(OSError):
            channel.jobs.put_last(None)

    def signal_group(self, signum: int) -> None:
        """Signal the worker and all that it started."""
        if self._process is not None:
            self._process.kill_group(signum)

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
            if self._asked_stack and self._next is None and self.error is None:
                return self._stalled(now)
            return None
        if self.error is None and self._limit_passed(now, waits_for_us):
            self._asked_stack = True
            if worker.STACK_SIGNAL is not None and self.state == "running":
                with suppress(ProcessLookupError):
                    os.kill(self.pid or 0, worker.STACK_SIGNAL)
            self._later(_STACK_S, lambda: None)
        return None

    def reap(self) -> WorkerError:
        """The process has ended: give back what it had; why it ended, as an error."""
        process, channel = self._process, self.channel
        assert process is not None and channel is not None
        process.wait_gone(1.0)
        process.kill_group(signal.SIGKILL)
        exitcode, pid = process.exitcode, process.pid
        stack = channel.read_stack()
        process.release()
        self._process = None
        self._next = None
        channel.close()
        doing = channel.activity.doing.label
        return self.error or WorkerDied(self.index, pid, exitcode, doing, stack)

    @property
    def due(self) -> bool:
        """Something is to be done soon without a message or a death."""
        return self._next is not None or self.state in ("starting", "restarting")

    def _send(self, channel: Channel, exploration: float, num_steps: int) -> None:
        channel.pace.send(num_steps)
        with suppress(OSError):  # it is gone; its sentinel tells, and the job is in the log
            channel.jobs.put((exploration, num_steps), block=False)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._next = (time.monotonic() + seconds, action)

    def _limit_passed(self, now: float, waits_for_us: bool) -> bool:
        channel = self.channel
        assert channel is not None
        if self.state == "starting":
            return now - self.began > self._settings.start_timeout
        limit = self._settings.step_timeout
        if limit is None or waits_for_us or not channel.pace.outstanding:
            return False
        return now - max(self._touched, channel.activity.since) > limit

    def _stalled(self, now: float) -> WorkerStalled:
        channel = self.channel
        assert channel is not None
        starting = self.state == "starting"
        limit = self._settings.start_timeout if starting else self._settings.step_timeout
        error = self.error = WorkerStalled(
            self.index,
            self.pid,
            channel.activity.doing.label,
            now - max(self._touched, channel.activity.since),
            f"{'start' if starting else 'step'}_timeout is {limit:g} s",
            channel.read_stack(),
        )
        self.signal_group(signal.SIGTERM)
        self._later(_TERMINATE_S, partial(self.signal_group, signal.SIGKILL))
        return error
