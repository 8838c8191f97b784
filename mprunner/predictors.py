"""Where Q values come from, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from mprunner.errors import ConfigurationError, MissingExtraError, PredictorError
from mprunner.experience import Array
from mprunner.weights import Weights, WeightsLayout, to_array

#: ``(B, *state_shape, history_len) -> Q (B, num_actions)``, or a sequence that starts with Q.
PredictorFn = Callable[[Array], Any]


class Model(Protocol):
    """What the factory of a `LocalPredictor` makes."""

    def __call__(self, states: Array) -> Any:
        """States ``(B, *state_shape, history_len)`` to Q values ``(B, num_actions)``."""

    def set_weights(self, weights: Weights) -> None:
        """Take over weights, in the form in which they were published."""


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
