"""The queues and the shared rows of one worker.

Owns the layout of the shared block and the rule that no lock is shared: each queue has one
process at each end, so a worker that is killed can hold nothing that others need.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import queue
import select
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection, context, queues, reduction
from typing import Any

import numpy as np

from mprunner.activity import Activity
from mprunner.backends.base import Pace
from mprunner.blocks import block_rows
from mprunner.experience import ROW, Array

NUM_BLOCKS = 4
#: A reply with Q values must fit in a pipe that nobody reads, so that sending never waits.
MAX_SERVED_ACTIONS = 4096
_ALIGN = 64
_FRAME = struct.Struct("<I")


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
        self._put_lock = threading.Lock()
        self._closed = False

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._maxsize, self._reader

    def __setstate__(self, state: Any) -> None:
        self._maxsize, self._reader = state
        self._writer = None
        self._taken = None  # set by the channel, which maps the cell
        self._closed = False

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send `obj`; see `queue.Queue.put`.

        Raises:
            queue.Full: there was no room in time.
            OSError: the reading process is gone.
        """
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._put_lock:
            if self._closed:
                raise ValueError("the queue is closed")
            while self.full():
                if not block or (deadline is not None and time.monotonic() >= deadline):
                    raise queue.Full
                time.sleep(0.001)
            self._put_count += 1
            self._writer.send_bytes(data)

    def put_last(self, obj: Any) -> None:
        """Send `obj` even if the queue is full; for the one that ends it."""
        with self._put_lock:
            self._writer.send_bytes(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next object; see `queue.Queue.get`.

        Raises:
            queue.Empty: there was none in time.
            EOFError: the writing process is gone.
        """
        if not (block and timeout is None) and not self._reader.poll(timeout if block else 0):
            raise queue.Empty
        data = self._reader.recv_bytes()
        self._taken[0] += 1
        return pickle.loads(data)

    def qsize(self) -> int:
        """Items sent and not yet taken; for the writing side."""
        return self._put_count - int(self._taken[0])

    def full(self) -> bool:
        """True if a `put` would wait; for the writing side."""
        return self.qsize() >= self._maxsize

    def empty(self) -> bool:
        """True if a `get` would wait; for the reading side."""
        return not self._reader.poll()

    def close(self) -> None:
        """Close this process's ends."""
        self._closed = True
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()

    def join_thread(self) -> None:
        """Nothing to join: there is no feeder thread."""

    def cancel_join_thread(self) -> None:
        """Nothing to cancel: there is no feeder thread."""


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
        """Worker: send a message now."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        view = memoryview(_FRAME.pack(len(data)) + data)
        while view:
            view = view[os.write(self._writer.fileno(), view):]

    def get_all(self) -> list[tuple[Any, ...]]:
        """Parent: all messages that are complete."""
        chunks = [self._half]
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.reader.fileno(), 65536):
                chunks.append(chunk)
                if len(chunk) < 65536:
                    break
        data = b"".join(chunks)
        messages, at = [], 0
        while len(data) - at >= 4:
            end = at + 4 + _FRAME.unpack_from(data, at)[0]
            if end > len(data):
                break
            messages.append(pickle.loads(data[at + 4:end]))
            at = end
        self._half = data[at:]
        return messages

    def close_writer(self) -> None:
        """Parent: only the worker writes."""
        self._writer.close()

    def close(self) -> None:
        """Close this process's ends."""
        for end in (self.reader, self._writer):
            if end is not None:
                end.close()


class SharedMemory:
    """Zeroed memory that a child can map and that has no name that could leak."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("mprunner")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, num_bytes)
            self.map = mmap.mmap(fd, num_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._fd: int | None = fd

    def __getstate__(self) -> tuple[Any, int]:
        context.assert_spawning(self)
        assert self._fd is not None
        return reduction.DupFd(self._fd), self._num_bytes

    def __setstate__(self, state: tuple[Any, int]) -> None:
        duplicate, self._num_bytes = state
        fd = duplicate.detach()
        self.map = mmap.mmap(fd, self._num_bytes)
        self._fd = None
        os.close(fd)

    def close_fd(self) -> None:
        """The mapping stays; only no further child can be given it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@dataclass(frozen=True)
class ChannelSpec:
    """What determines the layout of a channel."""

    state_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    history_len: int
    max_jobs: int


class Channel:
    """Both directions of one worker: jobs and answers in, messages and rows out.

    Made by the parent, pickled into the worker as it starts. A worker's death throws it away.

    Args:
        spec: of the layout.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        self.spec = spec
        self._shared = SharedMemory(_Layout(spec).num_bytes)
        self._map()
        self.jobs = OneWayQueue(spec.max_jobs, self._cells[6:7])
        self.results = ResultQueue()
        self._answer_reader, self._answer_writer = connection.Pipe(duplex=False)
        self.stack_reader, self.stack_writer = connection.Pipe(duplex=False)
        os.set_blocking(self.stack_reader.fileno(), False)

    def __getstate__(self) -> tuple[Any, ...]:
        return (
            self.spec,
            self._shared,
            self.jobs,
            self.results,
            self._answer_reader,
            self.stack_writer,
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        (
            self.spec,
            self._shared,
            self.jobs,
            self.results,
            self._answer_reader,
            self.stack_writer,
        ) = state
        self._map()
        self.jobs._taken = self._cells[6:7]

    def _map(self) -> None:
        layout = _Layout(self.spec)
        memory = memoryview(self._shared.map)
        self._cells = memory[:128].cast("q")
        self._times = memory[128:256].cast("d")
        self._busy = memory[256:256 + NUM_BLOCKS]
        self.pace = Pace(self._cells[:Pace.NUM_CELLS])
        self.activity = Activity(self._cells[4:5], self._times)  # the worker's; we only read it
        self.question = layout.array(memory, layout.question, (self.spec.history_len,))
        self.states = [
            layout.array(memory, start, (layout.num_rows,)) for start in layout.state_starts
        ]
        size = layout.num_rows * ROW.itemsize
        self.meta_bytes = [memory[start:start + size] for start in layout.meta_starts]
        self.meta = [np.frombuffer(part, ROW) for part in self.meta_bytes]

    def started(self) -> None:
        """Parent: the worker has its ends; ours go."""
        self._shared.close_fd()
        self.jobs._reader.close()
        self.results.close_writer()
        self._answer_reader.close()
        self.stack_writer.close()

    def free_block(self) -> int | None:
        """Worker: a block that the parent has no use for, or None."""
        for block in range(NUM_BLOCKS):
            if not self._busy[block]:
                return block
        return None

    def wait_for_block(self) -> int:
        """Worker: a free block, when there is one.

        The waiting cell and the busy flags are written without a lock, so a wake-up can be
        missed; hence the time-out, after which it looks again.
        """
        poller = select.poll()
        poller.register(self._answer_reader.fileno(), select.POLLIN)
        self._cells[5] = 1
        while (block := self.free_block()) is None:
            if poller.poll(50):
                self._answer_reader.recv_bytes()
        self._cells[5] = 0
        return block

    def take_block(self, block: int) -> None:
        """Worker: it is the parent's from now on."""
        self._busy[block] = 1

    def give_block(self, block: int) -> None:
        """Parent: it has been copied."""
        self._busy[block] = 0
        if self._cells[5]:
            self.answer(b"")

    def answer(self, data: bytes) -> None:
        """Parent: Q values as float64, or nothing, just to wake the worker."""
        with contextlib.suppress(OSError):  # it is gone; its sentinel tells
            self._answer_writer.send_bytes(data)

    def wait_for_answer(self) -> Array | None:
        """Worker: Q values ``(num_actions,)``, or None when it shall stop."""
        while not (data := self._answer_reader.recv_bytes()):
            if self.pace.stopping:
                return None
        return np.frombuffer(data, np.float64)

    def read_stack(self) -> str:
        """Parent: what the worker's fault handler wrote so far."""
        parts = []
        with contextlib.suppress(OSError):
            while part := os.read(self.stack_reader.fileno(), 65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Parent: close all its ends; the mapping goes with the last view of it."""
        self._shared.close_fd()
        self.jobs.close()
        self.results.close()
        for end in (
            self._answer_reader,
            self._answer_writer,
            self.stack_reader,
            self.stack_writer,
        ):
            end.close()


class _Layout:
    """Where things lie in the shared block: cells, clock, flags, question, blocks."""

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._frame_bytes = spec.dtype.itemsize * int(np.prod(spec.state_shape, dtype=np.int64))
        self.num_rows = block_rows(spec.state_shape, spec.dtype)
        at = 256 + _ALIGN
        self.question, at = at, _aligned(at + spec.history_len * self._frame_bytes)
        self.state_starts, self.meta_starts = [], []
        for _ in range(NUM_BLOCKS):
            self.state_starts.append(at)
            at = _aligned(at + self.num_rows * self._frame_bytes)
            self.meta_starts.append(at)
            at = _aligned(at + self.num_rows * ROW.itemsize)
        self.num_bytes = at

    def array(self, memory: memoryview, start: int, leading: tuple[int, ...]) -> Array:
        """A view of frames at `start`."""
        shape = (*leading, *self._spec.state_shape)
        size = self._spec.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(memory[start:start + size], self._spec.dtype).reshape(shape)


def _aligned(at: int) -> int:
    return (at + _ALIGN - 1) // _ALIGN * _ALIGN
