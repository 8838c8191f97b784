"""MiniGrid as player."""

import gymnasium as gym

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory


def make_player():
    from minigrid.wrappers import ImgObsWrapper  # registers the environments, too

    return ImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))  # (7, 7, 3) bytes, 7 actions


memory = ReplayMemory(10_000, state_shape=(7, 7, 3), history_len=2)
runners = [EnvRunner(make_player, None, memory, history_len=2) for _ in range(2)]
with EnvRunnerManager(runners, maximum_staleness=64, seed=0) as manager:
    for _ in range(100):
        manager.step(exploration=1.0, num_steps=16)
    manager.join()
    print(f"{len(memory)} transitions; mean and best score: {manager.reset_stats()}")

# The time limit is a truncation: its transitions bootstrap from the true last observation.
batch = memory.sample_batch(256, n_step=3, discount=0.99)
print(batch.state.shape, batch.truncated.sum(), "cut by the time limit")
