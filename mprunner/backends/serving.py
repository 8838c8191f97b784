"""Q values for runners whose predictor stays in the parent: whatever waits is one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mprunner.errors import PredictorError
from mprunner.experience import Array
from mprunner.predictors import LocalPredictor, read_q
from mprunner.runner import EnvRunner
from mprunner.stats import Recorder


class _Group:
    """The runners that share a predictor, and the array in which it sees their states."""

    def __init__(self, predictor: Callable[[Array], Any], like: EnvRunner) -> None:
        self.predictor = predictor
        self._frames = np.zeros((0, like.history_len, *like.state_shape), like.dtype)
        self._axes = (0, *range(2, 2 + len(like.state_shape)), 1)

    def frames(self, batch_size: int) -> Array:
        """``(batch_size, history_len, *state_shape)``, contiguous; reused."""
        if batch_size > len(self._frames):
            self._frames = np.zeros((batch_size, *self._frames.shape[1:]), self._frames.dtype)
        return self._frames[:batch_size]

    def states(self, frames: Array) -> Array:
        """The same with history last, as a view."""
        return frames.transpose(self._axes)


class PredictionServer:
    """Calls predictors with batches; one thread at a time.

    Args:
        runners: of the manager; those with a predictor of the parent's are served.
        recorder: counts each batch.
        max_batch_size: the most states in one call; None: no limit.
        one_by_one: call with single states, so that results don't depend on who else waits.
    """

    def __init__(
        self,
        runners: Sequence[EnvRunner],
        recorder: Recorder,
        max_batch_size: int | None,
        one_by_one: bool,
    ) -> None:
        self._recorder = recorder
        self._limit = 1 if one_by_one else max_batch_size or len(runners)
        groups: dict[int, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        for worker, runner in enumerate(runners):
            predictor = runner.predictor
            if predictor is not None and not isinstance(predictor, LocalPredictor):
                group = groups.setdefault(id(predictor), _Group(predictor, runner))
                self._group_of[worker] = group

    def serves(self, worker: int) -> bool:
        """True if the worker's predictor stays in the parent."""
        return worker in self._group_of

    def answer(
        self,
        waiting: Mapping[int, int],
        fetch: Callable[[int, Array], None],
        reply: Callable[[int, Array], None],
    ) -> None:
        """Serve all requests that wait.

        Args:
            waiting: the workers that do, and the number of actions of each.
            fetch: copies a worker's ``(history_len, *state_shape)`` into an array.
            reply: takes a worker's Q, ``(num_actions,)``.

        Raises:
            PredictorError: the predictor raised, or its answer is not Q values.
        """
        batches: dict[tuple[_Group, int], list[int]] = {}
        for worker, num_actions in waiting.items():
            batches.setdefault((self._group_of[worker], num_actions), []).append(worker)
        for (group, num_actions), workers in batches.items():
            for i in range(0, len(workers), self._limit):
                self._call(group, num_actions, workers[i:i + self._limit], fetch, reply)

    def _call(
        self,
        group: _Group,
        num_actions: int,
        workers: list[int],
        fetch: Callable[[int, Array], None],
        reply: Callable[[int, Array], None],
    ) -> None:
        began = time.monotonic()
        frames = group.frames(len(workers))
        for i, worker in enumerate(workers):
            fetch(worker, frames[i])
        try:
            output = group.predictor(group.states(frames))
        except Exception as error:
            raise PredictorError(
                f"the predictor raised {type(error).__name__}: {error}"
            ) from error
        q = read_q(output, len(workers), num_actions)
        for i, worker in enumerate(workers):
            reply(worker, q[i])
        self._recorder.add_batch(len(workers), time.monotonic() - began)
