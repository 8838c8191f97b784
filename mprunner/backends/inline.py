"""Runs the runners in the caller's thread: `step()` returns when the step is done."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mprunner.backends.local import LocalBackend, history_first
from mprunner.backends.serving import PredictionServer
from mprunner.errors import PredictorError, WorkerRaised
from mprunner.experience import Array


class InlineBackend(LocalBackend):
    """One runner after the other; for a single runner, for debugging, for comparison."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._server = PredictionServer(
            self.runners, self.recorder, self.settings.max_batch_size, True
        )

    def start(self) -> None:
        """See `Backend.start`."""
        try:
            for worker in range(len(self.runners)):
                serves = self._server.serves(worker)
                self.open(worker, partial(self._ask, worker) if serves else None)
        except BaseException:
            self.close(False)
            raise

    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """See `Backend.submit`; the steps are done on return."""
        self.jobs[worker].add(exploration, num_steps)
        self.paces[worker].send(num_steps)
        try:
            self.run(worker, exploration, num_steps)
        except KeyboardInterrupt:
            self._give_up(worker)
            raise
        except WorkerRaised as error:
            # A served predictor is the parent's, here as on every backend: no worker has failed.
            if isinstance(error.__cause__, PredictorError) and self._server.serves(worker):
                raise error.__cause__
            raise

    def _give_up(self, worker: int) -> None:
        """Ctrl-C: what is left of the job counts as lost, so that nobody waits for it."""
        loop, pace = self.loops[worker], self.paces[worker]
        if loop is not None and loop.break_off():
            self.memory.seal(worker)
        lost = self.jobs[worker].num_steps
        self.jobs[worker].land(lost)
        while pace.outstanding > 0:
            pace.done()
        self.recorder.add_lost(worker, lost)

    def close(self, finish: bool) -> None:
        """See `Backend.close`."""
        self.states = ["closed" for _ in self.runners]
        failures = [self.close_player(worker) for worker in range(len(self.runners))]
        for failure in failures:
            if failure is not None:
                self.fail(failure)

    def _ask(self, worker: int, states: Array) -> Array:
        answer: list[Array] = []

        def fetch(_: int, out: Array) -> None:
            out[...] = history_first(states)

        def reply(_: int, q: Array) -> None:
            answer.append(q)

        self._server.answer({worker: self.num_actions(worker)}, fetch, reply)
        return np.expand_dims(answer[0], 0)
