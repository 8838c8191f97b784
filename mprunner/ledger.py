"""How many steps are where, per worker, and the first failure of a pool.

Each count is one assignment of an absolute number, so that an exception which is raised into a
thread between any two lines (Ctrl-C, a time-out) leaves all of them true.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mprunner.pace import Pace
from mprunner.replay.streams import StreamWriter

_log = logging.getLogger("mprunner")
#: Seconds after which a wait looks again by itself: the cells of a `Pace` have no lock.
RECHECK_S = 0.05


class Job(NamedTuple):
    """Steps asked of one worker by one message.

    Attributes:
        exploration: epsilon of the steps.
        num_steps: at least 1.
        end: steps asked of the worker up to and with this job; names the job.
        asked_at: by `time.monotonic`.
    """

    exploration: float
    num_steps: int
    end: int
    asked_at: float


class Account:
    """The steps of one worker: asked = stored + lost + open.

    Args:
        writer: of the worker's stream; it counts the stored steps as it stores them.

    Attributes:
        lost: steps that will never be stored.
        sent: how many of the steps asked for have been sent to the worker that runs now.
    """

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self.lost = 0
        self.sent = 0
        # The newest job stays, since it has the number of steps asked for.
        self._jobs = deque([Job(1.0, 0, 0, 0.0)])
        self._progress: tuple[int, Pace | None] = 0, None

    @property
    def asked(self) -> int:
        """Steps asked for."""
        return self._jobs[-1].end

    @property
    def stored(self) -> int:
        """Steps in the replay memory."""
        return self.writer.num_steps

    @property
    def settled(self) -> int:
        """Steps that are stored or lost; the worker's next block continues from here."""
        return self.writer.num_steps + self.lost

    @property
    def open(self) -> int:
        """Steps asked for that are neither stored nor lost."""
        return self._jobs[-1].end - self.writer.num_steps - self.lost

    @property
    def executed(self) -> int:
        """Steps executed, or lost."""
        base, pace = self._progress
        return base if pace is None else base + pace.executed

    @property
    def outstanding(self) -> int:
        """Steps asked for and not yet executed."""
        base, pace = self._progress
        left = self._jobs[-1].end - base
        return max(0, left if pace is None else left - pace.executed)

    def ask(self, exploration: float, num_steps: int) -> None:
        """Add a job; the append is the moment from which it counts."""
        jobs = self._jobs
        jobs.append(Job(exploration, num_steps, jobs[-1].end + num_steps, time.monotonic()))

    def begin(self, pace: Pace | None) -> None:
        """The worker starts (None: has exited): what is not settled is to be sent again."""
        base = self.settled
        self.sent = base
        self._progress = base, pace

    @property
    def base(self) -> int:
        """Steps that were settled when the worker started; its own count begins there."""
        return self._progress[0]

    def jobs(self, after: int) -> list[Job]:
        """Jobs, or parts of jobs, beyond the first `after` steps; oldest first."""
        jobs = [job for job in list(self._jobs) if job.end > after]
        if jobs and jobs[0].end - after < jobs[0].num_steps:
            jobs[0] = jobs[0]._replace(num_steps=jobs[0].end - after)
        return jobs

    def unsent(self) -> Sequence[Job]:
        """What the worker that runs now has not been sent, oldest first."""
        newest, sent = self._jobs[-1], self.sent
        if newest.end == sent:
            return ()
        if newest.end - newest.num_steps == sent:  # nearly always
            return (newest,)
        return self.jobs(sent)

    @property
    def num_jobs(self) -> int:
        """Jobs that have steps which are not settled."""
        return len(self._jobs) - (self._jobs[0].end <= self.settled)

    def ages_s(self, num_steps: int, now: float) -> list[tuple[float, int]]:
        """(seconds since it was asked for, steps) of the jobs of the next steps to be settled."""
        ages, at = [], self.settled
        stop = at + num_steps
        for job in list(self._jobs):
            end = job.end
            if end > at:
                if end >= stop:
                    ages.append((now - job.asked_at, stop - at))
                    break
                ages.append((now - job.asked_at, end - at))
                at = end
        return ages

    def prune(self) -> None:
        """Drop jobs that are settled."""
        jobs, settled = self._jobs, self.settled
        while len(jobs) > 1 and jobs[0].end <= settled:
            jobs.popleft()

    def lose(self, num_steps: int) -> None:
        """So many steps more will never be stored."""
        self.lost += num_steps

    def lose_sent(self) -> None:
        """Whatever has been sent and is open will never be stored."""
        self.lost = max(self.lost, self.sent - self.stored)

    def lose_open(self) -> int:
        """Whatever is open will never be stored; returns how many steps that is."""
        lost = self.open
        self.lost = self.asked - self.stored
        return lost


class Ledger:
    """The accounts of a pool's workers.

    Args:
        writers: one per worker.

    Attributes:
        changed: notified after each stored block, loss, start, exit and failure.
        accounts: one per worker.
        failure: the first; raised again by every later call of the manager.
    """

    def __init__(self, writers: Sequence[StreamWriter]) -> None:
        self.changed = threading.Condition()
        self.accounts = [Account(writer) for writer in writers]
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Keep the first failure, log the others."""
        with self.changed:
            first = self.failure is None
            if first:
                self.failure = error
            self.changed.notify_all()
        # Not under the lock: a handler of the user's may ask for statistics.
        if not first:
            _log.warning("a further failure: %s", error)

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def notify(self) -> None:
        """Wake whoever waits for progress."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until `condition` holds; False if it does not at `deadline` (monotonic)."""
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, RECHECK_S))
        return True
