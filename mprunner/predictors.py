"""Where Q values come from, how they are read, and how weights reach a worker.

Owns `LocalPredictor`, `read_q` and the weights board (a seqlock over any writable buffer).
Knows nothing of processes: whoever runs the runners provides the buffer.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Union

import numpy as np

from mprunner.errors import ConfigurationError, MissingExtraError, PredictorError
from mprunner.experience import Array

#: ``(B, *state_shape, history_len) -> Q (B, num_actions)``, or a sequence that starts with Q.
PredictorFn = Callable[[Array], Any]
Weights = Union[Mapping[str, Any], Sequence[Any]]


class Model(Protocol):
    """What the factory of a `LocalPredictor` makes."""

    def __call__(self, states: Array) -> Any:
        """States ``(B, *state_shape, history_len)`` to Q values ``(B, num_actions)``."""

    def set_weights(self, weights: Weights) -> None:
        """Take over weights, in the form in which they were published."""


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


def read_q(output: Any, batch_size: int, num_actions: int) -> Array:
    """The Q values in what a predictor returned.

    Args:
        output: Q itself, or a sequence whose first item is Q; numpy, torch (any device) or
            anything with ``__array__``.
        batch_size: number of states asked about.
        num_actions: size of the action space.

    Returns:
        ``(batch_size, num_actions)``.

    Raises:
        PredictorError: another shape, not numbers, or NaN.
    """
    expected = (batch_size, num_actions)
    q = None
    if isinstance(output, (tuple, list)) and output:
        first = _as_array(output[0])
        q = first if first is not None and first.shape == expected else None
    if q is None:
        q = _as_array(output)
    if q is None or q.shape != expected:
        found = type(output).__name__ if q is None else f"shape {q.shape}"
        raise PredictorError(
            f"the predictor returned {found}; expected Q values of shape {expected} "
            "(states, actions)"
        )
    if q.dtype.kind not in "fiub":
        raise PredictorError(
            f"the predictor returned Q values of dtype {q.dtype}; expected numbers"
        )
    top = q.item(q.argmax())  # NaN, if there is one: half the time of asking isnan of each
    if top != top:
        raise PredictorError("the predictor returned NaN among its Q values")
    return q


def _as_array(value: Any) -> Array | None:
    try:
        return to_array(value)
    except (TypeError, ValueError):
        return None


class LocalPredictor:
    """A predictor that runs beside the player, on weights that the parent publishes.

    Args:
        factory: makes the model; called once in each worker. See `Model`.
        weights: the first weights, a dict or list of arrays. Shapes and dtypes are fixed by
            them. They count as version 0.

    Raises:
        ConfigurationError: the factory is not callable, or the weights are not arrays.
    """

    def __init__(self, factory: Callable[[], Model], weights: Weights) -> None:
        if not callable(factory):
            raise ConfigurationError(
                f"LocalPredictor's factory is {type(factory).__name__}; expected a callable "
                "without arguments"
            )
        self.factory = factory
        self.layout = WeightsLayout(weights)
        self.weights = weights

    def __getstate__(self) -> dict[str, Any]:
        # Weights travel through the board, not with every worker's start.
        return {"factory": self.factory, "layout": self.layout, "weights": None}


def from_torch(
    module_factory: Callable[[], Any], *, num_threads: int = 1
) -> Callable[[], Model]:
    """A `LocalPredictor` factory from a factory of a torch module.

    The module is called with ``(B, history_len, *state_shape)``, contiguous, in the dtype of
    the observations, and returns Q ``(B, num_actions)``. Publish its ``state_dict()``.

    Args:
        module_factory: makes the ``torch.nn.Module``; called in the worker.
        num_threads: that torch uses in the worker, at least 1.

    Example::

        predictor = LocalPredictor(from_torch(make_net), net.state_dict())
        manager.set_weights(net.state_dict())
    """
    return _TorchFactory(module_factory, num_threads)


class _TorchFactory:
    def __init__(self, module_factory: Callable[[], Any], num_threads: int) -> None:
        self._module_factory = module_factory
        self._num_threads = num_threads

    def __call__(self) -> Model:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("from_torch", "torch", "torch") from None
        torch.set_num_threads(self._num_threads)
        return _TorchModel(torch, self._module_factory())


class _TorchModel:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._module = module.eval()

    def __call__(self, states: Array) -> Any:
        with self._torch.no_grad():
            history_first = np.ascontiguousarray(np.moveaxis(states, -1, 1))
            return self._module(self._torch.from_numpy(history_first))

    def set_weights(self, weights: Weights) -> None:
        assert isinstance(weights, Mapping)
        tensors = {name: self._torch.from_numpy(w) for name, w in weights.items()}
        self._module.load_state_dict(tensors)


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

    Two slots; a version lives in slot ``version % 2``. The writer fills the slot that is not
    current and then moves the version on, so a writer that dies half-way leaves the current
    one whole. A reader copies, then looks whether the slot was rewritten meanwhile (a seqlock);
    a checksum settles what the memory order leaves open.

    Args:
        layout: of the weights.
        buffer: of `size_bytes(layout)` writable bytes, zeroed at first.
    """

    _HEADER = struct.Struct("<qqIxxxx")  # per slot: version begun, version done, checksum

    def __init__(self, layout: WeightsLayout, buffer: Any) -> None:
        self._layout = layout
        self._memory = memoryview(buffer).cast("B")
        self._version = self._memory[:8].cast("q")

    @classmethod
    def size_bytes(cls, layout: WeightsLayout) -> int:
        """Bytes that the board needs."""
        return 16 + 2 * (layout.num_bytes + 32)

    @property
    def version(self) -> int:
        """The newest complete version."""
        return self._version[0]

    def publish(self, weights: Weights, version: int) -> None:
        """Make `weights` the newest; never waits for a reader.

        Raises:
            ConfigurationError: they differ in form from the first; nothing is published.
        """
        packed = self._layout.pack(weights)
        start, end = self._slot(version)
        header = self._memory[start:start + 32]
        begun, done, checksum = self._HEADER.unpack_from(header)
        self._HEADER.pack_into(header, 0, version, done, checksum)
        self._memory[start + 32:end] = packed
        self._HEADER.pack_into(header, 0, version, version, zlib.crc32(packed))
        self._version[0] = version

    def read(self) -> tuple[int, Weights]:
        """The newest version and its weights, as arrays of the caller's own.

        Loops only while the writer publishes faster than a copy takes.
        """
        while True:
            version = self._version[0]
            start, end = self._slot(version)
            header = self._memory[start:start + 32]
            begun, done, checksum = self._HEADER.unpack_from(header)
            packed = bytearray(self._memory[start + 32:end])
            if begun == done == version and zlib.crc32(packed) == checksum:
                return version, self._layout.unpack(packed)

    def _slot(self, version: int) -> tuple[int, int]:
        size = self._layout.num_bytes + 32
        start = 16 + (version % 2) * size
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
