"""KeyboardInterrupt at one line after the other of some code."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt:
    """Raises KeyboardInterrupt at line event number `at` of this thread.

    Args:
        at: counted from 1.
        places: files and folders whose lines count.
    """

    def __init__(self, at: int, *places: str) -> None:
        self._left = at
        self._places = places

    def __enter__(self) -> Interrupt:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupt | None:
        name = frame.f_code.co_filename
        # Python ignores what is raised in `remove`, the callback of a weak dictionary.
        if not name.startswith(self._places) or frame.f_code.co_name == "remove":
            return None
        # Python looks for signals after calls; the words `try` and `with` make none, and the
        # latter is also where a block is left, its lock still held.
        line = linecache.getline(name, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("try:", "with ")):
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def interrupted(at: int, call: Callable[[], Any], *places: str) -> bool:
    """Whether `call` has a line number `at` in `places`, where it was interrupted."""
    try:
        with Interrupt(at, *places):
            call()
    except KeyboardInterrupt:
        return True
    return False
