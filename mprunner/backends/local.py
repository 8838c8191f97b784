"""What the backends that stay in this process share: runners, blocks and weights boards."""

from __future__ import annotations

import time
import traceback
from functools import partial
from typing import Any

import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.backends.base import Backend, run_job
from mprunner.blocks import BlockWriter, LocalEmitter, block_rows
from mprunner.errors import WorkerRaised
from mprunner.experience import Array
from mprunner.predictors import LocalPredictor, Weights, WeightsBoard
from mprunner.runner import Loop
from mprunner.stats import WorkerStats


class LocalBackend(Backend):
    """Opens, steps and closes runners in this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loops: list[Loop | None] = [None for _ in self.runners]
        self.activities = [Activity() for _ in self.runners]
        self.boards: dict[int, WeightsBoard] = {}
        self.state = "starting"
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
        runner = self.runners[worker]
        emitter = LocalEmitter(
            partial(self.land, worker),
            block_rows(runner.state_shape, runner.dtype),
            runner.state_shape,
            runner.dtype,
        )
        try:
            self.loops[worker] = runner.open(
                BlockWriter(emitter),
                self.settings.seed(worker),
                activity=self.activities[worker],
                ask=ask,
                board=self.boards.get(id(runner.predictor)),
            )
        except (Exception, SystemExit) as error:
            raise self.raised(worker, error) from error

    def run(self, worker: int, exploration: float, num_steps: int) -> None:
        """Do one job; what it stored before a failure is kept."""
        loop = self.loops[worker]
        assert loop is not None
        try:
            run_job(loop, self.paces[worker], exploration, num_steps)
        except (Exception, SystemExit) as error:
            wrapped = self.raised(worker, error)
            loop.writer.flush()
            raise wrapped from error
        finally:
            loop.activity.enter(Doing.JOB_WAIT)

    def close_player(self, worker: int) -> WorkerRaised | None:
        """Close a runner's player, once; its failure is returned."""
        loop, self.loops[worker] = self.loops[worker], None
        if loop is None:
            return None
        try:
            loop.writer.flush()
            self.runners[worker].close()
        except (Exception, SystemExit) as error:
            return self.raised(worker, error)
        return None

    def raised(self, worker: int, error: BaseException) -> WorkerRaised:
        """`error` as the failure of `worker`."""
        return WorkerRaised(
            worker,
            self.activities[worker].doing.label,
            type(error).__name__,
            str(error),
            "".join(traceback.format_exception(error)),
        )

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """See `Backend.publish`."""
        self.boards[id(predictor)].publish(weights, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        return self.make_stats(worker, self.activities[worker], None, self.state, self._began)

    def num_actions(self, worker: int) -> int:
        """Of an open runner."""
        loop = self.loops[worker]
        assert loop is not None
        return loop.player.num_actions


def history_first(states: Array) -> Array:
    """``(history_len, *state_shape)`` from one state ``(1, *state_shape, history_len)``."""
    return np.moveaxis(states[0], -1, 0)
