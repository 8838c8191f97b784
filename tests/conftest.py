"""After each test: no child, no thread of ours, no new descriptor, no new name in /dev/shm."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mprunner.backends.process import launch

pytest.register_assert_rewrite(
    "tests.support",
    "tests.backends.contract_acting",
    "tests.backends.contract_failures",
    "tests.backends.contract_pace",
    "tests.backends.contract_streams",
)
from tests.support.waiting import HANG_S  # noqa: E402  (rewritten first)

# Started in the background by a shell, or by nohup, this process has SIGINT or SIGHUP ignored, and
# so would every program that the tests start and send them to.
for _signum, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _handler)

#: Of the semaphores that this process and its children make, to tell them from other programs'.
_SEMAPHORES = f"mprunner-{os.getpid()}"
multiprocessing.current_process()._config["semprefix"] = f"/{_SEMAPHORES}"


def _children() -> set[int]:
    """Living ones. From /proc: psutil would look at all processes of the machine."""
    pids = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            pids.update(map(int, (task / "children").read_text().split()))
    return {pid for pid in pids if not _ended(pid)} - launch.helper_pids()


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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
    names = {p.name for p in root.iterdir()} if root.exists() else set()
    return {n for n in names if not n.startswith("sem.") or n.startswith(f"sem.{_SEMAPHORES}")}


def _left_names(before: set[str]) -> set[str]:
    """New names in /dev/shm that stay and that no other program on this machine uses."""
    deadline = time.monotonic() + HANG_S
    while (new := _shared_memory() - before) and time.monotonic() < deadline:
        if all(map(_is_foreign, new)):
            return set()
        time.sleep(0.05)
    return new


def _is_foreign(name: str) -> bool:
    """Another program uses the name, or it is gone by now."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in ours:
            with contextlib.suppress(OSError):
                if f"/dev/shm/{name}" in (process / "maps").read_text():
                    return True
    return not Path("/dev/shm", name).exists()


def _our_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("mprunner")}


def _ended_threads(before: set[threading.Thread]) -> bool:
    """New threads of ours end within the grace time; one that has done its work may still run."""
    deadline = time.monotonic() + HANG_S
    for thread in _our_threads() - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    return _our_threads() <= before


def _settled(before: set[int]) -> set[int]:
    """New children that are still there after the grace time."""
    deadline = time.monotonic() + HANG_S
    while (new := _children() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return new


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The house rule for every test; mark a test `leaks` only where it proves a leak."""
    _start_helpers()
    gc.freeze()  # what is there already is not this test's garbage; so collecting is quick
    children, threads = _children(), _our_threads()
    shared, fds = _shared_memory(), _descriptors()
    yield
    gc.collect()
    assert not _settled(children), "a child process is left"
    assert _ended_threads(threads), f"a thread of ours is left: {_our_threads() - threads}"
    assert not _left_names(shared), "a name in /dev/shm is left"
    after = _descriptors()
    more = {k: (fds.get(k, 0), n) for k, n in after.items() if n > fds.get(k, 0)}
    assert not more, f"descriptors are left (kind: before, after): {more}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """For each failure the seed and the one command that repeats it."""
    config = terminalreporter.config
    failed = [
        report.nodeid.partition("@")[0]  # a group of tests that share something follows it
        for outcome in ("failed", "error")
        for report in terminalreporter.getreports(outcome)
    ]
    for nodeid in dict.fromkeys(failed):
        seed = config.getoption("hypothesis_seed", None)
        shown = "" if seed is None else f" --hypothesis-seed {seed}"
        terminalreporter.write_line(
            f"seed {seed}; again: {sys.executable} -m pytest{shown} '{nodeid}'"
        )


def _start_helpers() -> None:
    """The fork server and the tracker live as long as this process; have them from the start."""
    launch.start_helpers()
