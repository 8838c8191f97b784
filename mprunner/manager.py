"""`EnvRunnerManager`: dispatch, pacing, one sticky failure, the end of a pool.

Owns what users call. Knows the backends only by their contract.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

from mprunner.assembly import (
    backend_class,
    checked_runners,
    checked_settings,
    local_predictors,
)
from mprunner.backends.base import Backend
from mprunner.checks import at_least, check_exploration
from mprunner.errors import ClosedError, ConfigurationError, MprunnerError, WorkerError
from mprunner.predictors import Weights
from mprunner.replay.memory import ReplayMemory
from mprunner.runner import EnvRunner
from mprunner.stats import ManagerStats, Recorder
from mprunner.sticky import StickyFailure

# How long a lost wake-up can cost: the pace cells are written without a lock, so the one who
# waits looks again by itself.
_RECHECK_S = 0.05


class EnvRunnerManager:
    """A pool of runners that fills their replay memory.

    Args:
        env_runners: at least one; they share one memory. Each becomes a worker.
        maximum_staleness: the most steps asked for and not yet executed, over all runners; at
            least 1. `step()` blocks at it.
        backend: "inline", "thread", "process" or "ray"; None: inline for one runner, else
            process.
        seed: of everything the runners do; None: fresh entropy, which is logged.
        start_method: of the processes: "forkserver", "spawn" or "fork"; None: forkserver where
            there is one, else spawn.
        on_failure: "raise", or "restart": replace a worker that failed.
        on_restart: called with the `WorkerError` whenever a worker is about to be replaced, in a
            thread of ours: it should be quick, and must not call `step`, `join` or `close`.
        max_restarts: of one runner within `restart_window` seconds; then its error is raised.
        restart_window: seconds.
        step_timeout: seconds in one reset or step after which a worker counts as stalled;
            None: never.
        start_timeout: seconds until a player must stand at its first observation.
        close_timeout: seconds that `close()` gives the workers before it ends them.
        deterministic: deal the steps strictly in turn, ask predictors about one state at a time
            and join before new weights, so that what the memory holds after a `join()` repeats
            bit for bit, on any backend. Predictors must be functions of the state and the
            weights; change those of a served one, and sample, only after a `join()`.
        max_batch_size: the most states in one call of a served predictor; None: no limit.
        address: of the Ray cluster; None: the one this process uses already, or a new one. For
            the backend "ray" alone, as is the next.
        resources_per_runner: what Ray reserves for each runner.

    Raises:
        ConfigurationError: an argument cannot work.
        WorkerError: a player could not be made; nothing is left running.
    """

    def __init__(
        self,
        env_runners: Sequence[EnvRunner],
        maximum_staleness: int,
        *,
        backend: str | None = None,
        seed: int | None = None,
        start_method: str | None = None,
        on_failure: str = "raise",
        on_restart: Callable[[WorkerError], None] | None = None,
        max_restarts: int = 3,
        restart_window: float = 60.0,
        step_timeout: float | None = None,
        start_timeout: float = 60.0,
        close_timeout: float = 5.0,
        deterministic: bool = False,
        max_batch_size: int | None = None,
        address: str | None = None,
        resources_per_runner: Mapping[str, float] | None = None,
    ) -> None:
        self._closed = False
        self._stopped = False
        self._owner = os.getpid()
        self._close_lock = threading.RLock()
        runners = checked_runners(env_runners)
        kind = backend_class(backend or ("inline" if len(runners) == 1 else "process"))
        self._settings = checked_settings(
            backend,
            seed,
            maximum_staleness=maximum_staleness,
            start_method=start_method,
            on_failure=on_failure,
            on_restart=on_restart,
            max_restarts=max_restarts,
            restart_window=restart_window,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            close_timeout=close_timeout,
            deterministic=deterministic,
            max_batch_size=max_batch_size,
            address=address,
            resources_per_runner=resources_per_runner,
        )
        self._local = local_predictors(runners)
        self._has_predictor = all(runner.predictor is not None for runner in runners)
        memory = runners[0].memory
        assert memory is not None
        self._memory = memory
        self._recorder = Recorder(len(runners))
        self._sticky = StickyFailure(self._recorder.changed)
        self._num_workers = len(runners)
        self._outstanding = [0] * len(runners)  # upper bounds; the pace cells have the truth
        self._peak = 0
        self._asked = [0] * len(runners)
        self._next = 0
        self._step_lock = threading.RLock()
        self._at_exit = partial(_close_referent, weakref.ref(self))
        self._finalizer: weakref.finalize[..., EnvRunnerManager] | None = None
        self._start(kind, runners)

    def _start(self, kind: Callable[..., Backend], runners: Sequence[EnvRunner]) -> None:
        """First what will end the workers, then the workers; Ctrl-C may come at any moment."""
        memory = self._memory
        made: Backend | None = None
        memory.open_streams(len(runners))
        try:
            made = kind(runners, memory, self._recorder, self._settings, self._sticky.fail)
            self._backend = made
            atexit.register(self._at_exit)
            self._finalizer = weakref.finalize(self, _abandon, made, memory, self._at_exit)
            self._finalizer.atexit = False
            _managers.add(self)
            made.start()
        except BaseException:
            self._abort(made)
            raise

    def _abort(self, backend: Backend | None) -> None:
        """The start has failed: what there is of the pool ends, the memory is free again."""
        self._closed = self._stopped = True
        atexit.unregister(self._at_exit)
        try:
            if backend is not None:
                backend.close(False)
        finally:
            self._give_up_memory()

    def step(self, exploration: float, num_steps: int = 1) -> None:
        """Have runners do steps; returns when they are on their way.

        Blocks while `maximum_staleness` steps are outstanding; results are taken in meanwhile.

        Args:
            exploration: epsilon of these steps, in [0, 1]; 1 where there is no predictor.
            num_steps: at least 1; one runner does them all, told by one message. More than
                `maximum_staleness` are dealt out in parts.

        Raises:
            ConfigurationError: an argument is out of range.
            ClosedError: the manager is closed.
            MprunnerError: a worker, a predictor or the drain thread has failed.
        """
        self._check_usable()
        exploration = check_exploration(exploration, self._has_predictor)
        left = at_least("num_steps", num_steps, 1)
        part = self._settings.maximum_staleness
        if left > part:
            part = max(1, part // (1 if self._settings.deterministic else self._num_workers))
        with self._step_lock:
            while left > 0:
                part = min(part, left)
                self._dispatch(exploration, part)
                left -= part

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every step asked for so far is in memory, or counted as lost.

        Args:
            timeout: seconds; None: as long as it takes.

        Returns:
            False if the time was up first.

        Raises:
            ClosedError, MprunnerError: as `step`.
        """
        self._check_usable()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # Of each runner: what others land of later steps must not stand in for them.
        asked = self._asked.copy()
        recorder = self._recorder
        with recorder.changed:
            while any(n > recorder.landed[i] + recorder.lost[i] for i, n in enumerate(asked)):
                self._check_usable()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                recorder.changed.wait(min(left, _RECHECK_S))
        self._sticky.check()
        return True

    def reset_stats(self) -> tuple[float | None, float | None]:
        """Mean and maximum score of the games that ended since the last call.

        Returns:
            (mean, max) of whole, unclipped scores; (None, None) if no game ended.
        """
        self._sticky.check()
        scores = self._recorder.take_scores()
        if not scores:
            return None, None
        return math.fsum(scores) / len(scores), max(scores)

    def stats(self) -> ManagerStats:
        """A snapshot of all counters; works after a failure and after `close()`, too."""
        workers = [self._backend.worker_stats(i) for i in range(self._num_workers)]
        outstanding = sum(self._count_outstanding())
        return self._recorder.snapshot(sum(self._asked), outstanding, self._peak, workers)

    def set_weights(self, weights: Weights) -> int:
        """Publish weights for the runners' `LocalPredictor`.

        Never waits for a worker; but with ``deterministic=True`` it joins first, so that no step
        asked for before acts on them.

        Args:
            weights: in the form of the first ones.

        Returns:
            The new version; workers take it over at the start of their next job.

        Raises:
            ConfigurationError: no `LocalPredictor`, or other names, shapes or dtypes; nothing
                is published then.
            ClosedError, MprunnerError: as `step`.
        """
        self._check_usable()
        if not self._local:
            raise ConfigurationError("no runner has a LocalPredictor to set the weights of")
        for predictor in self._local:
            predictor.layout.pack(weights)  # refuse for all before publishing to any
        if self._settings.deterministic:
            self.join()
        with self._step_lock:
            # The count first, so that no row can land with weights newer than the newest.
            version = self._recorder.version = self._recorder.version + 1
            for predictor in self._local:
                self._backend.publish(predictor, weights, version)
        return version

    def close(self) -> None:
        """Do the steps under way, then stop every worker; later calls do nothing.

        Within `close_timeout` plus the time to end what does not stop by itself. Works after
        any failure and from any thread; a call that finds another at it waits for that. In a
        forked child it does nothing.

        Raises:
            MprunnerError: what failed while it closed, once everything is stopped.
        """
        healthy = self._sticky.error is None
        if self._close(finish=healthy) and healthy:
            self._sticky.check()

    def __enter__(self) -> EnvRunnerManager:
        self._check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(finish=kind is None and self._sticky.error is None)
        if kind is None and os.getpid() == self._owner:
            self._sticky.check()

    def _close(self, finish: bool) -> bool:
        """True if it was this call that stopped the workers."""
        if os.getpid() != self._owner:
            return False
        self._closed = True  # before the lock: a step() that waits for room looks, and lets go
        with self._close_lock:
            if self._stopped:
                return False
            locked = self._step_lock.acquire(timeout=self._settings.close_timeout)
            try:
                self._stop(finish)
            finally:
                if locked:
                    self._step_lock.release()
        return True

    def _stop(self, finish: bool) -> None:
        self._stopped = True
        atexit.unregister(self._at_exit)
        try:
            self._backend.close(finish)
        finally:
            self._give_up_memory()

    def _give_up_memory(self) -> None:
        self._memory.close_streams()
        # It keeps the backend, which keeps the error, whose traceback keeps this manager;
        # and by then another manager may have claimed the streams that it gives up.
        if self._finalizer is not None:
            self._finalizer.detach()

    def _check_usable(self) -> None:
        self._sticky.check()
        if self._closed:
            raise ClosedError("the manager is closed")

    def _dispatch(self, exploration: float, num_steps: int) -> None:
        worker = self._wait_for_room(num_steps)
        if sum(self._outstanding) + num_steps > self._peak:
            self._outstanding = self._count_outstanding()
            self._peak = max(self._peak, sum(self._outstanding) + num_steps)
        self._outstanding[worker] += num_steps
        self._asked[worker] += num_steps
        self._next = (worker + 1) % self._num_workers
        try:
            self._backend.submit(worker, exploration, num_steps)
        except MprunnerError as error:
            self._sticky.fail(error)
            raise

    def _wait_for_room(self, num_steps: int) -> int:
        """The worker to take the next steps, once there is room for them."""
        room = self._settings.maximum_staleness - num_steps
        if sum(self._outstanding) <= room:
            worker = self._choose()
            if worker is not None:
                return worker
        changed = self._recorder.changed
        while True:
            self._check_usable()
            self._outstanding = self._count_outstanding()
            if sum(self._outstanding) <= room:
                worker = self._choose()
                if worker is not None:
                    return worker
            self._backend.want_progress()
            with changed:
                if self._sticky.error is None:
                    changed.wait(_RECHECK_S)

    def _count_outstanding(self) -> list[int]:
        return [self._backend.outstanding(i) for i in range(self._num_workers)]

    def _choose(self) -> int | None:
        """The next in turn, or the one with least to do; None if it can't take more now."""
        if self._settings.deterministic:
            return self._next if self._backend.can_submit(self._next) else None
        outstanding = self._outstanding
        least = min(outstanding)
        start = self._next if least in outstanding[self._next:] else 0
        worker = outstanding.index(least, start)
        return worker if self._backend.can_submit(worker) else None


def _close_referent(reference: weakref.ref[EnvRunnerManager]) -> None:
    manager = reference()
    if manager is not None:
        manager._close(finish=False)


def _abandon(backend: Backend, memory: ReplayMemory, at_exit: Callable[[], None]) -> None:
    atexit.unregister(at_exit)
    backend.close(False)
    memory.close_streams()


_managers: weakref.WeakSet[EnvRunnerManager] = weakref.WeakSet()


def _disown() -> None:
    """In a forked child: the pools are its parent's. Takes no lock: one may have been held."""
    for manager in list(_managers):
        manager._closed = manager._stopped = True
        if manager._finalizer is not None:
            manager._finalizer.detach()
    _managers.clear()


os.register_at_fork(after_in_child=_disown)
