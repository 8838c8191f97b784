"""Everything that a pool counts, in TensorBoard."""

import sys
import tempfile

import gymnasium as gym
from torch.utils.tensorboard import SummaryWriter

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
memory = ReplayMemory(10_000, state_shape=(4,), history_len=1, dtype="float32")
runners = [
    EnvRunner(lambda: gym.make("CartPole-v1"), None, memory, history_len=1) for _ in range(2)
]
with EnvRunnerManager(runners, maximum_staleness=64, seed=0) as manager, SummaryWriter(
    folder
) as writer:
    for i in range(100):
        manager.step(exploration=1.0, num_steps=16)
        if i % 20 == 0:
            for name, value in manager.stats().as_dict().items():
                writer.add_scalar(f"pool/{name}", value, global_step=16 * i)
            mean, best = manager.reset_stats()
            if mean is not None:
                writer.add_scalar("score/mean", mean, global_step=16 * i)
print("tensorboard --logdir", folder)
