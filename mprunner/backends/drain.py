"""The thread that looks after all workers of a pool.

Owns every wait for a worker: it takes blocks into the memory, serves predictions, sees workers
die and stall, and applies the failure policy. It alone starts and reaps processes, so Ctrl-C,
which Python raises in the main thread, can't come between a start and its bookkeeping.
"""

from __future__ import annotations

import math
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection

from mprunner.activity import Doing
from mprunner.backends.base import Settings
from mprunner.backends.channel import MAX_SERVED_ACTIONS, Channel
from mprunner.backends.failure import tell_restart, tell_unneeded
from mprunner.backends.member import Member
from mprunner.backends.serving import PredictionServer
from mprunner.backends.worker import WorkerSpec
from mprunner.blocks import BlockInfo
from mprunner.errors import ConfigurationError, WorkerError, WorkerRaised
from mprunner.experience import Array, Rows
from mprunner.replay.memory import ReplayMemory
from mprunner.stats import Recorder

#: Seconds between two looks at what no descriptor tells of, while something is due soon.
_SOON_S = 0.02


class Drain:
    """All members of a pool and the thread that looks after them.

    Args:
        members: not started yet.
        server: of the predictors that stay in the parent.
        recorder: its ``changed`` is notified of starts, landings and ends.
        memory: where an unfinished episode of a dead worker is sealed.
        settings: of the manager.
        land: takes a worker's rows.
        make_spec: what worker `index` is started with after so many restarts.
        fail: takes what the pool must not survive.

    Attributes:
        lock: a member's jobs and process against their other users.
        closing: no worker is to be started any more.
        hasty: nor are the jobs under way to be finished; what fails now is of no interest.
        failed: something has been reported to `fail`, or as `start_error`.
        start_error: what made the start fail.
        started: all players have stood at their first observation.
    """

    def __init__(
        self,
        members: Sequence[Member],
        server: PredictionServer,
        recorder: Recorder,
        memory: ReplayMemory,
        settings: Settings,
        land: Callable[[int, Rows, BlockInfo], None],
        make_spec: Callable[[int, int], WorkerSpec],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._members = members
        self._server = server
        self._recorder = recorder
        self._memory = memory
        self._settings = settings
        self._land = land
        self._make_spec = make_spec
        self._fail = fail
        self.lock = threading.Lock()
        self.closing = False
        self.hasty = False
        self.failed = False
        self.started = False
        self.start_error: BaseException | None = None
        self._serving = True
        self._quit = False
        self._asking: dict[int, int] = {}  # worker -> its number of actions
        self._look_at = 0.0
        limit = settings.step_timeout
        self._look_every = math.inf if limit is None else min(0.25, limit / 4)
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = connection.Pipe(duplex=False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._woken)
        self.thread = threading.Thread(target=self._main, name="mprunner-drain", daemon=True)

    # ---- for other threads

    def wake(self) -> None:
        """Have the thread look at once at what has been asked of it."""
        self._wake_writer.send_bytes(b"")

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until `condition` holds; False if it does not by then, or never will.

        Args:
            condition: of what the thread does; it is looked at now and then.
            deadline: by `time.monotonic`.
        """
        changed = self._recorder.changed
        with changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or not self.thread.is_alive():
                    return condition()
                changed.wait(min(left, 0.05))
        return True

    def quit(self) -> None:
        """End the thread, unless it is stuck in a predictor; reap what it has not."""
        self._quit = True
        self.wake()
        if self.thread.is_alive():
            self.thread.join(0.5)
        for member in self._members:
            if member.alive:
                member.reap()
            member.state = "closed"
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def forget(self) -> None:
        """In a forked child: close what was inherited, touch nothing else."""
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    # ---- the thread

    def _main(self) -> None:
        try:
            self._start_all()
            while not self._quit:
                self._pump()
        except BaseException as error:
            if self._quit:  # it was stuck while the pool was closed
                return
            self._report(error)
            self._go_on_without_service()

    def _go_on_without_service(self) -> None:
        """After a failure of our own: let workers write and end, until the pool is closed."""
        self._serving = False
        try:
            while not self._quit:
                self._pump()
        except BaseException as error:
            if not self._quit:
                self._report(error)

    def _start_all(self) -> None:
        for member in self._members:
            self._launch(member)

    def _pump(self) -> None:
        """Take in all that is there, serve who asks, see who is late."""
        look_at = self._look_at
        self._take_in(None if look_at == math.inf else max(0.0, look_at - time.monotonic()))
        if self._asking and self._serving:
            self._serve()
        if self._look_at < math.inf and time.monotonic() >= self._look_at:
            self._look_round()

    def _take_in(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()

    def _look_round(self) -> None:
        now = time.monotonic()
        if any(member.is_late(now, member.index in self._asking) for member in self._members):
            # It may have waited for us, while a predictor or the memory's lock has held us up.
            self._take_in(0)
            now = time.monotonic()
        for member in self._members:
            if member.alive:
                stalled = member.look(now, member.index in self._asking)
                if stalled is not None:
                    self._take_failure(member, stalled)
            elif member.state == "restarting" and now >= member.restart_at:
                self._restart(member)
        soon = any(member.due for member in self._members)
        self._look_at = now + (_SOON_S if soon else self._look_every)

    def _woken(self) -> None:
        self._wake_reader.recv_bytes()
        self._look_at = 0.0

    def _take_results(self, member: Member, channel: Channel) -> None:
        if member.channel is not channel or not member.alive:
            return  # its sentinel was in the same round, before this
        for kind, *rest in channel.results.get_all():
            if kind == "block":
                self._take_block(member, channel, rest[0], BlockInfo(*rest[1:]))
            elif kind == "ask":
                self._asking[member.index] = member.num_actions
            elif kind == "ready":
                self._take_ready(member, *rest)
            elif kind == "raised":
                self._look_at = 0.0
                member.expect_end()
                self._take_failure(member, WorkerRaised(member.index, *rest))
            else:
                assert kind == "closed"
                self._look_at = 0.0
                member.leaving = True
                member.expect_end()

    def _take_block(self, member: Member, channel: Channel, block: int, info: BlockInfo) -> None:
        n = info.num_rows
        member.landed += info.num_steps
        rows = Rows(channel.states[block][:n], channel.meta[block][:n], info.provisional)
        self._land(member.index, rows, info)
        channel.give_block(block)
        member.touch()

    def _take_ready(self, member: Member, num_actions: int) -> None:
        member.num_actions = num_actions
        if self._server.serves(member.index) and num_actions > MAX_SERVED_ACTIONS:
            self._report(
                ConfigurationError(
                    f"worker {member.index}'s player has {num_actions} actions; a predictor in "
                    f"the parent can serve at most {MAX_SERVED_ACTIONS}: use a LocalPredictor"
                )
            )
        with self._recorder.changed:
            member.state = "running"
            self._recorder.changed.notify_all()

    def _serve(self) -> None:
        asking, self._asking = self._asking, {}
        try:
            self._server.answer(asking, self._fetch, self._reply)
        except Exception as error:
            self._serving = False
            if not self._quit:
                self._report(error)

    def _fetch(self, worker: int, out: Array) -> None:
        channel = self._members[worker].channel
        assert channel is not None
        out[...] = channel.question

    def _reply(self, worker: int, q: Array) -> None:
        member = self._members[worker]
        assert member.channel is not None
        member.touch()
        member.channel.answer(q)

    # ---- failure, death and replacement

    @property
    def _may_restart(self) -> bool:
        return self._settings.on_failure == "restart" and self.started and not self.closing

    def _take_failure(self, member: Member, error: WorkerError) -> None:
        """It fails, and its end is to come; a policy that replaces it waits for that."""
        first = member.error is None or member.error is error
        member.error = member.error or error
        if not first or not self._may_restart:
            self._tell(member, error)

    def _on_sentinel(self, member: Member, channel: Channel) -> None:
        """A process has ended; what it had sent before is taken in first."""
        self._take_results(member, channel)
        self._selector.unregister(channel.results.reader)
        self._selector.unregister(member.sentinel)
        self._asking.pop(member.index, None)
        self._memory.seal(member.index)
        with self.lock:
            lost = member.settle()
            error = member.reap()
        self._bury(member, error, lost)

    def _bury(self, member: Member, error: WorkerError, lost: int) -> None:
        wait = member.budget.spend(time.monotonic()) if self._may_restart else None
        if wait is not None:
            member.state = "restarting"
            member.restart_at = time.monotonic() + wait
            self._look_at = 0.0
            self._recorder.add_restart(member.index, lost)
            tell_restart(self._settings, error, wait)
            return
        if not member.told and not self._ends_well(member, error, lost):
            self._tell(member, error)
        member.state = "closed" if self.closing else "failed"
        self._recorder.add_lost(member.index, lost)  # notifies of the end, too

    def _ends_well(self, member: Member, error: WorkerError, lost: int) -> bool:
        """It was to end, or has died idle in a pool that replaces its dead."""
        if not self.closing or member.error is not None:
            return False
        if self.hasty or member.leaving:
            return True
        closes = member.activity is not None and member.activity.doing is Doing.CLOSING
        if closes or member.jobs or self._settings.on_failure != "restart":
            return False
        tell_unneeded(error, lost)
        return True

    def _restart(self, member: Member) -> None:
        member.restarts += 1
        self._launch(member)

    def _launch(self, member: Member) -> None:
        failure = None
        with self.lock:
            if self.closing:
                member.state = "closed"
                return
            try:
                member.start(partial(self._make_spec, member.index))
            except (OSError, EOFError) as error:
                failure = WorkerError(
                    member.index, f"worker {member.index} could not be started: {error!r}"
                )
                failure.__cause__ = error
        if failure is not None:
            self._bury(member, failure, 0)
            return
        channel = member.channel
        assert channel is not None
        results = partial(self._take_results, member, channel)
        ended = partial(self._on_sentinel, member, channel)
        self._selector.register(channel.results.reader, selectors.EVENT_READ, results)
        self._selector.register(member.sentinel, selectors.EVENT_READ, ended)

    def _tell(self, member: Member, error: WorkerError) -> None:
        member.told = True
        self._report(error)

    def _report(self, error: BaseException) -> None:
        with self._recorder.changed:
            self.failed = True
            if not self.started:
                self.start_error = self.start_error or error
            self._recorder.changed.notify_all()
        if self.started:
            self._fail(error)
