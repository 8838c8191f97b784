"""The first failure of a pool, raised again at every later call."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("mprunner")


class StickyFailure:
    """The first failure; kept apart from the manager, so that backends don't keep it alive."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Keep the first, log the others."""
        with self._changed:
            if self.error is None:
                self.error = error
            else:
                _log.warning("a further failure: %s", error)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what was kept."""
        if self.error is not None:
            raise self.error.with_traceback(None)
