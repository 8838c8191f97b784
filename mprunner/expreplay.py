"""`ExpReplay`: the original's training source, without its framework: play, then sample."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from mprunner.checks import at_least, check_exploration
from mprunner.errors import ClosedError, ConfigurationError
from mprunner.experience import Array
from mprunner.manager import EnvRunnerManager
from mprunner.predictors import LocalPredictor, PredictorFn
from mprunner.replay.memory import ReplayMemory
from mprunner.runner import EnvRunner
from mprunner.stats import ManagerStats
from mprunner.weights import Weights

_log = logging.getLogger("mprunner")

#: Steps in one message while the memory is filled.
_FILL_STEPS = 16


class ExpReplay:
    """Batches for a learner, from a pool that plays while it learns.

    An endless iterable of ``[state, action, reward, isOver]``. Before each batch
    `update_frequency` new steps are asked for; they are done while the learner works on it. The
    first iteration fills the memory to `init_memory_size` transitions.

    Works as the data set of ``torch.utils.data.DataLoader(expreplay, batch_size=None)``, in the
    process that made it (``num_workers=0``); import torch before making it.

    Who samples by himself (n-step returns, priorities) calls `fill` once and then `play` before
    each ``memory.sample_batch(...)``.

    Args:
        predictor: see `EnvRunner`; None: exploration must stay at 1.
        get_player: a factory of players, called once in each worker.
        num_parallel_players: at least 1; each has a worker of its own.
        state_shape: of one observation.
        batch_size: transitions in a batch, at least 1.
        memory_size: rows of the replay memory.
        init_memory_size: transitions in memory before the first batch, from `batch_size` to
            `memory_size`.
        update_frequency: new steps for each batch, at least 1.
        history_len: frames in a state.
        state_dtype: of an observation.
        seed: of everything: runners, players and sampling; None: fresh entropy, which is logged
            and kept as `seed`.
        maximum_staleness: see `EnvRunnerManager`; None: two rounds of `update_frequency`, and
            at least two steps for each player.
        memory_options: for `ReplayMemory`, such as ``{"path": "replay.mpr"}``.
        pool_options: for `EnvRunnerManager`: ``backend``, ``on_failure``, ``deterministic``...

    Attributes:
        memory: the `ReplayMemory`, for other ways to sample. It outlives `close()`.
        manager: the `EnvRunnerManager`.
        seed: of everything.

    Raises:
        ConfigurationError: an argument cannot work.
    """

    def __init__(
        self,
        predictor: PredictorFn | LocalPredictor | None,
        get_player: Any,
        num_parallel_players: int,
        state_shape: Sequence[int],
        batch_size: int,
        memory_size: int,
        init_memory_size: int,
        update_frequency: int,
        history_len: int,
        state_dtype: npt.DTypeLike = "uint8",
        *,
        seed: int | None = None,
        maximum_staleness: int | None = None,
        memory_options: dict[str, Any] | None = None,
        **pool_options: Any,
    ) -> None:
        players = at_least("num_parallel_players", num_parallel_players, 1)
        self._batch_size = at_least("batch_size", batch_size, 1)
        self._update_frequency = at_least("update_frequency", update_frequency, 1)
        self._init_memory_size = at_least("init_memory_size", init_memory_size, self._batch_size)
        if self._init_memory_size > at_least("memory_size", memory_size, 1):
            raise ConfigurationError(
                f"init_memory_size is {init_memory_size}; expected at most memory_size, "
                f"which is {memory_size}"
            )
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
            _log.info("seed=%d repeats this run's random numbers", seed)
        pool_seed, sample_seed = np.random.SeedSequence(at_least("seed", seed, 0)).spawn(2)
        self.seed = seed
        self._num_players = players
        self._deterministic = bool(pool_options.get("deterministic", False))
        self._has_predictor = predictor is not None
        self._exploration = 1.0
        self._closed = False
        self._owner = os.getpid()
        _register_with_torch()
        self.memory = ReplayMemory(
            memory_size,
            tuple(state_shape),
            history_len,
            state_dtype,
            **{"seed": sample_seed, **(memory_options or {})},
        )
        if maximum_staleness is None:
            maximum_staleness = max(2 * self._update_frequency, 2 * players)
        try:
            self.manager = EnvRunnerManager(
                [EnvRunner(get_player, predictor, self.memory, history_len)
                 for _ in range(players)],
                maximum_staleness,
                seed=int(pool_seed.generate_state(1, np.uint64)[0]),
                **pool_options,
            )
        except BaseException:
            self.memory.close()
            raise

    @property
    def exploration(self) -> float:
        """Epsilon of the steps asked for from now on, in [0, 1]; 1 at first."""
        return self._exploration

    @exploration.setter
    def exploration(self, value: float) -> None:
        self._exploration = check_exploration(value, self._has_predictor)

    def fill(self) -> None:
        """Play until `init_memory_size` transitions are stored; iterating does it at first.

        Stops when the rings have wrapped, if short episodes leave room for fewer.
        """
        memory, manager = self.memory, self.manager
        wanted = self._init_memory_size
        asked = 0
        with _Progress(wanted) as progress:
            while (missing := wanted - len(memory)) > 0 and asked < memory.max_size:
                asked += missing
                while missing > 0:
                    part = min(_FILL_STEPS, missing)
                    manager.step(self._exploration, part)
                    missing -= part
                    progress.show(len(memory))
                manager.join()
            progress.show(len(memory))

    def play(self) -> None:
        """Ask for one round of `update_frequency` new steps, assigned to the players round-robin.

        They are done while the caller goes on; with ``deterministic=True`` they are in memory
        on return, so that they neither see a coming change of the weights nor miss a sample.

        Raises:
            ClosedError: after `close()`.
            MprunnerError: a worker, a predictor or the pool's own thread has failed.
        """
        if self._closed:
            raise ClosedError("the ExpReplay is closed")
        left = self._update_frequency
        part = max(1, left // self._num_players)
        while left > 0:
            self.manager.step(self._exploration, min(part, left))
            left -= part
        if self._deterministic:
            self.manager.join()

    def __iter__(self) -> Iterator[list[Array]]:
        """Batches without end.

        Yields:
            ``[state, action, reward, isOver]``: ``(B, *state_shape, history_len + 1)``, a view
            of a contiguous history-first gather: the first ``history_len`` frames on the last
            axis are the state, the last ``history_len`` the next state; ``(B,)`` int64;
            ``(B,)`` float32; ``(B,)`` bool, True only where there is nothing to bootstrap.
        """
        if os.getpid() != self._owner:
            raise ConfigurationError(
                "an ExpReplay gives batches only in the process that made it; use "
                "DataLoader(expreplay, batch_size=None, num_workers=0)"
            )
        self.fill()
        while True:
            self.play()
            batch = self.memory.sample_batch(self._batch_size)
            history_last = (0, *range(2, batch.frames.ndim), 1)
            yield [
                batch.frames.transpose(history_last),
                batch.action,
                batch.reward,
                batch.terminated,
            ]

    def set_weights(self, weights: Weights) -> int:
        """See `EnvRunnerManager.set_weights`."""
        return self.manager.set_weights(weights)

    def reset_stats(self) -> tuple[float | None, float | None]:
        """See `EnvRunnerManager.reset_stats`."""
        return self.manager.reset_stats()

    def stats(self) -> ManagerStats:
        """See `EnvRunnerManager.stats`."""
        return self.manager.stats()

    def close(self) -> None:
        """Stop the pool; later calls do nothing. The memory stays usable."""
        self._closed = True
        self.manager.close()

    def __enter__(self) -> ExpReplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        self.manager.__exit__(kind, error, traceback)


class _Progress:
    """A bar that counts stored transitions; a line in the log where rich is not installed."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        try:
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
        except ImportError:
            _log.info("filling the replay memory with %d transitions", self._total)
            return self
        console = Console(stderr=True)
        self._bar = Progress(
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("filling the replay memory", total=self._total)
        self._bar.start()
        return self

    def show(self, stored: int) -> None:
        """So many are stored."""
        if self._bar is not None:
            self._bar.update(self._task, completed=stored)

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()


def _register_with_torch() -> None:
    """Have torch's DataLoader see an iterable data set, without importing torch here."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None:
        torch_data.IterableDataset.register(ExpReplay)
