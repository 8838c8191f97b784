"""Weights on their way to a worker: their layout, and the board they are published on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Union

import numpy as np

from mprunner.errors import ConfigurationError
from mprunner.experience import Array

Weights = Union[Mapping[str, Any], Sequence[Any]]


class WeightsSource(Protocol):
    """Where a `LocalPredictor` finds its newest weights."""

    @property
    def version(self) -> int:
        """Of the newest complete weights."""

    def read(self) -> tuple[int, Weights]:
        """That version and its weights, as arrays of the caller's own."""


def to_array(value: Any) -> Array:
    """Any array-like as numpy; a torch tensor may live on any device and require grad."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no such dtype
            value = value.float()
    return np.asarray(value)


class WeightsLayout:
    """Names, shapes and dtypes of weights, and their places in a flat buffer.

    Args:
        weights: a dict or list of arrays.

    Attributes:
        num_bytes: the size of one packed set of weights.

    Raises:
        ConfigurationError: not a dict or list of numeric arrays.
    """

    def __init__(self, weights: Weights) -> None:
        self.names, arrays = _named(weights)
        self.specs = [(a.shape, a.dtype) for a in arrays]
        self.offsets = []
        offset = 0
        for array in arrays:
            self.offsets.append(offset)
            offset += (array.nbytes + 15) // 16 * 16
        self.num_bytes = offset

    def pack(self, weights: Weights) -> bytearray:
        """Weights as bytes.

        Raises:
            ConfigurationError: names, shapes or dtypes differ from the first weights.
        """
        names, arrays = _named(weights)
        if names != self.names:
            raise ConfigurationError(
                f"the weights have the names {_names(names)}; the first ones had "
                f"{_names(self.names)}"
            )
        if len(arrays) != len(self.specs):
            raise ConfigurationError(
                f"the weights are {len(arrays)} arrays; the first ones were {len(self.specs)}"
            )
        packed = bytearray(self.num_bytes)
        for i, (array, (shape, dtype)) in enumerate(zip(arrays, self.specs)):
            if array.shape != shape or array.dtype != dtype:
                label = i if names is None else names[i]
                raise ConfigurationError(
                    f"weights[{label!r}] has shape {array.shape} and dtype {array.dtype}; the "
                    f"first ones had {shape} and {dtype}"
                )
            self._view(packed, i)[...] = array
        return packed

    def unpack(self, packed: bytearray) -> Weights:
        """The inverse of `pack`; the arrays are views of `packed`."""
        arrays = [self._view(packed, i) for i in range(len(self.specs))]
        return arrays if self.names is None else dict(zip(self.names, arrays))

    def _view(self, packed: bytearray, i: int) -> Array:
        shape, dtype = self.specs[i]
        count = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(packed, dtype, count=count, offset=self.offsets[i])
        return flat.reshape(shape)


class WeightsBoard:
    """The newest weights, in a buffer that one side writes and many read without a lock.

    There are two slots. One cell says which of them is current, and its version; the writer
    fills the other one and then moves that cell on. A writer that is interrupted or dies
    half-way, however often, leaves the current one whole. A reader copies, then looks whether
    the slot was rewritten meanwhile (a seqlock); a checksum settles what the memory order
    leaves open.

    Args:
        layout: of the weights.
        buffer: of `size_bytes(layout)` writable bytes, zeroed at first.
    """

    _HEADER = struct.Struct("<qIxxxx")  # per slot: version, checksum
    _HEADER_BYTES = 16

    def __init__(self, layout: WeightsLayout, buffer: Any) -> None:
        self._layout = layout
        self._memory = memoryview(buffer).cast("B")
        self._current = self._memory[:8].cast("q")  # version * 2 + slot

    @classmethod
    def size_bytes(cls, layout: WeightsLayout) -> int:
        """Bytes that the board needs."""
        return 16 + 2 * (layout.num_bytes + cls._HEADER_BYTES)

    @property
    def version(self) -> int:
        """The newest complete version."""
        return self._current[0] >> 1

    def publish(self, packed: bytearray, version: int) -> None:
        """Make weights packed by the board's layout the newest; never waits for a reader."""
        slot = 1 - (self._current[0] & 1)
        start, end = self._place(slot)
        # A version that no reader looks for, until the weights are whole.
        self._HEADER.pack_into(self._memory, start, -1, 0)
        self._memory[start + self._HEADER_BYTES:end] = packed
        self._HEADER.pack_into(self._memory, start, version, zlib.crc32(packed))
        self._current[0] = version * 2 + slot

    def read(self) -> tuple[int, Weights]:
        """The newest version and its weights, as arrays of the caller's own.

        Loops only while the writer publishes faster than a copy takes.
        """
        while True:
            version, slot = divmod(self._current[0], 2)
            start, end = self._place(slot)
            packed = bytearray(self._memory[start + self._HEADER_BYTES:end])
            if self._HEADER.unpack_from(self._memory, start) == (version, zlib.crc32(packed)):
                return version, self._layout.unpack(packed)

    def _place(self, slot: int) -> tuple[int, int]:
        size = self._layout.num_bytes + self._HEADER_BYTES
        start = 16 + slot * size
        return start, start + size


def _named(weights: Any) -> tuple[list[str] | None, list[Array]]:
    if isinstance(weights, Mapping):
        names: list[str] | None = list(weights)
        values = list(weights.values())
    elif isinstance(weights, (list, tuple)):
        names, values = None, list(weights)
    else:
        raise ConfigurationError(
            f"weights are {type(weights).__name__}; expected a dict or list of arrays"
        )
    arrays = [to_array(value) for value in values]
    for i, array in enumerate(arrays):
        if array.dtype.hasobject:
            label = i if names is None else names[i]
            raise ConfigurationError(f"weights[{label!r}] is {values[i]!r:.80}; expected an array")
    return names, arrays


def _names(names: list[str] | None) -> str:
    return "none (a list)" if names is None else str(names)[:300]
