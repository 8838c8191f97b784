"""What a step leaves behind: rows on their way in, experiences and batches on their way out.

Owns the row format (`ROW`, the flags) and the containers. Knows nothing of rings, streams
or processes.

A row is an observation and what was done on it. Row ``i + 1`` of a stream always holds the
true next observation of row ``i``; so an episode ends with a row that only carries its final
observation. Such a row has the flag CLOSING and is never sampled as a transition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The episode ended by the rules of the game (or a life was lost): no bootstrap beyond it.
TERMINATED = 1
#: The episode was cut (time limit, lost worker): a boundary, but the bootstrap goes on.
TRUNCATED = 2
#: Only an observation, not a transition: the last of its episode, or the newest of its stream.
CLOSING = 4

#: All of a row but its observation. ``version``: of the weights it was acted with (0: none
#: were published). ``age``: earlier rows of the same episode, cut at ``history_len - 1``.
ROW = np.dtype(
    {
        "names": ["action", "reward", "version", "flags", "age"],
        "formats": ["<i4", "<f4", "<u4", "u1", "u1"],
        "offsets": [0, 4, 8, 12, 13],
        "itemsize": 16,
    }
)
#: The same record for `struct`: action, reward, version, flags, age.
ROW_FORMAT = "<ifIBBxx"

#: ``age`` is one byte.
MAX_HISTORY_LEN = 255


class Experience(NamedTuple):
    """One step as the thread-based original stores it.

    Attributes:
        state: the observation *before* the action, ``state_shape``.
        reward: float.
        action: int.
        isOver: True if the episode (or a life) ended with this step.
    """

    state: Array
    reward: float
    action: int
    isOver: bool


@dataclass(frozen=True)
class Rows:
    """A run of consecutive rows of one stream, as struct of arrays.

    The last row always has the flag CLOSING: it carries the observation that follows the last
    transition.

    Attributes:
        state: ``(N, *state_shape)``, the memory's dtype.
        meta: ``(N,)`` records of dtype `ROW`.
        provisional: True if the episode goes on after the last row. Then the first row of the
            stream's next run holds the same observation again and takes the last row's place.
    """

    state: Array
    meta: Array
    provisional: bool

    def __len__(self) -> int:
        return len(self.meta)

    @property
    def action(self) -> Array:
        """``(N,)`` int32."""
        return self.meta["action"]

    @property
    def reward(self) -> Array:
        """``(N,)`` float32."""
        return self.meta["reward"]

    @property
    def flags(self) -> Array:
        """``(N,)`` uint8, of TERMINATED, TRUNCATED, CLOSING."""
        return self.meta["flags"]

    @property
    def age(self) -> Array:
        """``(N,)`` uint8."""
        return self.meta["age"]

    @property
    def version(self) -> Array:
        """``(N,)`` uint32."""
        return self.meta["version"]
