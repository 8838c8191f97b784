"""The settings of a DQN run, with defaults for each kind of environment, and schedules."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Linear:
    """A value that goes from `start` to `end` in a straight line and stays there.

    Attributes:
        start, end: values.
        steps: environment steps that it takes.
    """

    start: float
    end: float
    steps: int

    def at(self, step: int) -> float:
        """The value after `step` environment steps."""
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * step / self.steps


@dataclass(frozen=True)
class Config:
    """All settings of a run; steps are environment steps (agent steps for Atari).

    Attributes:
        env: a gymnasium id.
        seed: of everything.
        backend: of the training pool; evaluations always run in processes.
        deterministic: see `EnvRunnerManager`.
        num_players: simulators that collect.
        step_cost_s: CPU seconds of Python that each step of a collecting player additionally burns.
        history_len: frames in a state.
        hidden: widths of the layers of a network for vectors; Atari: of the Nature network's
            last hidden layer.
        dueling, double, n_step, discount, batch_size: of the learner.
        prioritised: sample by priority; else uniformly.
        beta: schedule of the importance weights of a prioritised memory.
        reward_scale: the learner's rewards are multiplied by it, so that values are small.
        clip_rewards: the learner sees rewards cut to [-1, 1]; with n_step > 1 their sum is cut.
        memory_size, init_memory_size: of the replay memory, in rows.
        steps_per_round, updates_per_round: how stepping and learning are interleaved.
        target_every: updates between two moves of the target network towards the network.
        target_rate: how far it moves; 1: it becomes a copy. Below 1 it is a moving average, and
            steadier than the network: then it is the one that is evaluated.
        reset_every: updates after which the networks are initialised again and learn from all
            that is in memory: what they learned first from little data would else stay with
            them (Nikishin et al., "The Primacy Bias in Deep Reinforcement Learning", 2022);
            None: never.
        learning_rate, exploration: schedules.
        max_grad_norm: gradients are scaled down to it.
        torch_threads: of the learner.
        eval_every: steps between two evaluations.
        eval_episodes, eval_exploration: of one evaluation.
        final_episodes: of the evaluation that is reported.
        target_score: stop once an evaluation, and another of `final_episodes`, reach it and
            `margin` more; None: never before the budget is used up.
        margin: so that the final evaluation, of other games, reaches the target, too.
        max_steps: the budget.
    """

    env: str
    seed: int
    backend: str = "process"
    deterministic: bool = False
    num_players: int = 2
    step_cost_s: float = 0.0
    history_len: int = 1
    hidden: tuple[int, ...] = (128, 128)
    dueling: bool = True
    double: bool = True
    n_step: int = 3
    prioritised: bool = False
    beta: Linear = Linear(0.4, 1.0, 150_000)
    discount: float = 0.99
    reward_scale: float = 0.05
    clip_rewards: bool = False
    batch_size: int = 128
    memory_size: int = 50_000
    init_memory_size: int = 1_000
    steps_per_round: int = 32
    updates_per_round: int = 16
    target_every: int = 1
    target_rate: float = 0.01
    reset_every: int | None = 2_500
    learning_rate: Linear = Linear(1e-3, 5e-4, 50_000)
    exploration: Linear = Linear(1.0, 0.05, 8_000)
    max_grad_norm: float = 10.0
    torch_threads: int = 1
    eval_every: int = 1_000
    eval_episodes: int = 20
    eval_exploration: float = 0.0
    final_episodes: int = 100
    target_score: float | None = 475.0
    margin: float = 10.0
    max_steps: int = 150_000

    @property
    def atari(self) -> bool:
        """The environment is a game of the Atari 2600."""
        return is_atari(self.env)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and checkpoints."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The inverse of `as_dict`."""
        values = dict(values, hidden=tuple(values["hidden"]))
        for name in ("learning_rate", "exploration", "beta"):
            values[name] = Linear(**values[name])
        return cls(**values)


def is_atari(env: str) -> bool:
    """True for the ids of Atari games."""
    return env.startswith("ALE/") or "NoFrameskip" in env


def default_config(env: str, seed: int, **changes: Any) -> Config:
    """The settings for an environment.

    Args:
        env: a gymnasium id.
        seed: of everything.
        changes: of single settings.
    """
    base = Config(env=env, seed=seed)
    if is_atari(env):
        base = dataclasses.replace(
            base,
            history_len=4,
            hidden=(512,),
            prioritised=True,
            beta=Linear(0.4, 1.0, 1_000_000),
            reward_scale=1.0,
            clip_rewards=True,
            batch_size=32,
            memory_size=100_000,
            init_memory_size=5_000,
            steps_per_round=64,
            updates_per_round=2,
            target_every=250,
            target_rate=1.0,
            reset_every=None,
            learning_rate=Linear(3e-4, 1e-4, 600_000),
            exploration=Linear(1.0, 0.02, 60_000),
            eval_every=100_000,
            eval_episodes=4,
            eval_exploration=0.01,
            final_episodes=10,
            target_score=None,
            max_steps=10_000_000,
        )
    elif env != "CartPole-v1":
        base = dataclasses.replace(base, target_score=None)
    return dataclasses.replace(base, **changes)
