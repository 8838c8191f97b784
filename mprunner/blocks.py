"""Rows of one runner on their way out, a block at a time.

Owns the order in which a step becomes rows. Knows nothing of where a block goes: an emitter
takes it and says where the next one is to be written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mprunner.experience import CLOSING, ROW, ROW_FORMAT, Array, Rows

#: The smallest block that holds a step, its closing row and the observation after it.
MIN_BLOCK_ROWS = 3


@dataclass
class BlockInfo:
    """What a block brings beside its rows.

    Attributes:
        num_rows: all rows, closing ones included.
        num_steps: transitions among them.
        provisional: the episode goes on after the last row.
        scores: of the games that ended in it.
        versions: weights version -> transitions acted with it.
    """

    num_rows: int = 0
    num_steps: int = 0
    provisional: bool = False
    scores: list[float] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)


class Emitter(Protocol):
    """Takes blocks from a `BlockWriter`."""

    def acquire(self) -> tuple[Array, Any]:
        """Room for the next block: states ``(R, *state_shape)``, and R rows as a byte buffer."""

    def emit(self, info: BlockInfo) -> None:
        """The block acquired last is complete."""


class BlockWriter:
    """Turns observations and steps into rows.

    The call order is ``observe (commit (observe | close observe))*``: each observation is
    copied as soon as it is known, so the player may go on in the same buffer.

    Args:
        emitter: takes the blocks.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._pack_into = struct.Struct(ROW_FORMAT).pack_into
        self._info = BlockInfo()
        self._n = 0  # complete rows; row n holds an observation if _observed
        self._observed = False
        self._age = 0
        self._version = 0
        self._state, self._meta = emitter.acquire()
        self._last = len(self._state) - MIN_BLOCK_ROWS + 1
        assert self._last > 0

    def observe(self, observation: Array, age: int) -> None:
        """The observation that the next action will be chosen on; `age` as in a row."""
        self._state[self._n] = observation
        self._age = age
        self._observed = True
        if self._n >= self._last:
            self.flush()

    def commit(self, action: int, reward: float, version: int, flags: int) -> None:
        """What was done on the observation, and what came of it."""
        self._pack_into(self._meta, self._n * 16, action, reward, version, flags, self._age)
        self._n += 1
        self._observed = False
        self._version = version
        info = self._info
        info.num_steps += 1
        info.versions[version] = info.versions.get(version, 0) + 1

    def close(self, observation: Array, age: int) -> None:
        """The final observation of an episode."""
        self._state[self._n] = observation
        self._pack_into(self._meta, self._n * 16, 0, 0.0, self._version, CLOSING, age)
        self._n += 1

    def add_score(self, score: float) -> None:
        """A game has ended."""
        self._info.scores.append(score)

    def flush(self) -> None:
        """Send the rows since the last block, if there is a step among them."""
        info, n = self._info, self._n
        if not info.num_steps:
            return
        observed = self._observed
        if observed:
            self._pack_into(self._meta, n * 16, 0, 0.0, self._version, CLOSING, self._age)
        info.num_rows = n + observed
        info.provisional = observed
        newest = self._state[n]
        self._info, self._n = BlockInfo(), 0
        self._emitter.emit(info)
        self._state, self._meta = self._emitter.acquire()
        if observed:
            self._state[0] = newest

    def cut(self) -> None:
        """The episode breaks off: send the rows that are whole. `observe` must follow."""
        n = self._n
        if not self._observed and n and not self._meta[n * 16 - 4] & CLOSING:
            # A step whose outcome is unknown: only what it was done on is kept.
            self._n = n - 1
            self._info.num_steps -= 1
            self._info.versions[self._version] -= 1
            self._observed = True
        self.flush()
        self._n, self._observed = 0, False


class LocalEmitter:
    """Takes blocks in the process of the memory, by a call.

    Args:
        land: called with each block; must have copied the rows when it returns.
        num_rows: of a block, at least `MIN_BLOCK_ROWS`.
        state_shape, dtype: of an observation.
    """

    def __init__(
        self, land: Any, num_rows: int, state_shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._land = land
        self._state = np.zeros((num_rows, *state_shape), dtype)
        self._rows = np.zeros(num_rows, ROW)
        self._buffer = self._rows.view(np.uint8).data

    def acquire(self) -> tuple[Array, Any]:
        """The one block, again and again."""
        return self._state, self._buffer

    def emit(self, info: BlockInfo) -> None:
        """Hand the block over."""
        n = info.num_rows
        self._land(Rows(self._state[:n], self._rows[:n], info.provisional), info)


def block_rows(state_shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Rows of a block: about 512 KiB, at most 256, at least `MIN_BLOCK_ROWS`."""
    row_bytes = ROW.itemsize + dtype.itemsize * int(np.prod(state_shape, dtype=np.int64))
    return max(MIN_BLOCK_ROWS, min(256, 512 * 1024 // row_bytes))
