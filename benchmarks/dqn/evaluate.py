"""Evaluation games, in worker processes of their own that never write to the replay memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.dqn.config import Config
from benchmarks.dqn.players import evaluation_player
from mprunner import EnvRunner, EnvRunnerManager, LocalPredictor, ReplayMemory

_JOB_STEPS = 64


@dataclass(frozen=True)
class Score:
    """Of some whole games.

    Attributes:
        mean, best: unclipped.
        games: exactly so many.
    """

    mean: float
    best: float
    games: int


def evaluate(
    config: Config,
    predictor: LocalPredictor,
    state_shape: tuple[int, ...],
    dtype: Any,
    games: int,
    seed: int,
) -> Score:
    """Play `games` whole games with the predictor's weights.

    A pool of its own is started each time; its rows go into a memory that is thrown away.

    Args:
        config: of the run.
        predictor: with the weights to be evaluated.
        state_shape, dtype: of one observation.
        games: at least one for each worker is played by it; no game is left out.
        seed: of these games.
    """
    workers = max(1, min(config.num_players, games))
    quotas = [games // workers + (i < games % workers) for i in range(workers)]
    history_len = config.history_len
    memory = ReplayMemory(workers * (history_len + 8), state_shape, history_len, dtype)
    runners = [
        EnvRunner(evaluation_player(config, quota), predictor, memory, history_len)
        for quota in quotas
    ]
    with EnvRunnerManager(
        runners, 4 * workers * _JOB_STEPS, backend="process", seed=seed
    ) as manager:
        while manager.stats().episodes < games:
            manager.step(config.eval_exploration, _JOB_STEPS)
        mean, best = manager.reset_stats()
        played = manager.stats().episodes
    memory.close()
    assert played == games and mean is not None and best is not None
    return Score(mean, best, games)
