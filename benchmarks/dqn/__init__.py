"""A DQN agent that learns from the pool: ``python -m benchmarks.dqn``."""
