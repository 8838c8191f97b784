"""The training loop: who plays when, who learns when, when to evaluate, save and stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.dqn import checkpoint
from benchmarks.dqn.config import Config
from benchmarks.dqn.evaluate import Score, evaluate
from benchmarks.dqn.learner import Learner
from benchmarks.dqn.players import training_player
from benchmarks.dqn.report import Display, Scalars
from mprunner import Batch, ExpReplay
from mprunner.replay.priorities import Priority

_TICK_S = 2.0
#: What a checkpoint holds beside the learner and the best weights.
_COUNTERS = ("steps", "elapsed_s", "training_s", "curve", "evaluations", "_starts", "_next_eval")


class Trainer:
    """One run, from its start or from its last checkpoint.

    Args:
        config: of the run.
        display: shows how it goes.
        scalars: for TensorBoard.
        folder: for checkpoints and the replay memory's file; None: nothing is kept.
        resumed: a checkpoint to go on from.

    Attributes:
        steps: environment steps asked for.
        elapsed_s: wall time spent, evaluations and earlier starts of this run included.
        training_s: the same without evaluations.
        curve: every two seconds: time, steps and the mean score of the games that ended.
        evaluations: steps, elapsed_s, training_s, mean, best and games of each.
    """

    def __init__(
        self,
        config: Config,
        display: Display,
        scalars: Scalars,
        folder: Path | None = None,
        resumed: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self._folder, self._display, self._scalars = folder, display, scalars
        self._player = training_player(config)
        probe = self._player()
        self._state_shape = tuple(probe.observation_space.shape)
        self._dtype = probe.observation_space.dtype
        self.learner = Learner(config, probe.observation_space, int(probe.action_space.n))
        probe.close()
        self.steps, self.elapsed_s, self.training_s = 0, 0.0, 0.0
        self.curve: list[dict[str, float | None]] = []
        self.evaluations: list[dict[str, float]] = []
        self._starts = 0
        self._next_eval = config.eval_every
        self._best = (float("-inf"), self.learner.weights())
        self._loss = float("nan")
        self._batch: Batch | None = None
        if resumed is not None:
            self._load(resumed)
        self._starts += 1
        self._tick_at = (time.monotonic(), self.steps)

    def run(self, *, max_seconds: float, checkpoint_every: float) -> Score:
        """Train until the target score is reached and confirmed, or the budget is used up.

        Args:
            max_seconds: of wall time, what earlier starts took included.
            checkpoint_every: seconds.

        Returns:
            The final evaluation, of games that decided nothing.
        """
        config = self.config
        with self._make_pool() as pool:
            began = time.monotonic()
            self._fill(pool)
            self._spend(began, training=True)
            saved = time.monotonic()
            done = False
            while not done:
                began = time.monotonic()
                self._round(pool)
                if began - self._tick_at[0] >= _TICK_S:
                    self._tick(pool)
                self._spend(began, training=True)
                done = self.steps >= config.max_steps or self.elapsed_s >= max_seconds
                began = time.monotonic()
                if done or self.steps >= self._next_eval:
                    done |= self._evaluate()
                if done or began - saved >= checkpoint_every:
                    self._save()
                    saved = time.monotonic()
                self._spend(began, training=False)
        pool.memory.close()
        began = time.monotonic()
        score = self._play_games(config.final_episodes, self._best[1])
        self._spend(began, training=False)
        return score

    def _make_pool(self) -> ExpReplay:
        config = self.config
        memory: dict[str, Any] = {}
        if self._folder is not None:
            memory["path"] = self._folder / checkpoint.REPLAY
        if config.prioritised:
            memory["priority"] = Priority()
        return ExpReplay(
            self.learner.predictor(self.learner.weights()),
            self._player,
            config.num_players,
            self._state_shape,
            config.batch_size,
            config.memory_size,
            config.init_memory_size,
            config.steps_per_round,
            config.history_len,
            self._dtype,
            # Another one at each start: a resumed run does not play the same games again.
            seed=self._seed(0, self._starts),
            backend=config.backend,
            deterministic=config.deterministic,
            memory_options=memory,
        )

    def _fill(self, pool: ExpReplay) -> None:
        """Before the first start; later the memory's file is full enough."""
        pool.exploration = self.config.exploration.at(self.steps)
        pool.fill()
        self.steps += pool.stats().steps_asked

    def _round(self, pool: ExpReplay) -> None:
        """Some steps, done by the workers while this process does some updates."""
        config, memory, learner = self.config, pool.memory, self.learner
        pool.exploration = config.exploration.at(self.steps)
        pool.play()
        learning_rate = config.learning_rate.at(self.steps)
        for _ in range(config.updates_per_round):
            batch = self._batch = memory.sample_batch(
                config.batch_size,
                n_step=config.n_step,
                discount=config.discount,
                beta=config.beta.at(self.steps) if config.prioritised else None,
                out=self._batch,
            )
            self._loss, errors = learner.update(batch, learning_rate)
            if config.prioritised:
                memory.update_priorities(batch.indices, errors)
        pool.set_weights(learner.weights())
        self.steps += config.steps_per_round

    def _evaluate(self) -> bool:
        """True if the target score is passed, and passed again in more games."""
        config, weights = self.config, self.learner.evaluated_weights()
        self._next_eval = self.steps + config.eval_every
        score = self._play_games(config.eval_episodes, weights)
        if score.mean >= self._best[0]:
            self._best = (score.mean, weights)
        if config.target_score is None:
            return False
        enough = config.target_score + config.margin
        if score.mean < enough:
            return False
        score = self._play_games(config.final_episodes, weights)
        if score.mean < enough:
            return False
        self._best = (score.mean, weights)
        return True

    def _play_games(self, games: int, weights: dict[str, Any]) -> Score:
        predictor = self.learner.predictor(weights)
        seed = self._seed(1, len(self.evaluations))
        score = evaluate(self.config, predictor, self._state_shape, self._dtype, games, seed)
        self.evaluations.append(
            {
                "steps": self.steps,
                "elapsed_s": self.elapsed_s,
                "training_s": self.training_s,
                "mean": score.mean,
                "best": score.best,
                "games": games,
            }
        )
        self._scalars.add({"evaluation/mean": score.mean}, self.steps)
        self._display.say(
            f"{self.elapsed_s:7.1f} s  step {self.steps:>9,}  {games} games: "
            f"mean {score.mean:.2f}, best {score.best:g}"
        )
        return score

    def _tick(self, pool: ExpReplay) -> None:
        before, steps_before = self._tick_at
        now = time.monotonic()
        self._tick_at = (now, self.steps)
        mean, _ = pool.reset_stats()
        entry: dict[str, float | None] = {
            "elapsed_s": round(self.elapsed_s, 2),
            "training_s": round(self.training_s, 2),
            "steps": self.steps,
            "updates": self.learner.updates,
            "score": mean,
        }
        self.curve.append(entry)
        shown = {
            **entry,
            "steps_per_s": (self.steps - steps_before) / (now - before),
            "exploration": self.config.exploration.at(self.steps),
            "learning_rate": self.config.learning_rate.at(self.steps),
            "loss": self._loss,
            "last evaluation": self.evaluations[-1]["mean"] if self.evaluations else None,
        }
        self._display.show(shown)
        self._scalars.add({f"train/{name}": value for name, value in shown.items()}, self.steps)
        self._scalars.add(
            {f"pool/{name}": value for name, value in pool.stats().as_dict().items()}, self.steps
        )

    def _spend(self, began: float, training: bool) -> None:
        spent = time.monotonic() - began
        self.elapsed_s += spent
        if training:
            self.training_s += spent

    def _seed(self, use: int, number: int) -> int:
        sequence = np.random.SeedSequence(self.config.seed, spawn_key=(use, number))
        return int(sequence.generate_state(1, np.uint64)[0])

    def _save(self) -> None:
        if self._folder is None:
            return
        mean, weights = self._best
        state = {
            "config": self.config.as_dict(),
            "learner": self.learner.state_dict(),
            "best_mean": mean,
            "best": {name: torch.from_numpy(w) for name, w in weights.items()},
            **{name: getattr(self, name) for name in _COUNTERS},
        }
        checkpoint.save(self._folder, state)

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        best = {name: w.numpy() for name, w in state["best"].items()}
        self._best = (state["best_mean"], best)
        for name in _COUNTERS:
            setattr(self, name, state[name])
