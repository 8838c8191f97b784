"""The frames that a runner acts on.

Cut at the same boundaries as the rows, so that acting and training see the same states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mprunner.experience import Array


class History:
    """The newest ``history_len`` frames of an episode, always contiguous.

    Frames slide through a longer buffer, so that a state is a view and only every so many
    steps a few frames move back to its start.

    Args:
        history_len, state_shape, dtype: of the memory.
        seen: False where nobody looks at a state; then only the age is kept.
    """

    def __init__(
        self,
        history_len: int,
        state_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        seen: bool = True,
    ) -> None:
        self._len = history_len
        self._seen = seen
        self._frames = np.zeros((max(16, 4 * history_len), *state_shape), dtype)
        self._end = 0
        self._axes = (*range(1, len(state_shape) + 1), 0)
        self.age = 0

    def restart(self, observation: Array) -> None:
        """The first observation of an episode; what lies before it is zeros."""
        self.age = 0
        if self._seen:
            keep = self._len - 1
            self._frames[:keep] = 0
            self._frames[keep] = observation
            self._end = keep + 1

    def push(self, observation: Array) -> None:
        """The next observation of the episode."""
        if self.age < self._len - 1:
            self.age += 1
        if not self._seen:
            return
        if self._end == len(self._frames):
            keep = self._len - 1
            self._frames[:keep] = self._frames[self._end - keep:self._end]
            self._end = keep
        self._frames[self._end] = observation
        self._end += 1

    @property
    def next_age(self) -> int:
        """The age of the observation after the newest."""
        return min(self.age + 1, self._len - 1)

    def state(self) -> Array:
        """``(*state_shape, history_len)``: a view, history last, of contiguous frames."""
        return self._frames[self._end - self._len:self._end].transpose(self._axes)
