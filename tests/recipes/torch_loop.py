"""A plain PyTorch loop: double DQN on CartPole, two simulators that play while it learns."""

import copy
import sys

import gymnasium as gym
import torch
from torch import nn
from torch.utils.data import DataLoader

from mprunner import ExpReplay, LocalPredictor
from mprunner.predictors import from_torch


def make_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))


torch.set_num_threads(1)
num_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
net = make_net()
target_net = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

with ExpReplay(
    LocalPredictor(from_torch(make_net), net.state_dict()),  # acts beside the simulators
    lambda: gym.make("CartPole-v1"),  # is called in each worker
    num_parallel_players=2,
    state_shape=(4,),
    batch_size=64,
    memory_size=20_000,
    init_memory_size=500,
    update_frequency=8,
    history_len=1,
    state_dtype="float32",
    seed=0,
) as replay:
    for i, batch in zip(range(num_batches), DataLoader(replay, batch_size=None)):
        frames, action, reward, is_over = batch  # frames: (64, 4, history_len + 1)
        state, next_state = frames[..., :-1], frames[..., 1:]
        with torch.no_grad():
            best = net(next_state).argmax(1, keepdim=True)
            value = target_net(next_state).gather(1, best)[:, 0]
            target = reward + 0.99 * value * ~is_over
        q = net(state).gather(1, action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        replay.exploration = max(0.05, 1 - i / 1_000)
        if i % 10 == 0:
            replay.set_weights(net.state_dict())
        if i % 200 == 0:
            target_net.load_state_dict(net.state_dict())
            print(i, "mean and best score of the games since:", replay.reset_stats())
