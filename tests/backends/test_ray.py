"""The contract, in Ray actors."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mprunner import (
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    LocalPredictor,
    MissingExtraError,
)
from tests.backends.contract import AsynchronousContract
from tests.backends.contract_streams import Streams
from tests.support.pool_case import PoolCase
from tests.support.ray_local import REASON, actors, check_nothing_left, local_ray
from tests.support.commands import run_here
from tests.support.streams import RecordingMemory, check_record
from tests.support.tagged import TAG_SHAPE, Tag
from tests.support.toys import GreedyModel, greedy, probe_q
from tests.support.waiting import HANG_S
from tests.support.wide import WIDE_SHAPE, WideMemory, WidePlayer

on_ray = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),  # one Ray for all of them
    pytest.mark.filterwarnings("ignore:::ray"),
]


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Instead of the house rule: Ray keeps connections and idle workers of its own."""
    yield
    check_nothing_left()


@pytest.mark.usefixtures("own_ray")
class TestRay(AsynchronousContract):
    options = {"backend": "ray"}
    remote = True
    pytestmark = on_ray

    # An actor costs a second of CPU to start: not each history length with each number of them.
    @pytest.mark.parametrize("num_runners, history_len", [(1, 1), (2, 3), (3, 2), (4, 4)])
    def test_streams(self, num_runners, history_len):
        Streams.test_streams(self, num_runners, history_len)

    def test_large_jobs(self):
        """Their rows come when there are enough for an object, and all of them in the end."""
        memory = WideMemory(200, WIDE_SHAPE, 3, "int32")
        tags = [Tag(0, 7), Tag(1, 30)]
        players = [tag.factory(WidePlayer) for tag in tags]
        with self.pool(memory, players, staleness=32) as manager:
            for round_ in range(1, 4):
                for _ in range(20):
                    manager.step(1.0, num_steps=4)
                assert manager.join(HANG_S)
                assert memory.num_steps == round_ * 80
            assert manager.stats().outstanding_peak <= 32
        for record, tag in zip(memory.records, tags):
            check_record(record, tag, 3)

    def test_deterministic_as_in_processes(self):
        """Rows, bit by bit; local weights and a served predictor, with the newest weights."""
        runs = [self.rows_of(backend) for backend in ("ray", "process")]
        assert runs[0] == runs[1]

    def rows_of(self, backend: str) -> list[bytes]:
        memory = RecordingMemory(600, TAG_SHAPE, 3, "int32")
        players = [Tag(i, 7 + i).factory() for i in range(3)]
        predictors = [LocalPredictor(GreedyModel, greedy(0)), probe_q, probe_q]
        options = {"backend": backend, "deterministic": True, "seed": 3}
        with self.pool(memory, players, predictors, **options) as manager:
            for best in (1, 2, 3):
                manager.step(0.5, num_steps=20)
                manager.set_weights(greedy(best))
                for _ in range(10):
                    manager.step(0.3, num_steps=3)
                assert manager.join(HANG_S)
        return [b"".join((r.state.tobytes(), r.meta.tobytes())) for r in memory.records]


@pytest.mark.usefixtures("own_ray")
class TestArguments(PoolCase):
    """What cannot work is refused, and named."""

    options = {"backend": "ray"}
    pytestmark = on_ray

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"resources_per_runner": {"CPU": 5}}, "2 runners need 10 CPU, the cluster has 8"),
            ({"resources_per_runner": {"TPU": 1}}, "2 runners need 2 TPU, the cluster has 0"),
            ({"resources_per_runner": {"CPU": -1}}, "'CPU': -1; expected .* at least 0"),
            ({"resources_per_runner": {"CPU": 1.5}}, "whole numbers"),
            ({"resources_per_runner": {"CPU": "1"}}, "expected the name"),
            ({"resources_per_runner": [1]}, "expected a mapping"),
            ({"address": "192.0.2.1:1"}, "this process uses the Ray cluster at .* already"),
            ({"address": "ray://head:10001"}, "Ray Client"),
        ],
    )
    def test_refused(self, options, message):
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with pytest.raises(ConfigurationError, match=message):
            self.pool(memory, [Tag(i).factory() for i in range(2)], **options)
        assert not actors()

    def test_only_for_ray(self):
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with pytest.raises(ConfigurationError, match="for backend='ray'; the backend is 'process'"):
            self.pool(memory, [Tag().factory()], backend="process", address="auto")

    def test_a_joined_ray_is_left_alone(self, own_ray):
        memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
        with self.pool(memory, [Tag().factory()], address="auto") as manager:
            manager.step(1.0, num_steps=5)
        assert own_ray.is_initialized()
        assert memory.num_steps == 5

    def test_command_line(self, own_ray, capsys):
        address = own_ray.get_runtime_context().gcs_address
        arguments = ("collect", "CartPole-v1", "--steps", 200, "--num-runners", 2, "--json")
        assert run_here(*arguments, "--backend", "ray", "--address", address) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["backend"], told["transitions"]) == ("ray", 200)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mprunner.backends.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    memory = RecordingMemory(100, TAG_SHAPE, 1, "int32")
    runner = EnvRunner(Tag().factory(), None, memory, 1)
    with pytest.raises(MissingExtraError, match=r"pip install 'mprunner\[ray\]'"):
        EnvRunnerManager([runner], 4, backend="ray")


def test_the_tests_that_need_ray():
    """Among the unmarked tests, so that they tell that those on Ray were left out, and why."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip(REASON)
