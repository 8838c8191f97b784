"""Double DQN on batches of a replay memory: the network, its target, the optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.dqn.config import Config
from benchmarks.dqn.nets import QNet, nature_net, vector_net
from benchmarks.dqn.players import MlpModel
from mprunner import Batch, LocalPredictor
from mprunner.predictors import from_torch


def make_net(config: Config, space: gym.spaces.Box, num_actions: int) -> QNet:
    """The network for an environment; draws its weights from torch's global generator."""
    if config.atari:
        return nature_net(config.history_len, num_actions, config.hidden[0], config.dueling)
    high = np.tile(np.asarray(space.high, np.float64).reshape(-1), config.history_len)
    return vector_net(high, num_actions, config.hidden, config.dueling)


def _arrays(net: nn.Module) -> dict[str, Any]:
    return {name: w.detach().numpy().copy() for name, w in net.state_dict().items()}


class Learner:
    """Learns Q values (van Hasselt et al., 2016).

    Args:
        config: of the run.
        space: of the observations.
        num_actions: of the player.

    Attributes:
        updates: done so far.
        net: the network that is trained.
    """

    def __init__(self, config: Config, space: gym.spaces.Box, num_actions: int) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._make = partial(make_net, config, space, num_actions)
        self.updates = 0
        self._begin()

    def _begin(self) -> None:
        """Fresh weights; other ones each time, and the same ones in a run that is repeated."""
        torch.manual_seed(self._config.seed + self.updates)
        self.net = self._make()
        self._target = copy.deepcopy(self.net).requires_grad_(False)
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr=1.0, eps=1.5e-4)
        self._online, self._slow = list(self.net.parameters()), list(self._target.parameters())

    def weights(self) -> dict[str, Any]:
        """A copy of the network's weights as arrays, to act on."""
        return _arrays(self.net)

    def evaluated_weights(self) -> dict[str, Any]:
        """The same of the network that is evaluated: the target, if it is a moving average."""
        return _arrays(self.net if self._config.target_rate == 1 else self._target)

    def predictor(self, weights: dict[str, Any]) -> LocalPredictor:
        """Acts in the workers, on these weights and later on those that are published."""
        factory: Callable[[], Any] = MlpModel
        if self._config.atari:
            factory = from_torch(self._make)
        return LocalPredictor(factory, weights)

    def update(self, batch: Batch, learning_rate: float) -> tuple[float, np.ndarray]:
        """One step of gradient descent.

        Args:
            batch: of `ReplayMemory.sample_batch`.
            learning_rate: of this step.

        Returns:
            The loss, and the size of each TD error, ``(B,)``.
        """
        config = self._config
        frames = torch.from_numpy(batch.frames)
        state, next_state = frames[:, : config.history_len], frames[:, -config.history_len :]
        action = torch.from_numpy(batch.action)[:, None]
        reward = torch.from_numpy(batch.reward)
        if config.clip_rewards:
            reward = reward.clamp(-1, 1)
        reward = reward * config.reward_scale
        target = reward + torch.from_numpy(batch.discount) * self._value(next_state)
        error = self.net(state).gather(1, action)[:, 0] - target
        losses = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        loss = (losses * torch.from_numpy(batch.weights)).mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), config.max_grad_norm)
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        self.updates += 1
        if self.updates % config.target_every == 0:
            with torch.no_grad():
                torch._foreach_lerp_(self._slow, self._online, config.target_rate)
        if config.reset_every is not None and self.updates % config.reset_every == 0:
            self._begin()
        return loss.item(), error.detach().abs().numpy()

    @torch.no_grad()
    def _value(self, states: Tensor) -> Tensor:
        """Of the best action in each state, ``(B,)``."""
        q: Tensor = self._target(states)
        if not self._config.double:
            return q.max(dim=1).values
        return q.gather(1, self.net(states).argmax(dim=1, keepdim=True))[:, 0]

    def state_dict(self) -> dict[str, Any]:
        """All that it takes to go on."""
        return {
            "net": self.net.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.net.load_state_dict(state["net"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
