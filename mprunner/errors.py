"""Every error that mprunner raises on purpose.

::

    MprunnerError
    |-- ConfigurationError (ValueError)     an argument that cannot work
    |   `-- MissingExtraError (ImportError) an optional package is not installed
    |-- ClosedError                         use after close()
    |-- PlayerError                         a simulator returned something unusable
    |-- PredictorError                      a predictor failed, or its Q values are unusable
    |-- NotEnoughRows                       too little in the replay memory to sample
    |-- StorageError                        a replay file or its space cannot be used
    |-- ClusterError                        the Ray cluster cannot be reached any more
    `-- WorkerError                         .worker is the runner's index
        |-- WorkerRaised                    .original_type, .original_message, .original_traceback
        |-- WorkerDied                      .exitcode (negative: the signal's number), .pid
        `-- WorkerStalled                   .activity, .seconds, .stack

Errors pickle, so that they survive a queue or a pipe.
"""

from __future__ import annotations

import signal
from typing import Any


class MprunnerError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(MprunnerError, ValueError):
    """An argument that cannot work; says what was found and what is expected."""


class MissingExtraError(ConfigurationError, ImportError):
    """A feature needs a package that is not installed; says how to install it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package}: pip install 'mprunner[{extra}]'"
        )
        self._args = (feature, package, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._args


class ClosedError(MprunnerError):
    """Something was used after its close()."""


class PlayerError(MprunnerError):
    """A player (the simulator) returned something that cannot be stored or acted on."""


class PredictorError(MprunnerError):
    """A predictor raised, or returned something that is not a batch of Q values."""


class NotEnoughRows(MprunnerError):
    """The replay memory holds too little to sample from it."""


class StorageError(MprunnerError):
    """A replay file, or the memory asked for, cannot be used; names both sides."""


class ClusterError(MprunnerError):
    """The connection to the Ray cluster is lost, and with it all runners."""


class WorkerError(MprunnerError):
    """The runner with the index ``worker`` failed."""

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(message)
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class WorkerRaised(WorkerError):
    """An exception in the worker; its type, message and traceback are kept as text."""

    def __init__(
        self, worker: int, activity: str, original_type: str, message: str, traceback: str
    ) -> None:
        super().__init__(
            worker,
            f"worker {worker} raised {original_type} while {activity}: {message}\n\n"
            f"Traceback in worker {worker}:\n{traceback.rstrip()}",
        )
        self.activity = activity
        self.original_type = original_type
        self.original_message = message
        self.original_traceback = traceback


class WorkerDied(WorkerError):
    """The worker's process ended without a word: a signal, os._exit, out of memory."""

    def __init__(
        self, worker: int, pid: int | None, exitcode: int | None, activity: str, stack: str = ""
    ) -> None:
        super().__init__(
            worker,
            f"worker {worker} (pid {pid}) died of {describe_exit(exitcode)} while {activity}"
            + (f"; its stack:\n{stack.rstrip()}" if stack else ""),
        )
        self.pid = pid
        self.exitcode = exitcode
        self.activity = activity
        self.stack = stack


class WorkerStalled(WorkerError):
    """The worker lives but has not moved on within its time limit."""

    def __init__(
        self, worker: int, pid: int | None, activity: str, seconds: float, limit: str, stack: str
    ) -> None:
        super().__init__(
            worker,
            f"worker {worker} (pid {pid}) has been {activity} for {seconds:.1f} s "
            f"({limit}); its stack:\n{stack.rstrip() or '(it could not be read)'}",
        )
        self.pid = pid
        self.activity = activity
        self.seconds = seconds
        self.stack = stack


def describe_exit(exitcode: int | None) -> str:
    """Words for an exit code as ``multiprocessing.Process.exitcode`` gives it."""
    if exitcode is None:
        return "an unknown cause"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return f"signal {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"signal {-exitcode}"


def _rebuild(
    kind: type[WorkerError], args: tuple[Any, ...], state: dict[str, Any]
) -> WorkerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
