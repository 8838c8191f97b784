"""The networks: Q values of states with the history first, dueling (Wang et al., 2016) or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class QNet(nn.Module):
    """A body and one head, or two that are combined.

    Args:
        body: makes features of states.
        num_features: that it makes.
        num_actions: of the player.
        dueling: estimate the state's value and the actions' advantages apart.
    """

    def __init__(
        self, body: nn.Module, num_features: int, num_actions: int, dueling: bool
    ) -> None:
        super().__init__()
        self.body = body
        self.advantage = nn.Linear(num_features, num_actions)
        self.value = nn.Linear(num_features, 1) if dueling else None

    def forward(self, states: Tensor) -> Tensor:
        """``(B, history_len, *state_shape)`` to ``(B, num_actions)``."""
        features = self.body(states.float())
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


class _Bounded(nn.Module):
    """Brings each bounded entry of an observation to [-2, 2]; others stay as they are."""

    scale: Tensor

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, states: Tensor) -> Tensor:
        return states.flatten(start_dim=1) * self.scale


def vector_net(
    high: npt.NDArray[np.floating], num_actions: int, hidden: Sequence[int], dueling: bool
) -> QNet:
    """For states that are vectors; `dqn_players.MlpModel` does the same in numpy.

    An angle that ends an episode at 0.2 would else count for little beside a speed of 3.

    Args:
        high: ``(num_inputs,)``, the largest value of each; may be infinite.
        num_actions: of the player.
        hidden: widths of the hidden layers.
        dueling: see `QNet`.
    """
    bounded = np.isfinite(high) & (high > 0) & (high < 1e6)
    scale = np.divide(2.0, high, out=np.ones(len(high)), where=bounded)
    layers: list[nn.Module] = [_Bounded(torch.from_numpy(scale.astype(np.float32)))]
    num_inputs = len(high)
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return QNet(nn.Sequential(*layers), num_inputs, num_actions, dueling)


class _Pixels(nn.Module):
    """Bytes to [0, 1]."""

    def forward(self, states: Tensor) -> Tensor:
        return states * (1 / 255)


def nature_net(history_len: int, num_actions: int, hidden: int, dueling: bool) -> QNet:
    """For 84x84 frames (Mnih et al., 2015)."""
    body = nn.Sequential(
        _Pixels(),
        nn.Conv2d(history_len, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, hidden),
        nn.ReLU(),
    )
    return QNet(body, hidden, num_actions, dueling)
