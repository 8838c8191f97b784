"""After each test: no child process, no new thread of ours, no new descriptor, no name in /dev/shm."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mprunner.backends import launch

_GRACE_S = 2.0


def _children() -> set[int]:
    me = psutil.Process()
    alive = {p.pid for p in me.children() if p.status() != psutil.STATUS_ZOMBIE}
    return alive - launch.helper_pids()


def _descriptors() -> dict[str, int]:
    """Open descriptors by what they are, but for what serves all pools."""
    counts: dict[str, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        kind = target.split(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _shared_memory() -> set[str]:
    root = Path("/dev/shm")
    return {p.name for p in root.iterdir()} if root.exists() else set()


def _our_threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("mprunner")}


def _settled(before: set[int]) -> set[int]:
    """New children that are still there after the grace time."""
    new = [psutil.Process(pid) for pid in _children() - before if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(new, timeout=_GRACE_S)
    return {p.pid for p in alive}


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The house rule for every test; mark a test `leaks` only where it proves a leak."""
    _start_helpers()
    children, shared, fds = _children(), _shared_memory(), _descriptors()
    yield
    gc.collect()
    assert not _settled(children), "a child process is left"
    assert not _our_threads(), "a thread of ours is left"
    assert _shared_memory() <= shared, "a name in /dev/shm is left"
    after = _descriptors()
    more = {k: (fds.get(k, 0), n) for k, n in after.items() if n > fds.get(k, 0)}
    assert not more, f"descriptors are left (kind: before, after): {more}"


def _start_helpers() -> None:
    """The fork server and the tracker live as long as this process; have them from the start."""
    launch.start_helpers()
