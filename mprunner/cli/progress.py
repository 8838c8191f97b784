"""Shows a run while it goes on.

Owns the thread that looks at the meter in intervals, and the plain lines. The live display is
`live`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from mprunner.cli.meter import Meter, Snapshot
from mprunner.cli.output import print_note

_TICK_S = 0.2


class Observer(Protocol):
    """Is shown the run in intervals."""

    #: Seconds.
    interval: float

    def show(self, snapshot: Snapshot) -> None:
        """The run as it is now."""

    def finish(self, snapshot: Snapshot) -> None:
        """The run is over."""


class PlainLines:
    """A line every few seconds, for files, pipes and simple terminals."""

    interval = 3.0

    def show(self, snapshot: Snapshot) -> None:
        """See `Observer`."""
        print_note(
            f"{snapshot.landed:,} of {snapshot.num_steps:,} steps, {snapshot.rate:,.0f} steps/s, "
            f"{snapshot.stats.episodes:,} episodes, {snapshot.scores()}, "
            f"{snapshot.stats.outstanding} outstanding"
        )

    def finish(self, snapshot: Snapshot) -> None:
        """See `Observer`; the summary says the rest."""


class Watch:
    """Shows a run to its observers from a thread of its own, until it is over.

    So they see a run that stands still, too.

    Args:
        meter: of the run.
        observers: each is told the end, too, and so is the meter.
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
            self._error = error
