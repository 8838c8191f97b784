"""What a pool takes, it gives back; and it says so if it cannot have it."""

from __future__ import annotations

import os
import signal
import threading

import psutil
import pytest

from mprunner.backends.process import launch
from mprunner.backends.process.backend import _FDS_PER_WORKER
from tests.support.pools import pid_of, pool, shared_names
from tests.support.script import Script
from tests.support.tagged import TagPlayer
from tests.support.waiting import HANG_S, eventually


def resources() -> dict[str, object]:
    children = {p.pid for p in psutil.Process().children()} - launch.helper_pids()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": children,
        "shared memory": shared_names(),
    }


@pytest.mark.parametrize(
    "method",
    ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_round_after_round(method):
    """Without a garbage collection: nothing waits for one."""
    before = None
    for _ in range(6):
        with pool([TagPlayer, TagPlayer], start_method=method) as manager:
            for _ in range(20):
                manager.step(1.0)
        del manager
        before = before or resources()
    assert resources() == before


def test_replacements_take_nothing():
    with pool([TagPlayer, TagPlayer], on_failure="restart", max_restarts=50) as manager:
        seen = []
        for number in range(1, 13):
            os.kill(pid_of(manager, 0), signal.SIGKILL)
            eventually(lambda: manager.stats().restarts == number)
            manager._backend.policy.budgets[0]._restarts.clear()  # no back-off
            manager.step(1.0, num_steps=8)
            assert manager.join(HANG_S)
            pid_of(manager, 0)  # it runs
            seen.append(len(os.listdir("/proc/self/fd")))
        assert max(seen) == min(seen)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_descriptors_per_worker(method):
    """What the check of the limit counts with."""
    counts = []
    for num in (1, 4):
        with pool([TagPlayer] * num, start_method=method):
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] - counts[0] <= 3 * _FDS_PER_WORKER


def test_too_few_descriptors(tmp_path):
    """40 workers under a limit of 64: told by name and number, nothing left."""
    body = """
import resource
from mprunner import ConfigurationError
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
before = os.listdir("/proc/self/fd")
try:
    pool([TagPlayer] * 40)
except ConfigurationError as error:
    say(str(error).replace(" ", "_"))
assert os.listdir("/proc/self/fd") == before
pool([TagPlayer] * 2).close()
"""
    with Script(body, tmp_path) as script:
        code = script.process.wait(HANG_S)
        said = os.read(script.process.stdout.fileno(), 4096).decode()
        assert code == 0, script.stderr
        assert "40_workers_need_" in said and "64_are_allowed" in said and "ulimit_-n" in said
        assert script.ends() == 0
