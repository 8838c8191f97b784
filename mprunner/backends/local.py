"""What the backends that stay in this process share: runners, their replacement, weights.

Owns the failure policy of these backends: a player that raises is closed and made anew. Nothing
is lost with it, since what it has stored is landed first.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.backends.base import Backend, run_job
from mprunner.backends.failure import in_words, tell_restart
from mprunner.backends.policy import RestartBudget
from mprunner.blocks import BlockWriter, LocalEmitter, block_rows
from mprunner.errors import PredictorError, WorkerRaised
from mprunner.experience import Array
from mprunner.predictors import LocalPredictor, Weights, WeightsBoard
from mprunner.runner import Loop
from mprunner.stats import WorkerStats

_log = logging.getLogger("mprunner")


class Abandoned(BaseException):
    """The pool has failed or closes: who waits for it gets nothing more.

    Not an Exception, which a user's `act` may catch.
    """


class LocalBackend(Backend):
    """Opens, steps, replaces and closes runners in this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings = self.settings
        self.loops: list[Loop | None] = [None for _ in self.runners]
        self.activities = [Activity() for _ in self.runners]
        self.boards: dict[int, WeightsBoard] = {}
        self.states = ["starting" for _ in self.runners]
        self.hasty = threading.Event()  # no job is begun any more
        self._asks: list[Any] = [None for _ in self.runners]
        self._starts = [0 for _ in self.runners]
        self._budgets = [
            RestartBudget(settings.max_restarts, settings.restart_window_s) for _ in self.runners
        ]
        self._began = time.monotonic()
        for runner in self.runners:
            predictor = runner.predictor
            if isinstance(predictor, LocalPredictor) and id(predictor) not in self.boards:
                size = WeightsBoard.size_bytes(predictor.layout)
                board = WeightsBoard(predictor.layout, bytearray(size))
                board.publish(predictor.weights, 0)
                self.boards[id(predictor)] = board

    def open(self, worker: int, ask: Any) -> None:
        """Make a runner's player and begin; `ask` serves its predictor."""
        self._asks[worker] = ask
        self._open(worker)
        self.states[worker] = "running"

    def run(self, worker: int, exploration: float, num_steps: int) -> None:
        """Do one job; what it stored before a failure is kept."""
        pace = self.paces[worker]
        end = pace.executed + num_steps
        while True:
            try:
                return self._run(worker, exploration, end - pace.executed)
            except WorkerRaised as error:
                # The step in which it raised may have been stored, and not yet been counted.
                while pace.executed < self.recorder.landed[worker]:
                    pace.done()
                self._replace(worker, error)

    def close_player(self, worker: int) -> WorkerRaised | None:
        """Close a runner's player, once; its failure is returned."""
        loop, self.loops[worker] = self.loops[worker], None
        if loop is None:
            return None
        try:
            loop.writer.flush()
            self.runners[worker].close()
        except BaseException as error:
            return self._raised(worker, error)
        return None

    def _open(self, worker: int) -> None:
        runner = self.runners[worker]
        emitter = LocalEmitter(
            partial(self.land, worker),
            block_rows(runner.state_shape, runner.dtype),
            runner.state_shape,
            runner.dtype,
        )
        seed = self.settings.seed(worker, self._starts[worker])
        self._starts[worker] += 1
        try:
            self.loops[worker] = runner.open(
                BlockWriter(emitter),
                seed,
                activity=self.activities[worker],
                ask=self._asks[worker],
                board=self.boards.get(id(runner.predictor)),
            )
        except BaseException as error:
            raise self._raised(worker, error) from error

    def _run(self, worker: int, exploration: float, num_steps: int) -> None:
        loop = self.loops[worker]
        assert loop is not None
        try:
            run_job(loop, self.paces[worker], exploration, num_steps)
        except BaseException as error:
            wrapped = self._raised(worker, error)
            loop.writer.flush()
            raise wrapped from error
        finally:
            loop.activity.enter(Doing.JOB_WAIT)

    def _replace(self, worker: int, error: WorkerRaised) -> None:
        """A new player for one that has raised; raises `error` if the policy has none."""
        wait_s = self._may_restart(worker, error)
        while wait_s is not None:
            failure = self.close_player(worker)
            if failure is not None:
                _log.warning("a further failure: %s", failure)
            self.memory.seal(worker)
            self.states[worker] = "restarting"
            self.recorder.add_restart(worker, 0)
            tell_restart(self.settings, error, wait_s)
            if self.hasty.wait(wait_s):
                raise Abandoned
            try:
                self._open(worker)
            except WorkerRaised as again:
                error = again
                wait_s = self._may_restart(worker, error)
                continue
            self.states[worker] = "running"
            return
        self.states[worker] = "failed"
        raise error

    def _may_restart(self, worker: int, error: WorkerRaised) -> float | None:
        """Seconds to wait before it is replaced; None if it may not be."""
        served = self._asks[worker] is not None
        if self.settings.on_failure != "restart" or (
            served and isinstance(error.__cause__, PredictorError)
        ):
            return None
        return self._budgets[worker].spend(time.monotonic())

    def _raised(self, worker: int, error: BaseException) -> WorkerRaised:
        """`error` as the failure of `worker`; what is none goes on its way."""
        ctrl_c = isinstance(error, KeyboardInterrupt)
        if isinstance(error, Abandoned) or (
            ctrl_c and threading.current_thread() is threading.main_thread()
        ):
            raise error
        return WorkerRaised(worker, self.activities[worker].doing.label, *in_words(error))

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`."""
        self.boards[id(predictor)].publish(weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        activity, state = self.activities[worker], self.states[worker]
        return self.make_stats(worker, activity, None, state, self._began)

    def num_actions(self, worker: int) -> int:
        """Of an open runner."""
        loop = self.loops[worker]
        assert loop is not None
        return loop.player.num_actions


def history_first(states: Array) -> Array:
    """``(history_len, *state_shape)`` from one state ``(1, *state_shape, history_len)``."""
    return np.moveaxis(states[0], -1, 0)
