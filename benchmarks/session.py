"""One contender at work, in a process of its own.

`measured` runs this file as a script, so that no contender inherits another one's threads,
imports or memory. What a contender is, see `Session`; `contenders.py` has them.
"""

from __future__ import annotations

import abc
import json
import os
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


class Session(abc.ABC):
    """A contender that is set up and plays.

    Attributes:
        pids: of its worker processes; empty where it has none.
    """

    pids: list[int] = []

    @abc.abstractmethod
    def turn(self) -> int:
        """Go on a little; returns how many transitions landed in the memory, or are sure to."""

    def finish(self) -> None:
        """Wait until all that `turn` has counted has landed."""

    def sample(self, batch_size: int) -> None:
        """Draw a batch of stacked states and their successors."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""

    def play(self, seconds: float, learner: dict[str, int] | None = None) -> dict[str, float]:
        """Play for a while, with or without a learner that samples meanwhile.

        Args:
            seconds: at least so long.
            learner: "batch_size", and "every": transitions per batch.
        """
        landed, batches = 0, 0
        cpu, begin = time.process_time(), time.perf_counter()
        while time.perf_counter() - begin < seconds:
            landed += self.turn()
            while learner and landed >= (batches + 1) * learner["every"]:
                self.sample(learner["batch_size"])
                batches += 1
        self.finish()
        return {
            "seconds": time.perf_counter() - begin,
            "landed": landed,
            "batches": batches,
            "parent_cpu_s": time.process_time() - cpu,
        }


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


def measured(timeout: float = 300.0, **order: Any) -> dict[str, Any]:
    """What one session gave, measured in a process of its own.

    Args:
        timeout: seconds until it is given up, with all that it started.
        order: "contender", "workload", "settings", "seconds", and optionally "learner",
            "predictor", "import_first" (a module) and "look" (PSS and descriptors, too).

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """
    child = subprocess.Popen(
        [sys.executable, __file__, json.dumps(order)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output = f"no result within {timeout} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    for line in reversed(output.splitlines()):
        if line.startswith("RESULT "):
            return dict(json.loads(line[len("RESULT "):]))
    raise RuntimeError(f"{order['contender']} {order['settings']} failed:\n{output[-3000:]}")


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


def _run(order: dict[str, Any]) -> dict[str, Any]:
    import contenders

    contender = contenders.CONTENDERS[order["contender"]]
    contender.load()
    fds_before = len(os.listdir("/proc/self/fd"))
    begin = time.perf_counter()
    session = contender.open(order["workload"], order["settings"], order.get("predictor"))
    startup_s = time.perf_counter() - begin
    try:
        learner = order.get("learner")
        session.play(order.get("warm_up_s", WARM_UP_S))
        result: dict[str, Any] = session.play(order["seconds"], learner)
        if order.get("look"):
            result |= _look(session, fds_before)
    finally:
        session.close()
    return {**result, "startup_s": startup_s, "settings": order["settings"]}


def main() -> None:
    """Do what the argument (JSON) asks for and print the result."""
    order = json.loads(sys.argv[1])
    if order.get("import_first"):
        __import__(order["import_first"])
    print("RESULT " + json.dumps(_run(order)), flush=True)
    # Some contenders leave threads or processes behind, which would keep this one.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
