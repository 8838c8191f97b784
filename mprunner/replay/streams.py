"""The right to write a stream, and the storing of a block as a transaction.

A block is stored by one thread under the memory's lock, but KeyboardInterrupt may come between
any two lines of it. So what is to be undone is noted before the first change and removed after
the last; whoever takes the lock next undoes a block that was left half done, before anything
else. The same note makes a change of the number of streams complete.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple, Sequence

import numpy as np

from mprunner.checks import at_least
from mprunner.errors import ClosedError, ConfigurationError
from mprunner.experience import Array, Experience
from mprunner.replay.arguments import checked_state, checked_step
from mprunner.replay.repair import close_unfinished, drop_torn
from mprunner.replay.resize import resized
from mprunner.replay.rings import Ring, Rings, check_streams, copy_block
from mprunner.replay.sampler import Sampler
from mprunner.replay.storage import Format, Storage
from mprunner.rows import CLOSING, ROW, TERMINATED, Rows, count_steps


class Contents(NamedTuple):
    """What a memory holds; all of it is exchanged at once."""

    storage: Storage
    rings: Rings
    sampler: Sampler


class StreamWriter:
    """The right to write one stream; from `ReplayMemory.claim_streams` or `claim_stream`.

    It ends with `release`, with the memory's `close`, and when the writer is deleted.

    Attributes:
        index: which stream.
        num_steps: transitions stored through this writer.
        num_blocks: the next block's number.
        active: False once the right has ended.
        ring: of the stream.
    """

    def __init__(self, streams: Streams, ring: Ring) -> None:
        self.index = ring.index
        self.num_steps = 0
        self.num_blocks = 0
        self.active = True
        self._streams = streams
        self.ring = ring
        form = streams.form
        self._shape, self._dtype = form.state_shape, form.dtype

    def extend(
        self, rows: Rows, scores: Sequence[float] = (), number: int | None = None
    ) -> bool:
        """Store one block, as a whole or not at all.

        Args:
            rows: consecutive rows, at least one; the last is CLOSING. If the stream's newest
                row is provisional, the first of these holds the same observation, and takes
                its place. Of a block longer than the stream's ring the newest rows are kept.
            scores: of the games that ended in this block.
            number: of the block, counted from 0 and again from 0 after `seal`. A number that
                has been stored is ignored, so that a call which was interrupted can be
                repeated. None: the next one.

        Returns:
            False if the block had been stored before.

        Raises:
            ClosedError: the right to write has ended.
            ConfigurationError: rows of another shape or dtype.
        """
        state, meta = rows.state, rows.meta
        if state.dtype != self._dtype or state.shape[1:] != self._shape:
            raise ConfigurationError(
                f"rows have shape {state.shape[1:]} and dtype {state.dtype}; the memory's are "
                f"{self._shape} and {self._dtype}"
            )
        if meta.dtype != ROW or len(meta) != len(state) or not len(state):
            raise ConfigurationError(
                f"{len(state)} observations with {len(meta)} records of dtype {meta.dtype}; "
                f"expected as many, at least one, of dtype {ROW}"
            )
        streams, records = self._streams, meta.tobytes()
        with streams.writer_lock:
            if not self.active:
                raise ClosedError(
                    f"the right to write stream {self.index} has ended; claim a stream anew"
                )
            contents = streams.current()
            if number is None:
                number = self.num_blocks
            elif number < self.num_blocks:
                return False
            streams.store(contents, self, state, records, rows.provisional, number, scores)
        return True

    def seal(self) -> None:
        """End the unfinished episode as truncated: its player has stopped.

        The newest row stays as the final observation of the last transition. Does nothing to
        the rows if no episode is unfinished, and nothing at all if the right has ended.
        """
        with self._streams.writer_lock:
            if self.active:
                self._streams.seal(self._streams.current(), self.ring)
                self.num_blocks = 0

    def release(self) -> None:
        """Seal the stream and give it back. Safe to call twice."""
        with self._streams.writer_lock:
            if self.active:
                self.seal()
                self.active = False


class Streams:
    """The streams of a memory: who may write them, and what they hold.

    Args:
        form: what rows look like.
        contents: what the memory holds.
        num_streams: into how many streams `claim_one` divides the memory.

    Attributes:
        writer_lock: held by whoever reads or changes the contents.
        form: what rows look like.
    """

    def __init__(self, form: Format, contents: Contents, num_streams: int) -> None:
        self.writer_lock = threading.RLock()
        self.form = form
        self._wanted = num_streams
        self._contents: Contents | None = contents
        # A writer that nobody holds any more writes nothing: its stream is free.
        self._claims: weakref.WeakValueDictionary[int, StreamWriter]
        self._claims = weakref.WeakValueDictionary()
        self._appending = False  # the episode that goes on, if one does, is of `append`
        # None, or the arguments of the `_repair` that undoes or completes what was interrupted.
        self._unfinished: tuple[Any, ...] | None = None

    @property
    def rings(self) -> Rings:
        """The rings that the memory is divided into."""
        return self.current().rings

    @property
    def storage(self) -> Storage:
        """What keeps the rows."""
        return self.current().storage

    def current(self) -> Contents:
        """Return what the memory holds, whole. The caller holds the lock.

        Raises:
            ClosedError: the memory is closed.
        """
        if self._unfinished is not None:
            self._repair(*self._unfinished)
        if self._contents is None:
            raise ClosedError("this replay memory has been closed")
        return self._contents

    def claim(self, num_streams: int) -> list[StreamWriter]:
        """Claim all streams; see `ReplayMemory.claim_streams`."""
        num_streams = at_least("num_streams", num_streams, 1)
        with self.writer_lock:
            self.current()
            active = self._active()
            if active:
                raise ConfigurationError(
                    f"{len(active)} stream(s) of this memory are in use by another manager or "
                    f"by runners of their own; close it first, or give each its own memory"
                )
            self._appending = False
            self._resize(num_streams)
            writers = [StreamWriter(self, ring) for ring in self.rings]
            self._claims.update((writer.index, writer) for writer in writers)
            return writers

    def claim_one(self) -> StreamWriter:
        """Claim one stream; see `ReplayMemory.claim_stream`."""
        with self.writer_lock:
            contents = self.current()
            active = self._active()
            if not active:
                self._appending = False
                self._resize(self._wanted)
                contents = self.current()
            for ring in contents.rings:
                if ring.index not in active:
                    self.seal(contents, ring)
                    writer = self._claims[ring.index] = StreamWriter(self, ring)
                    return writer
            raise ConfigurationError(
                f"all {len(contents.rings)} stream(s) of this memory are taken; make it "
                f"with num_streams= as many runners as will use it without a manager"
            )

    def append(self, exp: Experience) -> None:
        """Store one step; see `ReplayMemory.append`."""
        state = checked_state(exp.state, self.form)
        action, reward = checked_step(exp)
        with self.writer_lock:
            contents = self.current()
            if self._active():
                raise ConfigurationError(
                    "append() cannot be mixed with runners: the memory's streams are claimed"
                )
            if not self._appending:
                self._resize(1)
                self._appending = True
                contents = self.current()
            ring = contents.rings[0]
            states, rows = self._appended(contents, state, action, reward, exp.isOver)
            writer = StreamWriter(self, ring)
            self.store(contents, writer, states, rows.tobytes(), not exp.isOver, 0)

    def close(self) -> None:
        """Seal all streams, end all rights to write, and release the storage."""
        with self.writer_lock:
            if self._contents is None:
                return
            contents = self.current()
            for writer in self._active().values():
                writer.active = False
            self._seal_all(contents)
            contents.storage.close()
            self._contents = None

    def store(
        self,
        contents: Contents,
        writer: StreamWriter,
        state: Array,
        records: bytes,
        provisional: bool,
        number: int,
        scores: Sequence[float] = (),
    ) -> None:
        """Store a block, see `StreamWriter.extend`. The caller holds the lock."""
        storage, rings, _ = contents
        ring = writer.ring
        end = ring.end + len(state) - ring.provisional
        # From here on the block is not stored, and the rows that it overwrites are lost ...
        self._unfinished = end, writer, writer.num_steps, writer.num_blocks, ring.counters()
        storage.reserve(ring, end)
        copy_block(ring, storage.state, storage.records, state, records)
        ring.provisional = provisional
        if scores:
            ring.add_scores(scores)
        rings.set_end(ring, end)
        writer.num_steps += count_steps(records)
        writer.num_blocks = number + 1
        storage.commit(ring)
        # ... and from here on it is.
        self._unfinished = None

    def seal(self, contents: Contents, ring: Ring) -> None:
        """End a ring's unfinished episode as truncated. The caller holds the lock."""
        if ring.provisional:
            close_unfinished(ring, contents.storage.meta["flags"])
            contents.storage.commit(ring)

    def _repair(
        self,
        end: int = 0,
        writer: StreamWriter | None = None,
        num_steps: int = 0,
        num_blocks: int = 0,
        counters: tuple[Any, ...] = (),
    ) -> None:
        """Undo a block that was interrupted; without one, complete a change of the streams."""
        assert self._contents is not None
        storage, rings, sampler = self._contents
        storage.publish(rings)
        if writer is not None:
            ring = writer.ring
            ring.restore(counters)
            writer.num_steps, writer.num_blocks = num_steps, num_blocks
            rings.refresh()
            drop_torn(ring, end, storage.meta, self.form.history_len)
            storage.commit(ring)
            # The index has counted the rows that are lost.
            self._contents = Contents(storage, rings, sampler.renewed(storage, rings))
        self._unfinished = None

    def _active(self) -> dict[int, StreamWriter]:
        return {index: writer for index, writer in self._claims.items() if writer.active}

    def _resize(self, num_streams: int) -> None:
        """Make it so many streams; none is claimed."""
        form = self.form
        check_streams(num_streams, form.max_size, form.history_len)
        contents = self.current()
        self._seal_all(contents)
        old = contents.storage
        if num_streams == len(contents.rings):
            return
        storage, rings = resized(old, contents.rings, num_streams, form.history_len)
        sampler = contents.sampler.renewed(storage, rings)
        # From here on whoever takes the lock next publishes what an interruption has left
        # unpublished; a process that is killed before that leaves the old file.
        self._unfinished = ()
        self._contents = Contents(storage, rings, sampler)
        self.current()
        if storage is not old:
            old.close()

    def _seal_all(self, contents: Contents) -> None:
        for ring in contents.rings:
            self.seal(contents, ring)

    def _appended(
        self, contents: Contents, state: Array, action: int, reward: float, over: bool
    ) -> tuple[Array, Array]:
        """A step as a block: the row before it, now complete; itself; what follows a terminal."""
        rows = np.zeros(3, ROW)
        ring = contents.rings[0]
        age, most = 0, self.form.history_len - 1
        if ring.provisional:
            rows[0] = contents.storage.meta[ring.slot(ring.end - 1)]
            rows["flags"][0] = 0
            age = min(int(rows["age"][0]) + 1, most)
        rows[1] = (action, reward, 0, TERMINATED if over else CLOSING, age)
        rows[2] = (0, 0, 0, CLOSING, min(age + 1, most))
        states = np.zeros((3, *self.form.state_shape), self.form.dtype)
        states[1] = state
        part = slice(0 if ring.provisional else 1, 3 if over else 2)
        return states[part], rows[part]
