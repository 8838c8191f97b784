"""Stable-Baselines3's AtariWrapper as player: its preprocessing, our pool and memory."""

import ale_py
import gymnasium as gym
from stable_baselines3.common.atari_wrappers import AtariWrapper

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory


def make_player():
    gym.register_envs(ale_py)
    game = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    # Rewards stay as they are, for the scores: clip them in the learner. A life that is lost
    # ends an episode for the learner, and the game's score goes on.
    return AtariWrapper(game, clip_reward=False)


memory = ReplayMemory(10_000, state_shape=(84, 84, 1), history_len=4)
runners = [EnvRunner(make_player, None, memory, history_len=4) for _ in range(2)]
with EnvRunnerManager(runners, maximum_staleness=64, seed=0) as manager:
    for _ in range(100):
        manager.step(exploration=1.0, num_steps=16)
    manager.join()
    print(f"{len(memory)} transitions; mean and best score: {manager.reset_stats()}")

batch = memory.sample_batch(32)
print(batch.state.shape)  # (32, 84, 84, 1, 4): a view, batch.frames is (32, 5, 84, 84, 1)
