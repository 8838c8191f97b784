"""The bytes of a replay file: its header, and the counters that say which rows are stored.

::

    page 0          magic, version, what rows look like, where the parts are, a checksum
    page 1          two copies of the number of streams
    table           per stream two copies of its counters
    records         max_size x ROW.itemsize
    observations    max_size x state_bytes

Of each pair of copies the one with the larger sequence number and a right checksum holds. A
writer always overwrites the other one, so a process that is killed in the middle leaves the old
state. Before a block is copied its stream's counters say up to which row slots may be torn; after
it, that the rows are stored. What a killed process has stored stays in the page cache, in program
order. A power failure keeps no order: `flush` is for that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from mprunner.errors import ConfigurationError, StorageError
from mprunner.replay.rings import Ring, Rings
from mprunner.replay.storage import Format
from mprunner.rows import ROW

PAGE = 4096
MAGIC = b"MPRUNNER"
#: Begins a file whose creation has not ended yet; such a file holds nothing.
UNFINISHED = b"MPR-MAKE"
FORMAT_VERSION = 2
MOST_STREAMS = 4096

# version, streams in the table, max_size, history_len, dimensions, three sizes, dtype,
# offsets of the table, records and observations, and the length of the file.
_HEADER = struct.Struct("<IIQII3Q16s4Q")
# sequence, streams
_NUM_STREAMS = struct.Struct("<QI")
# sequence, end, reserved, games, sum and maximum of scores, provisional
_COUNTERS = struct.Struct("<QQQQddI")
_COPY_BYTES = 64


@dataclass(frozen=True)
class Plan:
    """Where the parts of a file are, in bytes from its start."""

    form: Format
    table_len: int
    table: int
    records: int
    observations: int
    nbytes: int

    @classmethod
    def of(cls, form: Format) -> Plan:
        """Return the plan of a file with this format."""
        table_len = max(1, min(MOST_STREAMS, form.max_size // (form.history_len + 1)))
        records = 2 * PAGE + _pages(table_len * 2 * _COPY_BYTES)
        observations = records + _pages(form.max_size * ROW.itemsize)
        nbytes = observations + _pages(form.max_size * form.state_bytes)
        return cls(form, table_len, 2 * PAGE, records, observations, nbytes)

    def header(self) -> bytes:
        """Return the bytes of page 0 behind the magic."""
        form = self.form
        sizes = (*form.state_shape, 0, 0)[:3]
        body = _HEADER.pack(
            FORMAT_VERSION, self.table_len, form.max_size, form.history_len,
            len(form.state_shape), *sizes, form.dtype.str.encode(),
            self.table, self.records, self.observations, self.nbytes,
        )
        return body + struct.pack("<I", crc32(body))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def read_plan(head: bytes, file_bytes: int, name: str) -> Plan:
    """Read page 0.

    Args:
        head: the first `PAGE` bytes, or all of a shorter file.
        file_bytes: how long the file is.
        name: of the file, for messages.

    Raises:
        StorageError: it is no replay file, of another version, damaged, or truncated.
    """
    if not head.startswith(MAGIC):
        raise StorageError(
            f"{name} is not a replay file: it starts with {bytes(head[:8])!r}, not with {MAGIC!r}"
        )
    body = head[len(MAGIC) : len(MAGIC) + _HEADER.size]
    check = head[len(MAGIC) + _HEADER.size :][:4]
    if len(check) < 4:
        raise StorageError(f"{name} is truncated: {file_bytes} bytes are less than its header")
    version = struct.unpack_from("<I", body)[0]
    if version != FORMAT_VERSION:
        raise StorageError(
            f"{name} has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    if struct.unpack("<I", check)[0] != crc32(body):
        raise StorageError(f"{name} is damaged: its header does not match its checksum")
    _, table_len, max_size, history_len, ndim, *rest = _HEADER.unpack(body)
    dtype = np.dtype(rest[3].rstrip(b"\0").decode())
    form = Format(max_size, tuple(rest[:ndim]), history_len, dtype)
    plan = Plan(form, table_len, *rest[4:])
    if file_bytes < plan.nbytes:
        raise StorageError(
            f"{name} is truncated: it has {file_bytes} bytes, and its header says {plan.nbytes}"
        )
    return plan


class Counters:
    """Reads and writes the number of streams and their counters.

    Args:
        buffer: the file's bytes.
        plan: of the file.
        name: of the file, for messages.

    Attributes:
        num_streams: into how many rings the file is divided; 0 before `begin` or `read`.
    """

    def __init__(self, buffer: Any, plan: Plan, name: str) -> None:
        self._buffer = buffer
        self._plan = plan
        self._name = name
        self._begun = 0
        self._sequence: list[int] = []
        self.num_streams = 0

    def check_streams(self, num_streams: int) -> None:
        """Refuse more streams than the file has room for.

        Raises:
            ConfigurationError: it has none.
        """
        if num_streams > self._plan.table_len:
            raise ConfigurationError(
                f"{num_streams} streams were asked for; {self._name} has room for "
                f"{self._plan.table_len}"
            )

    def begin(self, rings: Rings) -> None:
        """Make these the file's rings. Atomic if the rings until now are empty.

        Raises:
            ConfigurationError: the file has no room for so many.
        """
        self.check_streams(len(rings))
        self._sequence = [0] * len(rings)
        for ring in rings:
            for _ in range(2):
                self.write(ring, ring.end)
        body = _NUM_STREAMS.pack(self._begun + 1, len(rings))
        self._store(PAGE + (self._begun & 1) * _COPY_BYTES, body)
        self._begun += 1
        self.num_streams = len(rings)

    def write(self, ring: Ring, reserved: int) -> None:
        """Publish a ring's counters; slots of rows up to ``reserved`` may be torn."""
        index = ring.index
        sequence = self._sequence[index] + 1
        body = _COUNTERS.pack(
            sequence, ring.end, reserved, ring.games, ring.score_sum, ring.score_max,
            ring.provisional,
        )
        self._store(self._at(index) + (sequence & 1) * _COPY_BYTES, body)
        # Only now: a write that was interrupted is repeated into the same copy, so that the
        # other one stays whole.
        self._sequence[index] = sequence

    def read(self) -> tuple[Rings, list[int]]:
        """Read the rings.

        Returns:
            The rings, and per stream up to which row slots may be torn.

        Raises:
            StorageError: the file is damaged.
        """
        self._begun, num_streams = self._load(PAGE, _NUM_STREAMS)
        if not 1 <= num_streams <= self._plan.table_len:
            raise StorageError(f"{self._name} is damaged: it claims {num_streams} streams")
        rings = Rings(self._plan.form.max_size, num_streams)
        found = [self._load(self._at(ring.index), _COUNTERS) for ring in rings]
        for ring, values in zip(rings, found):
            ring.restore((values[1], bool(values[6]), *values[3:6]))
        rings.refresh()
        self._sequence = [values[0] for values in found]
        self.num_streams = num_streams
        return rings, [values[2] for values in found]

    def reserved(self, stream: int) -> int:
        """Read up to which row the slots of a stream may be torn by now."""
        return int(self._load(self._at(stream), _COUNTERS)[2])

    def _at(self, index: int) -> int:
        return self._plan.table + index * 2 * _COPY_BYTES

    def _store(self, at: int, body: bytes) -> None:
        self._buffer[at : at + len(body) + 4] = body + crc32(body).to_bytes(4, "little")

    def _load(self, at: int, form: struct.Struct) -> tuple[Any, ...]:
        best: tuple[Any, ...] | None = None
        for copy in (at, at + _COPY_BYTES):
            body = bytes(self._buffer[copy : copy + form.size])
            check = bytes(self._buffer[copy + form.size : copy + form.size + 4])
            values = form.unpack(body)
            if crc32(body) == int.from_bytes(check, "little") and values[0]:
                best = values if best is None else max(best, values)
        if best is None:
            raise StorageError(f"{self._name} is damaged: no copy of its counters is whole")
        return best
