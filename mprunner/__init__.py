"""A pool of simulator processes that fills one replay memory."""

from mprunner._version import __version__
from mprunner.errors import (
    ClosedError,
    ClusterError,
    ConfigurationError,
    MissingExtraError,
    MprunnerError,
    NotEnoughRows,
    PlayerError,
    PredictorError,
    StorageError,
    WorkerDied,
    WorkerError,
    WorkerRaised,
    WorkerStalled,
)
from mprunner.experience import Batch, Experience, TorchBatch
from mprunner.expreplay import ExpReplay
from mprunner.manager import EnvRunnerManager
from mprunner.predictors import LocalPredictor
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.priorities import Priority
from mprunner.rows import Rows
from mprunner.runner import EnvRunner
from mprunner.stats import ManagerStats, WorkerStats

__all__ = [
    "Batch",
    "ClosedError",
    "ClusterError",
    "ConfigurationError",
    "EnvRunner",
    "EnvRunnerManager",
    "ExpReplay",
    "Experience",
    "LocalPredictor",
    "ManagerStats",
    "MissingExtraError",
    "MprunnerError",
    "NotEnoughRows",
    "PlayerError",
    "PredictorError",
    "Priority",
    "ReplayMemory",
    "Rows",
    "StorageError",
    "TorchBatch",
    "WorkerDied",
    "WorkerError",
    "WorkerRaised",
    "WorkerStalled",
    "WorkerStats",
    "__version__",
]
