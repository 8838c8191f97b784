"""How rows get into a replay memory: claims on streams, blocks, single experiences.

Owns the half of the memory that writers see, and its lock. Where rows lie is `streams`'
business, what happens to them when streams change `layout`'s, what the arrays are made of
`storage`'s and `mapped`'s. Knows nothing of sampling but that it must be told of new arrays.
"""

from __future__ import annotations

import threading
from typing import Any, Sequence

import numpy as np

from mprunner.checks import at_least
from mprunner.errors import ClosedError, ConfigurationError
from mprunner.experience import CLOSING, ROW, TERMINATED, Array, Experience, Rows
from mprunner.replay import layout
from mprunner.replay.arguments import checked_state, checked_step
from mprunner.replay.mapped import MappedArrays
from mprunner.replay.storage import Arrays, Format
from mprunner.replay.streams import Ring, Streams, check_streams, copy_block


class Intake:
    """The writers' half of `ReplayMemory`.

    Args:
        form: what rows look like.
        arrays: where they are kept.
        streams: the rings, as they are in ``arrays``.
        num_streams: into how many `claim_stream` divides the memory.
    """

    def __init__(
        self, form: Format, arrays: Arrays | MappedArrays, streams: Streams, num_streams: int
    ) -> None:
        self.writer_lock = threading.RLock()
        self._form = form
        self._wanted_streams = num_streams
        self._claims = 0
        self._closed = False
        self._arrays = arrays
        self._state = arrays.state
        self._meta = arrays.meta
        self._records = arrays.meta.view(np.uint8).data
        self._row_shape, self._row_dtype = form.state_shape, form.dtype
        self._counters = arrays.counters if isinstance(arrays, MappedArrays) else None
        self._use(streams)

    def _use(self, streams: Streams) -> None:
        self._streams = streams

    def open_streams(self, num_streams: int) -> None:
        """Claims all streams, one per runner; a manager calls it at its start.

        What the memory holds is kept, and dealt to the new streams if their number changes: a
        few transitions at the borders are lost, and unused parts are filled first.

        Args:
            num_streams: how many.

        Raises:
            ConfigurationError: they are claimed already, or the memory is too small for them.
        """
        num_streams = at_least("num_streams", num_streams, 1)
        with self.writer_lock:
            self._check_open()
            if self._claims:
                raise ConfigurationError(
                    f"{self._claims} stream(s) of this memory are in use by another manager or "
                    f"by runners of their own; close it first, or give each its own memory"
                )
            self._deal(num_streams)
            self._claims = num_streams

    def close_streams(self) -> None:
        """Gives the claimed streams up; unfinished episodes end as truncated."""
        with self.writer_lock:
            if not self._closed:
                self._seal_all()
            self._claims = 0

    def claim_stream(self) -> int:
        """Claims one stream, for a runner that is used without a manager.

        Returns:
            The number of a stream that nobody else writes.

        Raises:
            ConfigurationError: all are taken.
        """
        with self.writer_lock:
            self._check_open()
            if not self._claims:
                self._deal(self._wanted_streams)
            if self._claims >= len(self._streams):
                raise ConfigurationError(
                    f"all {len(self._streams)} stream(s) of this memory are taken; make it "
                    f"with num_streams= as many runners as will use it without a manager"
                )
            self._claims += 1
            return self._claims - 1

    def extend(self, stream: int, rows: Rows, scores: Sequence[float] = ()) -> None:
        """Takes in one block of a stream.

        Args:
            stream: which, in ``[0, num_streams)``.
            rows: consecutive rows, at least one; the last is CLOSING. If the stream's newest
                row is provisional, the first of these holds the same observation, and takes
                its place. Of a block longer than the stream's ring the newest rows are kept.
            scores: of the games that ended in this block.

        Raises:
            ConfigurationError: no such stream, or rows of another shape or dtype.
        """
        state, meta = rows.state, rows.meta
        if state.dtype != self._row_dtype or state.shape[1:] != self._row_shape:
            raise ConfigurationError(
                f"rows of shape {state.shape[1:]} and dtype {state.dtype} for a memory of "
                f"{self._form.state_shape} and {self._form.dtype}"
            )
        if meta.dtype != ROW or len(meta) != len(state) or not len(state):
            raise ConfigurationError(
                f"{len(state)} observations with {len(meta)} records of dtype {meta.dtype}; "
                f"expected as many, at least one, of dtype {ROW}"
            )
        with self.writer_lock:
            self._land(self._ring(stream), state, meta.tobytes(), rows.provisional, scores)

    def seal(self, stream: int) -> None:
        """Ends a stream's unfinished episode as truncated; its writer is gone.

        The newest row stays as the final observation of the last transition. Does nothing if
        no episode is unfinished.

        Raises:
            ConfigurationError: no such stream.
        """
        with self.writer_lock:
            self._seal(self._ring(stream))

    def append(self, exp: Experience) -> None:
        """Stores one step, as the original does.

        It can be sampled once its successor has arrived; a terminal one at once (what follows
        it is unknown, and stored as zeros).

        Raises:
            ConfigurationError: an unusable item, or the memory's streams are claimed.
        """
        state = checked_state(exp.state, self._form)
        action, reward = checked_step(exp)
        with self.writer_lock:
            self._check_open()
            if self._claims:
                raise ConfigurationError(
                    "append() cannot be mixed with runners: the memory's streams are claimed"
                )
            if len(self._streams) != 1:
                self._deal(1)
            ring = self._streams.rings[0]
            states, rows = self._appended(ring, state, action, reward, exp.isOver)
            self._land(ring, states, rows.tobytes(), not exp.isOver)

    def _appended(
        self, ring: Ring, state: Array, action: int, reward: float, over: bool
    ) -> tuple[Array, Array]:
        """A step as a block: the row before it, now complete; itself; what follows a terminal."""
        rows = np.zeros(3, ROW)
        age, most = 0, self._form.history_len - 1
        if ring.provisional:
            rows[0] = self._meta[ring.slot(ring.end - 1)]
            rows["flags"][0] = 0
            age = min(int(rows["age"][0]) + 1, most)
        rows[1] = (action, reward, 0, TERMINATED if over else CLOSING, age)
        rows[2] = (0, 0, 0, CLOSING, min(age + 1, most))
        states = np.zeros((3, *self._form.state_shape), self._form.dtype)
        states[1] = state
        part = slice(0 if ring.provisional else 1, 3 if over else 2)
        return states[part], rows[part]

    def _ring(self, stream: int) -> Ring:
        self._check_open()
        if not 0 <= stream < len(self._streams.rings):
            raise ConfigurationError(f"stream {stream} of a memory that has {len(self._streams)}")
        return self._streams.rings[stream]

    def _land(
        self, ring: Ring, state: Array, records: bytes, provisional: bool, scores: Any = ()
    ) -> None:
        counters = self._counters
        if counters is not None:
            counters.write(ring, ring.end + len(state) - ring.provisional)
        end = copy_block(ring, self._state, self._records, state, records)
        ring.provisional = provisional
        if scores:
            ring.add_scores(scores)
        self._streams.set_end(ring, end)
        if counters is not None:
            counters.write(ring, end)

    def _seal(self, ring: Ring) -> None:
        if ring.provisional:
            layout.close_unfinished(ring, self._meta["flags"])
            if self._counters is not None:
                self._counters.write(ring, ring.end)

    def _seal_all(self) -> None:
        for ring in self._streams.rings:
            self._seal(ring)

    def _deal(self, num_streams: int) -> None:
        form = self._form
        check_streams(num_streams, form.max_size, form.history_len)
        if self._counters is not None:
            self._counters.check_streams(num_streams)
        self._seal_all()
        if num_streams == len(self._streams):
            return
        streams = layout.deal(self._streams, num_streams, self._meta, form.history_len)
        if self._counters is not None:
            self._counters.begin(streams.rings)
        self._use(streams)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this replay memory has been closed")
