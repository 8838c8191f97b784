"""Players that die, hang or raise, by any means and at any stage, once or always.

What a worker does outside its player (waiting, sending) is reached from within it: the player
plants its fault in the worker's own modules. A fault fires at most as often as its `Fuse` has
charges, over all processes, so that a replacement plays on in peace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mprunner.activity import Activity, Doing
from mprunner.backends.process.channel import Channel
from mprunner.backends.process.pipes import _FRAME, ResultQueue
from tests.support.tagged import Tag, TagPlayer

#: The ways to die, and the stages at which to.
WAYS = ("raise", "unpicklable", "sys.exit", "os._exit", "SIGKILL", "SIGSEGV", "hang")
STAGES = (
    "factory", "reset", "step", "close", "job wait", "prediction wait", "sending", "holding"
)
#: Where no line of the user runs, and so nothing can be raised.
OURS = ("job wait", "prediction wait", "sending", "holding")
#: The tag of an episode tells which start of the player it belongs to.
EPISODES_PER_START = 1000
EXIT_CODE = 7
_SETTLED_S = 0.02


class AwkwardError(Exception):
    """Takes two arguments and holds what cannot be pickled."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"code {code} from {what}")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Fuse:
    """Counts starts, and lets a fault fire a limited number of times, over all processes.

    Attributes:
        root: a directory of its own.
        charges: how often it may fire.
    """

    root: Path
    charges: int = 1

    def take(self, what: str, most: int) -> int | None:
        """The number of this call, from 0; None after `most` of them."""
        for number in range(most):
            try:
                os.close(os.open(self.root / f"{what}{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return number
        return None

    def blow(self) -> bool:
        """True if the fault is to fire now; when it does is noted."""
        if self.take("fired", self.charges) is None:
            return False
        mark = self.root / f"{os.getpid()}.tmp"
        mark.write_text(f"{time.monotonic()!r} {os.getpid()}")
        mark.rename(self.root / "when")
        return True

    def fired(self) -> tuple[float, int] | None:
        """When it last fired, by `time.monotonic`, and in which process."""
        try:
            when, pid = (self.root / "when").read_text().split()
        except FileNotFoundError:
            return None
        return float(when), int(pid)


def die(way: str) -> None:
    """Do it, in any thread; returns only where it cannot."""
    if way == "raise":
        raise ValueError("out of order")
    if way == "unpicklable":
        raise AwkwardError(7, "the player")
    if way == "sys.exit":
        sys.exit(EXIT_CODE)
    if way == "os._exit":
        os._exit(EXIT_CODE)
    if way == "SIGSEGV":
        ctypes.string_at(0)
    os.kill(os.getpid(), {"SIGKILL": signal.SIGKILL, "hang": signal.SIGSTOP}[way])


class FaultyPlayer(TagPlayer):
    """A tagged player with a fault.

    Args:
        way: one of `WAYS`.
        stage: one of `STAGES`.
        fuse: see there.
        start: the first start that has the fault; those before die in their first step.
        at: the step, from the start of the player, at which the fault is due or gets planted.
    """

    def __init__(
        self, *args: Any, way: str, stage: str, fuse: Fuse, start: int = 0, at: int = 7,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._way, self._stage, self._fuse, self._at = way, stage, fuse, at
        self._steps = 0
        self._start = fuse.take("start", 1000) or 0
        self._early = self._start < start
        self.episode = self._start * EPISODES_PER_START - 1
        if not self._early:
            self._due("factory")
        if stage in OURS:
            _PLANTS[stage](self._blow)

    def reset(self, **options: Any) -> Any:
        if self._steps:
            self._due("reset")
        return super().reset(**options)

    def step(self, action: int) -> Any:
        self._steps += 1
        if self._early:
            os._exit(EXIT_CODE)
        if self._steps == self._at:
            self._due("step")
        return super().step(action)

    def close(self) -> None:
        super().close()
        self._due("close")

    def _due(self, stage: str) -> None:
        if stage == self._stage:
            self._blow()

    def _blow(self) -> None:
        ready = self._steps >= self._at or self._stage in ("factory", "close")
        if ready and self._fuse.blow():
            die(self._way)


def marked(
    root: Path, tag: Tag, kind: type[FaultyPlayer] = FaultyPlayer, *, charges: int = 0
) -> Any:
    """A factory of a player whose episodes tell which start of it they belong to.

    Args:
        root: a directory for the fuses of all such players.
        tag: of the player.
        kind: of the player; by default one that raises in a step.
        charges: of its fuse.
    """
    fuse = Fuse(root / str(tag.runner), charges)
    fuse.root.mkdir()
    return partial(kind, tag.runner, tag.length, fuse=fuse, way="raise", stage="step")


def _plant_in_wait(doing: Doing, blow: Any) -> None:
    """While the worker waits, seen from a thread beside it."""
    plain = Activity.enter

    def watch(activity: Activity, since: float) -> None:
        while activity.doing is doing and activity.since == since:
            if time.monotonic() - since > _SETTLED_S:
                return blow()
            time.sleep(0.002)

    def enter(activity: Activity, what: int) -> None:
        plain(activity, what)
        if what == doing:
            threading.Thread(target=watch, args=(activity, activity.since), daemon=True).start()

    Activity.enter = enter  # type: ignore[method-assign]


def _plant_in_sending(blow: Any) -> None:
    """Half-way through a message about a block."""
    plain = ResultQueue.put

    def put(results: ResultQueue, *message: Any) -> None:
        if message[0] == "block":
            write, queue = os.write, results._writer.fileno()

            def half(fd: int, data: Any) -> int:
                if fd != queue or len(data) <= _FRAME.size:
                    return write(fd, data)
                done = write(fd, data[:len(data) // 2])
                blow()
                return done

            os.write = half  # type: ignore[assignment]
            try:
                plain(results, *message)
            finally:
                os.write = write
        else:
            plain(results, *message)

    ResultQueue.put = put  # type: ignore[method-assign]


def _plant_in_holding(blow: Any) -> None:
    """Its block is marked as the parent's, and the parent has not been told."""
    plain = Channel.take_block

    def take_block(channel: Channel, block: int) -> None:
        plain(channel, block)
        blow()

    Channel.take_block = take_block  # type: ignore[method-assign]


_PLANTS = {
    "job wait": lambda blow: _plant_in_wait(Doing.JOB_WAIT, blow),
    "prediction wait": lambda blow: _plant_in_wait(Doing.PREDICTION_WAIT, blow),
    "sending": _plant_in_sending,
    "holding": _plant_in_holding,
}
