"""Nothing of the tail is lost, however busy the machine is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mprunner import EnvRunner, EnvRunnerManager
from tests.streams import RecordingMemory, check_streams
from tests.tagged import STEPS, TAG_SHAPE, Ledger, Tag


@pytest.fixture
def busy_machine():
    """Two loops that take what they can get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [1, 8])
def test_a_thousand_steps_then_close(num_steps, busy_machine, tmp_path):
    tags = [Tag(i, 11 + i) for i in range(3)]
    for repeat in range(50):
        ledger = Ledger(tmp_path / f"ledger{repeat}")
        memory = RecordingMemory(1500, TAG_SHAPE, 2, "int32")
        runners = [EnvRunner(tag.factory(ledger=ledger), None, memory, 2) for tag in tags]
        manager = EnvRunnerManager(runners, 64)
        for _ in range(1000 // num_steps):
            manager.step(1.0, num_steps=num_steps)
        manager.close()
        stats = manager.stats()
        assert (stats.steps_asked, stats.steps_landed, stats.steps_lost) == (1000, 1000, 0)
        assert ledger.total(STEPS) == memory.num_steps == 1000
        check_streams(memory, tags)
