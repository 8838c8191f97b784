"""Batches gathered ahead in a thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Callable

from mprunner.errors import ClosedError
from mprunner.experience import Batch


class _Shelf:
    """What the thread and its consumer share; the thread must not hold the iterator itself."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.batches: deque[Batch] = deque()
        self.error: BaseException | None = None
        self.closed = False
        self.changed = threading.Condition()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.batches.clear()
            self.changed.notify_all()


class Batches:
    """An endless iterator over batches. Leaving it unused, or `close`, ends its thread.

    Args:
        sample: makes a batch.
        prefetch: how many batches may wait.
    """

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        self._shelf = _Shelf(prefetch)
        self._thread = threading.Thread(
            target=_fill, args=(self._shelf, sample), name="mprunner-batches", daemon=True
        )
        self._finalize = weakref.finalize(self, self._shelf.close)
        self._thread.start()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            ClosedError: after `close`.
            Exception: whatever sampling raised, again at every call.
        """
        shelf = self._shelf
        with shelf.changed:
            shelf.changed.wait_for(lambda: shelf.batches or shelf.error or shelf.closed)
            if shelf.closed:
                raise ClosedError("this iterator over batches has been closed")
            if shelf.batches:
                batch = shelf.batches.popleft()
                shelf.changed.notify_all()
                return batch
            assert shelf.error is not None
            raise shelf.error

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        self._shelf.close()
        self._thread.join()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _fill(shelf: _Shelf, sample: Callable[[], Batch]) -> None:
    try:
        while True:
            with shelf.changed:
                shelf.changed.wait_for(lambda: len(shelf.batches) < shelf.room or shelf.closed)
                if shelf.closed:
                    return
            batch = sample()
            with shelf.changed:
                if not shelf.closed:
                    shelf.batches.append(batch)
                shelf.changed.notify_all()
    except BaseException as error:
        with shelf.changed:
            shelf.error = error
            shelf.changed.notify_all()
