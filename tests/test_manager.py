"""`EnvRunnerManager`: what it refuses, how it deals steps out, one sticky failure, its end."""

from __future__ import annotations

import gc
import logging
import weakref

import gymnasium as gym
import numpy as np
import pytest

from mprunner import (
    ClosedError,
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    LocalPredictor,
    MprunnerError,
    ReplayMemory,
    assembly,
)
from mprunner.backends.base import Backend
from mprunner.backends.local import InlineBackend
from mprunner.backends.process.backend import ProcessBackend
from mprunner.pace import Pace
from tests.support.streams import RecordingMemory, check_record, check_streams
from tests.support.tagged import CLOSES, TAG_SHAPE, Ledger, Tag, TagPlayer
from tests.support.toys import GreedyModel, SeededPlayer, greedy
from tests.support.waiting import HANG_S, Background, eventually


def memory_of(**options):
    return RecordingMemory(200, TAG_SHAPE, 2, "int32", **options)


def runners_of(memory, num_runners=2, predictor=None):
    return [EnvRunner(Tag(i, 5).factory(), predictor, memory, 2) for i in range(num_runners)]


# ---- what is refused


@pytest.mark.parametrize("staleness", [0, -1, 1.5, None, "3", float("nan")])
def test_a_staleness_that_cannot_work(staleness):
    with pytest.raises(ValueError, match="maximum_staleness is .* at least 1"):
        EnvRunnerManager(runners_of(memory_of()), staleness)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"backend": "threads"}, "backend is 'threads'; expected one of inline, thread, process"),
        ({"start_method": "forks", "backend": "process"}, "start_method is 'forks'"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; expected one of raise, restart"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"restart_window": 0}, "restart_window is 0"),
        ({"step_timeout": 0}, "step_timeout is 0"),
        ({"start_timeout": -1}, "start_timeout is -1"),
        ({"close_timeout": float("nan")}, "close_timeout is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"deterministic": True, "on_failure": "restart"}, "deterministic=True cannot go with"),
    ],
)
def test_options_that_cannot_work(options, words):
    memory = memory_of()
    with pytest.raises(ConfigurationError, match=words):
        EnvRunnerManager(runners_of(memory), 4, **options)
    EnvRunnerManager(runners_of(memory), 4, backend="inline").close()  # nothing is claimed


def test_no_runner():
    with pytest.raises(ConfigurationError, match="env_runners is empty"):
        EnvRunnerManager([], 4)


def test_what_is_no_runner():
    with pytest.raises(ConfigurationError, match=r"env_runners\[1\] is TagPlayer"):
        EnvRunnerManager([*runners_of(memory_of(), 1), TagPlayer()], 4)


def test_the_same_runner_twice():
    runner, other = runners_of(memory_of())
    with pytest.raises(ValueError, match=r"env_runners\[2\] is in the list twice"):
        EnvRunnerManager([runner, other, runner], 4)


def test_one_environment_in_two_runners():
    memory = memory_of()
    env = TagPlayer()
    with pytest.raises(ValueError, match=r"\[0\] and env_runners\[1\] have the same environment"):
        EnvRunnerManager([EnvRunner(env, None, memory, 2) for _ in range(2)], 4)


def test_one_environment_in_two_wrappers():
    memory = ReplayMemory(100, (4,), 2, "float32")
    env = gym.make("CartPole-v1")
    players = [env, gym.wrappers.TimeLimit(env, 5)]
    with pytest.raises(ValueError, match="have the same environment"):
        EnvRunnerManager([EnvRunner(player, None, memory, 2) for player in players], 4)


def test_one_factory_in_two_runners_is_fine():
    memory = memory_of()
    runners = [EnvRunner(TagPlayer, None, memory, 2) for _ in range(2)]
    with EnvRunnerManager(runners, 4, backend="inline") as manager:
        manager.step(1.0, num_steps=4)
    assert memory.num_steps == 4


def test_runners_of_two_memories():
    runners = runners_of(memory_of()) + runners_of(memory_of())
    with pytest.raises(ConfigurationError, match=r"env_runners\[2\] has another memory"):
        EnvRunnerManager(runners, 4)


def test_a_memory_too_small_for_its_streams():
    memory = ReplayMemory(8, TAG_SHAPE, 2, "int32")
    with pytest.raises(ConfigurationError, match="need at least"):
        EnvRunnerManager(runners_of(memory, 3), 4, backend="inline")
    EnvRunnerManager(runners_of(memory, 2), 4, backend="inline").close()


def test_a_memory_that_another_manager_uses():
    memory = memory_of()
    with EnvRunnerManager(runners_of(memory), 4, backend="inline") as first:
        with pytest.raises(ConfigurationError, match="in use"):
            EnvRunnerManager(runners_of(memory), 4, backend="inline")
        first.step(1.0, num_steps=4)
        check_streams(memory, [Tag(0, 5), Tag(1, 5)])


@pytest.fixture
def pool():
    """A manager that is not to be used up."""
    memory = memory_of()
    with EnvRunnerManager(runners_of(memory), 4, backend="inline") as manager:
        yield manager
    assert memory.num_steps == manager.stats().steps_asked


@pytest.mark.parametrize("exploration", [-0.1, 1.1, float("nan"), None, "much", 0.5])
def test_explorations_that_are_refused(pool, exploration):
    with pytest.raises(ConfigurationError, match="exploration is"):
        pool.step(exploration)
    assert pool.stats().steps_asked == 0
    pool.step(1)  # a mistake in an argument is not a failure of the pool


@pytest.mark.parametrize("num_steps", [0, -1, 1.5, None, "2"])
def test_numbers_of_steps_that_are_refused(pool, num_steps):
    with pytest.raises(ConfigurationError, match="num_steps is"):
        pool.step(1.0, num_steps)
    assert pool.stats().steps_asked == 0


def test_exploration_below_one_needs_a_predictor_in_every_runner():
    memory = memory_of()
    runners = [*runners_of(memory, 1), EnvRunner(TagPlayer, np.zeros, memory, 2)]
    with EnvRunnerManager(runners, 4, backend="inline") as manager:
        with pytest.raises(ConfigurationError, match="the predictor is None"):
            manager.step(0.9)


def test_weights_without_a_local_predictor(pool):
    with pytest.raises(ConfigurationError, match="no runner has a LocalPredictor"):
        pool.set_weights(greedy(1))


def test_weights_are_refused_for_all_before_any_is_published():
    memory = memory_of()
    others = LocalPredictor(GreedyModel, {"best": np.zeros(1, np.int32)})
    runners = [
        EnvRunner(TagPlayer, predictor, memory, 2)
        for predictor in (LocalPredictor(GreedyModel, greedy(3)), others)
    ]
    with EnvRunnerManager(runners, 4, backend="inline") as manager:
        with pytest.raises(ConfigurationError):
            manager.set_weights(greedy(1))
        manager.step(0.0, num_steps=2)
        manager.step(0.0, num_steps=2)
    assert [record.actions for record in memory.records] == [[3, 3], [0, 0]]
    assert [record.versions for record in memory.records] == [[0, 0], [0, 0]]


# ---- what is chosen for the user


def test_one_runner_runs_inline_and_several_in_processes():
    memory = memory_of()
    with EnvRunnerManager(runners_of(memory, 1), 4) as manager:
        assert type(manager._backend) is InlineBackend
    memory = memory_of()
    with EnvRunnerManager(runners_of(memory, 2), 4) as manager:
        assert type(manager._backend) is ProcessBackend
        pids = [worker.pid for worker in manager.stats().workers]
        assert None not in pids and len(set(pids)) == 2


def test_fresh_entropy_is_logged_and_repeats_the_run(caplog):
    def play(seed):
        memory = RecordingMemory(200, TAG_SHAPE, 1, "int64")
        runners = [EnvRunner(lambda i=i: SeededPlayer(i), None, memory, 1) for i in range(2)]
        with EnvRunnerManager(runners, 4, backend="inline", seed=seed) as manager:
            manager.step(1.0, num_steps=30)
        return [record.state.tolist() for record in memory.records]

    with caplog.at_level(logging.INFO, "mprunner"):
        first = play(None)
    (message,) = [record.getMessage() for record in caplog.records]
    seed = int(message.split("seed=")[1].split()[0])
    assert play(seed) == first


def test_a_runners_own_seed_goes_first():
    def play(manager_seed):
        memory = RecordingMemory(200, TAG_SHAPE, 1, "int64")
        runners = [
            EnvRunner(lambda: SeededPlayer(0), None, memory, 1, seed=5),
            EnvRunner(lambda: SeededPlayer(1), None, memory, 1, seed=5),
            EnvRunner(lambda: SeededPlayer(2), None, memory, 1),
        ]
        with EnvRunnerManager(runners, 4, backend="inline", seed=manager_seed) as manager:
            manager.step(1.0, num_steps=30)
        return [record.state[:, 1:].tolist() for record in memory.records]

    one, other = play(1), play(2)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert one[0] == one[1]  # as asked for


# ---- how steps are dealt out


class Scripted(Backend):
    """Executes what the test says, when it says so."""

    def start(self):
        self.submitted = []
        self.full = set()
        self.paces = [Pace() for _ in self.runners]
        for account, pace in zip(self.accounts, self.paces):
            account.begin(pace)

    def send(self, worker):
        account = self.accounts[worker]
        for job in account.unsent():
            self.paces[worker].send(job.end)
            self.submitted.append((worker, job.exploration, job.num_steps))
            account.sent = job.end

    def execute(self, worker, num_steps=1):
        """So many steps of a worker are executed and stored."""
        for _ in range(num_steps):
            self.paces[worker].done()
        account = self.accounts[worker]
        account.writer.num_steps += num_steps
        account.prune()
        self.ledger.notify()

    def want_progress(self):
        for pace in self.paces:
            pace.want_progress()

    def can_take(self, worker):
        return worker not in self.full

    def close(self, finish):
        self.finished = finish

    def worker_stats(self, worker):
        return self.make_stats(worker, None, None, "running", 0.0)


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setitem(assembly._BACKENDS, "thread", f"{__name__}:Scripted")

    def make(num_runners=3, staleness=6, **options):
        runners = runners_of(memory_of(), num_runners)
        made.append(EnvRunnerManager(runners, staleness, backend="thread", **options))
        return made[-1], made[-1]._backend

    made = []
    yield make
    for manager in made:
        manager.close()


def test_steps_are_dealt_in_turn(scripted):
    manager, backend = scripted()
    for i in range(6):
        manager.step(i / 10 + 0.5 if i == 5 else 1.0)
    assert [worker for worker, _, _ in backend.submitted] == [0, 1, 2, 0, 1, 2]
    assert manager.stats().outstanding == manager.stats().outstanding_peak == 6


def test_who_has_least_to_do_is_next(scripted):
    manager, backend = scripted()
    for _ in range(6):
        manager.step(1.0)
    backend.execute(1, 2)
    for _ in range(2):
        manager.step(1.0)
    assert backend.submitted[6:] == [(1, 1.0, 1)] * 2


def test_who_cannot_take_more_is_waited_for(scripted):
    manager, backend = scripted()
    backend.full = {0, 1, 2}
    stepping = Background(lambda: manager.step(1.0))
    assert stepping.running and not backend.submitted
    backend.full = set()
    stepping.result()
    assert len(backend.submitted) == 1


def test_deterministic_never_leaves_the_turn(scripted):
    manager, backend = scripted(deterministic=True)
    for _ in range(6):
        manager.step(1.0)
    backend.execute(2, 2)
    manager.step(1.0)
    manager.step(1.0)
    assert [worker for worker, _, _ in backend.submitted] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_job_larger_than_the_pace(scripted):
    manager, backend = scripted(num_runners=2, staleness=5)
    stepping = Background(lambda: manager.step(1.0, num_steps=12))
    executed = 0
    while executed < 12:
        eventually(lambda: manager.stats().outstanding > 0)
        assert manager.stats().outstanding <= 5
        for worker, account in enumerate(backend.accounts):
            if account.outstanding:
                backend.execute(worker)
                executed += 1
    stepping.result()
    assert sum(num_steps for _, _, num_steps in backend.submitted) == 12
    assert {worker for worker, _, _ in backend.submitted} == {0, 1}
    assert manager.stats().outstanding_peak <= 5


def test_who_waits_asks_for_progress(scripted):
    manager, backend = scripted(num_runners=1, staleness=8)
    manager.step(1.0, num_steps=8)
    stepping = Background(lambda: manager.step(1.0))
    pace = backend.paces[0]
    eventually(lambda: pace._cells[pace._WAKE_AT] == 4)
    # The worker shall send its block half-way, not after the whole job.
    assert [pace.done() for _ in range(4)] == [False, False, False, True]
    stepping.result()


def test_a_failure_ends_every_wait_and_stays(scripted):
    manager, backend = scripted(num_runners=1, staleness=1)
    manager.step(1.0)
    waiting = [Background(lambda: manager.step(1.0)), Background(manager.join)]
    assert all(one.running for one in waiting)
    first, second = MprunnerError("first"), MprunnerError("second")
    backend.ledger.fail(first)
    backend.ledger.fail(second)
    for one in waiting:
        with pytest.raises(MprunnerError, match="first"):
            one.result()
    for call in (lambda: manager.step(1.0), manager.join, manager.reset_stats,
                 manager.__enter__, lambda: manager.set_weights({})):
        with pytest.raises(MprunnerError) as raised:
            call()
        assert raised.value is first
    assert manager.stats().steps_asked == 1
    manager.close()
    assert backend.finished is False


def test_a_failure_while_the_with_block_ends_is_raised(scripted):
    manager, backend = scripted()
    with pytest.raises(MprunnerError, match="late"):
        with manager:
            backend.close = lambda finish: backend.ledger.fail(MprunnerError("late"))


def test_an_exception_in_the_with_block_goes_first(scripted):
    manager, backend = scripted()
    with pytest.raises(ZeroDivisionError):
        with manager:
            backend.ledger.fail(MprunnerError("of a worker"))
            raise ZeroDivisionError
    assert backend.finished is False


def test_close_ends_a_step_that_waits(scripted):
    manager, backend = scripted(num_runners=1, staleness=1)
    manager.step(1.0)
    stepping = Background(lambda: manager.step(1.0))
    joining = Background(manager.join)
    assert stepping.running and joining.running
    manager.close()
    for one in (stepping, joining):
        with pytest.raises(ClosedError):
            one.result()


def test_join_is_told_what_was_lost(scripted):
    manager, backend = scripted(num_runners=2)
    manager.step(1.0, num_steps=2)
    manager.step(1.0, num_steps=3)
    assert not manager.join(0)
    backend.execute(0, 1)
    backend.accounts[0].lose(1)
    assert not manager.join(0)
    backend.execute(1, 3)
    assert manager.join(0)
    stats = manager.stats()
    assert (stats.steps_asked, stats.steps_stored, stats.steps_lost) == (5, 4, 1)


def test_join_is_not_deceived_by_others(scripted):
    manager, backend = scripted(num_runners=2, staleness=100)
    manager.step(1.0)
    joining = Background(manager.join)
    manager.step(1.0, num_steps=50)
    backend.execute(1, 50)
    assert joining.running and not manager.join(0)
    backend.execute(0)
    assert joining.result() is True


def test_reset_stats(scripted):
    manager, backend = scripted()
    assert manager.reset_stats() == (None, None)
    backend.recorder.add_block(0, 3, [1.0, 4.0, -2.5], [], {})
    assert manager.reset_stats() == (2.5 / 3, 4.0)
    assert manager.reset_stats() == (None, None)


# ---- the end of a manager that nobody closes


def test_a_manager_that_is_dropped_closes_its_players(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    memory = memory_of()
    for backend in ("inline", "thread", "process"):
        before = ledger.total(CLOSES)
        runners = [EnvRunner(Tag(i, 5).factory(ledger=ledger), None, memory, 2) for i in range(2)]
        manager = EnvRunnerManager(runners, 4, backend=backend)
        manager.step(1.0)
        assert manager.join(HANG_S)
        del manager
        gc.collect()
        eventually(lambda: ledger.total(CLOSES) == before + 2)
    EnvRunnerManager(runners_of(memory), 4, backend="inline").close()  # the memory is free


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_closed_manager_keeps_nothing_alive(backend, failed):
    memory = memory_of()

    def predictor(states):
        if failed:
            raise KeyError
        return np.zeros((len(states), 4))

    manager = EnvRunnerManager(runners_of(memory, predictor=predictor), 4, backend=backend)
    try:
        manager.step(0.0)
        manager.join(HANG_S)
    except MprunnerError:
        assert failed
    manager.close()
    kept = [weakref.ref(manager), weakref.ref(manager._backend), weakref.ref(memory)]
    del manager, memory
    gc.collect()
    assert [ref() for ref in kept] == [None, None, None]


def test_a_manager_that_goes_leaves_the_next_ones_streams_alone():
    memory = memory_of()
    first = EnvRunnerManager(runners_of(memory), 4, backend="inline")
    first.step(1.0, num_steps=3)
    first.close()
    with EnvRunnerManager(runners_of(memory), 4, backend="inline") as second:
        second.step(1.0, num_steps=3)
        del first
        gc.collect()
        second.step(1.0, num_steps=4)
        for i, record in enumerate(memory.records):
            check_record(record, Tag(i, 5), 2)
        with pytest.raises(ConfigurationError, match="in use"):
            EnvRunnerManager(runners_of(memory), 4, backend="inline")
