"""AtariPlayer against gymnasium's AtariPreprocessing: steps per CPU second in one process.

Both play the same games with the same actions and give the same frames. Each repeat runs all
contenders by turns, a hundred steps each, so that a slow moment of the machine hits them alike; a
ratio is that of one repeat, and its median is what counts. CPU seconds, not seconds: nothing here
waits, and other processes on the machine then disturb less. The target is for Breakout.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

from mprunner.atari import AtariPlayer

TARGET, TARGET_GAME = 1.2, "breakout"
TURN = 100
PLAYER, WRAPPER, LEAN = "AtariPlayer", "AtariPreprocessing", "AtariPreprocessing, no env checker"


def contenders(game: str) -> dict[str, gymnasium.Env[Any, Any]]:
    """The environments to compare; ``gymnasium.make`` checks each step unless told not to."""
    name = f"ALE/{game.title().replace('_', '')}-v5"
    settings = {"frameskip": 1, "repeat_action_probability": 0.0}
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


def measure(game: str, num_steps: int, num_repeats: int) -> dict[str, Any]:
    """Every repeat of every contender, and the ratios of the player to each of the others."""
    envs = contenders(game)
    rates: dict[str, list[float]] = {name: [] for name in envs}
    num_turns = max(1, num_steps // TURN)
    for repeat in range(num_repeats):
        rng = np.random.default_rng(repeat)
        seconds = dict.fromkeys(envs, 0.0)
        for env in envs.values():
            env.reset(seed=repeat)
            env.step(0)
        for turn in range(num_turns):
            actions = rng.integers(envs[PLAYER].action_space.n, size=TURN).tolist()
            # The order alternates, so that none is always first.
            for name in list(envs)[:: 1 if turn % 2 else -1]:
                seconds[name] += play(envs[name], actions)
        for name in envs:
            rates[name].append(num_turns * TURN / seconds[name])
    for env in envs.values():
        env.close()
    ratios = {
        name: [ours / theirs for ours, theirs in zip(rates[PLAYER], rates[name])]
        for name in (WRAPPER, LEAN)
    }
    return {"game": game, "steps_per_cpu_s": rates, "ratios": ratios}


def report(result: dict[str, Any]) -> None:
    """Print one game's figures."""
    print(f"\n{result['game']}")
    for name, rates in result["steps_per_cpu_s"].items():
        print(
            f"  {name:36} {statistics.median(rates):7,.0f} steps per CPU second"
            f"  ({min(rates):,.0f} to {max(rates):,.0f})"
        )
    for name, ratios in result["ratios"].items():
        ratio = statistics.median(ratios)
        verdict = f", target {TARGET}: {'holds' if ratio >= TARGET else 'MISSED'}"
        print(
            f"  against {name:36} {ratio:5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            + (verdict if result["game"] == TARGET_GAME else "")
        )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    packages = ("mprunner", "ale-py", "gymnasium", "numpy", "opencv-python-headless")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed as a package"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "num_cpus": os.cpu_count(),
        "versions": versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", default=["breakout", "pong", "ms_pacman", "enduro"])
    parser.add_argument("--steps", type=int, default=1500, help="per repeat and contender")
    parser.add_argument("--repeats", type=int, default=7, help="at least 5")
    parser.add_argument("--json", type=Path, help="write every repeat to this file")
    arguments = parser.parse_args()
    if arguments.repeats < 5:
        parser.error("--repeats must be at least 5")
    gymnasium.register_envs(ale_py)
    results = []
    for game in arguments.games:
        results.append(measure(game, arguments.steps, arguments.repeats))
        report(results[-1])
    if arguments.json:
        record = {"benchmark": "atari_player", "target": TARGET, **machine(), "results": results}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
