"""When a failed worker may be replaced, and how soon."""

from __future__ import annotations

from collections import deque

_FIRST_BACK_OFF_S = 0.05
_MOST_BACK_OFF_S = 5.0


class RestartBudget:
    """At most so many restarts of one worker within a sliding window.

    Args:
        max_restarts: within the window; 0: none at all.
        window_s: seconds.
    """

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
