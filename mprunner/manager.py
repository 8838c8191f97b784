"""`EnvRunnerManager`: dispatch, pacing, and the end of a pool."""

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

from mprunner.assembly import backend_class, checked_runners, local_predictors
from mprunner.backends.base import Backend
from mprunner.checks import at_least, check_exploration
from mprunner.errors import ClosedError, ConfigurationError, MprunnerError, WorkerError
from mprunner.ledger import RECHECK_S, Ledger
from mprunner.predictors import LocalPredictor
from mprunner.replay.streams import StreamWriter
from mprunner.runner import EnvRunner
from mprunner.settings import BackendName, FailureAction, Settings, StartMethod
from mprunner.stats import ManagerStats, Recorder, StepCounts
from mprunner.weights import Weights


class EnvRunnerManager:
    """A pool of runners that fills their replay memory.

    Args:
        env_runners: at least one; they share one memory. Each becomes a worker.
        maximum_staleness: the most steps asked for and not yet executed, over all runners; at
            least 1. `step()` blocks at it.
        backend: "inline", "thread", "process" or "ray"; None: inline for one runner, else
            process.
        seed: of everything the runners do; None: fresh entropy, which is logged.
        start_method: of the processes: "forkserver" or "spawn"; None: forkserver where there is
            one, else spawn. For the backend "process" alone.
        on_failure: "raise", or "restart": replace a worker that failed.
        on_restart: called with the `WorkerError` whenever a worker is about to be replaced, in a
            thread of the pool: it should be quick, and may not call `step`, `join` or
            `set_weights`.
        max_restarts: of one runner within `restart_window` seconds; then its error is raised.
        restart_window: seconds.
        step_timeout: seconds in one reset or step after which a worker counts as stalled;
            None: never. As the next two, for the backends that have workers beside the caller:
            "thread" (where one that has stalled cannot be replaced), "process" and "ray".
        start_timeout: seconds until a player must stand at its first observation; None: 60.
        close_timeout: seconds that `close()` gives the workers to finish; None: 5.
        deterministic: assign steps round-robin, query predictors one state at a time and join
            before new weights, so that what the memory holds after a `join()` repeats bit for
            bit, on any backend. Predictors must be functions of the state and the weights;
            change those of a served one, and sample, only after a `join()`.
        max_batch_size: the most states in one call of a served predictor; None: no limit.
        address: of the Ray cluster; None: the one this process uses already, or a new one. For
            the backend "ray" alone, as is the next.
        resources_per_runner: what Ray reserves for each runner; None: one CPU.

    Raises:
        ConfigurationError: an argument cannot work.
        WorkerError: a player could not be made; nothing is left running.
    """

    def __init__(
        self,
        env_runners: Sequence[EnvRunner],
        maximum_staleness: int,
        *,
        backend: BackendName | None = None,
        seed: int | None = Settings.seed,
        start_method: StartMethod | None = Settings.start_method,
        on_failure: FailureAction = Settings.on_failure,
        on_restart: Callable[[WorkerError], None] | None = Settings.on_restart,
        max_restarts: int = Settings.max_restarts,
        restart_window: float = Settings.restart_window,
        step_timeout: float | None = Settings.step_timeout,
        start_timeout: float | None = Settings.start_timeout,
        close_timeout: float | None = Settings.close_timeout,
        deterministic: bool = Settings.deterministic,
        max_batch_size: int | None = Settings.max_batch_size,
        address: str | None = Settings.address,
        resources_per_runner: Mapping[str, float] | None = Settings.resources_per_runner,
    ) -> None:
        self._closed = False
        self._stopped = False
        self._owner = os.getpid()
        self._close_lock = threading.RLock()
        runners = checked_runners(env_runners)
        self._settings = Settings(
            maximum_staleness=maximum_staleness,
            backend=backend or ("inline" if len(runners) == 1 else "process"),
            seed=seed,
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
        kind = backend_class(self._settings.backend)
        self._local = local_predictors(runners)
        self._has_predictor = all(runner.predictor is not None for runner in runners)
        self._num_workers = len(runners)
        self._outstanding = [0] * len(runners)  # upper bounds; the accounts have the truth
        self._peak = 0
        self._next = 0
        self._step_lock = threading.RLock()
        self._weights_lock = threading.RLock()
        self._at_exit = partial(_close_referent, weakref.ref(self))
        self._finalizer: weakref.finalize[..., EnvRunnerManager] | None = None
        memory = runners[0].memory
        assert memory is not None
        self._writers: list[StreamWriter] = memory.claim_streams(len(runners))
        self._recorder = Recorder(len(runners))
        self._ledger = Ledger(self._writers)
        self._start(kind, runners)

    def _start(self, kind: Callable[..., Backend], runners: Sequence[EnvRunner]) -> None:
        """First what will end the workers, then the workers; Ctrl-C may come at any moment."""
        made: Backend | None = None
        try:
            made = kind(runners, self._ledger, self._recorder, self._settings)
            self._backend = made
            atexit.register(self._at_exit)
            self._finalizer = weakref.finalize(
                self, _abandon, made, self._writers, self._at_exit
            )
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
            self._release_streams()

    def step(self, exploration: float, num_steps: int = 1) -> None:
        """Have runners do steps; returns when they are on their way.

        Blocks while `maximum_staleness` steps are outstanding; results are taken in meanwhile.

        Args:
            exploration: epsilon of these steps, in [0, 1]; 1 where there is no predictor.
            num_steps: at least 1; one runner does them all, asked for by one message. More than
                `maximum_staleness` are asked for in parts.

        Raises:
            ConfigurationError: an argument is out of range.
            ClosedError: the manager is closed.
            MprunnerError: a worker, a predictor or the pool's own thread has failed.
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
        self._send_unsent()
        # Of each runner: what others store of later steps must not stand in for them.
        asked = [account.asked for account in self._ledger.accounts]
        if not self._ledger.wait(
            lambda: self._ledger.failure is not None or self._closed or self._settled(asked),
            deadline,
        ):
            return False
        if not self._settled(asked):
            self._check_usable()
        self._ledger.check()
        return True

    def _settled(self, asked: Sequence[int]) -> bool:
        return all(n <= account.settled for n, account in zip(asked, self._ledger.accounts))

    def reset_stats(self) -> tuple[float | None, float | None]:
        """Mean and maximum score of the games that ended since the last call.

        Returns:
            (mean, max) of whole, unclipped scores; (None, None) if no game ended.
        """
        self._ledger.check()
        scores = self._recorder.take_scores()
        if not scores:
            return None, None
        return math.fsum(scores) / len(scores), max(scores)

    def stats(self) -> ManagerStats:
        """A snapshot of all counters; works after a failure and after `close()`, too."""
        workers = [self._backend.worker_stats(i) for i in range(self._num_workers)]
        accounts = self._ledger.accounts
        steps = StepCounts(
            asked=sum(account.asked for account in accounts),
            stored=sum(account.stored for account in accounts),
            lost=sum(account.lost for account in accounts),
            outstanding=sum(account.outstanding for account in accounts),
            outstanding_peak=self._peak,
        )
        return self._recorder.snapshot(steps, workers)

    def set_weights(self, weights: Weights, predictor: LocalPredictor | None = None) -> int:
        """Publish weights for the runners' `LocalPredictor`.

        Never waits for a worker; but with ``deterministic=True`` it joins first, so that no step
        asked for before acts on them.

        Args:
            weights: in the form of the first ones.
            predictor: the one to publish to; None: every one that the runners have.

        Returns:
            The new version; workers take it over at the start of their next job.

        Raises:
            ConfigurationError: no such `LocalPredictor`, or other names, shapes or dtypes;
                nothing is published then.
            ClosedError, MprunnerError: as `step`.
        """
        self._check_usable()
        if not self._local:
            raise ConfigurationError("no runner has a LocalPredictor to set the weights of")
        if predictor is not None and predictor not in self._local:
            raise ConfigurationError("the predictor is not that of any runner of this manager")
        targets = self._local if predictor is None else [predictor]
        packed = [target.layout.pack(weights) for target in targets]
        if self._settings.deterministic:
            self.join()
        with self._weights_lock:
            # The count first, so that no row is stored with weights newer than the newest.
            version = self._recorder.version + 1
            self._recorder.version = version
            for target, data in zip(targets, packed):
                self._backend.publish(target, data, version)
        return version

    def close(self) -> None:
        """Do the steps under way, then stop every worker; later calls do nothing.

        Within `close_timeout` plus the time to end what does not stop by itself. Works after
        any failure and from any thread; a call that finds another at it waits for that. In a
        forked child it does nothing.

        Raises:
            MprunnerError: what failed while it closed, once everything is stopped.
        """
        healthy = self._ledger.failure is None
        if self._close(finish=healthy) and healthy:
            self._ledger.check()

    def __enter__(self) -> EnvRunnerManager:
        self._check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(finish=kind is None and self._ledger.failure is None)
        if kind is None and os.getpid() == self._owner:
            self._ledger.check()

    def _close(self, finish: bool) -> bool:
        """True if it was this call that stopped the workers."""
        if os.getpid() != self._owner:
            return False
        self._closed = True  # before the lock: a step() that waits for room sees it, and lets go
        if not self._stopped and self._backend.is_own_thread():
            # A predictor or a callback closes the pool from within: its thread has to go on, or
            # the workers, which wait for it, could not end.
            threading.Thread(target=self._close, args=(False,), name="mprunner-close").start()
            return False
        with self._close_lock:
            if self._stopped:
                return False
            # A step() that hangs in its send must not keep the workers from being stopped.
            limit_s = min(self._settings.close_limit_s, threading.TIMEOUT_MAX)
            locked = self._step_lock.acquire(timeout=limit_s)
            try:
                self._stop(finish)
            finally:
                if locked:
                    self._step_lock.release()
        return True

    def _stop(self, finish: bool) -> None:
        """May be called again after an exception: it goes on where the first call ended."""
        try:
            if finish:
                self._send_unsent()
            self._backend.close(finish)
        except BaseException:
            self._backend.close(False)
            raise
        finally:
            atexit.unregister(self._at_exit)
            self._release_streams()
            self._stopped = True

    def _release_streams(self) -> None:
        for writer in self._writers:
            writer.release()
        # It keeps the backend, which keeps the error, whose traceback keeps this manager.
        if self._finalizer is not None:
            self._finalizer.detach()

    def _check_usable(self) -> None:
        self._ledger.check()
        if self._closed:
            raise ClosedError("the manager is closed")
        if self._backend.is_own_thread():
            raise MprunnerError(
                "the manager is called from within: a player, a predictor or on_restart may not "
                "call step(), join() or set_weights(), which would wait for it"
            )

    def _dispatch(self, exploration: float, num_steps: int) -> None:
        worker = self._wait_for_room(num_steps)
        if sum(self._outstanding) + num_steps > self._peak:
            self._outstanding = self._count_outstanding()
            self._peak = max(self._peak, sum(self._outstanding) + num_steps)
        self._outstanding[worker] += num_steps
        self._next = (worker + 1) % self._num_workers
        # From here on the steps count as asked for. If an exception keeps them from being sent,
        # the next step(), join() or close() sends them.
        self._ledger.accounts[worker].ask(exploration, num_steps)
        self._send(worker)

    def _send(self, worker: int) -> None:
        try:
            self._backend.send(worker)
        except MprunnerError as error:
            self._ledger.fail(error)
            raise

    def _send_unsent(self) -> None:
        """Complete what an exception has interrupted, unless another thread is at it."""
        if not self._step_lock.acquire(blocking=False):
            return
        try:
            for worker, account in enumerate(self._ledger.accounts):
                if account.sent != account.asked or account.sent > account.executed:
                    self._send(worker)
        finally:
            self._step_lock.release()

    def _wait_for_room(self, num_steps: int) -> int:
        """The worker to take the next steps, once there is room for them."""
        room = self._settings.maximum_staleness - num_steps
        if sum(self._outstanding) <= room:
            worker = self._choose()
            if worker is not None:
                return worker
        if any(account.sent != account.asked for account in self._ledger.accounts):
            self._send_unsent()  # or it would be waited for in vain
        changed = self._ledger.changed
        while True:
            self._check_usable()
            self._outstanding = self._count_outstanding()
            if sum(self._outstanding) <= room:
                worker = self._choose()
                if worker is not None:
                    return worker
            self._backend.want_progress()
            with changed:
                if self._ledger.failure is None:
                    changed.wait(RECHECK_S)

    def _count_outstanding(self) -> list[int]:
        return [account.outstanding for account in self._ledger.accounts]

    def _choose(self) -> int | None:
        """The next in turn, or the one with least to do; None if it can't take more now."""
        if self._settings.deterministic:
            return self._next if self._backend.can_take(self._next) else None
        outstanding = self._outstanding
        least = min(outstanding)
        start = self._next if least in outstanding[self._next:] else 0
        worker = outstanding.index(least, start)
        return worker if self._backend.can_take(worker) else None


def _close_referent(reference: weakref.ref[EnvRunnerManager]) -> None:
    manager = reference()
    if manager is not None:
        manager._close(finish=False)


def _abandon(
    backend: Backend, writers: Sequence[StreamWriter], at_exit: Callable[[], None]
) -> None:
    """The finalizer of a manager that nobody refers to any more."""
    atexit.unregister(at_exit)
    backend.close(False)
    for writer in writers:
        writer.release()


_managers: weakref.WeakSet[EnvRunnerManager] = weakref.WeakSet()


def _disown() -> None:
    """In a forked child: the pools are its parent's. Takes no lock: one may have been held."""
    for manager in list(_managers):
        manager._closed = manager._stopped = True
        if manager._finalizer is not None:
            manager._finalizer.detach()
    _managers.clear()


os.register_at_fork(after_in_child=_disown)
