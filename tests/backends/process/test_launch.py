"""Starting workers: from any script, small, with one math thread, and nothing of ``__main__``."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import psutil
import pytest

from mprunner import ConfigurationError, EnvRunner, EnvRunnerManager, ReplayMemory, WorkerRaised
from mprunner.backends.process import launch
from tests.support.envs import TagEnv
from tests.support.streams import RecordingMemory
from tests.support.tagged import TAG_SHAPE, Tag
from tests.support.toys import FramesPlayer, ThreadsPlayer
from tests.support.waiting import HANG_S

METHODS = ["forkserver", "spawn"]

#: A script as users write them: no guard, its classes in ``__main__``, state at its top level.
SCRIPT = """
import os, sys
with open(os.environ["RAN"], "a") as file:
    file.write("x")
import numpy as np
from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory

TAG = 7

class Space:
    n = 3

class Player:
    action_space = Space()

    def reset(self, *, seed=None, options=None):
        return np.array([TAG, int(os.environ.get("OMP_NUM_THREADS", -1))], np.int32), {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

memory = ReplayMemory(200, (2,), 2, "int32")
runners = [EnvRunner(Player, lambda states: np.zeros((len(states), 3)), memory, 2)
           for _ in range(2)]
manager = EnvRunnerManager(runners, 8, start_method=os.environ.get("METHOD"))
for _ in range(50):
    manager.step(0.5)
manager.join()
frames, reward, action, over = memory.sample(0)
print(len(memory), frames[:, -1].tolist())
manager.close()
"""


def run(arguments, tmp_path, stdin=None, **variables):
    """The output of a fresh interpreter, and how often the script was executed."""
    ran = tmp_path / "ran"
    environment = {**os.environ, "RAN": str(ran), **variables}
    found = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        input=stdin, capture_output=True, text=True, timeout=HANG_S, env=environment, cwd=tmp_path,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.strip(), ran.read_text()


def pool_of(player, memory, method, num_runners=2):
    runners = [
        EnvRunner(player, None, memory, memory.history_len) for _ in range(num_runners)
    ]
    return EnvRunnerManager(runners, 16, backend="process", start_method=method)


# ---- scripts


@pytest.mark.parametrize("method", METHODS)
def test_a_script_without_a_guard(method, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run([str(script)], tmp_path, METHOD=method) == ("50 [7, 1]", "x")


def test_a_script_on_standard_input(tmp_path):
    assert run(["-"], tmp_path, stdin=SCRIPT) == ("50 [7, 1]", "x")


def test_a_script_on_the_command_line(tmp_path):
    assert run(["-c", SCRIPT], tmp_path) == ("50 [7, 1]", "x")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_user_may_ask_for_more_math_threads(method, tmp_path):
    found = run(["-c", SCRIPT], tmp_path, METHOD=method, OMP_NUM_THREADS="3")
    assert found == ("50 [7, 3]", "x")


# ---- environment variables


@pytest.mark.parametrize("method", METHODS)
def test_one_math_thread(method):
    asked = {name for name in launch.MATH_THREAD_VARIABLES if name in os.environ}
    if asked:
        pytest.skip(f"{asked} set outside")
    before = dict(os.environ)
    memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
    with pool_of(Tag(0, 9).factory(ThreadsPlayer), memory, method) as manager:
        manager.step(1.0, num_steps=10)
        assert manager.join(HANG_S)
    assert dict(os.environ) == before
    seen = np.concatenate([record.state for record in memory.records if record.num_blocks])
    assert (seen[:, :3] == 1).all()
    assert (seen[:, 3] <= 2).all()  # it and its lifeline; none of a math library


def test_a_worker_sees_the_parents_variables_of_today(monkeypatch):
    class Player(TagEnv):
        def _observe(self, action):
            return np.full(TAG_SHAPE, int(os.environ["MPRUNNER_TEST"]), np.int32)

    for value in ("3", "4"):  # the fork server has been there since before
        monkeypatch.setenv("MPRUNNER_TEST", value)
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with pool_of(Player, memory, None, 1) as manager:
            manager.step(1.0)
            assert manager.join(HANG_S)
        assert (memory.records[0].state == int(value)).all()


# ---- size


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_is_sent_to_a_worker_is_small(method, monkeypatch):
    sizes = []
    pickled = launch._pickled

    def measured(*arguments):
        data = pickled(*arguments)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(launch, "_pickled", measured)
    memory = ReplayMemory(30_000, (84, 84), 4)  # 200 MB
    memory._streams.storage.state[...] = 1
    with pool_of(FramesPlayer, memory, method, 4) as manager:
        manager.step(1.0, num_steps=16)
        assert manager.join(HANG_S)
        for worker in manager.stats().workers:
            assert psutil.Process(worker.pid).memory_full_info().uss < 100e6
    assert len(sizes) == 4 and max(sizes) < 50_000


def test_a_workers_memory_stays_flat():
    memory = ReplayMemory(1000, (84, 84), 4)
    with pool_of(Tag(0, 10**9).factory(FramesPlayer), memory, None) as manager:
        used = []
        for _ in range(2):
            manager.step(1.0, num_steps=1500)
            assert manager.join(HANG_S)
            used.append([
                psutil.Process(worker.pid).memory_full_info().uss
                for worker in manager.stats().workers
            ])
        assert manager.stats().steps_stored == 3000
    assert all(late - early < 2e6 for early, late in zip(*used))


# ---- registries


@pytest.fixture
def registered():
    """An environment that only this process knows."""
    gym.register("ParentOnly-v0", TagEnv, disable_env_checker=True)
    yield
    del gym.registry["ParentOnly-v0"]


def test_an_environment_that_only_the_parent_knows(registered):
    memory = ReplayMemory(100, TAG_SHAPE, 1, "int32")
    with pytest.raises(WorkerRaised, match="ParentOnly.*register it inside the factory") as raised:
        pool_of(lambda: gym.make("ParentOnly-v0"), memory, "forkserver")
    assert raised.value.original_type == "NameNotFound"

    def factory():
        gym.register("ParentOnly-v0", TagEnv, disable_env_checker=True)
        return gym.make("ParentOnly-v0")

    with pool_of(factory, ReplayMemory(100, TAG_SHAPE, 1, "int32"), "forkserver") as manager:
        manager.step(1.0, num_steps=5)
        assert manager.join(HANG_S)


# ---- methods


def test_the_start_method_is_ours():
    default = multiprocessing.get_start_method(allow_none=True)
    assert launch.start_method(None) == "forkserver"
    assert multiprocessing.get_start_method(allow_none=True) == default
    for method in METHODS:
        assert launch.start_method(method) == method
    memory = ReplayMemory(100, TAG_SHAPE, 1, "int32")
    for method, words in (("fork", "the parent has threads"), ("threads", "expected one of")):
        with pytest.raises(ConfigurationError, match=words):
            pool_of(Tag(0, 9).factory(), memory, method)
