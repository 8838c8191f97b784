"""How a failure is put in words, and how a replacement is told.

Owns no policy: who fails, who is replaced and when is decided elsewhere.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sized

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


def not_missed(settings: Settings, error: WorkerError, jobs: Sized) -> bool:
    """A worker has died while its pool is closed: is that no failure?

    It is none if it would have been replaced but had nothing left to do, which is told.
    """
    if settings.on_failure != "restart" or len(jobs):
        return False
    _log.warning("%s; nothing was left for it to do", str(error).splitlines()[0])
    return True
