"""Toy players that tell where each observation comes from, and what watches them.

Light on purpose: a worker that plays one of these imports numpy and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

#: Columns of a tagged observation.
RUNNER, EPISODE, STEP, LAST_ACTION = range(4)
TAG_SHAPE = (4,)

#: Columns of a `Ledger`.
FACTORIES, RESETS, STEPS, CLOSES = range(4)


@dataclass(frozen=True)
class Discrete:
    """As much of an action space as a player needs."""

    n: int
    start: int = 0


class Ledger:
    """What players did, counted in a file that all processes map.

    Args:
        path: of the file; made if it isn't there.
        num_runners: rows of the table; each runner writes its own.
    """

    def __init__(self, path: Path, num_runners: int = 4) -> None:
        self._args = (path, num_runners)
        if not path.exists():
            path.write_bytes(bytes(8 * 4 * num_runners))
        self.cells = np.memmap(path, np.int64, "r+", shape=(num_runners, 4))

    def __reduce__(self) -> Any:
        return type(self), self._args

    def add(self, runner: int, column: int) -> None:
        """Count one."""
        self.cells[runner, column] += 1

    def total(self, column: int) -> int:
        """Over all runners."""
        return int(self.cells[:, column].sum())


class Gate:
    """Lets a player do as many steps as the test has opened it for; a FIFO of tokens.

    A process that is killed while it waits may still take one that is given before it has ended:
    await its end first.

    Args:
        path: of the FIFO; made if it isn't there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            os.mkfifo(path)
        # Both ways, so that neither side waits for the other or sees an end.
        self._fd: int | None = os.open(path, os.O_RDWR)

    def __reduce__(self) -> Any:
        return type(self), (self._path,)

    def open(self, num_steps: int = 1) -> None:
        """Let so many further steps pass."""
        assert self._fd is not None
        os.write(self._fd, b"." * num_steps)

    def wait(self) -> None:
        """Take one token, when there is one."""
        assert self._fd is not None
        os.read(self._fd, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class TagPlayer:
    """Writes (runner, episode, step, last action) into its observation; reward 1 per step.

    Args:
        runner: the tag of whoever plays it.
        length: steps in an episode.
        ending: of an episode: "terminated", "truncated" or "both".
        lives: if above 0, every `length` steps cost a life, and the last one ends the game.
        lives_key: of the info.
        reuse_buffer: return the same array at every step.
        dtype: of the observation.
        num_actions: of the space.
        ledger: counts what is called.
        gate: to be passed before each step.
    """

    def __init__(
        self,
        runner: int = 0,
        length: int = 10,
        *,
        ending: str = "terminated",
        lives: int = 0,
        lives_key: str = "lives",
        reuse_buffer: bool = False,
        dtype: Any = np.int32,
        num_actions: int = 4,
        ledger: Ledger | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.action_space: Any = Discrete(num_actions)
        self.runner, self.length, self.ending = runner, length, ending
        self.start_lives, self.lives_key, self.reuse_buffer = lives, lives_key, reuse_buffer
        self.dtype = np.dtype(dtype)
        self.episode, self.at, self.lives = -1, 0, 0
        self.num_closed = 0
        self.ledger, self.gate = ledger, gate
        self._buffer = np.zeros(TAG_SHAPE, self.dtype)
        self._count(FACTORIES)

    def _count(self, column: int) -> None:
        if self.ledger is not None:
            self.ledger.add(self.runner, column)

    def _observe(self, action: int) -> np.ndarray:
        buffer = self._buffer if self.reuse_buffer else np.zeros(TAG_SHAPE, self.dtype)
        buffer[...] = (self.runner, self.episode, self.at, action)
        return buffer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._count(RESETS)
        self.episode += 1
        self.at = 0
        if self.lives == 0:
            self.lives = self.start_lives
        return self._observe(-1), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.gate is not None:
            self.gate.wait()
        self.at += 1
        info: dict[str, Any] = {}
        ended = self.at == self.length
        if self.start_lives:
            self.lives -= ended
            info[self.lives_key] = self.lives
        terminated = ended and self.ending in ("terminated", "both")
        truncated = ended and self.ending in ("truncated", "both")
        self._count(STEPS)
        return self._observe(action), 1.0, terminated, truncated, info

    def close(self) -> None:
        self.num_closed += 1
        self._count(CLOSES)
        if self.gate is not None:
            self.gate.close()


@dataclass(frozen=True)
class Tag:
    """What a `TagPlayer` is made with, for those who know what its stream must look like."""

    runner: int = 0
    length: int = 10
    ending: str = "terminated"
    lives: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def factory(self, kind: type[TagPlayer] = TagPlayer, **options: Any) -> Any:
        """Makes the player."""
        return partial(
            kind,
            self.runner,
            self.length,
            ending=self.ending,
            lives=self.lives,
            **{**self.options, **options},
        )
