"""How a failure is put in words, and how a replacement is told.

Owns no policy: who fails, who is replaced and when is decided elsewhere.
"""

from __future__ import annotations

import logging
import traceback

from mprunner.backends.base import Settings
from mprunner.errors import WorkerError

_log = logging.getLogger("mprunner")


def in_words(error: BaseException) -> tuple[str, str, str]:
    """Type, message and traceback as text: what survives an exception that can't be pickled."""
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be shown)"
    return type(error).__name__, message, "".join(traceback.format_exception(error))


def tell_restart(settings: Settings, error: WorkerError, wait_s: float) -> None:
    """A worker is about to be replaced because of `error`."""
    _log.warning("%s; restarting it in %.2f s", str(error).splitlines()[0], wait_s)
    if settings.on_restart is None:
        return
    try:
        settings.on_restart(error)
    except Exception:
        _log.exception("on_restart raised")


def tell_unneeded(error: WorkerError, lost: int) -> None:
    """A worker has died, and is not replaced since all its jobs are done.

    Args:
        error: why.
        lost: steps that it had done and whose rows will never arrive.
    """
    _log.warning(
        "%s; it had nothing left to do, and %d of its steps are lost",
        str(error).splitlines()[0],
        lost,
    )
