"""`mprunner`, as a command: what it prints, and how it exits.

Every run is a process of its own, as for a user. What is refused at once is in
`test_cli_arguments.py`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import mprunner
from tests.waiting import HANG_S

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def _command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "mprunner", *map(str, arguments)]


def _run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), capture_output=True, text=True, timeout=HANG_S, **options
    )


def _collect(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return _run("collect", *arguments, **options)


def _refused(*arguments: Any, **options: Any) -> str:
    """The one line of an error that a run ends with."""
    done = _collect(*arguments, **options)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("mprunner: error: ")
    assert "Traceback" not in done.stderr
    return lines[0]


@contextmanager
def _running(*arguments: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own, on its way: its first line has come."""
    process = subprocess.Popen(
        _command("collect", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    assert process.stderr is not None
    try:
        assert "steps of" in process.stderr.readline()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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
    done = _collect("CartPole-v1", "--steps", 600, "--seed", 3, "--verbose")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("CartPole-v1: 600 steps landed in ")
    summary = "\n".join(rest)
    assert "2 runners, backend process" in summary and "seed 3" in summary
    assert re.search(r"\d+ episodes, score mean \d", summary)
    assert "memory: 600 transitions of (4,) float32" in summary
    assert "prediction" in summary and summary.count("%") == 9  # two workers, and the ages' one
    assert not _CONTROL.search(done.stdout + done.stderr)


def test_json_is_one_object() -> None:
    """The keys that a script needs, and nothing else on standard output."""
    done = _collect(
        "CartPole-v1", "--steps", 500, "--json", "--num-runners", 1, "--num-steps-per-job", 7
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps_landed"] == found["transitions"] == found["num_steps"] == 500
    assert found["backend"] == "inline" and found["maximum_staleness"] == 14
    assert found["episodes"] > 0 and found["mean_score"] <= found["max_score"]
    assert found["mean_score"] * found["episodes"] <= 500
    assert found["error"] is None and found["interrupted"] is False
    assert found["stats"]["worker/0/steps"] == 500
    assert found["state_shape"] == [4] and found["dtype"] == "float32"


def test_users_own_simulator_and_policy(modules: Path) -> None:
    """Modules of the working directory are found; images; the policy is what acts."""
    done = _collect(
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
    done = _collect("ALE/Breakout-v5", "--steps", 40, "--num-runners", 1, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["state_shape"] == [84, 84] and found["dtype"] == "uint8"
    assert found["transitions"] == 40


def test_nothing_is_lost_at_the_end_of_episodes(modules: Path) -> None:
    """The default memory holds every step, whatever the episodes' length."""
    done = _collect(
        *("mine:mine/Picture-v0", "--steps", 300, "--json", "--num-runners", 1), cwd=modules
    )
    found = json.loads(done.stdout)
    assert found["transitions"] == 300 and found["episodes"] == 30


def test_what_landed_before_a_failure_is_saved(modules: Path) -> None:
    """And said; the error is still the error."""
    done = _collect(
        *("mine:mine/Raises-v0", "--num-runners", 1, "--save", "part.mpr"), cwd=modules
    )
    assert done.returncode == 1
    assert "what had landed is saved in part.mpr" in done.stderr
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
    assert words in _refused("--num-runners", 1, *arguments, cwd=modules)


def test_failure_with_json_and_verbose(modules: Path) -> None:
    """The object tells the error; the traceback goes to standard error."""
    done = _collect(
        *("mine:mine/Raises-v0", "--num-runners", 1, "--json", "--verbose"), cwd=modules
    )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["error_type"] == "WorkerRaised" and "no such" in found["error"]
    assert found["steps_landed"] == 19
    assert "Traceback in worker 0" in done.stderr


def test_version_and_wrong_usage_as_processes() -> None:
    """The same through the interpreter."""
    done = _run("--version")
    assert (done.returncode, done.stdout) == (0, f"mprunner {mprunner.__version__}\n")
    assert _run("colect").returncode == 2


@pytest.mark.parametrize("backend", ["process", "inline"])
def test_ctrl_c(backend: str) -> None:
    """130, a line, no traceback, and nobody is left."""
    with _running("CartPole-v1", "--steps", 10**8, "--backend", backend, "--json") as process:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
        _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert process.returncode == 130
    assert not alive
    assert err.splitlines()[-1].startswith("interrupted; CartPole-v1: ")
    assert "Traceback" not in err
    assert json.loads(out)["interrupted"] is True


def test_nobody_reads_the_output() -> None:
    """As in `mprunner collect ... 2>&1 | head -n 1`: the run ends, without a traceback."""
    with _running("CartPole-v1", "--steps", 10**8, "--backend", "inline") as process:
        assert process.stderr is not None and process.stdout is not None
        process.stderr.close()
        process.stdout.close()
        assert process.wait(timeout=HANG_S) == 1
        process.stderr = process.stdout = None


def test_summary_that_nobody_reads() -> None:
    """As in `mprunner collect ... | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            _command("collect", "CartPole-v1", "--steps", 100, "--backend", "inline"),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
        )
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert "BrokenPipe" not in done.stderr and "Traceback" not in done.stderr


def _in_terminal(*arguments: Any, **environment: str) -> str:
    """What a terminal of 80 columns would have been sent."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        _command("collect", *arguments),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    )
    os.close(terminal)
    received = b""
    try:
        while chunk := os.read(controller, 65536):
            received += chunk
    except OSError:  # how a pseudo terminal says that the other end is closed
        pass
    finally:
        os.close(controller)
    assert process.wait(timeout=HANG_S) == 0, received
    return received.decode()


def test_live_display_in_a_terminal() -> None:
    """A bar by rich, the cursor given back, then the summary."""
    shown = _in_terminal("CartPole-v1", "--steps", 3000, "--backend", "inline")
    assert "3000/3000" in shown and "outstanding" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "CartPole-v1: 3,000 steps landed" in shown


def test_terminal_without_rich(tmp_path: Path) -> None:
    """Plain lines, and one hint how to get the display."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rich': raise ModuleNotFoundError('rich', name='rich')\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    shown = _in_terminal(
        *("CartPole-v1", "--steps", 300, "--backend", "inline"), PYTHONPATH=str(tmp_path)
    )
    assert shown.count("pip install 'mprunner[cli]'") == 1
    assert not _CONTROL.search(shown.replace("\r", ""))


def test_tensorboard_or_how_to_install_it(tmp_path: Path) -> None:
    """An event file where tensorboard is installed, else one sentence."""
    arguments = ("CartPole-v1", "--steps", 200, "--backend", "inline", "--tensorboard", tmp_path)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        assert "pip install 'mprunner[tensorboard]'" in _refused(*arguments)
    else:
        assert _collect(*arguments).returncode == 0
        assert list(tmp_path.glob("events.out.tfevents.*"))
