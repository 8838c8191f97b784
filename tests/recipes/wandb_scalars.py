"""The same with Weights & Biases, which takes the dictionary as it is."""

import gymnasium as gym
import wandb

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory

memory = ReplayMemory(10_000, state_shape=(4,), history_len=1, dtype="float32")
runners = [
    EnvRunner(lambda: gym.make("CartPole-v1"), None, memory, history_len=1) for _ in range(2)
]
run = wandb.init(project="cartpole")
with EnvRunnerManager(runners, maximum_staleness=64, seed=0) as manager:
    for i in range(100):
        manager.step(exploration=1.0, num_steps=16)
        if i % 20 == 0:
            run.log(manager.stats().as_dict(), step=16 * i)
run.finish()
