"""Starts worker processes, from a fork server of our own or by spawn.

What differs from ``multiprocessing.Process.start``: a worker never imports the user's
``__main__``, gets one math thread, is not joined behind our back at exit, and takes no Ctrl-C
while it starts. ``fork`` is not used: the parent has threads, and may hold their locks.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
)
from typing import Any

from mprunner.errors import ConfigurationError
from mprunner.settings import StartMethod

# Read when numpy, torch and their like are loaded, so they must be set before.
MATH_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: What a fork server loads, once for all workers; nearly every player needs gymnasium.
_PRELOAD = ["mprunner.backends.process.worker", "gymnasium"]
_lock = threading.Lock()
_servers: dict[tuple[str, ...], Any] = {}


def start_method(asked: StartMethod | None) -> StartMethod:
    """The start method to use; the interpreter's default is never followed.

    Raises:
        ConfigurationError: this system has no such method.
    """
    known = multiprocessing.get_all_start_methods()
    if asked is None:
        return "forkserver" if "forkserver" in known else "spawn"
    if asked not in known:
        raise ConfigurationError(f"start_method is {asked!r}; this system has only 'spawn'")
    return asked


def worker_environment() -> dict[str, str]:
    """This process's environment variables, with one math thread where nothing else is set."""
    return {**{name: "1" for name in MATH_THREAD_VARIABLES}, **os.environ}


class WorkerProcess(process.BaseProcess):
    """A process that is not in multiprocessing's list of children.

    So nothing joins it at exit, and it may have children of its own: it is not daemonic.
    """

    #: A simulator that uses multiprocessing gets the interpreter's default, as at home.
    _start_method = None

    def launch(self, method: str) -> None:
        """Start it; must not be called in the main thread, where Ctrl-C could cut it short."""
        self._pidfd: int | None = None
        with _lock, _quiet_start():
            self._popen = _POPENS[method](self)
        self._poll_lock = threading.Lock()  # only now: until here this object is pickled
        if method != "forkserver":
            self._open_pidfd()
        self._sentinel = self._popen.sentinel if self._pidfd is None else self._pidfd

    def _open_pidfd(self) -> None:
        # The sentinel is a pipe that what the worker has started may keep open.
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # not in every kernel and sandbox
                self._pidfd = os.pidfd_open(self._popen.pid)

    def kill_group(self, signum: int) -> None:
        """Signal the worker and all that it started; nothing if they have exited."""
        pid = self._popen.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signum)
        # Before it has made its own group, the worker can only be reached alone.
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def wait_exit(self, timeout: float | None) -> bool:
        """Wait until it has exited; False if the time (seconds) was up first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._popen.returncode is None:
            connection.wait([self._sentinel], timeout)
        # A pipe ends a moment before its process can be waited for.
        while self.exitcode is None:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def release(self) -> None:
        """Give back its descriptors; it must have ended."""
        self._popen.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def exitcode(self) -> int | None:
        """None while it lives; negative: the number of a signal."""
        # Two threads may look: one that sees it end and one that ends it. The exit code can be
        # had only once.
        with self._poll_lock:
            return self._popen.poll()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Ctrl-C, set for a child until it has set its own."""
    # Now, since its start unblocks what is blocked here.
    resource_tracker.ensure_running()
    # A blocked signal is inherited; a worker that has just been forked would else print a
    # traceback of its own at Ctrl-C.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for a child that takes over the parent's."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _pickled(popen: Any, process_obj: Any) -> bytes:
    """What a fresh child reads: how to prepare, without ``__main__``, and the process."""
    preparation = spawn.get_preparation_data(process_obj.name)
    for key in ("init_main_from_name", "init_main_from_path"):
        preparation.pop(key, None)
    buffer = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(preparation, buffer)
        reduction.dump(process_obj, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getvalue()


# The parts of multiprocessing that its type stubs leave out.
_util: Any = importlib.import_module("multiprocessing.util")


class _ForkServerPopen(popen_forkserver.Popen):
    """Asks our fork server, which has loaded the worker's module and nothing else."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        data = _pickled(self, process_obj)
        self.sentinel, write_end = _fork_server().connect_to_new_process(self._fds)
        # The child sees the end of its parent by the other end of this pipe.
        alive = os.dup(write_end)
        self.finalizer = _util.Finalize(self, _util.close_fds, (alive, self.sentinel))
        # It may have died before it has read all; then its sentinel tells.
        with contextlib.suppress(BrokenPipeError), open(write_end, "wb") as pipe:
            pipe.write(data)
        self.pid = forkserver.read_signed(self.sentinel)


class _SpawnPopen(popen_spawn_posix.Popen):
    """A fresh interpreter."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        tracker: Any = resource_tracker.getfd()
        self._fds.append(tracker)
        data = _pickled(self, process_obj)
        self.sentinel, child_write = os.pipe()
        child_read, write_end = os.pipe()
        self.finalizer = _util.Finalize(self, _util.close_fds, (self.sentinel, write_end))
        try:
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=child_read)
            _set_math_threads(command)
            fds = [*self._fds, child_read, child_write]
            self.pid = _util.spawnv_passfds(spawn.get_executable(), command, fds)
        finally:
            os.close(child_read)
            os.close(child_write)
        with contextlib.suppress(BrokenPipeError):
            with open(write_end, "wb", closefd=False) as pipe:
                pipe.write(data)


_POPENS: dict[str, Any] = {"forkserver": _ForkServerPopen, "spawn": _SpawnPopen}


def _set_math_threads(command: list[str]) -> None:
    """Have a fresh interpreter set them first of all: it takes over our own environment."""
    if "-c" in command:
        at = command.index("-c") + 1
        names = " ".join(MATH_THREAD_VARIABLES)
        command[at] = (
            f"import os; [os.environ.setdefault(n, '1') for n in {names!r}.split()]; "
            + command[at]
        )


def _fork_server() -> Any:
    """One server per setting of the math threads, since a loaded library keeps its own."""
    environment = worker_environment()
    variables = {name: environment[name] for name in MATH_THREAD_VARIABLES}
    server: Any = _servers.get(tuple(variables.values()))
    if server is None:
        server = _servers[tuple(variables.values())] = forkserver.ForkServer()
        server.set_forkserver_preload(_PRELOAD)
    if server._forkserver_pid is None or not _is_running(server._forkserver_pid):
        # Its own search path, so that it loads the same packages as we have, wherever they lie;
        # it applies what it is sent of ours only after it has loaded them.
        path = os.pathsep.join(sys.path)
        with _environment({**variables, "PYTHONPATH": path}):
            server.ensure_running()
    return server


def _is_running(child: int) -> bool:
    """Look without reaping; the environment is not touched when there is nothing to start."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def start_helpers() -> None:
    """Start what `helper_pids` names; the first pool does it by itself."""
    with _lock, _quiet_start():
        _fork_server()


def _after_fork() -> None:
    """In a forked child: its parent's fork servers are not its own, and no lock is held."""
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)  # else it outlives its parent
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)


def leave_fork_server() -> None:
    """In a worker: let go of the fork server that made it.

    Then that server ends with the parent, and a simulator that uses multiprocessing starts a
    server of its own, in the worker's process group.
    """
    inherited: Any = forkserver._forkserver
    if inherited._forkserver_alive_fd is not None:
        os.close(inherited._forkserver_alive_fd)
        inherited._forkserver_alive_fd = None
        inherited._forkserver_address = None


def helper_pids() -> set[int]:
    """Processes that serve all pools and live as long as this one: fork servers, tracker."""
    pids = {server._forkserver_pid for server in _servers.values()}
    tracker: Any = resource_tracker._resource_tracker
    pids.add(tracker._pid)
    return pids - {None}
