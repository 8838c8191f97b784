"""A user's script with a pool, run as a process of its own, and what is left of it afterwards."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType

from tests.support.pools import bearers, shared_names, tick_of
from tests.support.waiting import HANG_S, eventually

_ROOT = Path(__file__).resolve().parents[2]

#: Runs in the script before the case's own lines; `pool` is in `tests.support.pools`.
_PRELUDE = """
import multiprocessing, os, subprocess, sys, threading, time
from functools import partial
import numpy as np
# Names of semaphores, if there are any, that tell them from those of other programs.
multiprocessing.current_process()._config["semprefix"] = "/mprunner-" + str(os.getpid())
from tests.support.pools import pool
from tests.support.tagged import TagPlayer

def say(word):
    "In one piece, between what others say."
    os.write(1, word.encode() + bytes([10]))

class Busy(TagPlayer):
    "Holds the GIL from its third step on."
    def step(self, action):
        if self.at == 2:
            say("busy")
            sum(range(10**12))
        return super().step(action)

class Parent(TagPlayer):
    "Has a process of its own of each kind."
    def __init__(self):
        super().__init__()
        self.one = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        self.one.start()
        self.other = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
        )

def hesitate(states):
    say("asked")
    time.sleep(3600)
"""


class Script:
    """A process group with a script at its head.

    Args:
        body: its lines.
        root: where it lies; no guard for ``__main__``, as in users' scripts.
        interrupted: it will be, perhaps in the middle of an import, which then leaves files open
            that are not ours to close.
    """

    def __init__(self, body: str, root: Path, *, interrupted: bool = False) -> None:
        self.token = f"MPRUNNER_TEST={uuid.uuid4()}"
        self._shared = shared_names()
        path = root / "script.py"
        path.write_text(_PRELUDE + body)
        name, value = self.token.split("=")
        calm = ["-W", "ignore::ResourceWarning"] if interrupted else []
        with (root / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", *calm, str(path)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, name: value, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        self._began = tick_of(self.process.pid)
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        self._said: list[str] = []
        self._stderr = root / "stderr"

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(HANG_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for(self, *words: str, timeout: float = HANG_S) -> None:
        """Read its output until it has said all of these."""
        wanted, deadline = list(words), time.monotonic() + timeout
        while wanted:
            if not self._said:
                left = max(0.0, deadline - time.monotonic())
                heard = select.select([self._stdout], [], [], left)[0]
                data = os.read(self._stdout, 4096) if heard else b""
                assert data, f"it has not said {wanted}: {self.stderr}"
                self._said = data.decode().split()
            word = self._said.pop(0)
            if word in wanted:
                wanted.remove(word)

    def kill_group(self, signum: int) -> None:
        """As a terminal does."""
        os.killpg(self.process.pid, signum)

    def left(self) -> list[int]:
        """Living processes that descend from it, itself included."""
        return bearers(self.token, self._began)

    def ends(self) -> int:
        """Wait for its end and for that of all that it started; its exit code."""
        code = self.process.wait(HANG_S)
        eventually(lambda: not self.left())
        assert shared_names() <= self._shared
        return code

    @property
    def stderr(self) -> str:
        """What it and its processes have written there."""
        return self._stderr.read_text()
