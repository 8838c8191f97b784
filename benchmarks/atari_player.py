"""AtariPlayer against gymnasium's AtariPreprocessing: steps per CPU second in one process.

Both play the same games with the same actions and give the same frames. Each repeat runs all
contenders in turns, a hundred steps each, so that a slow moment of the machine hits them alike; a
ratio is that of one repeat, and its median is what counts. CPU seconds, not seconds: nothing here
waits, and other processes on the machine then disturb less. The target is for Breakout.
"""

from __future__ import annotations

import time
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

from benchmarks.harness.measure import Check, Series, ratios
from benchmarks.harness.record import arguments, publish
from mprunner.atari import AtariPlayer

TARGET, TARGET_GAME = 1.2, "breakout"
TURN = 100
PLAYER, WRAPPER, LEAN = "AtariPlayer", "AtariPreprocessing", "AtariPreprocessing, no env checker"


def contenders(game: str) -> dict[str, gymnasium.Env[Any, Any]]:
    """The environments to compare; ``gymnasium.make`` checks each step by default."""
    name = f"ALE/{game.title().replace('_', '')}-v5"
    settings: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0}
    return {
        PLAYER: AtariPlayer(game, fire_on_reset=False),
        WRAPPER: AtariPreprocessing(gymnasium.make(name, **settings)),
        LEAN: AtariPreprocessing(gymnasium.make(name, disable_env_checker=True, **settings)),
    }


def play(env: gymnasium.Env[Any, Any], actions: list[int]) -> float:
    """CPU seconds for `actions`, resets included."""
    start = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return time.process_time() - start


def rates_of(game: str, num_steps: int, num_repeats: int) -> dict[str, list[float]]:
    """Steps per CPU second of every contender, one per repeat."""
    envs = contenders(game)
    actions_of = envs[PLAYER].action_space
    assert isinstance(actions_of, gymnasium.spaces.Discrete)
    num_actions = int(actions_of.n)
    rates: dict[str, list[float]] = {name: [] for name in envs}
    num_turns = max(1, num_steps // TURN)
    for repeat in range(num_repeats):
        rng = np.random.default_rng(repeat)
        seconds = dict.fromkeys(envs, 0.0)
        for env in envs.values():
            env.reset(seed=repeat)
            env.step(0)
        for turn in range(num_turns):
            actions = rng.integers(num_actions, size=TURN).tolist()
            # The order alternates, so that none is always first.
            for name in list(envs)[:: 1 if turn % 2 else -1]:
                seconds[name] += play(envs[name], actions)
        for name in envs:
            rates[name].append(num_turns * TURN / seconds[name])
    for env in envs.values():
        env.close()
    return rates


def main() -> None:
    """Measure, print, write the record and the picture."""
    parser = arguments(__doc__, "atari_player", repeats=7)
    parser.add_argument("games", nargs="*", default=["breakout", "pong", "ms_pacman", "enduro"])
    parser.add_argument("--steps", type=int, default=1500, help="per repeat and contender")
    options = parser.parse_args()
    gymnasium.register_envs(ale_py)
    series, checks = [], []
    for game in options.games:
        rates = rates_of(game, options.steps, options.repeats)
        series += [Series(f"{game}: {name}", "steps/CPU s", got) for name, got in rates.items()]
        for name, key in ((WRAPPER, "wrapper"), (LEAN, "lean")):
            target = TARGET if game == TARGET_GAME and name == WRAPPER else None
            figure = f"{game}: AtariPlayer / {name}"
            values = ratios(rates[PLAYER], rates[name])
            checks.append(Check(f"atari_player.{game}.{key}", figure, values, target))
    run = {"repeats": options.repeats, "steps": options.steps}
    publish(options.json, "atari_player", run, series, checks)


if __name__ == "__main__":
    main()
