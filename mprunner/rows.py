"""A worker's rows: the record, a block of rows, and the writer that turns steps into blocks.

A row is an observation and what was done on it. Row ``i + 1`` of a stream always holds the
true next observation of row ``i``, so an episode ends with a row that only carries its final
observation. Such a row has the flag CLOSING and is never sampled as a transition.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

import numpy as np

from mprunner.experience import Array

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

#: The smallest block that holds a step, its closing row and the observation after it.
MIN_BLOCK_ROWS = 3

_ROW_BYTES = ROW.itemsize
_VERSION = struct.Struct("<I")
_VERSION_AT = ROW.fields["version"][1]  # type: ignore[index]
_FLAGS_AT = ROW.fields["flags"][1]  # type: ignore[index]
_STEP_FLAGS = bytes(range(CLOSING))


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


def count_steps(records: bytes) -> int:
    """Return how many of these records are transitions."""
    flags = records[_FLAGS_AT::_ROW_BYTES]
    return len(flags) - len(flags.translate(None, _STEP_FLAGS))


@dataclass
class BlockInfo:
    """What a block brings beside its rows.

    Attributes:
        number: of the block, counted by its writer; None where nothing can interrupt its way.
        num_rows: all rows, closing ones included.
        num_steps: transitions among them.
        provisional: the episode goes on after the last row.
        scores: of the games that ended in it.
        versions: weights version -> transitions acted with it.
    """

    number: int | None = None
    num_rows: int = 0
    num_steps: int = 0
    provisional: bool = False
    scores: list[float] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)


class Emitter(Protocol):
    """Takes blocks from a `BlockWriter`."""

    def acquire(self) -> tuple[Array, Any]:
        """Return room for a block: states ``(R, *state_shape)``, and R rows as a byte buffer."""

    def emit(self, info: BlockInfo) -> None:
        """Take the block acquired last.

        A call that was interrupted is repeated with the same ``info.number``, whether the block
        was taken or not; whoever stores it ignores a number that it has.
        """


#: How far a `BlockWriter` is: number of the block, complete rows, whether an observation follows
#: them, its age, scores. Made for each step, so a plain tuple.
Mark = tuple[int, int, bool, int, int]


class BlockWriter:
    """Turns observations and steps into rows.

    The call order is ``observe (commit (observe | close observe))*``: each observation is
    copied as soon as it is known, so the player may go on in the same buffer.

    Args:
        emitter: takes the blocks.
        number: of the first block.
    """

    def __init__(self, emitter: Emitter, number: int = 0) -> None:
        self._emitter = emitter
        self._pack_into = struct.Struct(ROW_FORMAT).pack_into
        self._number = number
        self._n = 0  # complete rows; row n holds an observation if _observed
        self._observed = False
        self._age = 0
        self._version = 0
        self._scores: list[float] = []
        self._pending: BlockInfo | None = None  # a block on its way to the emitter
        self._state, self._meta = emitter.acquire()
        self._last = len(self._state) - MIN_BLOCK_ROWS + 1
        assert self._last > 0

    def observe(self, observation: Array, age: int) -> None:
        """Take the observation that the next action will be chosen on; `age` as in a row."""
        self._state[self._n] = observation
        self._age = age
        self._observed = True
        if self._n >= self._last:
            self.flush()

    def commit(self, action: int, reward: float, version: int, flags: int) -> None:
        """Take what was done on the observation, and what came of it."""
        self._pack_into(
            self._meta, self._n * _ROW_BYTES, action, reward, version, flags, self._age
        )
        self._n += 1
        self._observed = False
        self._version = version

    def close(self, observation: Array, age: int) -> None:
        """Take the final observation of an episode."""
        self._state[self._n] = observation
        self._pack_into(
            self._meta, self._n * _ROW_BYTES, 0, 0.0, self._version, CLOSING, age
        )
        self._n += 1

    def add_score(self, score: float) -> None:
        """A game has ended."""
        self._scores.append(score)

    def flush(self) -> None:
        """Send the rows since the last block, if there is a step among them.

        After an exception that came in between, another call completes the same block.
        """
        if self._pending is None:
            self._pending = self._complete()
        if self._pending is not None:
            self._send(self._pending)

    def _complete(self) -> BlockInfo | None:
        """The block that the rows make up; None if there is no step among them."""
        n, observed = self._n, self._observed
        if n == 0:
            return None
        num_steps = count_steps(bytes(self._meta[:n * _ROW_BYTES]))
        if num_steps == 0:
            return None
        # Versions only grow, so equal ends mean equal all over.
        oldest, newest = (self._version_of(row) for row in (0, n - 1))
        if oldest == newest:
            counts = {newest: num_steps}
        else:
            records = np.frombuffer(self._meta, ROW, n)
            steps = records[records["flags"] < CLOSING]
            found = np.unique(steps["version"], return_counts=True)
            counts = dict(zip(found[0].tolist(), found[1].tolist()))
        if observed:
            self._pack_into(
                self._meta, n * _ROW_BYTES, 0, 0.0, self._version, CLOSING, self._age
            )
        return BlockInfo(self._number, n + observed, num_steps, observed, self._scores, counts)

    def _version_of(self, row: int) -> int:
        return int(_VERSION.unpack_from(self._meta, row * _ROW_BYTES + _VERSION_AT)[0])

    def _send(self, info: BlockInfo) -> None:
        self._emitter.emit(info)
        # From here on each line sets what does not depend on how often it is executed, since an
        # exception may come between any two of them, and then all are executed again.
        assert info.number is not None
        self._number = info.number + 1
        self._scores = []
        newest = self._state[info.num_rows - 1]
        state, meta = self._emitter.acquire()
        if info.provisional:
            state[0] = newest
        self._n = 0
        self._state, self._meta = state, meta
        self._pending = None

    def mark(self) -> Mark:
        """How far the writer is now."""
        return self._number, self._n, self._observed, self._age, len(self._scores)

    def cut(self, mark: Mark) -> None:
        """The episode breaks off: send the rows up to `mark`. `observe` must follow."""
        if self._pending is not None:
            self._send(self._pending)
        # Rows of a block that has been sent meanwhile are whole.
        if mark[0] == self._number:
            _, self._n, self._observed, self._age, num_scores = mark
            del self._scores[num_scores:]
        self.flush()
        self._n, self._observed = 0, False


class LocalEmitter:
    """Takes blocks in the process of the memory, by a call.

    Args:
        store: called with each block; must have copied the rows when it returns.
        num_rows: of a block, at least `MIN_BLOCK_ROWS`.
        state_shape, dtype: of an observation.
    """

    def __init__(
        self,
        store: Callable[[Rows, BlockInfo], None],
        num_rows: int,
        state_shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._store = store
        self._state = np.zeros((num_rows, *state_shape), dtype)
        self._rows = np.zeros(num_rows, ROW)
        self._buffer = self._rows.view(np.uint8).data

    def acquire(self) -> tuple[Array, Any]:
        """Return the one block, again and again."""
        return self._state, self._buffer

    def emit(self, info: BlockInfo) -> None:
        """Hand the block over."""
        n = info.num_rows
        self._store(Rows(self._state[:n], self._rows[:n], info.provisional), info)


def block_rows(state_shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the rows of a block: about 512 KiB, at most 256, at least `MIN_BLOCK_ROWS`."""
    row_bytes = ROW.itemsize + dtype.itemsize * int(np.prod(state_shape, dtype=np.int64))
    return max(MIN_BLOCK_ROWS, min(256, 512 * 1024 // row_bytes))
