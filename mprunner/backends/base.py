"""How a manager uses a backend: the contract, and what every backend does with a stored block."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mprunner.activity import Activity, Doing
from mprunner.rows import BlockInfo, Rows
from mprunner.ledger import Ledger
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner
from mprunner.settings import Settings
from mprunner.stats import Recorder, WorkerStats


class Backend(ABC):
    """A way to run the runners.

    A backend starts every player before `start` returns, executes each worker's jobs in the
    order of its account, and stores each worker's rows through that account's writer. It never
    drops a step without counting it as lost.

    Args:
        runners: one per worker.
        ledger: the jobs and counts of each worker; its ``changed`` is notified on progress.
        recorder: counts what has been stored.
        settings: of the manager.
    """

    def __init__(
        self, runners: Sequence[EnvRunner], ledger: Ledger, recorder: Recorder, settings: Settings
    ) -> None:
        self.runners = list(runners)
        self.ledger = ledger
        self.accounts = ledger.accounts
        self.recorder = recorder
        self.settings = settings

    @abstractmethod
    def start(self) -> None:
        """Start every runner; return when all players stand at their first observation.

        Raises:
            MprunnerError: one could not; nothing is left running.
        """

    @abstractmethod
    def send(self, worker: int) -> None:
        """Have `worker` execute the jobs of its account that have not been sent.

        Returns at once, but for the inline backend. After an exception that came in between,
        another call completes what the first one left undone.
        """

    @abstractmethod
    def close(self, finish: bool) -> None:
        """Stop every runner, close every player once, give everything back.

        Within ``close_timeout``, whatever state the workers are in.

        Args:
            finish: execute the open jobs first; else leave out what has not begun.
        """

    @abstractmethod
    def worker_stats(self, worker: int) -> WorkerStats:
        """Take a snapshot of one worker."""

    def publish(self, predictor: LocalPredictor, packed: bytearray, version: int) -> None:
        """Give the runners of `predictor` these packed weights from their next job on."""
        raise AssertionError("no runner has a LocalPredictor")

    def is_own_thread(self) -> bool:
        """Whether the caller is a predictor, a player or a callback that the backend has called.

        It must not wait for the pool, which waits for it.
        """
        return False

    def can_take(self, worker: int) -> bool:
        """Whether the worker can take another job now."""
        return True

    def want_progress(self) -> None:
        """Somebody waits for steps to be executed: have them stored before all are."""

    def store(self, worker: int, rows: Rows, info: BlockInfo) -> None:
        """Store a block and count it; a block that is stored already is left alone."""
        account = self.accounts[worker]
        ages_s = account.ages_s(info.num_steps, time.monotonic())
        if not account.writer.extend(rows, info.scores, info.number):
            return
        account.prune()
        self.recorder.add_block(worker, info.num_rows, info.scores, ages_s, info.versions)
        self.ledger.notify()

    def make_stats(
        self, worker: int, activity: Activity | None, pid: int | None, state: str, began: float
    ) -> WorkerStats:
        """A worker's snapshot from its counters and its clock, which began at `began`."""
        recorder = self.recorder
        total = max(time.monotonic() - began, 1e-9)

        def share(*doings: Doing) -> float:
            return 0.0 if activity is None else min(1.0, activity.seconds(*doings) / total)

        return WorkerStats(
            pid=pid,
            state=state,
            steps=self.accounts[worker].stored,
            rows=recorder.rows[worker],
            games=recorder.games[worker],
            restarts=recorder.restarts[worker],
            share_player=share(Doing.STEP, Doing.RESET),
            share_job=share(Doing.JOB_WAIT),
            share_prediction=share(Doing.PREDICTION_WAIT, Doing.PREDICTING),
            share_block=share(Doing.BLOCK_WAIT),
        )
