"""Sessions in processes of their own: no contender inherits another one's threads or memory.

The child is `benchmarks.contenders.serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.harness.record import ROOT


class Remote:
    """A session in a process of its own, stopped between its plays.

    Stopped, since some contenders play on by themselves.

    Args:
        timeout: seconds until the start, or a play, is given up with all that it started.
        order: "contender", "workload", "settings", and optionally "predictor", "learner",
            "import_first" (a module) and "resources" (measure memory and descriptors, too).

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """

    def __init__(self, timeout: float = 300.0, **order: Any) -> None:
        self._timeout = timeout
        self._label = f"{order['contender']} {order['settings']}"
        self._output = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contenders.serve", json.dumps(order)],
            cwd=ROOT,
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
            raise RuntimeError(f"{self._label} has exited:\n{self._output[-3000:]}") from None
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
        # Leaving the process's context closes its pipes and waits for it.
        with contextlib.suppress(ProcessLookupError, BrokenPipeError), self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

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


def rate(reading: Mapping[str, Any]) -> float:
    """Return the stored transitions per second of a play."""
    return float(reading["stored"] / reading["seconds"])
