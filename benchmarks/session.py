"""One contender at work, in a process of its own.

`Remote` runs this file as a script, so that no contender inherits another one's threads,
imports or memory. What a contender is, see `Session`; `contenders.py` has them.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Transitions that each replay memory holds.
MEMORY_ROWS = 20_000
WARM_UP_S = 0.5
LEAD_IN_S = 0.25


class Session(abc.ABC):
    """A contender that is set up and plays.

    Attributes:
        pids: of its worker processes; empty where it has none.
    """

    pids: list[int] = []

    def __init__(self) -> None:
        self._counted = 0

    @abc.abstractmethod
    def turn(self) -> int:
        """Go on a little; returns how many transitions landed in the memory, or will."""

    @property
    def landed(self) -> int:
        """Transitions so far; by default what the turns have given."""
        return self._counted

    def finish(self) -> None:
        """Wait until all that is under way has landed."""

    def sample(self, batch_size: int) -> None:
        """Draw a batch of stacked states and their successors."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""

    def play(self, seconds: float, learner: dict[str, int] | None = None) -> dict[str, float]:
        """Play for a while, with or without a learner that samples meanwhile.

        What is counted begins after a lead-in and ends while everything is still at work, so
        that nobody is judged by how it starts or stops.

        Args:
            seconds: at least so long.
            learner: "batch_size", and "every": transitions per batch.
        """
        self._go(LEAD_IN_S, learner)
        landed, cpu, begin = self.landed, time.process_time(), time.perf_counter()
        batches = self._go(seconds, learner)
        result = {
            "landed": self.landed - landed,
            "seconds": time.perf_counter() - begin,
            "parent_cpu_s": time.process_time() - cpu,
            "batches": batches,
        }
        self.finish()
        return result

    def _go(self, seconds: float, learner: dict[str, int] | None) -> int:
        """Take turns for a while; returns how many batches were sampled."""
        batches, turned, end = 0, 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            new = self.turn()
            self._counted += new
            turned += new
            while learner and turned >= (batches + 1) * learner["every"]:
                self.sample(learner["batch_size"])
                batches += 1
        return batches


class Ring:
    """The leanest replay memory: one ring of frames per simulator, each frame once."""

    def __init__(self, num_envs: int, shape: tuple[int, ...] = (84, 84)) -> None:
        size = MEMORY_ROWS // num_envs
        self._size = size
        self._next = np.zeros(num_envs, np.int64)
        self._frames = np.zeros((num_envs, size, *shape), np.uint8)
        self._actions = np.zeros((num_envs, size), np.int32)
        self._rewards = np.zeros((num_envs, size), np.float32)
        self._ends = np.zeros((num_envs, size), np.uint8)

    def add(self, envs: Any, frames: Any, actions: Any, rewards: Any, ends: Any) -> None:
        """One row for each of `envs`: the frame, and what was done before it came."""
        at = self._next[envs]
        self._frames[envs, at] = frames
        self._actions[envs, at] = actions
        self._rewards[envs, at] = rewards
        self._ends[envs, at] = ends
        self._next[envs] = (at + 1) % self._size

    def extend(self, env: int, frames: Any, actions: Any, rewards: Any, ends: Any) -> None:
        """Many rows of one simulator."""
        at = (self._next[env] + np.arange(len(frames))) % self._size
        self._frames[env, at] = frames
        self._actions[env, at] = actions
        self._rewards[env, at] = rewards
        self._ends[env, at] = ends
        self._next[env] = (at[-1] + 1) % self._size


class Remote:
    """A session in a process of its own, stopped between its plays.

    Stopped, since some contenders play on by themselves.

    Args:
        timeout: seconds until the start, or a play, is given up with all that it started.
        order: "contender", "workload", "settings", and optionally "predictor", "learner",
            "import_first" (a module) and "look" (memory and descriptors, too).

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """

    def __init__(self, timeout: float = 300.0, **order: Any) -> None:
        self._timeout = timeout
        self._label = f"{order['contender']} {order['settings']}"
        self._output = ""
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started = self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)

    def play(self, seconds: float) -> dict[str, Any]:
        """What `Session.play` gives, with the start-up time and the settings."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            self._process.stdin.write(f"{seconds}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._label} is gone:\n{self._output[-3000:]}") from None
        answer = self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)
        return {**self._started, **answer}

    def close(self) -> None:
        """Let it end; kill what is left then."""
        assert self._process.stdin is not None
        try:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.stdin.close()
            self._process.wait(20)
        except (ProcessLookupError, BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._timeout
        pipe = self._process.stdout.fileno()
        while True:
            before, found, rest = self._output.partition("RESULT ")
            line, complete, after = rest.partition("\n")
            if found and complete:
                self._output = after
                return dict(json.loads(line))
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(pipe, 65536) if ready else b""
            if not data:
                self._kill()
                why = "ended" if ready else f"gave no result within {self._timeout} s"
                raise RuntimeError(f"{self._label} {why}:\n{self._output[-3000:]}")
            self._output += data.decode(errors="replace")


def measured(seconds: float, **order: Any) -> dict[str, Any]:
    """What one play of a fresh session gives; see `Remote`."""
    remote = Remote(**order)
    try:
        return remote.play(seconds)
    finally:
        remote.close()


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _look(session: Session, fds_before: int) -> dict[str, float]:
    """Memory and descriptors of idle workers, per worker."""
    pids = session.pids
    if not pids:
        return {}
    return {
        "pss_mb": sum(map(_pss_mb, pids)) / len(pids),
        "parent_fds": (len(os.listdir("/proc/self/fd")) - fds_before) / len(pids),
        "worker_fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) / len(pids),
    }


def _tell(result: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def _serve(order: dict[str, Any]) -> None:
    import contenders

    contender = contenders.CONTENDERS[order["contender"]]
    contender.load()
    fds_before = len(os.listdir("/proc/self/fd"))
    begin = time.perf_counter()
    session = contender.open(order["workload"], order["settings"], order.get("predictor"))
    startup_s = time.perf_counter() - begin
    try:
        session.play(WARM_UP_S)
        _tell({"startup_s": startup_s, "settings": order["settings"]})
        for line in sys.stdin:
            result = session.play(float(line), order.get("learner"))
            _tell({**result, **(_look(session, fds_before) if order.get("look") else {})})
    finally:
        session.close()


def _end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, even if stopped."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    """Be the session that the argument (JSON) asks for, until stdin ends."""
    _end_with_parent()
    order = json.loads(sys.argv[1])
    if order.get("import_first"):
        __import__(order["import_first"])
    _serve(order)
    # Some contenders leave threads or processes behind, which would keep this one.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
