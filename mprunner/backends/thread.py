"""Runs each runner in a thread of this process.

For simulators that release the GIL or wait; a simulator that computes under the GIL gets no
faster by threads.
"""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from mprunner.backends.local import Abandoned, LocalBackend, history_first
from mprunner.backends.serving import PredictionServer
from mprunner.errors import WorkerError, WorkerStalled
from mprunner.experience import Array

_Job = tuple[float, int]


class ThreadBackend(LocalBackend):
    """A thread per runner, and one that serves their predictors."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._server = PredictionServer(
            self.runners,
            self.recorder,
            self.settings.max_batch_size,
            self.settings.deterministic,
        )
        self._queues: list[queue.SimpleQueue[_Job | None]] = [
            queue.SimpleQueue() for _ in self.runners
        ]
        self._requests: queue.SimpleQueue[tuple[int, Array] | None] = queue.SimpleQueue()
        self._answers: list[queue.SimpleQueue[Array | None]] = [
            queue.SimpleQueue() for _ in self.runners
        ]
        self._threads: list[threading.Thread] = []
        self._serving: threading.Thread | None = None
        self._ready = 0
        self._start_failure: BaseException | None = None

    def start(self) -> None:
        """See `Backend.start`."""
        self._serving = self._thread(self._serve, "mprunner-predictor")
        for worker in range(len(self.runners)):
            name = f"mprunner-runner-{worker}"
            self._threads.append(self._thread(partial(self._main, worker), name))
        deadline = time.monotonic() + self.settings.start_timeout
        with self.recorder.changed:
            while self._ready < len(self.runners) and self._start_failure is None:
                if not self.recorder.changed.wait(deadline - time.monotonic()):
                    self._start_failure = self._stalled()
        if self._start_failure is not None:
            self.close(False)
            raise self._start_failure

    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """See `Backend.submit`."""
        self.jobs[worker].add(exploration, num_steps)
        self.paces[worker].send(num_steps)
        self._queues[worker].put((exploration, num_steps))

    def close(self, finish: bool) -> None:
        """See `Backend.close`; a thread that hangs in a simulator is left behind."""
        if not finish:
            self.hasty.set()
            for pace in self.paces:
                pace.stop()
        for jobs in self._queues:
            jobs.put(None)
        deadline = time.monotonic() + self.settings.close_timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.hasty.set()
        for pace in self.paces:
            pace.stop()
        for answers in self._answers:
            answers.put(None)
        self._requests.put(None)
        for thread in [*self._threads, *filter(None, [self._serving])]:
            thread.join(max(0.1, deadline - time.monotonic()))
        self.states = ["closed" for _ in self.runners]

    def _thread(self, main: Any, name: str) -> threading.Thread:
        thread = threading.Thread(target=main, name=name, daemon=True)
        thread.start()
        return thread

    def _main(self, worker: int) -> None:
        try:
            self.open(worker, partial(self._ask, worker) if self._server.serves(worker) else None)
        except WorkerError as error:
            with self.recorder.changed:
                self._start_failure = self._start_failure or error
                self.recorder.changed.notify_all()
            return
        with self.recorder.changed:
            self._ready += 1
            self.recorder.changed.notify_all()
        try:
            while (job := self._queues[worker].get()) is not None:
                self.run(worker, *job)
        except Abandoned:
            pass
        except BaseException as error:
            self.fail(error)
        failure = self.close_player(worker)
        if failure is not None:
            self.fail(failure)

    def _ask(self, worker: int, states: Array) -> Array:
        self._requests.put((worker, states))
        answer = self._answers[worker].get()
        if answer is None:
            raise Abandoned
        return np.expand_dims(answer, 0)

    def _serve(self) -> None:
        while True:
            batch = [self._requests.get()]
            while not self._requests.empty():
                batch.append(self._requests.get())
            requests = {item[0]: item[1] for item in batch if item is not None}
            if len(requests) < len(batch):
                return
            try:
                self._answer(requests)
            except BaseException as error:
                self.fail(error)
                for answers in self._answers:
                    answers.put(None)

    def _answer(self, requests: dict[int, Array]) -> None:
        def fetch(worker: int, out: Array) -> None:
            out[...] = history_first(requests[worker])

        self._server.answer(
            {worker: self.num_actions(worker) for worker in requests},
            fetch,
            lambda worker, q: self._answers[worker].put(q.copy()),
        )

    def _stalled(self) -> WorkerStalled:
        worker = next(i for i, loop in enumerate(self.loops) if loop is None)
        activity = self.activities[worker]
        return WorkerStalled(
            worker,
            None,
            activity.doing.label,
            time.monotonic() - activity.since,
            f"start_timeout is {self.settings.start_timeout} s",
            "",
        )
