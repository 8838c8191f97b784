"""Predictors for the benchmarks that act greedily: one that costs nothing, one small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.workloads import NUM_ACTIONS

if TYPE_CHECKING:
    from mprunner import LocalPredictor

Predictor = Callable[[Any], Any]


def trivial() -> Predictor:
    """Random Q values: what is left is the cost of asking."""
    rng = np.random.default_rng(0)

    def predict(states: np.ndarray) -> np.ndarray:
        return rng.random((len(states), NUM_ACTIONS))

    return predict


def network() -> Any:
    """A small convolutional network, ``(B, 4, 84, 84)`` uint8 to ``(B, 4)``."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(4, 16, 8, stride=4),
                nn.ReLU(),
                nn.Conv2d(16, 32, 4, stride=2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(32 * 9 * 9, 256),
                nn.ReLU(),
                nn.Linear(256, NUM_ACTIONS),
            )

        def forward(self, frames: Any) -> Any:
            return self.layers(frames.float() / 255)

    torch.manual_seed(0)
    return Network()


def cnn() -> Predictor:
    """The network of `network`, on one thread, as the simulators need the other cores."""
    import torch

    torch.set_num_threads(1)
    module = network().eval()

    def predict(states: np.ndarray) -> Any:
        history_first = np.ascontiguousarray(np.moveaxis(states, -1, 1))
        with torch.no_grad():
            return module(torch.from_numpy(history_first))

    return predict


_PREDICTORS: dict[str, Callable[[], Predictor]] = {"trivial": trivial, "cnn": cnn}


def predictor(name: str | None) -> Predictor | None:
    """A predictor by its name; None for None."""
    return None if name is None else _PREDICTORS[name]()


class _Trivial:
    """`trivial` as a model of a `LocalPredictor`; its weights change nothing."""

    def __init__(self) -> None:
        self._predict = trivial()

    def set_weights(self, weights: Any) -> None:
        """Nothing to take over."""

    def __call__(self, states: np.ndarray) -> Any:
        return self._predict(states)


def local_predictor(name: str) -> LocalPredictor:
    """The same predictor, to be run in the workers."""
    from mprunner import LocalPredictor
    from mprunner.predictors import from_torch

    if name == "cnn":
        return LocalPredictor(from_torch(network), network().state_dict())
    return LocalPredictor(_Trivial, [np.zeros(1)])
