"""The pools that the benchmarks measure: 84x84 frames, four in a state."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.workloads import SHAPE, Factory
from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from mprunner.settings import BackendName

HISTORY_LEN = 4
#: Transitions that each replay memory holds.
MEMORY_ROWS = 20_000


def make_memory() -> ReplayMemory:
    """Return an empty replay memory."""
    return ReplayMemory(MEMORY_ROWS, SHAPE, HISTORY_LEN, seed=0)


def start_pool(
    make: Factory,
    workers: int,
    staleness: int,
    *,
    backend: BackendName,
    predictor: Any = None,
    memory: ReplayMemory | None = None,
) -> EnvRunnerManager:
    """Start a pool.

    Args:
        make: the simulator's factory.
        workers: at least 1.
        staleness: the manager's ``maximum_staleness``.
        backend: of the manager.
        predictor: None: its actions are random.
        memory: to be filled; None: a new one.
    """
    memory = make_memory() if memory is None else memory
    runners = [EnvRunner(make, predictor, memory, HISTORY_LEN) for _ in range(workers)]
    return EnvRunnerManager(runners, staleness, backend=backend, seed=0)
