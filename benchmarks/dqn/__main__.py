"""Trains a DQN agent with the pool: ``python -m benchmarks.dqn --env CartPole-v1 --seed 0``.

Double DQN, dueling as an option, n-step and prioritised replay, evaluation in worker processes,
checkpoints from which a killed run goes on (``--run-dir DIR``, later with ``--resume``). The
environment is CartPole-v1, another one with a vector as observation and discrete actions, or an
Atari game (``--env ALE/Pong-v5``), which is learned with the Nature network.

The exit status is 1 if a target score was given and the final evaluation missed it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dqn import checkpoint
from benchmarks.dqn.config import Config, default_config
from benchmarks.dqn.evaluate import Score
from benchmarks.dqn.plots import plot_run
from benchmarks.dqn.report import Display, Scalars
from benchmarks.dqn.train import Trainer
from benchmarks.harness.record import command, environment, write_json

_BUDGET = ("max_steps", "target_score", "final_episodes")


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status."""
    options = _parse(arguments)
    folder = Path(options.run_dir) if options.run_dir else None
    config, resumed = _config(options, folder)
    title = f"DQN, {config.env}, seed {config.seed}, {config.num_players} players"
    scalars = Scalars(options.tensorboard)
    with Display(title) as display:
        display.say(title + (f", resumed at step {resumed['steps']:,}" if resumed else ""))
        trainer = Trainer(config, display, scalars, folder, resumed)
        try:
            score = trainer.run(
                max_seconds=options.max_seconds, checkpoint_every=options.checkpoint_every
            )
        except KeyboardInterrupt:
            display.say("interrupted; --resume goes on from the last checkpoint")
            return 130
        finally:
            scalars.close()
        display.say(
            f"final: mean {score.mean:.2f} over {score.games} games after {trainer.steps:,} steps "
            f"and {trainer.elapsed_s:.1f} s (training {trainer.training_s:.1f} s)"
        )
    result = record(trainer, score)
    if options.json:
        write_json(Path(options.json), result)
    if options.plot:
        plot_run(Path(options.plot), result)
    reached = config.target_score is None or score.mean >= config.target_score
    return 0 if reached else 1


def record(trainer: Trainer, score: Score) -> dict[str, Any]:
    """Return the record of a run that has ended."""
    return {
        "config": trainer.config.as_dict(),
        "final": dataclasses.asdict(score),
        "steps": trainer.steps,
        "updates": trainer.learner.updates,
        "elapsed_s": trainer.elapsed_s,
        "training_s": trainer.training_s,
        "evaluations": trainer.evaluations,
        "curve": trainer.curve,
        "command": command(),
        **environment(),
    }


def _config(
    options: argparse.Namespace, folder: Path | None
) -> tuple[Config, dict[str, Any] | None]:
    """The run's settings, and the checkpoint that it goes on from."""
    resumed = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        resumed = checkpoint.load(folder)
        if resumed is not None and not options.resume:
            sys.exit(f"{folder} holds a checkpoint; go on with --resume, or use another folder")
    elif options.resume:
        sys.exit("--resume needs the --run-dir of the run that is to go on")
    if resumed is not None:
        config = Config.from_dict(resumed["config"])
        # Only the budget can be changed; the rest is that of the checkpoint.
        return dataclasses.replace(config, **_given(options, _BUDGET)), resumed
    seed = options.seed
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        print(f"--seed {seed} repeats this run's random numbers", flush=True)
    names = {field.name for field in dataclasses.fields(Config)} - {"env", "seed"}
    return default_config(options.env, seed, **_given(options, names)), None


def _given(options: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """The options of these names that were given."""
    found = {**vars(options), "hidden": tuple(options.hidden) if options.hidden else None}.items()
    return {name: value for name, value in found if name in names and value is not None}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="gymnasium id (default: CartPole-v1)")
    add("--seed", type=int, help="of everything (default: drawn, and printed)")
    add("--run-dir", help="for checkpoints and the replay memory's file")
    add("--resume", action="store_true", help="go on from the checkpoint in --run-dir")
    add("--checkpoint-every", type=float, default=30.0, metavar="S", help="seconds (30)")
    add("--max-seconds", type=float, default=170.0, metavar="S", help="of wall time (170)")
    add("--max-steps", type=int, help="of the environment")
    add("--target-score", type=float, help="stop there (CartPole-v1: 475; else: never)")
    add("--json", metavar="FILE", help="write the record of the run")
    add("--plot", metavar="FILE", help="draw its curve, a PNG")
    add("--tensorboard", metavar="DIR", help="write scalars there")
    add("--backend", choices=("process", "thread", "inline"), help="of the pool that collects")
    add("--deterministic", action="store_true", default=None, help="repeat bit for bit")
    add("--num-players", type=int)
    add("--step-cost-s", type=float, metavar="S", help="CPU that each collecting step also burns")
    add("--hidden", type=int, nargs="+", metavar="N", help="widths of the hidden layers")
    add("--reset-every", type=int, metavar="N", help="updates")
    add("--dueling", action=argparse.BooleanOptionalAction)
    add("--double", action=argparse.BooleanOptionalAction)
    add("--prioritised", action=argparse.BooleanOptionalAction)
    for name in ("n-step", "batch-size", "memory-size", "init-memory-size", "steps-per-round",
                 "updates-per-round", "target-every", "eval-every", "eval-episodes",
                 "final-episodes", "torch-threads"):
        add(f"--{name}", type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
