"""What a run shows while it goes on: lines or a live table, scalars."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

_LINE_EVERY_S = 5.0
_TABLE_EVERY_S = 0.5


class Display:
    """A live table in a terminal where rich is installed; else a line every few seconds.

    Args:
        title: of the run.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Any = None
        self._shown = 0.0
        self._every = _LINE_EVERY_S

    def __enter__(self) -> Display:
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError:
            return self
        console = Console()
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
            self._every = _TABLE_EVERY_S
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def due(self) -> bool:
        """It is time to show something again."""
        return time.monotonic() - self._shown >= self._every

    def show(self, scalars: Mapping[str, float | None]) -> None:
        """The state of the run."""
        self._shown = time.monotonic()
        texts = {name: _text(value) for name, value in scalars.items()}
        if self._live is None:
            print("  ".join(f"{name} {text}" for name, text in texts.items()), flush=True)
            return
        from rich.table import Table

        table = Table(title=self._title, show_header=False)
        for name, text in texts.items():
            table.add_row(name, text)
        self._live.update(table, refresh=True)

    def say(self, line: str) -> None:
        """One line that stays."""
        if self._live is None:
            print(line, flush=True)
        else:
            self._live.console.print(line)


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


class Scalars:
    """Writes scalars for TensorBoard; does nothing without a folder.

    Args:
        folder: of the event files, or None.
    """

    def __init__(self, folder: str | None) -> None:
        self._writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                sys.exit("--tensorboard needs the package: pip install 'mprunner[tensorboard]'")
            self._writer = SummaryWriter(folder)

    def add(self, scalars: Mapping[str, float | None], step: int) -> None:
        """The values after `step` environment steps; None is left out."""
        if self._writer is not None:
            for name, value in scalars.items():
                if value is not None:
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
