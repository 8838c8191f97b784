"""The contract between the manager and a way to run the runners.

Owns what all ways share: the settings, the pace cells, the log of jobs under way and the
landing of a block. Knows no process, thread or cluster.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import cloudpickle
import numpy as np

from mprunner.activity import Activity, Cells, Doing
from mprunner.blocks import BlockInfo
from mprunner.errors import ConfigurationError, WorkerError
from mprunner.experience import Rows
from mprunner.predictors import LocalPredictor, Weights
from mprunner.replay.memory import ReplayMemory
from mprunner.runner import EnvRunner, Loop
from mprunner.stats import Recorder, WorkerStats


@dataclass(frozen=True)
class Settings:
    """What a manager was asked for, checked; see `EnvRunnerManager`."""

    entropy: int
    maximum_staleness: int
    start_method: str | None = None
    on_failure: str = "raise"
    max_restarts: int = 3
    restart_window_s: float = 60.0
    step_timeout: float | None = None
    start_timeout: float = 60.0
    close_timeout: float = 5.0
    deterministic: bool = False
    max_batch_size: int | None = None
    on_restart: Callable[[WorkerError], None] | None = None
    ray_address: str | None = None
    resources_per_runner: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})

    def seed(self, worker: int, restart: int = 0) -> np.random.SeedSequence:
        """Of one start of one runner; never the same twice in a run."""
        return np.random.SeedSequence(self.entropy, spawn_key=(worker, restart))


class Pace:
    """How far a worker is, in cells that both sides see and each writes its own of.

    Args:
        cells: `NUM_CELLS` integers, zero at first; shared memory between processes.
    """

    NUM_CELLS = 4
    _SENT, _EXECUTED, _WAKE_AT, _STOP = range(4)

    def __init__(self, cells: Cells[int] | None = None) -> None:
        self._cells: Cells[int] = [0] * self.NUM_CELLS if cells is None else cells
        self._flushed_at = 0

    @property
    def sent(self) -> int:
        """Steps asked for."""
        return self._cells[self._SENT]

    @property
    def executed(self) -> int:
        """Steps done."""
        return self._cells[self._EXECUTED]

    @property
    def outstanding(self) -> int:
        """Steps asked for and not yet done."""
        return self._cells[self._SENT] - self._cells[self._EXECUTED]

    @property
    def stopping(self) -> bool:
        """The worker is to leave out the jobs it has not begun."""
        return bool(self._cells[self._STOP])

    def send(self, num_steps: int) -> None:
        """Parent: a job is about to be sent."""
        self._cells[self._SENT] += num_steps

    def stop(self) -> None:
        """Parent: no further step, please."""
        self._cells[self._STOP] = 1

    def want_progress(self) -> None:
        """Parent: send what you have, half-way through what you have to do."""
        cells = self._cells
        executed = cells[self._EXECUTED]
        left = cells[self._SENT] - executed
        if left > 0 and cells[self._WAKE_AT] <= executed:
            cells[self._WAKE_AT] = executed + (left + 1) // 2

    def done(self) -> bool:
        """Worker: one more step is done. True if the block is to be sent now."""
        cells = self._cells
        executed = cells[self._EXECUTED] = cells[self._EXECUTED] + 1
        if executed >= cells[self._SENT] or self._flushed_at < cells[self._WAKE_AT] <= executed:
            self._flushed_at = executed
            return True
        return False


def run_job(loop: Loop, pace: Pace, exploration: float, num_steps: int) -> None:
    """Worker: one job, on the weights that are newest at its start."""
    loop.refresh()
    for _ in range(num_steps):
        if pace.stopping:
            return
        loop.step(exploration)
        if pace.done():
            loop.writer.flush()


def pickled(index: int, runner: EnvRunner) -> bytes:
    """A runner on its way to another process.

    Raises:
        ConfigurationError: some part of it cannot travel.
    """
    try:
        return cloudpickle.dumps(runner)  # type: ignore[no-any-return]
    except Exception as error:
        culprit = "player"
        with contextlib.suppress(Exception):
            cloudpickle.dumps(runner.player)
            culprit = "predictor" if runner.predictor is not None else "EnvRunner"
        raise ConfigurationError(
            f"the {culprit} of env_runners[{index}] cannot be sent to a worker "
            f"({type(error).__name__}: {error}); pass a factory, which makes it there"
        ) from error


class JobLog:
    """The jobs of one worker whose steps have not all landed, oldest first."""

    def __init__(self) -> None:
        self._jobs: deque[list[float]] = deque()  # [time asked, exploration, steps left]

    def add(self, exploration: float, num_steps: int) -> None:
        """A job is about to be sent."""
        self._jobs.append([time.monotonic(), exploration, num_steps])

    def land(self, num_steps: int) -> list[tuple[float, int]]:
        """The next steps have landed (or are lost): (age in seconds, steps) of each job."""
        ages = []
        now = time.monotonic()
        while num_steps:
            job = self._jobs[0]
            taken = min(num_steps, int(job[2]))
            ages.append((now - job[0], taken))
            num_steps -= taken
            if taken == job[2]:
                self._jobs.popleft()
            else:
                job[2] -= taken
        return ages

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_steps(self) -> int:
        """Steps that have not landed."""
        return int(sum(job[2] for job in self._jobs))

    def left(self) -> list[tuple[float, int]]:
        """(exploration, steps) of what has not landed."""
        return [(job[1], int(job[2])) for job in self._jobs]


class Backend(ABC):
    """A way to run the runners.

    A backend starts every player before `start` returns, executes each worker's jobs in the
    order in which they were submitted, and lands each worker's rows in the stream of its
    index. It never drops a step without counting it as lost.

    Args:
        runners: one per worker.
        memory: where rows go; worker i writes stream i.
        recorder: told of everything that lands; its ``changed`` is notified on progress.
        settings: of the manager.
        fail: takes the first failure; everything after it is up to the manager.
    """

    #: Whether the worker runs in another process, so that what it needs has to be shipped.
    remote = False

    def __init__(
        self,
        runners: Sequence[EnvRunner],
        memory: ReplayMemory,
        recorder: Recorder,
        settings: Settings,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.runners = list(runners)
        self.memory = memory
        self.recorder = recorder
        self.settings = settings
        self.fail = fail
        self.paces = [Pace() for _ in self.runners]
        self.jobs = [JobLog() for _ in self.runners]

    @abstractmethod
    def start(self) -> None:
        """Start every runner; returns when all players stand at their first observation.

        Raises:
            MprunnerError: one could not; nothing is left running.
        """

    @abstractmethod
    def submit(self, worker: int, exploration: float, num_steps: int) -> None:
        """Have `worker` do `num_steps` steps; returns at once (but for the inline backend)."""

    @abstractmethod
    def close(self, finish: bool) -> None:
        """Stop every runner, close every player once, give everything back.

        Within ``close_timeout``, whatever state the workers are in.

        Args:
            finish: do the jobs under way first; else leave out what has not begun.
        """

    @abstractmethod
    def worker_stats(self, worker: int) -> WorkerStats:
        """A snapshot of one worker."""

    def publish(self, predictor: LocalPredictor, weights: Weights, version: int) -> None:
        """Give the runners of `predictor` these weights from their next job on.

        Raises:
            ConfigurationError: their form differs from the first; nothing is published.
        """
        raise AssertionError("no runner has a LocalPredictor")

    def can_submit(self, worker: int) -> bool:
        """False while the worker cannot take another job."""
        return True

    def outstanding(self, worker: int) -> int:
        """Steps asked of `worker` and not yet executed."""
        return self.paces[worker].outstanding

    def want_progress(self) -> None:
        """Somebody waits for steps to be done: report before the queue is empty."""
        for pace in self.paces:
            pace.want_progress()

    def land(self, worker: int, rows: Rows, info: BlockInfo) -> None:
        """Take a block into the memory and the statistics."""
        self.memory.extend(worker, rows, info.scores)
        self.recorder.add_block(
            worker,
            info.num_steps,
            info.num_rows,
            info.scores,
            self.jobs[worker].land(info.num_steps),
            info.versions,
        )

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
            steps=recorder.landed[worker],
            rows=recorder.rows[worker],
            games=recorder.games[worker],
            restarts=recorder.restarts[worker],
            share_player=share(Doing.STEP, Doing.RESET),
            share_job=share(Doing.JOB_WAIT),
            share_prediction=share(Doing.PREDICTION_WAIT, Doing.PREDICTING),
            share_block=share(Doing.BLOCK_WAIT),
        )
