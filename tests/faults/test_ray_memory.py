"""Ray actors that Ray ends because their machine runs out of memory."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from mprunner import WorkerDied
from tests.support.ray_local import check_nothing_left, import_ray, local_ray
from tests.support.faulty_players import FaultyPlayer, marked
from tests.support.pools import pool
from tests.support.whole import SealedMemory, check_survivors
from tests.support.tagged import TAG_SHAPE, Tag

pytestmark = [
    pytest.mark.machine,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:::ray"),
]

TAGS = [Tag(0, 11), Tag(1, 7)]
#: Ray calls the machine full when about so much more is taken than before Ray was started. What
#: Ray and two runners take themselves is less than half of it.
ROOM_BYTES = 3 * 2**29
CHUNK_BYTES = 32 * 2**20
#: Ray looks at the memory five times a second, and counts it in its own way.
LOOKS_S = 0.2
MOST_BYTES = 3 * ROOM_BYTES
PATIENCE_S = 60.0
#: Only Ray's memory monitor says this; its words for any crash mention memory, too.
REASON = "running low on memory"


class LeakingPlayer(FaultyPlayer):
    """Takes all the room there is in one step, while its fuse has charges."""

    def _due(self, stage: str) -> None:
        if stage == "step" and self._fuse.blow():
            taken = [_chunk() for _ in range(MOST_BYTES // CHUNK_BYTES)]
            raise AssertionError(f"{len(taken)} chunks were taken, and nothing happened")


def _chunk() -> bytearray:
    time.sleep(LOOKS_S / 4)
    return bytearray(b"x") * CHUNK_BYTES


@pytest.fixture(scope="module", autouse=True)
def own_ray() -> Iterator[Any]:
    """A Ray that calls the machine full long before it is."""
    import_ray()
    memory = psutil.virtual_memory()
    if memory.available < 2 * MOST_BYTES:
        pytest.skip(f"{2 * MOST_BYTES} bytes of memory are needed, {memory.available} are free")
    full = (memory.total - memory.available + ROOM_BYTES) / memory.total
    config = {
        "memory_usage_threshold": full,
        "memory_monitor_refresh_ms": int(1000 * LOOKS_S),
        "timeout_ms_task_wait_for_death_info": 10_000,  # however busy the machine is
    }
    with local_ray(4, _system_config=config) as ray:
        yield ray


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Instead of the house rule: Ray keeps connections and idle workers of its own."""
    yield
    gc.collect()
    check_nothing_left()


def test_named(tmp_path):
    """Whom Ray ends, and what that one does just then, is Ray's choice; the cause is named."""
    players = [marked(tmp_path, TAGS[0], LeakingPlayer, charges=1), TAGS[1].factory()]
    manager = pool(players, backend="ray")
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(WorkerDied, match=r"a Ray actor\) was lost while .*" + REASON):
        with contextlib.closing(manager):
            while time.monotonic() < deadline:
                manager.step(1.0)


def test_replaced(tmp_path):
    memory = SealedMemory(3000, TAG_SHAPE, 3, "int32")
    told: list[Any] = []
    players = [marked(tmp_path, TAGS[0], LeakingPlayer, charges=1), marked(tmp_path, TAGS[1])]
    with pool(
        players, memory=memory, backend="ray", staleness=32, on_failure="restart",
        on_restart=told.append,
    ) as manager:
        for _ in range(200):
            manager.step(1.0, num_steps=8)
        assert manager.join(PATIENCE_S)
        stats = manager.stats()
        assert stats.steps_asked == 1600 == stats.steps_stored + stats.steps_lost
        assert stats.steps_stored == memory.num_steps
        assert stats.restarts == len(told) >= 1
    for error in told:
        assert type(error) is WorkerDied and REASON in str(error), error
    # Whom Ray ends is Ray's choice; the one that takes the memory is among them.
    assert 0 in {error.worker for error in told}
    check_survivors(memory, TAGS, {error.worker for error in told})
