"""The queues between the parent and one worker, over one pipe each.

No lock, semaphore or name is shared: a worker that is killed can hold nothing that others need,
and nothing is left behind.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections import deque
from multiprocessing import connection, context, queues
from typing import Any

_FRAME = struct.Struct("<I")
_READ_BYTES = 65536


class ParentGone(BaseException):
    """In a worker: the parent's end of a pipe is closed.

    Not an OSError or EOFError, which a simulator may raise for pipes of its own; and not an
    Exception, which a user's `act` may catch.
    """


def encoded(obj: Any) -> bytes:
    """An object as it goes through a pipe."""
    data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    return _FRAME.pack(len(data)) + data


#: Sent by a worker that waits for Q values: once for each greedy step, so read at a glance.
ASK = encoded(("ask",))


def _decoded(data: bytes) -> tuple[list[Any], bytes]:
    """The objects that are there as a whole, and the bytes of one that is not yet."""
    objects, at = [], 0
    while len(data) - at >= 4:
        end = at + 4 + _FRAME.unpack_from(data, at)[0]
        if end > len(data):
            break
        objects.append(pickle.loads(data[at + 4:end]))
        at = end
    return objects, data[at:]


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data):]


class OneWayQueue(queues.Queue):  # type: ignore[type-arg]
    """A bounded queue from one process to one other.

    `put` sends at the call: there is no feeder thread, so an object is pickled as it is now
    and one that cannot be is refused here. There is no lock or semaphore between the
    processes either: the bound is kept by a counter that only the reading side writes.

    Args:
        maxsize: the most items in the queue, at least 1.
        taken: one integer cell in shared memory, zero at first.
    """

    def __init__(self, maxsize: int, taken: Any) -> None:
        # Not super().__init__(): it makes named semaphores, which outlive a killed parent.
        self._maxsize = maxsize
        self._reader: Any
        self._writer: Any
        self._reader, self._writer = connection.Pipe(duplex=False)
        self._taken = taken
        self._put_count = 0
        self._begin()

    def _begin(self) -> None:
        self._here: deque[Any] = deque()  # read from the pipe, not taken yet
        self._half = b""

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._maxsize, self._reader

    def __setstate__(self, state: Any) -> None:
        self._maxsize, self._reader = state
        self._writer = None
        self._taken = None  # set by the channel, which maps the cell
        self._begin()

    def put(self, obj: Any, block: bool = False, timeout: float | None = None) -> None:
        """Send `obj` now; the sender keeps to the bound by `full`, and nothing waits here.

        Raises:
            OSError: the reading process has exited.
        """
        # Shorter than PIPE_BUF, so it is written in one piece or not at all.
        _write(self._writer.fileno(), encoded(obj))
        self._put_count += 1

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next object, when there is one.

        Raises:
            EOFError: the writing process has exited.
        """
        while not self._here:
            data = os.read(self._reader.fileno(), _READ_BYTES)
            if not data:
                raise EOFError
            objects, self._half = _decoded(self._half + data)
            self._here.extend(objects)
        self._taken[0] += 1
        return self._here.popleft()

    def full(self) -> bool:
        """Whether `maxsize` objects have been sent and not yet taken; for the writing side."""
        return self._put_count - int(self._taken[0]) >= self._maxsize

    def close(self) -> None:
        """Close this process's ends."""
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()


class ResultQueue:
    """Messages from a worker to the parent, which never waits for the end of one.

    The parent reads what is there and keeps half a message for the next time: the worker may
    have been stopped or killed while it was writing.
    """

    def __init__(self) -> None:
        self.reader, self._writer = connection.Pipe(duplex=False)
        os.set_blocking(self.reader.fileno(), False)
        self._half = b""

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._writer

    def __setstate__(self, writer: Any) -> None:
        self._writer = writer
        self.reader = None  # type: ignore[assignment]

    def put(self, *message: Any) -> None:
        """Worker: send a message now.

        Raises:
            ParentGone: nobody can read it any more.
        """
        self.send(encoded(message))

    def send(self, data: bytes) -> None:
        """Worker: send what `encoded` has made of a message now.

        Raises:
            ParentGone: nobody can read it any more.
        """
        try:
            _write(self._writer.fileno(), data)
        except BrokenPipeError:
            raise ParentGone from None

    def get_all(self) -> list[tuple[Any, ...]]:
        """Parent: all messages that are complete."""
        data, fd = self._half, self.reader.fileno()
        try:
            while chunk := os.read(fd, _READ_BYTES):
                data += chunk
                if len(chunk) < _READ_BYTES:
                    break
        except BlockingIOError:
            pass
        if data == ASK:
            self._half = b""
            return [("ask",)]
        messages, self._half = _decoded(data)
        return messages

    def close_writer(self) -> None:
        """Parent: only the worker writes."""
        self._writer.close()

    def close(self) -> None:
        """Close this process's ends."""
        for end in (self.reader, self._writer):
            if end is not None:
                end.close()
