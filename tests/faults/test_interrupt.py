"""Ctrl-C at each line of a pool's start, one after the other: it leaves nothing behind."""

from __future__ import annotations

import linecache
import sys
import weakref
from types import FrameType
from typing import Any

import pytest

import mprunner.manager
from mprunner import EnvRunnerManager
from mprunner.backends import inline, local, process, thread
from tests.faults.pools import pool
from tests.faults.whole import SealedMemory
from tests.tagged import TAG_SHAPE, TagPlayer

#: Where a line is interrupted: the manager, what it registers its end with, the backends.
FILES = tuple(
    module.__file__ for module in (mprunner.manager, weakref, inline, local, process, thread)
)


class Interrupt:
    """Raises KeyboardInterrupt at line event number `at` of this thread."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __enter__(self) -> Interrupt:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupt | None:
        if frame.f_code.co_filename not in FILES:
            return None
        # Python looks for signals at calls, and none is made by the word `try`.
        if event == "line" and linecache.getline(*where(frame)).strip() != "try:":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def where(frame: FrameType) -> tuple[str, int]:
    """The file and the line that a frame is at."""
    return frame.f_code.co_filename, frame.f_lineno


def start(at: int, memory: SealedMemory, backend: str) -> EnvRunnerManager | None:
    """A pool, or None if its start was interrupted."""
    try:
        with Interrupt(at):
            return pool([TagPlayer, TagPlayer], memory=memory, backend=backend)
    except KeyboardInterrupt:
        return None


class Registered(set[Any]):
    """Stands for `atexit`, which tells nobody what is registered."""

    register = set.add
    unregister = set.discard


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_at_each_line_of_the_start(backend, monkeypatch):
    registered = Registered()
    monkeypatch.setattr(mprunner.manager, "atexit", registered)
    at, manager = 0, None
    while manager is None:
        at += 1
        memory = SealedMemory(5000, TAG_SHAPE, 3, "int32")
        manager = start(at, memory, backend)
        if manager is None:
            assert not registered, f"line event {at}"
            memory.open_streams(1)
    assert at > 60
    manager.step(1.0, num_steps=8)
    manager.close()
    assert len(memory) > 0
