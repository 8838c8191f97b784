"""Waiting for other threads and processes without guessing how long they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

#: Seconds after which a wait counts as a hang, on however slow and busy a machine. Nothing that a
#: test waits for takes so long: no test measures the machine, they only tell "in the end" from
#: "never".
HANG_S = 120.0


def eventually(condition: Callable[[], bool], timeout: float = HANG_S) -> None:
    """Return as soon as `condition` holds; fail if it does not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.002)


class Background:
    """A call in a thread of its own.

    Args:
        call: what to do there.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="background", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        """The call has not returned."""
        return self._thread.is_alive()

    def result(self, timeout: float = HANG_S) -> Any:
        """What the call returned; raises what it raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call does not return"
        if self._error is not None:
            raise self._error
        return self._result
