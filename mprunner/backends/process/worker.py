"""What a worker process does: one runner, jobs in, blocks and messages out.

The fork server imports it, so it must not import anything heavy.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import threading
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from mprunner.activity import Doing
from mprunner.backends.process import launch
from mprunner.backends.process.channel import Channel, SharedMemory
from mprunner.backends.failure import in_words
from mprunner.backends.process.pipes import ASK, ParentGone
from mprunner.rows import BlockInfo, BlockWriter
from mprunner.experience import Array
from mprunner.pace import run_job
from mprunner.predictors import LocalPredictor
from mprunner.runner import EnvRunner, Loop
from mprunner.weights import WeightsBoard

#: Asks a worker for its stack; any signal that simulators leave alone.
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker is started with.

    Attributes:
        runner: the `EnvRunner`, by cloudpickle.
        seed: of this start.
        served: the predictor stays in the parent.
        environment: variables, as they are in the parent.
        weights: where a `LocalPredictor`'s weights are published, or None.
    """

    runner: bytes
    seed: np.random.SeedSequence
    served: bool
    environment: dict[str, str]
    weights: SharedMemory | None


class _Stop(BaseException):
    """The parent wants no further step, and gives no further answer.

    Not an Exception, which a user's `act` may catch.
    """


def main(channel: Channel, spec: WorkerSpec) -> None:
    """Run jobs until the stop message (None) arrives or the parent exits."""
    with contextlib.suppress(ParentGone):
        worker = _Worker(channel)
        try:
            _set_up(channel, spec)
            worker.begin(spec)
            worker.work()
        except _Stop:
            pass
        except ParentGone:
            raise
        except BaseException as error:
            worker.report(error)
        worker.end()


def _set_up(channel: Channel, spec: WorkerSpec) -> None:
    """Own process group, no Ctrl-C, an end with the parent, a stack when asked."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    launch.leave_fork_server()
    _end_with(channel.lifeline.fileno())
    os.environ.clear()
    os.environ.update(spec.environment)
    faulthandler.enable(channel.stack_writer.fileno())
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, channel.stack_writer.fileno(), all_threads=True)


def _end_with(lifeline: int) -> None:
    """Have this process group killed when the other end of `lifeline` is closed.

    By the kernel where it can: a signal on the pipe's hang-up reaches a simulator that holds
    the GIL, too, and what the simulator has started. Else by a thread that waits for it.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="lifeline").start()
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    # The parent may have died before; then no hang-up is to come.
    if select.select([lifeline], [], [], 0)[0]:
        _watch(lifeline)


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


class _Emitter:
    """Writes blocks in the shared memory; see `Emitter`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._block = 0

    def acquire(self) -> tuple[Array, Any]:
        channel = self._channel
        block = channel.free_block()
        if block is None:
            activity = channel.activity
            before = activity.doing
            activity.enter(Doing.BLOCK_WAIT)
            block = channel.wait_for_block()
            activity.enter(before)
        self._block = block
        return channel.states[block], channel.meta_bytes[block]

    def emit(self, info: BlockInfo) -> None:
        channel = self._channel
        channel.take_block(self._block)
        # Field by field: an object of a class takes five times as long to pickle, and to load.
        channel.results.put(
            "block",
            self._block,
            info.num_rows,
            info.num_steps,
            info.provisional,
            info.scores,
            info.versions,
        )


class _Worker:
    """The runner of this process and its ways out."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._runner: EnvRunner | None = None
        self._loop: Loop | None = None
        # As the runner has its states, (1, *state_shape, history_len).
        self._question = np.moveaxis(channel.question, 0, -1)[None]

    def begin(self, spec: WorkerSpec) -> None:
        """Make the player and stand at its first observation."""
        channel = self._channel
        channel.activity.begin()
        runner: EnvRunner = cloudpickle.loads(spec.runner)
        self._runner = runner
        board = None
        if spec.weights is not None:
            assert isinstance(runner.predictor, LocalPredictor)
            board = WeightsBoard(runner.predictor.layout, spec.weights.map)
        writer = BlockWriter(_Emitter(channel))
        ask = self._ask if spec.served else None
        self._loop = runner.open(
            writer, spec.seed, activity=channel.activity, ask=ask, board=board
        )
        channel.results.put("ready", self._loop.player.num_actions)

    def work(self) -> None:
        """Do jobs until there is none any more."""
        channel, loop = self._channel, self._loop
        assert loop is not None
        pace, activity = channel.pace, channel.activity
        while True:
            activity.enter(Doing.JOB_WAIT)
            job = channel.wait_for_job()
            activity.enter(Doing.RUNNING)
            if job is None:
                return
            run_job(loop, pace, *job)

    def report(self, error: BaseException) -> None:
        """Send what was done before `error`, and then the error, as text."""
        doing = self._channel.activity.doing
        if self._loop is not None:
            self._loop.writer.flush()
        self._put_error(error, doing)

    def end(self) -> None:
        """Close the player and say so."""
        channel = self._channel
        try:
            if self._loop is not None:
                self._loop.writer.flush()
            if self._runner is not None:
                self._runner.close()
        except ParentGone:
            raise
        except BaseException as error:
            self._put_error(error, channel.activity.doing)
        channel.results.put("closed")

    def _put_error(self, error: BaseException, doing: Doing) -> None:
        self._channel.results.put("raised", doing.label, *in_words(error))

    def _ask(self, states: Array) -> Array:
        """Q ``(1, num_actions)`` from the parent."""
        channel = self._channel
        self._question[...] = states
        channel.results.send(ASK)
        answer = channel.wait_for_answer()
        if answer is None:
            raise _Stop
        return answer[None]
