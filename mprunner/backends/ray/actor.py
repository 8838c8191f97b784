"""What a Ray actor does: one runner, jobs in, blocks out.

A plain class without ray: the driver makes an actor of it.
"""

from __future__ import annotations

import os
import queue
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.backends.failure import in_words
from mprunner.rows import BlockInfo, BlockWriter, ROW, block_rows
from mprunner.experience import Array
from mprunner.pace import Pace, run_job
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner, Loop
from mprunner.weights import Weights, WeightsLayout


#: Bytes of rows that go with the reply itself, and that an object in the store had better have:
#: each object is some messages between Ray's processes, however small it is.
_SMALL_BYTES = 96 * 1024
_LARGE_BYTES = 1024 * 1024


@dataclass
class Result:
    """What a call brings back.

    Attributes:
        blocks: (states, rows as bytes, info) of each, in order.
        executed: steps of the actor so far.
        kept: of these, those whose rows it still has.
        error: (activity, type, message, traceback) of an exception, as text.
        times: of the actor's `Activity`.
        num_actions: of the player.
        pid: of the actor's process.
    """

    blocks: list[tuple[Array, Array, BlockInfo]] = field(default_factory=list)
    executed: int = 0
    kept: int = 0
    error: tuple[str, str, str, str] | None = None
    times: list[float] = field(default_factory=list)
    num_actions: int = 0
    pid: int = 0


class _Stop(BaseException):
    """The driver gives no further answer; not an Exception, which a user's `act` may catch."""


class _Collector:
    """Keeps blocks until the call returns them; each has arrays of its own."""

    def __init__(self, runner: EnvRunner) -> None:
        self._num_rows = block_rows(runner.state_shape, runner.dtype)
        self._runner = runner
        self.blocks: list[tuple[Array, Array, BlockInfo]] = []

    @property
    def num_bytes(self) -> int:
        return sum(state.nbytes + rows.nbytes for state, rows, _ in self.blocks)

    @property
    def num_steps(self) -> int:
        return sum(info.num_steps for _, _, info in self.blocks)

    def acquire(self) -> tuple[Array, Any]:
        self._state = np.empty((self._num_rows, *self._runner.state_shape), self._runner.dtype)
        self._rows = np.empty(self._num_rows * ROW.itemsize, np.uint8)
        return self._state, self._rows.data

    def emit(self, info: BlockInfo) -> None:
        n = info.num_rows
        self.blocks.append((self._state[:n], self._rows[:n * ROW.itemsize], info))

    def take(self) -> list[tuple[Array, Array, BlockInfo]]:
        blocks, self.blocks = self.blocks, []
        return blocks


class _PushedWeights:
    """The board of a `LocalPredictor` whose weights come with the jobs."""

    def __init__(self, layout: WeightsLayout) -> None:
        self._layout = layout
        self._packed: Any = b""
        self._version = -1

    @property
    def version(self) -> int:
        return self._version

    def push(self, version: int, packed: Any) -> None:
        if version > self._version:
            self._version, self._packed = version, packed

    def read(self) -> tuple[int, Weights]:
        return self._version, self._layout.unpack(bytearray(self._packed))


class RunnerActor:
    """One runner. `exchange`, `release` and `where` may be called beside the other methods.

    Args:
        pickled: the `EnvRunner`, by cloudpickle.
        seed: of this start.
        served: the predictor stays with the driver.
    """

    def __init__(self, pickled: bytes, seed: np.random.SeedSequence, served: bool) -> None:
        self._pickled, self._seed, self._served = pickled, seed, served
        self._times = [0.0] * (1 + len(Doing))
        self._code = [int(Doing.STARTING)]
        self._activity = Activity(self._code, self._times)
        self._activity.begin()
        self._pace = Pace()
        self._runner: EnvRunner | None = None
        self._loop: Loop | None = None
        self._board: _PushedWeights | None = None
        self._questions: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Array | None] = queue.SimpleQueue()

    def open(self, weights: tuple[int, Any] | None) -> Result:
        """Make the player and stand at its first observation."""
        try:
            runner: EnvRunner = cloudpickle.loads(self._pickled)
            self._runner = runner
            if weights is not None:
                assert isinstance(runner.predictor, LocalPredictor)
                self._board = _PushedWeights(runner.predictor.layout)
                self._board.push(*weights)
            self._collector = _Collector(runner)
            self._loop = runner.open(
                BlockWriter(self._collector),
                self._seed,
                activity=self._activity,
                ask=self._ask if self._served else None,
                board=self._board,
            )
        except BaseException as error:
            return self._failed(error)
        return self._result()

    def run(
        self, job: tuple[float, int, bool], weights: tuple[int, Any] | None = None
    ) -> Result:
        """Do one job.

        Args:
            job: the exploration of its steps, up to which step of this actor they go, and
                whether another call is likely to follow: then the rows may be kept for its
                result.
            weights: (version, packed), if they are newer than those of the job before.
        """
        loop = self._loop
        assert loop is not None
        exploration, end, more = job
        if weights is not None and self._board is not None:
            self._board.push(*weights)
        self._pace.send(end)  # so that the last step of the job flushes
        try:
            run_job(loop, self._pace, exploration, end)
        except _Stop:
            pass
        except BaseException as error:
            loop.writer.flush()
            failed = self._failed(error)
            # Its replacement, if there is one, makes another player.
            with suppress(BaseException):
                self._close_player()
            return failed
        loop.writer.flush()
        return self._result(more and _SMALL_BYTES < self._collector.num_bytes < _LARGE_BYTES)

    def bring(self) -> Result:
        """The rows that were kept."""
        return self._result()

    def exchange(self, answer: Array | None) -> Array | None:
        """Take the answer to the last question; return the next question, when there is one."""
        if answer is not None:
            self._answers.put(answer)
        return self._questions.get()

    def release(self) -> None:
        """No further answer will come, and no further step is asked for."""
        self._pace.stop()
        self._answers.put(None)
        self._questions.put(None)

    def where(self) -> tuple[int, float, str]:
        """What it does now (a `Doing`), since how many seconds, and all its stacks."""
        stacks = [
            "".join(traceback.format_stack(frame)) for frame in sys._current_frames().values()
        ]
        return self._code[0], self._activity.seconds_now(), "\n".join(stacks)

    def close(self) -> Result:
        """Close the player, once."""
        try:
            self._close_player()
        except BaseException as error:
            return self._failed(error)
        return self._result()

    def _close_player(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def _ask(self, states: Array) -> Array:
        if not self._pace.stopping:
            self._questions.put(np.moveaxis(states[0], -1, 0).copy())
            answer = self._answers.get()
        if self._pace.stopping or answer is None:
            raise _Stop
        return np.expand_dims(answer, 0)

    def _result(self, keep: bool = False) -> Result:
        self._activity.enter(Doing.JOB_WAIT)
        played = self._loop is not None
        return Result(
            blocks=self._collector.take() if played and not keep else [],
            executed=self._pace.executed,
            kept=self._collector.num_steps if played else 0,
            times=list(self._times),
            num_actions=0 if self._loop is None else self._loop.player.num_actions,
            pid=os.getpid(),
        )

    def _failed(self, error: BaseException) -> Result:
        label = self._activity.doing.label
        result = self._result()
        result.error = (label, *in_words(error))
        return result
