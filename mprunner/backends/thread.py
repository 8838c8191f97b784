"""Runs each runner in a thread of this process.

For simulators that release the GIL or wait; a simulator that computes under the GIL gets no
faster by threads.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from mprunner.activity import Doing
from mprunner.backends.local import Abandoned, LocalBackend, history_first
from mprunner.errors import ClosedError, WorkerError, WorkerStalled
from mprunner.experience import Array
from mprunner.ledger import Job

#: Seconds between two looks at what may have stalled, at most.
_CHECK_EVERY_S = 0.25
#: Where a runner waits for us, and not we for it.
_WAITING = (Doing.JOB_WAIT, Doing.PREDICTION_WAIT)


class ThreadBackend(LocalBackend):
    """A thread per runner, and one that serves their predictors and sees who is late.

    A thread cannot be ended: one that has stalled fails the pool under either policy, and is
    left behind at close, where it loses the right to write its stream.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._queues: list[queue.SimpleQueue[Job | None]] = [
            queue.SimpleQueue() for _ in self.runners
        ]
        self._requests: queue.SimpleQueue[tuple[int, Array] | None] = queue.SimpleQueue()
        self._answers: list[queue.SimpleQueue[Array | None]] = [
            queue.SimpleQueue() for _ in self.runners
        ]
        self._threads = [
            threading.Thread(
                target=self._main, args=(worker,), name=f"mprunner-runner-{worker}", daemon=True
            )
            for worker in range(len(self.runners))
        ]
        self._serving = threading.Thread(
            target=self._serve, name="mprunner-predictor", daemon=True
        )
        self._send_lock = threading.RLock()

    def start(self) -> None:
        """See `Backend.start`."""
        for thread in (self._serving, *self._threads):
            thread.start()
        policy = self.policy
        deadline = time.monotonic() + self.settings.start_limit_s
        self.ledger.wait(
            lambda: policy.start_error is not None or "starting" not in self.states, deadline
        )
        if policy.start_error is None and "starting" in self.states:
            limit = f"start_timeout is {self.settings.start_limit_s:g} s"
            policy.report(self._stalled(self.states.index("starting"), limit))
        if policy.start_error is not None:
            self.close(False)
            raise policy.start_error
        policy.started = True

    def send(self, worker: int) -> None:
        """See `Backend.send`."""
        account = self.accounts[worker]
        with self._send_lock:
            for job in account.unsent():
                self.paces[worker].send(job.end)
                # A job that is put twice, since an exception came before it counted as sent, is
                # executed once: see `run_job`.
                self._queues[worker].put(job)
                account.sent = job.end

    def is_own_thread(self) -> bool:
        """See `Backend.is_own_thread`."""
        current = threading.current_thread()
        return current is self._serving or current in self._threads

    def want_progress(self) -> None:
        """See `Backend.want_progress`."""
        for pace in self.paces:
            pace.want_progress()

    def close(self, finish: bool) -> None:
        """See `Backend.close`; a thread that hangs in a simulator is left behind."""
        self.policy.closing = True
        limit_s = self.settings.close_limit_s
        deadline = time.monotonic() + limit_s
        if not finish:
            self._abort()
        for jobs in self._queues:
            jobs.put(None)
        self._join(self._threads, deadline)
        late = [worker for worker, thread in enumerate(self._threads) if thread.is_alive()]
        errors = [self._stalled(worker, f"close_timeout is {limit_s:g} s") for worker in late]
        self._abort()
        self._join([*self._threads, self._serving], max(deadline, time.monotonic() + 0.1))
        for worker, account in enumerate(self.accounts):
            # First the right to write, so that nothing is stored that has been counted as lost.
            if self._threads[worker].is_alive():
                account.writer.release()
            account.lose_open()
            self.states[worker] = "closed"
        if finish:
            for error in errors:
                self.policy.report(error)

    def _abort(self) -> None:
        """Have runners end after the step that they are in."""
        self.aborting.set()
        for pace in self.paces:
            pace.stop()
        for answers in self._answers:
            answers.put(None)
        self._requests.put(None)

    def _join(self, threads: list[threading.Thread], deadline: float) -> None:
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                left = max(0.0, deadline - time.monotonic())
                thread.join(min(left, threading.TIMEOUT_MAX))

    def _main(self, worker: int) -> None:
        try:
            self.open(worker, partial(self._ask, worker) if self.server.serves(worker) else None)
        except WorkerError as error:
            return self.policy.report(error)
        self.ledger.notify()
        try:
            while (job := self._queues[worker].get()) is not None:
                self.run(worker, job)
        except (Abandoned, ClosedError):
            pass
        except BaseException as error:
            self.policy.report(error)
        with suppress(Abandoned):
            failure = self.close_player(worker)
            if failure is not None:
                self.policy.report(failure)

    def _ask(self, worker: int, states: Array) -> Array:
        self._requests.put((worker, states))
        answer = self._answers[worker].get()
        if answer is None:
            raise Abandoned
        return np.expand_dims(answer, 0)

    def _serve(self) -> None:
        limit_s = self.settings.step_timeout
        wait_s = None if limit_s is None else min(_CHECK_EVERY_S, limit_s / 4)
        while not self.aborting.is_set():
            batch: list[tuple[int, Array] | None] = []
            with suppress(queue.Empty):
                batch.append(self._requests.get(timeout=wait_s))
                while not self._requests.empty():
                    batch.append(self._requests.get())
            requests = {item[0]: item[1] for item in batch if item is not None}
            if len(requests) < len(batch):
                return
            try:
                self._answer(requests)
            except BaseException as error:
                self.policy.report(error)
                for answers in self._answers:
                    answers.put(None)
            if limit_s is not None:
                self._check_late(limit_s)

    def _answer(self, requests: dict[int, Array]) -> None:
        def fetch(worker: int, out: Array) -> None:
            out[...] = history_first(requests[worker])

        self.server.answer(
            {worker: self.num_actions(worker) for worker in requests},
            fetch,
            lambda worker, q: self._answers[worker].put(q.copy()),
        )

    def _check_late(self, limit_s: float) -> None:
        if self.policy.failed or not self.policy.started:
            return
        for worker, activity in enumerate(self.activities):
            working = self.states[worker] == "running" and self.accounts[worker].open > 0
            if working and activity.doing not in _WAITING and activity.seconds_now() > limit_s:
                self.policy.report(self._stalled(worker, f"step_timeout is {limit_s:g} s"))

    def _stalled(self, worker: int, limit: str) -> WorkerStalled:
        activity, ident = self.activities[worker], self._threads[worker].ident
        frame = None if ident is None else sys._current_frames().get(ident)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        return WorkerStalled(
            worker, None, activity.doing.label, activity.seconds_now(), limit, stack
        )
