"""What is known of a contender before it is opened."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.session import Session

Settings = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A way to fill a replay memory.

    Attributes:
        name: in tables.
        module: that must be installed.
        doc: where its documentation says how to set it up for speed.
        setup: what that is, in words.
        configurations: of the sweep that finds the best one.
        open: (workload, settings, name of a predictor or None) -> a session.
        engine: it has simulators of its own, Atari only.
        restless: it has processes that work even when it does nothing.
    """

    name: str
    module: str
    doc: str
    setup: str
    configurations: Sequence[Settings]
    open: Callable[[str, Settings, str | None], Session]
    engine: bool = False
    restless: bool = False

    @property
    def installed(self) -> bool:
        """Whether its module is there."""
        return importlib.util.find_spec(self.module) is not None

    def load(self) -> None:
        """Import it, so that a start-up time doesn't count that."""
        importlib.import_module(self.module)

    def plays(self, workload: str) -> bool:
        """Whether it can step these simulators."""
        return workload == "breakout" or not self.engine
