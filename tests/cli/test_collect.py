"""`mprunner collect`: what it stores, prints and saves; each run is a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

import mprunner
from tests.support.commands import CONTROL, collect, refused, running
from tests.support.waiting import HANG_S


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A working directory with a user's own module."""
    (tmp_path / "mine.py").write_text(
        """
import os, signal
import gymnasium as gym
import numpy as np

class Picture(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (6, 5), np.uint8)
    action_space = gym.spaces.Discrete(3)
    def __init__(self, fault=None):
        self.at, self.fault = 0, fault
    def reset(self, seed=None, options=None):
        return np.zeros((6, 5), np.uint8), {}
    def step(self, action):
        self.at += 1
        if self.fault == "raise" and self.at == 20:
            raise ValueError("no such\\nlevel")
        if self.fault == "kill" and self.at == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((6, 5), self.at % 256, np.uint8), 2.0, self.at % 10 == 0, False, {}

gym.register("mine/Picture-v0", lambda: Picture())
gym.register("mine/Raises-v0", lambda: Picture("raise"))
gym.register("mine/Dies-v0", lambda: Picture("kill"))

def always_one():
    return lambda states: np.tile([0.0, 1.0, 0.0], (len(states), 1))

def broken():
    def predict(states):
        raise RuntimeError("no weights")
    return predict
"""
    )
    return tmp_path


def test_collects_and_sums_up() -> None:
    """Two processes, a pipe: plain text, and a summary on standard output alone."""
    done = collect("CartPole-v1", "--steps", 600, "--seed", 3, "--verbose")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("CartPole-v1: 600 steps stored in ")
    summary = "\n".join(rest)
    assert "2 runners, backend process" in summary and "seed 3" in summary
    assert re.search(r"\d+ episodes, score mean \d", summary)
    assert "memory: 600 transitions of (4,) float32" in summary
    assert "prediction" in summary and summary.count("%") == 9  # two workers, and the ages' one
    assert not CONTROL.search(done.stdout + done.stderr)


def test_json_is_one_object() -> None:
    """The keys that a script needs, and nothing else on standard output."""
    done = collect(
        "CartPole-v1", "--steps", 500, "--json", "--num-runners", 1, "--num-steps-per-job", 7
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps_stored"] == found["transitions"] == found["num_steps"] == 500
    assert found["backend"] == "inline" and found["maximum_staleness"] == 14
    assert found["episodes"] > 0 and found["mean_score"] <= found["max_score"]
    assert found["mean_score"] * found["episodes"] <= 500
    assert found["error"] is None and found["interrupted"] is False
    assert found["stats"]["worker/0/steps"] == 500
    assert found["state_shape"] == [4] and found["dtype"] == "float32"


def test_users_own_simulator_and_policy(modules: Path) -> None:
    """Modules of the working directory are found; images; the policy is what acts."""
    done = collect(
        "mine:mine/Picture-v0",
        *("--steps", 200, "--json", "--backend", "thread"),
        *("--policy", "mine:always_one", "--exploration", 0, "--save", "out.mpr"),
        cwd=modules,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["backend"] == "thread" and found["dtype"] == "uint8"
    assert found["mean_score"] == found["max_score"] == 20.0
    assert found["stats"]["batch_size/count"] > 0
    assert found["saved"] == "out.mpr"
    memory = mprunner.ReplayMemory.load(modules / "out.mpr")
    assert memory.history_len == 4 and len(memory) == 200
    assert all(memory.sample(i)[2] == 1 for i in range(len(memory)))


def test_atari() -> None:
    """``ALE/...`` is an `AtariPlayer`: frames of 84x84, four in a stack."""
    pytest.importorskip("ale_py")
    done = collect("ALE/Breakout-v5", "--steps", 40, "--num-runners", 1, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["state_shape"] == [84, 84] and found["dtype"] == "uint8"
    assert found["transitions"] == 40


def test_nothing_is_lost_at_the_end_of_episodes(modules: Path) -> None:
    """The default memory holds every step, whatever the episodes' length."""
    done = collect(
        *("mine:mine/Picture-v0", "--steps", 300, "--json", "--num-runners", 1), cwd=modules
    )
    found = json.loads(done.stdout)
    assert found["transitions"] == 300 and found["episodes"] == 30


def test_what_stored_before_a_failure_is_saved(modules: Path) -> None:
    """And said; the error is still the error."""
    done = collect(
        *("mine:mine/Raises-v0", "--num-runners", 1, "--save", "part.mpr"), cwd=modules
    )
    assert done.returncode == 1
    assert "what was stored is saved in part.mpr" in done.stderr
    assert len(mprunner.ReplayMemory.load(modules / "part.mpr")) == 19


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine:mine/Raises-v0",), "worker 0 raised ValueError while in the player's step()"),
        (("mine:mine/Dies-v0", "--num-runners", 2), "died of signal SIGKILL"),
        (
            ("mine:mine/Picture-v0", "--policy", "mine:broken", "--exploration", 0.5),
            "RuntimeError: no weights",
        ),
        (("mine:mine/Picture-v0", "--policy", "mine:none"), "mine has no function none"),
        (("mine:mine/Picture-v0", "--save", "no/such/dir"), "--save no/such/dir"),
    ],
)
def test_failures(arguments: tuple[str, ...], words: str, modules: Path) -> None:
    """One line; the whole story is for --verbose."""
    assert words in refused("--num-runners", 1, *arguments, cwd=modules)


def test_failure_with_json_and_verbose(modules: Path) -> None:
    """The object tells the error; the traceback goes to standard error."""
    done = collect(
        *("mine:mine/Raises-v0", "--num-runners", 1, "--json", "--verbose"), cwd=modules
    )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["error_type"] == "WorkerRaised" and "no such" in found["error"]
    assert found["steps_stored"] == 19
    assert "Traceback in worker 0" in done.stderr


def test_json_has_the_same_keys_when_nothing_was_collected(modules: Path) -> None:
    """A run that can't begin counts zero steps, and has no score."""
    arguments = ("mine:mine/Picture-v0", "--steps", 20, "--num-runners", 1, "--json")
    done = json.loads(collect(*arguments, cwd=modules).stdout)
    refused_run = collect(*arguments, "--policy", "mine:none", cwd=modules)
    assert refused_run.returncode == 1
    found = json.loads(refused_run.stdout)
    assert found.keys() == done.keys()
    assert found["steps_stored"] == found["episodes"] == 0 and found["mean_score"] is None


@pytest.mark.parametrize("backend", ["process", "inline"])
def test_ctrl_c(backend: str) -> None:
    """130, a line, no traceback, and nobody is left."""
    with running("CartPole-v1", "--steps", 10**8, "--backend", backend, "--json") as process:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
        _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert process.returncode == 130
    assert not alive
    assert err.splitlines()[-1].startswith("interrupted; CartPole-v1: ")
    assert "Traceback" not in err
    assert json.loads(out)["interrupted"] is True
