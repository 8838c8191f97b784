"""Ray actors and nodes that die, clusters that are too small or lost, and what is left then."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest

from mprunner import ConfigurationError, WorkerDied, WorkerRaised, WorkerStalled
from tests.support.ray_local import (
    ENVIRONMENT,
    STORE_BYTES,
    check_nothing_left,
    import_ray,
    is_actor,
)
from tests.support.faulty_players import marked
from tests.support.pools import is_gone, pid_of, pool
from tests.support.script import Script
from tests.support.whole import SealedMemory, check_survivors
from tests.support.tagged import TAG_SHAPE, Gate, Tag, TagPlayer
from tests.support.waiting import HANG_S, eventually
from tests.support.wide import WIDE_SHAPE, WideMemory, WidePlayer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:::ray"),
]

one_cluster = pytest.mark.xdist_group("ray")

TAGS = [Tag(0, 11), Tag(1, 7)]
#: Seconds: what the pool is given to tell a hang by, and an actor to say what it is doing.
LIMIT_S = 5.0
#: A dead node is noticed within seconds; by Ray's defaults it takes half a minute.
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}


class Nodes:
    """A cluster of three nodes on this machine, the first of which has no room for runners."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.ray = import_ray()
        head = {
            "num_cpus": 0,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "_system_config": HEALTH,
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._workers = [self._add(), self._add()]
        self.address = self._cluster.address
        self.ray.init(address=self.address, log_to_driver=False)
        self._cluster.wait_for_nodes()

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=3, object_store_memory=STORE_BYTES)

    def of(self, pid: int) -> Any:
        """The node of an actor's process."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        (node,) = [node for node in self._workers if _raylet(node) in parents]
        return node

    def remove(self, node: Any) -> None:
        """As if its machine had lost its power."""
        self._workers.remove(node)
        pids = [p.pid for p in psutil.Process(_raylet(node)).children(recursive=True)]
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)

    def complete(self) -> None:
        """Replace those removed."""
        while len(self._workers) < 2:
            self._workers.append(self._add())
        self._cluster.wait_for_nodes()

    def close(self) -> None:
        """End it."""
        self.ray.shutdown()
        self._cluster.shutdown()


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.fixture(scope="module")
def own_nodes() -> Iterator[Nodes]:
    import_ray()
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(own_nodes: Nodes) -> Nodes:
    """Three."""
    own_nodes.complete()
    return own_nodes


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Instead of the house rule: Ray keeps connections and idle workers of its own."""
    yield
    gc.collect()
    check_nothing_left()


ray_pool = partial(pool, backend="ray")


def kill_process(manager: Any, worker: int) -> None:
    pid = pid_of(manager, worker)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: is_gone(pid))


def kill_by_ray(manager: Any, worker: int) -> None:
    import ray

    ray.kill(manager._backend.members[worker].remote)


KILLS = [kill_process, kill_by_ray]


@one_cluster
class TestNode:
    def test_removed_in_the_middle_of_20000_steps(self, nodes, tmp_path):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        players = [marked(tmp_path, tag) for tag in TAGS]
        told: list[Any] = []
        with ray_pool(
            players, memory=memory, staleness=256, on_failure="restart", on_restart=told.append
        ) as manager:
            for _ in range(160):
                manager.step(1.0, num_steps=64)
            assert memory.num_steps < 20_000
            homes = [nodes.of(pid_of(manager, i)) for i in range(2)]
            victims = {i for i in range(2) if homes[i] is homes[0]}
            nodes.remove(homes[0])
            for _ in range(152):
                manager.step(1.0, num_steps=64)
            manager.step(1.0, num_steps=32)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert stats.steps_asked == 20_000 == stats.steps_stored + stats.steps_lost
            assert stats.steps_stored == memory.num_steps
            assert stats.restarts == len(victims) == len(told)
            for victim in victims:
                assert nodes.of(pid_of(manager, victim)) is not homes[0]
        assert {error.worker for error in told} == victims
        assert all(type(error) is WorkerDied for error in told)
        check_survivors(memory, TAGS, {0, 1})


@one_cluster
class TestActor:
    @pytest.mark.parametrize("kill", KILLS)
    def test_killed(self, nodes, kill):
        manager = ray_pool([tag.factory() for tag in TAGS])
        manager.step(1.0, num_steps=8)
        assert manager.join(HANG_S)
        kill(manager, 1)
        with pytest.raises(WorkerDied, match=r"worker 1 \(pid \d+, a Ray actor\) was lost"):
            while True:
                manager.step(1.0)
        with pytest.raises(WorkerDied):
            manager.join()
        manager.close()
        assert manager.stats().workers[1].state == "closed"

    @pytest.mark.parametrize("kill", KILLS)
    def test_killed_and_replaced(self, nodes, kill, tmp_path, caplog):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        players = [marked(tmp_path, tag) for tag in TAGS]
        with ray_pool(players, memory=memory, on_failure="restart", staleness=32) as manager:
            for i in range(200):
                manager.step(1.0, num_steps=8)
                if i == 100:
                    kill(manager, 0)
            assert manager.join(HANG_S)
            stats = manager.stats()
        assert (stats.steps_asked, stats.steps_stored, stats.steps_lost) == (1600, 1600, 0)
        assert stats.restarts == 1
        assert [r.message for r in caplog.records if "restarting it in 0.05 s" in r.message]
        check_survivors(memory, TAGS, {0})

    def test_killed_with_rows_that_it_kept(self, nodes, tmp_path):
        """Of a job that was told as done, when the next one was to bring its rows."""
        gate = Gate(tmp_path / "gate")
        memory = WideMemory(100, WIDE_SHAPE, 3, "int32")
        player = partial(WidePlayer, gate=gate)
        with ray_pool(
            [player], memory=memory, staleness=16, on_failure="restart"
        ) as manager:
            for _ in range(3):
                manager.step(1.0, num_steps=4)
            gate.open(8)
            eventually(lambda: manager.stats().outstanding == 4)
            assert manager.stats().steps_stored == 4
            kill_process(manager, 0)
            gate.open(4)
            assert manager.join(HANG_S)
            stats = manager.stats()
            assert (stats.steps_asked, stats.steps_stored, stats.steps_lost) == (12, 8, 4)
            assert (stats.restarts, stats.outstanding) == (1, 0)
            assert memory.num_steps == 8
        gate.close()

    def test_raises_and_is_replaced(self, nodes, tmp_path):
        memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
        players = [marked(tmp_path, TAGS[0], charges=2), TAGS[1].factory()]
        told: list[Any] = []
        with ray_pool(
            players, memory=memory, on_failure="restart", on_restart=told.append
        ) as manager:
            while manager.stats().restarts < 2:
                manager.step(1.0, num_steps=4)
            manager.step(1.0, num_steps=40)
            assert manager.join(HANG_S)
            stats = manager.stats()
        assert (stats.steps_stored, stats.steps_lost) == (stats.steps_asked, 0)
        assert stats.restarts == 2
        assert [error.original_type for error in told] == ["ValueError"] * 2
        check_survivors(memory, TAGS, {0})

    def test_restarts_are_used_up(self, nodes, tmp_path, caplog):
        player = marked(tmp_path, TAGS[0], charges=100)
        manager = ray_pool([player, TagPlayer], on_failure="restart", max_restarts=2)
        with caplog.at_level(logging.WARNING), pytest.raises(WorkerRaised, match="out of order"):
            while True:
                manager.step(1.0)
        manager.close()
        assert manager.stats().restarts == 2
        assert len([r for r in caplog.records if "restarting" in r.message]) == 2


class Sleeper(TagPlayer):
    """Hangs in its fourth step."""

    def step(self, action: int) -> Any:
        if self.at == 3:
            self.linger()
        return super().step(action)

    def linger(self) -> None:
        time.sleep(3600)


@one_cluster
class TestStalled:
    def test_in_a_step(self, nodes):
        manager = ray_pool([Sleeper], step_timeout=LIMIT_S)
        with pytest.raises(WorkerStalled) as caught:
            while True:
                manager.step(1.0, num_steps=8)
        assert caught.value.worker == 0
        for part in ("in the player's step()", f"step_timeout is {LIMIT_S:g} s", "linger"):
            assert part in str(caught.value)
        assert caught.value.seconds > LIMIT_S
        manager.close()

    def test_stopped_and_replaced(self, nodes):
        with ray_pool([TagPlayer] * 2, step_timeout=LIMIT_S, on_failure="restart") as manager:
            pid = pid_of(manager, 0)
            os.kill(pid, signal.SIGSTOP)
            manager.step(1.0, num_steps=80)
            assert manager.join(HANG_S)
            assert manager.stats().restarts >= 1
        eventually(lambda: is_gone(pid))

    def test_close_does_not_wait_for_it(self, nodes):
        manager = ray_pool([Sleeper], staleness=32, close_timeout=LIMIT_S)
        manager.step(1.0, num_steps=8)
        manager.step(1.0, num_steps=8)
        with pytest.raises(WorkerStalled, match=f"close_timeout is {LIMIT_S:g} s"):
            manager.close()


@one_cluster
class TestRoom:
    def test_too_large_for_a_node(self, nodes):
        with pytest.raises(ConfigurationError, match="3 runners need .* have room for 2"):
            ray_pool([TagPlayer] * 3, resources_per_runner={"CPU": 2})

    def test_taken_by_others(self, nodes):
        @nodes.ray.remote(num_cpus=3)
        class Squatter:
            def here(self) -> bool:
                return True

        squatter = Squatter.remote()
        assert nodes.ray.get(squatter.here.remote(), timeout=HANG_S)
        with pytest.raises(
            ConfigurationError, match=r"of 2 runners have found no place .*start_timeout is 6 s"
            r"\); each needs {'CPU': 2}, free now: {"
        ):
            ray_pool([TagPlayer] * 2, resources_per_runner={"CPU": 2}, start_timeout=6)
        nodes.ray.kill(squatter)


PRELUDE = f"""
os.environ.update({ENVIRONMENT!r})
import ray, signal
sys.stdout = sys.stderr  # what Ray prints is nothing that the script says
"""
OWN = "ray_options = dict(backend='ray', address='local', resources_per_runner=dict(CPU=0.25))\n"


class TestLeaving:
    """Scripts of their own, with a Ray that the pool starts or joins."""

    @pytest.mark.parametrize("way", ["close", "exception", "exit", "SIGKILL"])
    def test_a_ray_of_our_own_goes_with_us(self, way, tmp_path):
        lines = {
            "close": "manager.close(); assert not ray.is_initialized(); say('closed')",
            "exception": "raise ZeroDivisionError",
            "exit": "",
            "SIGKILL": "time.sleep(3600)",
        }[way]
        body = PRELUDE + OWN + f"""
manager = pool([TagPlayer] * 2, **ray_options)
manager.step(1.0, num_steps=8)
say("ready")
{lines}
"""
        with Script(body, tmp_path) as script:
            script.wait_for("ready", timeout=HANG_S)
            assert len(script.left()) > 4
            if way == "SIGKILL":
                assert len([pid for pid in script.left() if is_actor(pid)]) == 2
                os.kill(script.process.pid, signal.SIGKILL)
                eventually(lambda: not any(map(is_actor, script.left())))
            # Of a driver that was killed, two of Ray's own daemons stay, some seconds or for the
            # minute in which they try to reach the head, which went before them.
            code = script.ends()
            assert code == {"close": 0, "exception": 1, "exit": 0, "SIGKILL": -9}[way]

    @one_cluster
    def test_a_ray_that_was_joined_goes_on(self, nodes, tmp_path):
        path = tmp_path / "pids"
        body = PRELUDE + f"""
manager = pool([TagPlayer] * 2, backend="ray", address={nodes.address!r})
manager.step(1.0, num_steps=8)
open({str(path)!r}, "w").write(" ".join(str(w.pid) for w in manager.stats().workers))
say("ready")
time.sleep(3600)
"""
        with Script(body, tmp_path) as script:
            script.wait_for("ready", timeout=HANG_S)
            pids = [int(word) for word in path.read_text().split()]
            os.kill(script.process.pid, signal.SIGKILL)
            eventually(lambda: all(map(is_gone, pids)))
        assert nodes.ray.cluster_resources()["CPU"] == 6


class TestLost:
    @pytest.mark.parametrize(
        "what, errors",
        # Without its own raylet a driver counts as dead, and whoever is first tells.
        [("gcs_server", ["ClusterError"]), ("raylet", ["ClusterError", "WorkerDied"])],
    )
    def test_the_head_is_killed(self, what, errors, tmp_path):
        """An error before Ray ends the program, which it does a minute after."""
        body = PRELUDE + f"""
from ray.cluster_utils import Cluster
store = {STORE_BYTES}
head = dict(num_cpus=0, object_store_memory=store, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2, object_store_memory=store)
manager = pool([TagPlayer] * 2, backend="ray", address=cluster.address)
manager.step(1.0, num_steps=8)
(process,) = cluster.head_node.all_processes[{what!r}]
os.kill(process.process.pid, signal.SIGKILL)
say("killed")
try:
    while True:
        manager.step(1.0)
except Exception as error:
    print(type(error).__name__, error, file=sys.stderr, flush=True)
    assert type(error).__name__ in {errors!r}
    say("lost")
manager.close()
say("closed")
os._exit(0)
"""
        with Script(body, tmp_path) as script:
            script.wait_for("killed", timeout=HANG_S)
            script.wait_for("lost", timeout=HANG_S)
            script.wait_for("closed", timeout=HANG_S)
            assert script.process.wait(HANG_S) == 0, script.stderr
