"""The matrix: every way to die at every stage, under both policies and two start methods.

Each case is a small pool, one of whose workers meets its fault. The case returns what was
noticed and how soon; it fails if the wrong thing was, too late, or if anything is lost.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from mprunner import (
    EnvRunner,
    EnvRunnerManager,
    WorkerDied,
    WorkerError,
    WorkerRaised,
    WorkerStalled,
)
from tests.support.faulty_players import EXIT_CODE, OURS, STAGES, WAYS, FaultyPlayer, Fuse
from tests.support.whole import SealedMemory, check_survivors
from tests.support.tagged import EPISODE, RUNNER, STEP, TAG_SHAPE, Tag
from tests.support.waiting import HANG_S, eventually

POLICIES = ("raise", "restart")
METHODS = ("forkserver", "spawn")
VICTIM = 1
TAGS = [Tag(0, 9), Tag(VICTIM, 11), Tag(2, 4, "truncated")]
AT = 7

#: Seconds that a hang takes to count as one; long enough for all that is healthy.
STEP_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
START_TIMEOUT_S = {"forkserver": 10.0, "spawn": 30.0}

NOT_POSSIBLE = {
    (way, stage): "no line of the user runs there, so nothing of his can be raised"
    for way in ("raise", "unpicklable", "sys.exit")
    for stage in OURS
}

EXPECTED: dict[str, tuple[type[WorkerError], Any]] = {
    "raise": (WorkerRaised, "ValueError"),
    "unpicklable": (WorkerRaised, "AwkwardError"),
    "sys.exit": (WorkerRaised, "SystemExit"),
    "os._exit": (WorkerDied, EXIT_CODE),
    "SIGKILL": (WorkerDied, -9),
    "SIGSEGV": (WorkerDied, -11),
    "hang": (WorkerStalled, None),
}


@dataclass(frozen=True)
class Case:
    """One cell of the matrix, for one start method."""

    way: str
    stage: str
    policy: str
    method: str

    def __str__(self) -> str:
        return f"{self.way}-{self.stage}-{self.policy}-{self.method}".replace(" ", "_")

    @property
    def replaced(self) -> bool:
        """The pool goes on; there is nothing to replace any more while it closes."""
        return self.policy == "restart" and self.stage != "close"

    @property
    def time_limit(self) -> float:
        """Seconds that a hang takes to count as one."""
        if self.way != "hang":
            return 0.0
        limits = {"factory": START_TIMEOUT_S[self.method], "close": CLOSE_TIMEOUT_S}
        return limits.get(self.stage, STEP_TIMEOUT_S)


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
        seen: the class of the error, or "restarted".
        notice_s: from the fault, or for a hang from the end of its time limit, until the user
            knew.
        close_s: that `close()`, or a constructor that failed, took to end the others.
    """

    seen: str
    notice_s: float
    close_s: float


def cases() -> Iterator[Case]:
    """All that are possible."""
    for method, policy, stage, way in itertools.product(METHODS, POLICIES, STAGES, WAYS):
        if (way, stage) not in NOT_POSSIBLE:
            yield Case(way, stage, policy, method)


class Holding:
    """A predictor that keeps the victim waiting until its fault has fired."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def __call__(self, states: np.ndarray) -> np.ndarray:
        newest = states[..., -1]
        held = (newest[:, RUNNER] == VICTIM) & (newest[:, EPISODE] == 0)
        if (held & (newest[:, STEP] >= AT)).any():
            eventually(self._happened)
        return np.zeros((len(states), 4))

    def _happened(self) -> bool:
        fired = self._fuse.fired()
        if fired is None:
            return False
        try:
            status = psutil.Process(fired[1]).status()
        except psutil.NoSuchProcess:
            return True
        return bool(status in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))


class Run:
    """One case as it runs."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case = case
        self.fuse = Fuse(root)
        self.memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        self.restarts: list[tuple[float, WorkerError]] = []
        self.resumed = 0.0
        self._exploration = 0.0 if case.stage == "prediction wait" else 1.0
        self._predictor = Holding(self.fuse) if case.stage == "prediction wait" else None

    def outcome(self) -> Outcome:
        """Play until the fault is known, and check all that must hold."""
        case, manager, error = self.case, None, None
        try:
            manager = self._open()
            self._play(manager)
        except WorkerError as caught:
            error = caught
        noticed = time.monotonic()
        if manager is not None:
            if error is None and case.stage == "close":
                noticed, error = self._fail_in_close(manager)
            self._lost = manager.stats().steps_lost
            manager.close()
        closed = time.monotonic()
        if case.replaced:
            assert error is None, error
            noticed, error = self.restarts[-1]
            closed = noticed
        self._check_error(error)
        notice_s = noticed - self._fault_at() - case.time_limit
        if manager is not None:
            self._check_counts(manager)
        check_survivors(self.memory, TAGS, {VICTIM})
        seen = "restarted" if case.replaced else type(error).__name__
        return Outcome(seen, notice_s, closed - noticed)

    def _open(self) -> EnvRunnerManager:
        case = self.case
        # The first start of all must succeed, or there is no pool whose worker to replace.
        start = 1 if case.stage == "factory" and case.replaced else 0
        faulty = partial(
            FaultyPlayer, way=case.way, stage=case.stage, fuse=self.fuse, start=start, at=AT
        )
        players = [tag.factory() for tag in TAGS]
        players[VICTIM] = partial(faulty, VICTIM, TAGS[VICTIM].length)
        runners = [EnvRunner(player, self._predictor, self.memory, 3) for player in players]
        limit = case.time_limit if case.way == "hang" else HANG_S
        at_start, at_close = case.stage == "factory", case.stage == "close"
        return EnvRunnerManager(
            runners,
            8,
            backend="process",
            start_method=case.method,
            on_failure=case.policy,
            on_restart=lambda error: self.restarts.append((time.monotonic(), error)),
            step_timeout=limit,
            start_timeout=limit if at_start else HANG_S,
            close_timeout=limit if at_close else HANG_S,
            seed=0,
        )

    def _play(self, manager: EnvRunnerManager) -> None:
        deadline = time.monotonic() + HANG_S
        while self.case.stage != "close" and self.fuse.fired() is None:
            assert time.monotonic() < deadline, "the fault has not fired"
            manager.step(self._exploration, num_steps=2)
            if self.case.stage == "job wait":
                assert manager.join(HANG_S)
                self._let_wait()
        self.resumed = time.monotonic() if self.case.stage == "job wait" else 0.0
        for _ in range(40):
            manager.step(self._exploration, num_steps=2)
        assert manager.join(HANG_S)

    def _let_wait(self) -> None:
        """Long enough for a fault that is due."""
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline and self.fuse.fired() is None:
            time.sleep(0.002)

    def _fail_in_close(self, manager: EnvRunnerManager) -> tuple[float, WorkerError | None]:
        try:
            manager.close()
        except WorkerError as error:
            return time.monotonic(), error
        return time.monotonic(), None

    def _fault_at(self) -> float:
        fired = self.fuse.fired()
        assert fired is not None, "the fault has not fired"
        return max(fired[0], self.resumed)

    def _check_error(self, error: WorkerError | None) -> None:
        kind, detail = EXPECTED[self.case.way]
        assert type(error) is kind, error
        assert error.worker == VICTIM
        if isinstance(error, WorkerRaised):
            assert error.original_type == detail
            assert detail in error.original_traceback
        elif isinstance(error, WorkerDied):
            assert error.exitcode == detail

    def _check_counts(self, manager: EnvRunnerManager) -> None:
        stats = manager.stats()
        assert stats.steps_stored == self.memory.num_steps
        assert stats.outstanding_peak <= 8
        assert stats.steps_asked == stats.steps_stored + stats.steps_lost
        if self.case.replaced:
            assert stats.restarts == (2 if self.case.stage == "factory" else 1)
        if EXPECTED[self.case.way][0] is WorkerRaised:
            assert self._lost == 0, "what was done before an exception is sent"
