"""The live display of a terminal, drawn by rich (extra ``cli``)."""

from __future__ import annotations

import sys

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mprunner.cli.meter import Snapshot
from mprunner.cli.report import worker_table


class LiveDisplay:
    """A bar, a line of figures and, if asked for, the workers.

    Args:
        num_steps: of the whole run.
        with_workers: show their table, too.
    """

    interval = 0.2

    def __init__(self, num_steps: int, with_workers: bool) -> None:
        self._with_workers = with_workers
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            expand=True,
        )
        self._task = self._progress.add_task("steps", total=num_steps)
        console = Console(file=sys.stderr, highlight=False)
        self._live = Live(self._progress, console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def show(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        self._draw(snapshot, worker_table(snapshot.stats) if self._with_workers else [])

    def finish(self, snapshot: Snapshot) -> None:
        """See `Observer`; the workers are in the summary."""
        try:
            self._draw(snapshot, [])
        finally:
            self._live.stop()

    def _draw(self, snapshot: Snapshot, more_lines: list[str]) -> None:
        self._progress.update(self._task, completed=snapshot.landed)
        figures = (
            f"{snapshot.rate:,.0f} steps/s, {snapshot.stats.episodes:,} episodes, "
            f"{snapshot.scores()}, {snapshot.stats.outstanding} outstanding"
        )
        text = Text("\n".join([figures, *more_lines]))
        self._live.update(Group(self._progress, text), refresh=True)
