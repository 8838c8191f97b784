"""What a run has done so far, and how it is shown while it goes on.

`FIGURES` is the table of all statistics that a run shows or reports: each is named there once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from mprunner.cli.output import print_note
from mprunner.errors import MissingExtraError
from mprunner.manager import EnvRunnerManager
from mprunner.stats import ManagerStats

_TICK_S = 0.2
#: The rate is that of the last seconds, this many.
_WINDOW_S = 5.0
#: Where a figure is shown: a key of the JSON object; the line of figures while the run goes on;
#: three lines of the summary.
JSON, LINE, GAMES, AGE, LOSSES = "json", "line", "games", "age", "losses"


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        num_steps: that the run is to do.
        seconds: since its first step.
        rate: stored steps per second over the last seconds.
        stats: of the manager.
    """

    num_steps: int
    seconds: float
    rate: float
    stats: ManagerStats

    @property
    def mean_rate(self) -> float:
        """Stored steps per second since the first step."""
        return self.stats.steps_stored / self.seconds if self.seconds > 0 else 0.0

    def text(self, place: str) -> str:
        """Return the figures of one place, in words; empty if it has none yet."""
        return ", ".join(filter(None, (f.text(self) for f in FIGURES if place in f.places)))


@dataclass(frozen=True)
class Figure:
    """A statistic of a run.

    Attributes:
        key: of the JSON object.
        places: where it is shown.
        read: its value in a snapshot; None where there is none yet.
        label: the words for it, with the format of its value.
        absent: the words for None.
        initial: its value before the run has begun.
    """

    key: str
    places: tuple[str, ...]
    read: Callable[[Snapshot], float | None]
    label: str = ""
    absent: str = ""
    initial: float | None = 0

    def text(self, snapshot: Snapshot) -> str:
        """Return the value in words."""
        value = self.read(snapshot)
        return self.absent if value is None else self.label.format(value)


FIGURES = (
    Figure("steps_stored", (JSON,), lambda s: s.stats.steps_stored),
    Figure("seconds", (JSON,), lambda s: s.seconds),
    Figure("steps_per_s", (JSON,), lambda s: s.mean_rate),
    Figure("rate", (LINE,), lambda s: s.rate, "{:,.0f} steps/s"),
    Figure("episodes", (JSON, LINE, GAMES), lambda s: s.stats.episodes, "{:,} episodes"),
    Figure(
        "mean_score",
        (JSON, LINE, GAMES),
        lambda s: s.stats.score_mean,
        "score mean {:,.1f}",
        absent="no score",
        initial=None,
    ),
    Figure(
        "max_score", (JSON, LINE, GAMES), lambda s: s.stats.score_max, "max {:,.1f}", initial=None
    ),
    Figure("outstanding", (LINE,), lambda s: s.stats.outstanding, "{} outstanding"),
    Figure(
        "age_ms_mean",
        (AGE,),
        lambda s: _milliseconds(s.stats.age_s.mean),
        "from call to storage {:.1f} ms on average",
    ),
    Figure("age_ms_p95", (AGE,), lambda s: _milliseconds(s.stats.age_s.p95), "95 % {:.1f} ms"),
    Figure("restarts", (LOSSES,), lambda s: s.stats.restarts, "{} restarts"),
    Figure("steps_lost", (JSON, LOSSES), lambda s: s.stats.steps_lost, "{:,} steps lost"),
)
#: Heading, field of `WorkerStats` and format of each column of the workers' table.
_WORKER_COLUMNS = (
    ("pid", "pid", "{}"),
    ("state", "state", "{}"),
    ("steps", "steps", "{:,}"),
    ("player", "share_player", "{:.0%}"),
    ("job", "share_job", "{:.0%}"),
    ("prediction", "share_prediction", "{:.0%}"),
    ("block", "share_block", "{:.0%}"),
    ("restarts", "restarts", "{}"),
)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def worker_table(stats: ManagerStats) -> list[str]:
    """Return lines: where each worker's time went, in percent."""
    rows = [["worker", *(heading for heading, _, _ in _WORKER_COLUMNS)]]
    for i, worker in enumerate(stats.workers):
        values = [(getattr(worker, name), form) for _, name, form in _WORKER_COLUMNS]
        rows.append([str(i), *("-" if v is None else form.format(v) for v, form in values)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows
    ]


class Meter:
    """Reads a manager, from any thread. The run begins when the meter is made.

    Args:
        manager: of the run.
        num_steps: that the run is to do.
    """

    def __init__(self, manager: EnvRunnerManager, num_steps: int) -> None:
        self._manager = manager
        self._num_steps = num_steps
        # Held while a snapshot is made: the watching thread and the one that collects read both.
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._recent = deque([(self._began, 0)])

    def stop(self) -> None:
        """End the run's time; what is stored while the manager closes is still counted."""
        self._ended = time.monotonic()

    def read(self) -> Snapshot:
        """Return the run as it is now; also after it has failed."""
        with self._lock:
            stats = self._manager.stats()
            now = time.monotonic() if self._ended is None else self._ended
            rate = self._rate(now, stats.steps_stored)
            return Snapshot(self._num_steps, now - self._began, rate, stats)

    def _rate(self, now: float, stored: int) -> float:
        recent = self._recent
        while len(recent) > 1 and now - recent[0][0] > _WINDOW_S:
            recent.popleft()
        then, stored_then = recent[0]
        recent.append((now, stored))
        return (stored - stored_then) / (now - then) if now > then else 0.0


class Observer(Protocol):
    """Is shown the run every `interval` seconds."""

    interval: float

    def show(self, snapshot: Snapshot) -> None:
        """Show the run as it is now."""

    def finish(self, snapshot: Snapshot) -> None:
        """Show the run as it ended."""


class Watch:
    """Shows a run to its observers until it is over, also while no step is stored.

    Args:
        meter: of the run; stopped at its end.
        observers: shown the run in intervals, from a thread of its own, and at the end.
    """

    def __init__(self, meter: Meter, observers: Sequence[Observer]) -> None:
        self._meter = meter
        self._observers = observers
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="mprunner-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._meter.stop()
        self._over.set()
        self._thread.join()
        snapshot = self._meter.read()
        for observer in self._observers:
            observer.finish(snapshot)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise what an observer raised."""
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        due = [observer.interval for observer in self._observers]
        try:
            while not self._over.wait(_TICK_S):
                snapshot = self._meter.read()
                for i, observer in enumerate(self._observers):
                    if snapshot.seconds >= due[i]:
                        due[i] = snapshot.seconds + observer.interval
                        observer.show(snapshot)
        except BaseException as error:
            # The thread that collects raises it at its next check.
            self._error = error


class PlainLines:
    """A line every few seconds, for files, pipes and simple terminals."""

    interval = 3.0

    def show(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        done = f"{snapshot.stats.steps_stored:,} of {snapshot.num_steps:,} steps"
        print_note(f"{done}, {snapshot.text(LINE)}")

    def finish(self, snapshot: Snapshot) -> None:
        """See `Observer`; the summary follows."""


class LiveDisplay:
    """In a terminal, drawn by rich: a bar, a line of figures and, if asked for, the workers.

    Args:
        num_steps: of the whole run.
        with_workers: show their table, too.

    Raises:
        ImportError: rich (extra ``cli``) is not installed.
    """

    interval = 0.2

    def __init__(self, num_steps: int, with_workers: bool) -> None:
        from rich import progress
        from rich.console import Console
        from rich.live import Live

        self._with_workers = with_workers
        self._progress = progress.Progress(
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("steps"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
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
        from rich.console import Group
        from rich.text import Text

        self._progress.update(self._task, completed=snapshot.stats.steps_stored)
        text = Text("\n".join([snapshot.text(LINE), *more_lines]))
        self._live.update(Group(self._progress, text), refresh=True)


class Scalars:
    """Writes the manager's statistics for TensorBoard, over the stored steps.

    Args:
        directory: where the event file is written.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    interval = 2.0

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise MissingExtraError("--tensorboard", "tensorboard", "tensorboard") from None
        self._writer: Any = Writer(str(directory))

    def show(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        for tag, value in {**snapshot.stats.as_dict(), "steps_per_s": snapshot.rate}.items():
            self._writer.add_scalar(tag, value, snapshot.stats.steps_stored)
        self._writer.flush()

    def finish(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        self.show(snapshot)
        self._writer.close()
