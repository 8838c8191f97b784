"""A player with gym's older interface: reset() gives the observation, step() a 4-tuple."""

import numpy as np

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory


class Discrete:  # as of gym.spaces; gym itself is not needed
    def __init__(self, n):
        self.n = n


class Corridor:
    """Reach the end of a corridor; cut after 50 steps, as gym's TimeLimit did it."""

    action_space = Discrete(2)

    def seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.at, self.steps = int(self.rng.integers(5)), 0
        return np.array([self.at], np.int16)

    def step(self, action):
        self.at = max(0, self.at + (1 if action else -1))
        self.steps += 1
        won, late = self.at == 10, self.steps == 50
        info = {"TimeLimit.truncated": True} if late and not won else {}
        return np.array([self.at], np.int16), float(won), won or late, info


memory = ReplayMemory(5_000, state_shape=(1,), history_len=1, dtype="int16")
runners = [EnvRunner(Corridor, None, memory, history_len=1) for _ in range(2)]
with EnvRunnerManager(runners, maximum_staleness=64, seed=0) as manager:
    for _ in range(100):
        manager.step(exploration=1.0, num_steps=16)
    manager.join()
    print(f"{len(memory)} transitions; mean and best score: {manager.reset_stats()}")

batch = memory.sample_batch(1_000)
print(batch.terminated.sum(), "ended by a win,", batch.truncated.sum(), "by the time limit")
