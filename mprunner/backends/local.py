"""Runs runners in this process: in the caller's thread, and what the threads share with that."""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.backends.base import Backend
from mprunner.backends.failure import FailurePolicy, in_words
from mprunner.backends.serving import PredictionServer
from mprunner.rows import BlockWriter, LocalEmitter, block_rows
from mprunner.errors import ClosedError, PredictorError, WorkerRaised
from mprunner.experience import Array
from mprunner.ledger import Job
from mprunner.pace import Pace, run_job
from mprunner.predictors import LocalPredictor
from mprunner.runner import Loop
from mprunner.stats import WorkerStats
from mprunner.weights import WeightsBoard

_log = logging.getLogger("mprunner")


class Abandoned(BaseException):
    """The pool has failed or closes: who waits for it gets nothing more.

    Not an Exception, which a user's `act` may catch.
    """


class LocalBackend(Backend):
    """Opens, steps, replaces and closes runners in this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        num_workers = len(self.runners)
        settings = self.settings
        self.policy = FailurePolicy(settings, self.ledger, self.recorder, num_workers)
        self.server = PredictionServer(
            self.runners, self.recorder, settings.max_batch_size, settings.deterministic
        )
        self.loops: list[Loop | None] = [None] * num_workers
        self.paces = [Pace() for _ in self.runners]
        self.activities = [Activity() for _ in self.runners]
        self.boards: dict[int, WeightsBoard] = {}
        self.states = ["starting"] * num_workers
        self.aborting = threading.Event()  # no job is begun any more
        self._asks: list[Any] = [None] * num_workers
        self._starts = [0] * num_workers
        self._began = time.monotonic()
        for account, pace in zip(self.accounts, self.paces):
            account.begin(pace)
        for runner in self.runners:
            predictor = runner.predictor
            if isinstance(predictor, LocalPredictor) and id(predictor) not in self.boards:
                layout = predictor.layout
                board = WeightsBoard(layout, bytearray(WeightsBoard.size_bytes(layout)))
                board.publish(layout.pack(predictor.weights), 0)
                self.boards[id(predictor)] = board

    def open(self, worker: int, ask: Any) -> None:
        """Make a runner's player and begin; `ask` serves its predictor."""
        self._asks[worker] = ask
        self._open(worker)
        self.states[worker] = "running"

    def run(self, worker: int, job: Job) -> None:
        """Execute one job; what was stored before a failure is kept."""
        while True:
            try:
                return self._run(worker, job)
            except WorkerRaised as error:
                # The step in which it raised may have been stored, and not yet been counted.
                pace = self.paces[worker]
                while pace.executed < self.accounts[worker].settled:
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
        except ClosedError:
            raise Abandoned from None  # left behind: its stream has another writer by now
        except BaseException as error:
            return self._raised(worker, error)
        return None

    def _open(self, worker: int) -> None:
        runner, writer = self.runners[worker], self.accounts[worker].writer
        emitter = LocalEmitter(
            partial(self.store, worker),
            block_rows(runner.state_shape, runner.dtype),
            runner.state_shape,
            runner.dtype,
        )
        seed = self.settings.seed_of(worker, self._starts[worker])
        self._starts[worker] += 1
        try:
            self.loops[worker] = runner.open(
                BlockWriter(emitter, writer.num_blocks),
                seed,
                activity=self.activities[worker],
                ask=self._asks[worker],
                board=self.boards.get(id(runner.predictor)),
            )
        except BaseException as error:
            raise self._raised(worker, error) from error

    def _run(self, worker: int, job: Job) -> None:
        loop = self.loops[worker]
        assert loop is not None
        try:
            run_job(loop, self.paces[worker], job.exploration, job.end)
        except BaseException as error:
            wrapped = self._raised(worker, error)
            loop.writer.flush()
            raise wrapped from error
        finally:
            loop.activity.enter(Doing.JOB_WAIT)

    def _replace(self, worker: int, error: WorkerRaised) -> None:
        """Make a new player for one that has raised; raise `error` if the policy has none."""
        wait_s = self._replace_in(worker, error)
        while wait_s is not None:
            failure = self.close_player(worker)
            if failure is not None:
                _log.warning("a further failure: %s", failure)
            self.accounts[worker].writer.seal()
            self.states[worker] = "restarting"
            if self.aborting.wait(wait_s):
                raise Abandoned
            try:
                self._open(worker)
            except WorkerRaised as again:
                error = again
                wait_s = self._replace_in(worker, error)
                continue
            self.states[worker] = "running"
            return
        self.states[worker] = "failed"
        raise error

    def _replace_in(self, worker: int, error: WorkerRaised) -> float | None:
        """Seconds to wait before it is replaced; None if it is not."""
        if self._asks[worker] is not None and isinstance(error.__cause__, PredictorError):
            return None
        return self.policy.replace_in(worker, error)

    def _raised(self, worker: int, error: BaseException) -> WorkerRaised:
        """`error` as the failure of `worker`; what is none of its own is raised as it is."""
        ctrl_c = isinstance(error, KeyboardInterrupt)
        if isinstance(error, (Abandoned, ClosedError)) or (
            ctrl_c and threading.current_thread() is threading.main_thread()
        ):
            raise error
        return WorkerRaised(worker, self.activities[worker].doing.label, *in_words(error))

    def publish(self, predictor: LocalPredictor, packed: bytearray, version: int) -> None:
        """See `Backend.publish`."""
        self.boards[id(predictor)].publish(packed, version)

    def worker_stats(self, worker: int) -> WorkerStats:
        """See `Backend.worker_stats`."""
        activity, state = self.activities[worker], self.states[worker]
        return self.make_stats(worker, activity, None, state, self._began)

    def num_actions(self, worker: int) -> int:
        """Of an open runner."""
        loop = self.loops[worker]
        assert loop is not None
        return loop.player.num_actions


class InlineBackend(LocalBackend):
    """Runs the runners in the caller's thread: `send` returns when the steps are executed.

    For a single runner, for debugging, for comparison.
    """

    _sender = 0  # the thread in which a player runs now

    def start(self) -> None:
        """See `Backend.start`."""
        try:
            for worker in range(len(self.runners)):
                serves = self.server.serves(worker)
                self.open(worker, partial(self._ask, worker) if serves else None)
            self.policy.started = True
        except BaseException:
            self.close(False)
            raise

    def send(self, worker: int) -> None:
        """See `Backend.send`."""
        account = self.accounts[worker]
        if account.sent > account.settled:  # an exception came while the last one was handled
            self._break_off(worker)
        try:
            for job in account.unsent():
                account.sent = job.end
                self.paces[worker].send(job.end)
                self._sender = threading.get_ident()
                self.run(worker, job)
        except WorkerRaised as error:
            # A served predictor is the parent's, here as on every backend: no worker has failed.
            if isinstance(error.__cause__, PredictorError) and self.server.serves(worker):
                raise error.__cause__
            raise
        except BaseException:
            self._break_off(worker)
            raise
        finally:
            self._sender = 0

    def is_own_thread(self) -> bool:
        """See `Backend.is_own_thread`: a player or predictor runs in the caller's thread."""
        if self._sender != threading.get_ident():
            return False
        # An exception may have kept `send` from taking its mark back: is it really running?
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is InlineBackend.send.__code__:
                return True
            frame = frame.f_back
        self._sender = 0
        return False

    def _break_off(self, worker: int) -> None:
        """Ctrl-C, or the like, ended a job: what is left of it is lost."""
        loop, account, pace = self.loops[worker], self.accounts[worker], self.paces[worker]
        if loop is not None and loop.break_off():
            account.writer.seal()
        account.lose_sent()
        while pace.executed < account.sent:
            pace.done()
        self.ledger.notify()

    def close(self, finish: bool) -> None:
        """See `Backend.close`."""
        self.states = ["closed" for _ in self.runners]
        failures = [self.close_player(worker) for worker in range(len(self.runners))]
        for failure in failures:
            if failure is not None:
                self.ledger.fail(failure)

    def _ask(self, worker: int, states: Array) -> Array:
        answer: list[Array] = []

        def fetch(_: int, out: Array) -> None:
            out[...] = history_first(states)

        def reply(_: int, q: Array) -> None:
            answer.append(q)

        self.server.answer({worker: self.num_actions(worker)}, fetch, reply)
        return np.expand_dims(answer[0], 0)


def history_first(states: Array) -> Array:
    """``(history_len, *state_shape)`` from one state ``(1, *state_shape, history_len)``."""
    return np.moveaxis(states[0], -1, 0)
