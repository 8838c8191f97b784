"""What happens when a worker fails: it is replaced within a budget, or the pool fails."""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque

from mprunner.errors import WorkerError
from mprunner.ledger import Ledger
from mprunner.settings import Settings
from mprunner.stats import Recorder

_log = logging.getLogger("mprunner")
_FIRST_BACK_OFF_S = 0.05
_MOST_BACK_OFF_S = 5.0


class RestartBudget:
    """At most `max_restarts` of one worker within `window_s` seconds."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._restarts: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Ask for a restart at `now` (seconds of any clock that only grows).

        Returns:
            Seconds to wait before it, doubling with each one in the window; None if there
            have been too many.
        """
        while self._restarts and now - self._restarts[0] > self._window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return None
        self._restarts.append(now)
        wait: float = _FIRST_BACK_OFF_S * 2 ** (len(self._restarts) - 1)
        return min(wait, _MOST_BACK_OFF_S)


class FailurePolicy:
    """The decision about each failed worker of a pool, on every backend.

    Args:
        settings: of the manager.
        ledger: takes the failure of the pool.
        recorder: counts restarts.
        num_workers: of the pool.

    Attributes:
        started: all players have stood at their first observation.
        closing: no worker is to be started any more.
        aborting: running jobs are abandoned; how a worker ends is of no interest.
        failed: something has been reported.
        start_error: the first failure, if it came before `started`.
    """

    def __init__(
        self, settings: Settings, ledger: Ledger, recorder: Recorder, num_workers: int
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._recorder = recorder
        self.budgets = [
            RestartBudget(settings.max_restarts, settings.restart_window)
            for _ in range(num_workers)
        ]
        self.started = False
        self.closing = False
        self.aborting = False
        self.failed = False
        self.start_error: BaseException | None = None

    @property
    def replaces(self) -> bool:
        """A worker that fails now may be replaced, if its budget allows it."""
        return self._settings.on_failure == "restart" and self.started and not self.closing

    def replace_in(self, worker: int, error: WorkerError) -> float | None:
        """Decide about a worker that has failed; a replacement is counted and announced.

        Returns:
            Seconds until it is to be replaced; None if it is not: then `report` the error.
        """
        if not self.replaces:
            return None
        wait_s = self.budgets[worker].spend(time.monotonic())
        if wait_s is None:
            return None
        self._recorder.add_restart(worker)
        _log.warning("%s; restarting it in %.2f s", _first_line(error), wait_s)
        if self._settings.on_restart is not None:
            try:
                self._settings.on_restart(error)
            except Exception:
                _log.exception("on_restart raised")
        return wait_s

    def report(self, error: BaseException) -> None:
        """The pool fails: while it starts for whoever starts it, later for its users."""
        with self._ledger.changed:
            self.failed = True
            if not self.started:
                self.start_error = self.start_error or error
            self._ledger.changed.notify_all()
        if self.started:
            self._ledger.fail(error)

    def excuse(self, error: WorkerError, lost: int) -> bool:
        """Whether a worker that exited while the pool closes, with all jobs done, is no failure.

        It is none where it would have been replaced; that is logged.

        Args:
            error: why it exited.
            lost: steps that it had executed and that will never be stored.
        """
        if not self.closing or self._settings.on_failure != "restart":
            return False
        _log.warning(
            "%s; it had nothing left to do, and %d of its steps are lost", _first_line(error), lost
        )
        return True


def in_words(error: BaseException) -> tuple[str, str, str]:
    """Type, message and traceback as text: what survives an exception that can't be pickled."""
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be shown)"
    return type(error).__name__, message, "".join(traceback.format_exception(error))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
