"""Replay buffers of other packages, filled alike, one call per batch each; none is required."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Task = Callable[[], Any]


def peers(num_rows: int, frame: tuple[int, int], history_len: int, batch: int) -> dict[str, Task]:
    """What is installed: name -> a call that samples one batch with stacks."""
    found: dict[str, Task] = {}
    for name, make in (
        ("stable-baselines3", _stable_baselines3),
        ("tianshou", _tianshou),
        ("cpprb", _cpprb),
        ("torchrl", _torchrl),
    ):
        try:
            found[name] = make(num_rows, frame, history_len, batch)
        except ImportError as error:
            print(f"no {name}: {error}")
    return found


def _stable_baselines3(
    num_rows: int, frame: tuple[int, int], history_len: int, batch: int
) -> Task:
    """It stores whole stacks: four times the bytes."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    space = spaces.Box(0, 255, (history_len, *frame), np.uint8)
    buffer = ReplayBuffer(
        num_rows,
        space,
        spaces.Discrete(4),
        device="cpu",
        optimize_memory_usage=True,
        handle_timeout_termination=False,
    )
    # Filled directly: adding is not what is measured.
    buffer.observations[...] = 1
    buffer.full = True
    return lambda: buffer.sample(batch)


def _tianshou(num_rows: int, frame: tuple[int, int], history_len: int, batch: int) -> Task:
    from tianshou.data import Batch, ReplayBuffer

    buffer = ReplayBuffer(
        num_rows, stack_num=history_len, ignore_obs_next=True, save_only_last_obs=False
    )
    observation = np.ones(frame, np.uint8)
    for step in range(num_rows):
        over = step % 1000 == 999
        buffer.add(
            Batch(
                obs=observation, act=0, rew=0.0, terminated=over, truncated=False, info={}
            )
        )

    def sample() -> Any:
        indices = buffer.sample_indices(batch)
        return buffer[indices]

    return sample


def _cpprb(num_rows: int, frame: tuple[int, int], history_len: int, batch: int) -> Task:
    from cpprb import ReplayBuffer

    shape = (*frame, history_len)
    buffer = ReplayBuffer(
        num_rows,
        {"obs": {"shape": shape, "dtype": np.uint8}, "act": {}, "rew": {}, "done": {}},
        next_of="obs",
        stack_compress="obs",
    )
    observation = np.ones(shape, np.uint8)
    for step in range(num_rows):
        over = step % 1000 == 999
        buffer.add(obs=observation, act=0, rew=0.0, next_obs=observation, done=float(over))
        if over:
            buffer.on_episode_end()
    return lambda: buffer.sample(batch)


def _torchrl(num_rows: int, frame: tuple[int, int], history_len: int, batch: int) -> Task:
    """Slices of history_len + 1 frames, which is how it reads stacks from single frames."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(num_rows),
        sampler=SliceSampler(slice_len=history_len + 1, traj_key="episode"),
        batch_size=batch * (history_len + 1),
    )
    step = 1000
    for number in range(num_rows // step):
        pixels = torch.ones((step, *frame), dtype=torch.uint8)
        buffer.extend(
            TensorDict(
                {"pixels": pixels, "episode": torch.full((step,), number)}, batch_size=[step]
            )
        )
    return lambda: buffer.sample()
