"""``deterministic=True``: the same bits from run to run, and on every backend.

A run is reduced to digests of all that a learner sees and makes: each batch, the weights after
each update, the memory at the end. Runs must agree in all of them.
"""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mprunner import (
    ConfigurationError,
    EnvRunner,
    EnvRunnerManager,
    ExpReplay,
    LocalPredictor,
    WorkerDied,
)
from mprunner.experience import Array, Batch
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.priorities import Priority
from tests.support.linear import LinearLearner, LinearModel

BACKENDS = ["inline", "thread", "process"]
ROUNDS = 25
HISTORY = 2
N_STEP = 3


class Walk(gym.Env[Array, int]):
    """A random walk with a push; episodes end both ways, after a length that nobody knows."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=3).astype(np.float32)
        self.steps = 0
        return self.at.copy(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        push = np.float32(action - 1) * np.array([1, 0.5, -0.5], np.float32)
        self.at += push + self.np_random.normal(size=3).astype(np.float32)
        far = bool(np.abs(self.at).max() > 4)
        return self.at.copy(), -float(np.abs(self.at).sum()), far, self.steps >= 30, {}


class Digest:
    """What happened, in order, as one number."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *arrays: Any) -> None:
        for array in arrays:
            value = np.ascontiguousarray(array)
            self._hash.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())

    def add_batch(self, batch: Batch) -> None:
        self.add(batch.frames, batch.action, batch.reward, batch.terminated, batch.truncated)
        self.add(batch.discount, batch.version, batch.indices, batch.weights)

    def add_memory(self, memory: ReplayMemory) -> None:
        for i in range(len(memory)):
            self.add(*memory.sample(i))

    def __str__(self) -> str:
        return self._hash.hexdigest()


def make(predictor: Any, backend: str, num_players: int, **changes: Any) -> ExpReplay:
    options: dict[str, Any] = {
        "memory_size": 600,  # so that the rings wrap
        "seed": 11,
        "deterministic": True,
        **changes,
    }
    return ExpReplay(
        predictor,
        Walk,
        num_parallel_players=num_players,
        state_shape=(3,),
        batch_size=32,
        init_memory_size=100,
        update_frequency=13,
        history_len=HISTORY,
        state_dtype="float32",
        backend=backend,
        **options,
    )


def run_original(backend: str, num_players: int, **changes: Any) -> tuple[str, str, str]:
    """Uniform 1-step batches from the iterator; the predictor is served by the parent."""
    learner = LinearLearner(3 * HISTORY, 3, rate=0.01)
    model = LinearModel(learner.weights)
    batches, weights, memory = Digest(), Digest(), Digest()
    with make(model, backend, num_players, **changes) as replay:
        for i, batch in zip(range(ROUNDS), replay):
            batches.add(*batch)
            state, action, reward, is_over = batch
            discount = np.float32(0.99) * ~is_over
            learner.learn(state[..., :-1], action, reward, state[..., 1:], discount)
            weights.add(learner.weights)
            replay.exploration = max(0.2, 1 - i / 20)
            if i % 10 == 9:
                weights.add(*replay.reset_stats())
        memory.add_memory(replay.memory)
    return str(batches), str(weights), str(memory)


def run_local(backend: str, num_players: int) -> tuple[str, str, str]:
    """Prioritised n-step batches; the predictor runs beside the player."""
    learner = LinearLearner(3 * HISTORY, 3, rate=0.01)
    predictor = LocalPredictor(LinearModel, learner.published())
    batches, weights, memory = Digest(), Digest(), Digest()
    priority = {"priority": Priority()}
    with make(predictor, backend, num_players, memory_options=priority) as replay:
        replay.fill()
        for i in range(ROUNDS):
            replay.play()
            batch = replay.memory.sample_batch(32, n_step=N_STEP)
            batches.add_batch(batch)
            errors = learner.learn(
                batch.state, batch.action, batch.reward, batch.next_state, batch.discount
            )
            replay.memory.update_priorities(batch.indices, np.abs(errors))
            weights.add(learner.weights)
            # Not joined by hand: set_weights() does it.
            replay.manager.step(0.5, 5)
            replay.set_weights(learner.published())
            replay.exploration = max(0.2, 1 - i / 20)
        replay.manager.join()
        memory.add_memory(replay.memory)
    return str(batches), str(weights), str(memory)


@pytest.mark.parametrize("num_players", [2, 4])
@pytest.mark.parametrize("run", [run_original, run_local])
def test_same_bits_on_every_backend_twice(run: Any, num_players: int) -> None:
    runs = {(name, i): run(name, num_players) for name in BACKENDS for i in range(2)}
    assert len(set(runs.values())) == 1, runs


def test_another_seed_is_another_run() -> None:
    assert run_original("inline", 2) != run_original("inline", 2, seed=12)


def test_one_runner_is_the_same_on_every_backend() -> None:
    assert len({run_original(name, 1) for name in BACKENDS}) == 1


def test_the_pace_does_not_matter() -> None:
    """However the steps are spread over blocks and messages, they end in the same place."""
    digests = {run_original("process", 2, maximum_staleness=n) for n in (16, 26, 200)}
    assert len(digests) == 1


def test_q_values_have_one_precision() -> None:
    """An `act` that computes with Q does the same on every backend."""

    class Softmax(EnvRunner):
        def act(self, state: Array, exploration: float) -> int:
            q = self.q_values(state)
            assert q.dtype == np.float64
            odds = np.exp(q - q.max()).cumsum()
            return int(np.searchsorted(odds, self.rng.random() * odds[-1], side="right"))

    def play(backend: str) -> str:
        memory = ReplayMemory(300, (3,), HISTORY, "float32")
        weights = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)
        model = LinearModel(weights)
        runners = [Softmax(Walk, model, memory, HISTORY) for _ in range(2)]
        digest = Digest()
        with EnvRunnerManager(runners, 8, backend=backend, seed=5, deterministic=True) as pool:
            for _ in range(60):
                pool.step(0.0, 4)
            pool.join()
            digest.add_memory(memory)
        return str(digest)

    assert len({play(name) for name in BACKENDS}) == 1


def test_steps_asked_before_new_weights_act_on_the_old_ones() -> None:
    learner = LinearLearner(3 * HISTORY, 3, rate=0.01)
    predictor = LocalPredictor(LinearModel, learner.published())
    with make(predictor, "process", 2) as replay:
        replay.manager.step(0.0, 13)
        replay.manager.step(0.0, 13)
        replay.set_weights(learner.published())
        assert replay.stats().steps_stored == 26
        assert dict(replay.stats().version_lag) == {0: 26}


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(WorkerDied):
        with make(None, "process", 2) as replay:
            replay.fill()
            pid = replay.stats().workers[1].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while True:
                replay.play()


def test_restarting_workers_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="restart"):
        make(None, "process", 2, on_failure="restart")


def run_torch(backend: str, num_players: int) -> tuple[str, str]:
    """A network acts beside the players, and learns with Adam; batches and weights."""
    import torch
    from torch import nn

    from mprunner.predictors import from_torch

    def make_net() -> Any:
        layers = [nn.Flatten(), nn.Linear(3 * HISTORY, 16), nn.ReLU(), nn.Linear(16, 3)]
        return nn.Sequential(*layers)

    torch.set_num_threads(1)
    torch.manual_seed(4)
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    batches, weights = Digest(), Digest()
    predictor = LocalPredictor(from_torch(make_net), net.state_dict())
    with make(predictor, backend, num_players) as replay:
        for i, batch in zip(range(ROUNDS), replay):
            batches.add(*batch)
            frames, action, reward, is_over = (torch.from_numpy(item) for item in batch)
            with torch.no_grad():
                value = net(frames[..., 1:]).max(1).values
            q = net(frames[..., :-1]).gather(1, action[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(q, reward + 0.99 * value * ~is_over)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weights.add(*(parameter.detach().numpy() for parameter in net.parameters()))
            replay.set_weights(net.state_dict())
            replay.exploration = max(0.2, 1 - i / 20)
    return str(batches), str(weights)


@pytest.mark.slow
@pytest.mark.parametrize("num_players", [2, 4])
def test_same_bits_with_torch(num_players: int) -> None:
    pytest.importorskip("torch", reason="needs torch, which `make test-slow` installs")
    runs = {(name, i): run_torch(name, num_players) for name in BACKENDS for i in range(2)}
    assert len(set(runs.values())) == 1, runs
