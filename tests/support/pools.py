"""Small pools for the tests of this folder, and looks at the processes of a machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from mprunner import EnvRunner, EnvRunnerManager
from mprunner.activity import Doing
from tests.support.whole import SealedMemory
from tests.support.tagged import TAG_SHAPE, Tag
from tests.support.waiting import HANG_S, eventually


def pool(
    players: Sequence[Any],
    predictor: Any = None,
    *,
    memory: Any = None,
    staleness: int = 8,
    kind: type[EnvRunner] = EnvRunner,
    **options: Any,
) -> EnvRunnerManager:
    """A manager of one runner per player; processes, unless told otherwise."""
    memory = memory if memory is not None else SealedMemory(5000, TAG_SHAPE, 3, "int32")
    runners = [kind(player, predictor, memory, memory.history_len) for player in players]
    return EnvRunnerManager(runners, staleness, **{"backend": "process", **options})


def tags(*lengths: int) -> list[Tag]:
    """One per length."""
    return [Tag(i, length) for i, length in enumerate(lengths)]


def pid_of(manager: EnvRunnerManager, worker: int) -> int:
    """Of a worker that runs, once it does."""
    eventually(lambda: manager.stats().workers[worker].state == "running")
    pid = manager.stats().workers[worker].pid
    assert pid is not None
    return pid


def doing(manager: EnvRunnerManager, worker: int) -> Doing:
    """What a worker does now."""
    channel = manager._backend.members[worker].channel  # type: ignore[attr-defined]
    assert channel is not None
    return channel.activity.doing  # type: ignore[no-any-return]


def step_until(manager: EnvRunnerManager, condition: Callable[[], bool]) -> None:
    """Ask for steps; who gets them is up to the dealer, which prefers the quick."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "it has not happened in time"
        manager.step(1.0, num_steps=2)


def is_gone(pid: int) -> bool:
    """It has ended, with all its threads; whoever is its parent may not have looked yet.

    The first thread of a process that is killed is a zombie as soon as it has ended itself, while
    others may still do what they were about to.
    """
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def bearers(token: str, since: int = 0) -> list[int]:
    """Living processes that were started with `token` somewhere in their environment.

    Args:
        token: to look for.
        since: only among processes that began at this tick or later. Others' environments are
            left alone: a look waits for a process that just grows, or dumps its core.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state, begun = _state_and_tick(int(name))
            if state not in "ZX" and begun >= since:
                if token.encode() in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
    return found


def tick_of(pid: int) -> int:
    """When a process began, in ticks since the machine did."""
    return _state_and_tick(pid)[1]


def _state_and_tick(pid: int) -> tuple[str, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def shared_names() -> set[str]:
    """Names in /dev/shm, but for those that other programs on this machine may have made."""
    others = ("sem.mp-", "psm_", "torch_")
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith(others)}
