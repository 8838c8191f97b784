"""The DQN benchmark: its parts, a run that learns, one that is killed and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from mprunner import ReplayMemory
from tests.support.envs import TagEnv
from tests.support.waiting import HANG_S, eventually

ROOT = Path(__file__).resolve().parents[2]


def needs_torch() -> Any:
    return pytest.importorskip("torch", reason="needs torch, which `make test-slow` installs")


class TestParts:
    def test_linear_schedule(self) -> None:
        from benchmarks.dqn.config import Linear

        schedule = Linear(1.0, 0.2, 100)
        assert [schedule.at(step) for step in (0, 50, 100, 1000)] == [1.0, 0.6, 0.2, 0.2]

    def test_config_survives_json(self) -> None:
        from benchmarks.dqn.config import Config, default_config

        for env in ("CartPole-v1", "ALE/Pong-v5"):
            config = default_config(env, 3, dueling=True)
            again = Config.from_dict(json.loads(json.dumps(config.as_dict())))
            assert again == config and again.dueling and again.seed == 3

    def test_fixed_games(self) -> None:
        from benchmarks.dqn.players import FixedGames

        env: gym.Env[Any, Any] = FixedGames(TagEnv(length=3), 2)
        ended = 0
        env.reset(seed=1)
        for _ in range(20):
            _, _, terminated, _, _ = env.step(0)
            if terminated:
                ended += 1
                env.reset()
        assert ended == 2

    def test_evaluation_scores_exactly_so_many_games(self) -> None:
        from benchmarks.dqn.config import default_config
        from benchmarks.dqn.evaluate import evaluate
        from benchmarks.dqn.players import MlpModel

        from mprunner import LocalPredictor

        config = default_config("CartPole-v1", 0)
        weights = {
            "body.0.scale": np.ones(4, np.float32),
            "advantage.weight": np.zeros((2, 4), np.float32),
            "advantage.bias": np.array([0, 1], np.float32),
        }
        scores = [
            evaluate(config, LocalPredictor(MlpModel, weights), (4,), "float32", 7, seed=5)
            for _ in range(2)
        ]
        assert scores[0] == scores[1]
        assert scores[0].games == 7 and 8 <= scores[0].mean <= 11


@pytest.mark.slow
class TestNetworks:
    @pytest.mark.parametrize("dueling", [False, True])
    def test_the_workers_network_is_the_learner_s(self, dueling: bool) -> None:
        torch = needs_torch()
        from benchmarks.dqn.config import default_config
        from benchmarks.dqn.learner import Learner
        from benchmarks.dqn.players import MlpModel

        space = gym.make("CartPole-v1").observation_space
        learner = Learner(default_config("CartPole-v1", 0, dueling=dueling), space, 2)
        assert learner.weights()["body.0.scale"][0] == np.float32(2 / 4.8)
        model = MlpModel()
        model.set_weights(learner.weights())
        states = np.random.default_rng(0).normal(size=(8, 4, 1)).astype(np.float32)
        with torch.no_grad():
            q = learner.net(torch.from_numpy(np.moveaxis(states, -1, 1).copy())).numpy()
        np.testing.assert_allclose(model(states), q, rtol=1e-4, atol=1e-5)

    def test_the_nature_network(self) -> None:
        torch = needs_torch()
        from benchmarks.dqn.nets import nature_net

        net = nature_net(4, 6, 512, dueling=True)
        assert net(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 6)


def command(folder: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "benchmarks.dqn",
        "--seed=3",
        f"--run-dir={folder}",
        "--checkpoint-every=0.2",
        "--eval-every=1000000",
        "--eval-episodes=2",
        "--final-episodes=2",
        "--target-score=1000",
        f"--json={folder / 'record.json'}",
        *arguments,
    ]


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and see that its workers go, too."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=HANG_S)
    assert not alive


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts runs in ``tmp_path``; those that are still there at the end are killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(tmp_path, *arguments),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
class TestResume:
    def test_goes_on_from_the_last_checkpoint(self, started: Any, tmp_path: Path) -> None:
        needs_torch()
        from benchmarks.dqn import checkpoint

        first = started("--max-steps=10000000", "--max-seconds=500")
        saved = tmp_path / checkpoint.CHECKPOINT
        eventually(lambda: saved.exists() or first.poll() is not None)
        second_one = saved.stat().st_mtime_ns
        eventually(lambda: saved.stat().st_mtime_ns != second_one)
        kill(first)

        state = checkpoint.load(tmp_path)
        assert state is not None and state["steps"] > 1_000
        replay = tmp_path / checkpoint.REPLAY
        kept = ReplayMemory.load(replay)
        assert len(kept) >= min(state["steps"], 40_000) - 100
        assert len(kept.sample_batch(64)) == 64

        refused = subprocess.run(
            command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
        )
        assert refused.returncode == 1 and "--resume" in refused.stderr

        steps = state["steps"] + 1_600
        resumed = started("--resume", f"--max-steps={steps}", "--max-seconds=10000")
        output, _ = resumed.communicate(timeout=3 * HANG_S)
        assert resumed.returncode == 1, output  # for it misses the score of 1000
        assert f"resumed at step {state['steps']:,}" in output

        assert (tmp_path / "record.json").exists(), output
        record = json.loads((tmp_path / "record.json").read_text())
        config = record["config"]
        rounds = (record["steps"] - state["steps"]) / config["steps_per_round"]
        assert record["steps"] == steps
        # No step went into filling: the replay was whole. No update is missing or done twice.
        assert (
            record["updates"] - state["learner"]["updates"] == rounds * config["updates_per_round"]
        )
        assert record["elapsed_s"] > state["elapsed_s"]
        for name in ("steps", "updates", "elapsed_s"):
            values = [point[name] for point in record["curve"]]
            assert values == sorted(values)
        assert record["curve"][: len(state["curve"])] == state["curve"]

    def test_killed_before_the_first_checkpoint(self, started: Any, tmp_path: Path) -> None:
        needs_torch()
        from benchmarks.dqn import checkpoint

        first = started("--max-seconds=500", "--checkpoint-every=400")
        replay = tmp_path / checkpoint.REPLAY
        eventually(lambda: replay.exists() or first.poll() is not None)
        kill(first)
        assert not (tmp_path / checkpoint.CHECKPOINT).exists()
        second = started("--resume", "--max-steps=2000", "--max-seconds=300")
        output, _ = second.communicate(timeout=3 * HANG_S)
        assert "resumed" not in output
        assert (tmp_path / "record.json").exists(), output
        assert json.loads((tmp_path / "record.json").read_text())["steps"] >= 2_000
