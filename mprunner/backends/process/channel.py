"""All that is between the parent and one worker: queues, shared rows, clock and lifeline.

No cell of the shared block has two writers, and a block of rows belongs to one side at a time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import tempfile
import weakref
from dataclasses import dataclass
from multiprocessing import connection, context, reduction
from typing import Any

import numpy as np

from mprunner.activity import Activity
from mprunner.backends.process.pipes import OneWayQueue, ParentGone, ResultQueue
from mprunner.rows import ROW, block_rows
from mprunner.experience import Array
from mprunner.pace import Pace

NUM_BLOCKS = 4
#: There is room for so many Q values of an answer.
MAX_SERVED_ACTIONS = 4096
#: What the parent's wake-ups are for.
_LOOK, _ANSWERED = b"l", b"a"
_ALIGN = 64


class SharedMemory:
    """Zeroed memory that a child can map and that has no name that could leak."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("mprunner")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        # Closed at the latest with this object, since Ctrl-C may come before anybody has it.
        self._close: weakref.finalize[..., SharedMemory] = weakref.finalize(self, os.close, fd)
        self._fd = fd
        os.ftruncate(fd, num_bytes)
        self.map = mmap.mmap(fd, num_bytes)

    def __getstate__(self) -> tuple[Any, int]:
        context.assert_spawning(self)
        assert self._close.alive
        return reduction.DupFd(self._fd), self._num_bytes

    def __setstate__(self, state: tuple[Any, int]) -> None:
        duplicate, self._num_bytes = state
        self._fd = duplicate.detach()
        self._close = weakref.finalize(self, os.close, self._fd)
        self.map = mmap.mmap(self._fd, self._num_bytes)
        self.close_fd()

    def close_fd(self) -> None:
        """The mapping stays; only no further child can be given it."""
        self._close()


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

    Attributes:
        lifeline: the worker's end of a pipe in which nothing ever comes; it ends with the parent.
            Every worker has its own: who is signalled at the end belongs to the pipe's end, which a
            shared one would have only once.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        self.spec = spec
        self._shared = SharedMemory(_Layout(spec).num_bytes)
        try:
            self._map()
            self.jobs = OneWayQueue(spec.max_jobs, self._cells[6:7])
            self.results = ResultQueue()
            self._answer_reader, self._answer_writer = connection.Pipe(duplex=False)
            self.stack_reader, self.stack_writer = connection.Pipe(duplex=False)
            self.lifeline, self._lifeline_end = connection.Pipe(duplex=False)
        except BaseException:
            self._shared.close_fd()  # connections close themselves
            raise
        # The writer is a fault handler: in a pipe that nobody reads, it must not wait.
        os.set_blocking(self.stack_reader.fileno(), False)
        os.set_blocking(self.stack_writer.fileno(), False)

    def __getstate__(self) -> tuple[Any, ...]:
        return (
            self.spec,
            self._shared,
            self.jobs,
            self.results,
            self._answer_reader,
            self.stack_writer,
            self.lifeline,
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        (
            self.spec,
            self._shared,
            self.jobs,
            self.results,
            self._answer_reader,
            self.stack_writer,
            self.lifeline,
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
        self._answer = np.frombuffer(memory[layout.answer:], np.float64, MAX_SERVED_ACTIONS)
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
        for end in (self._answer_reader, self.stack_writer, self.lifeline):
            end.close()

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
                self._clear_wake_up()
        self._cells[5] = 0
        return block

    def _clear_wake_up(self) -> bytes:
        woken = os.read(self._answer_reader.fileno(), 64)
        if not woken:
            raise ParentGone
        return woken

    def take_block(self, block: int) -> None:
        """Worker: it is the parent's from now on."""
        self._busy[block] = 1

    def give_block(self, block: int) -> None:
        """Parent: it has been copied."""
        self._busy[block] = 0
        if self._cells[5]:
            self.wake()

    def answer(self, q: Array) -> None:
        """Parent: the Q values, ``(num_actions,)``, that the worker waits for."""
        self._answer[:len(q)] = q
        self._cells[7] = len(q)
        self.wake(_ANSWERED)

    def wake(self, why: bytes = _LOOK) -> None:
        """Parent: have the worker look at once at what it waits for."""
        try:
            os.write(self._answer_writer.fileno(), why)
        except OSError:
            pass  # the worker has exited; its sentinel reports it

    def wait_for_job(self) -> Any:
        """Worker: the next job; None if there will be no more.

        Raises:
            ParentGone: nobody can send one any more.
        """
        try:
            return self.jobs.get()
        except (EOFError, ConnectionError):
            raise ParentGone from None

    def wait_for_answer(self) -> Array | None:
        """Worker: Q values ``(num_actions,)``, or None when it shall stop.

        Raises:
            ParentGone: nobody can give them any more.
        """
        # First a look: the message that tells of the stop may have ended a wait for a block.
        while not self.pace.stopping:
            if _ANSWERED in self._clear_wake_up():
                return self._answer[:self._cells[7]].copy()
        return None

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
            self.lifeline,
            self._lifeline_end,
        ):
            end.close()


class _Layout:
    """Where things lie in the shared block: cells, clock, flags, question, answer, blocks."""

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._frame_bytes = spec.dtype.itemsize * int(np.prod(spec.state_shape, dtype=np.int64))
        self.num_rows = block_rows(spec.state_shape, spec.dtype)
        at = 256 + _ALIGN
        self.question, at = at, _aligned(at + spec.history_len * self._frame_bytes)
        self.answer, at = at, at + MAX_SERVED_ACTIONS * 8
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
