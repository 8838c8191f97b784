"""Contenders with engines of their own: EnvPool, ALE's vector environment, torchrl, Ray."""

from __future__ import annotations

import abc
import time
from typing import Any

import numpy as np

from benchmarks.contenders.base import Contender, Settings
from benchmarks.harness.pools import MEMORY_ROWS
from benchmarks.harness.session import Ring, Session
from benchmarks.harness.workloads import NUM_ACTIONS, factory


class _Engine(Session):
    """Simulators in threads of a C++ engine that gives batches of those that are ready.

    New actions are sent before a batch is stored, so the threads go on meanwhile. Both engines
    reset in the step after the end, and then no transition is made.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self._ring = Ring(num_envs)
        self._rng = np.random.default_rng(0)
        self._over = np.zeros(num_envs, bool)
        self._actions = np.zeros(num_envs, np.int32)

    def turn(self) -> int:
        """Take a batch, send the next actions, store the batch."""
        frames, rewards, terminated, truncated, info = self._receive()
        ids = info["env_id"]
        taken = self._actions[ids]
        actions = self._rng.integers(NUM_ACTIONS, size=len(ids), dtype=np.int32)
        self._actions[ids] = actions
        self._send(actions, ids)
        begins, over = self._over[ids], terminated | truncated
        self._over[ids] = over
        self._ring.add(ids, frames[:, -1], taken, rewards, over)
        return len(ids) - int(begins.sum())

    @abc.abstractmethod
    def _receive(self) -> Any:
        """The next batch: frames, rewards, terminated, truncated, info."""

    @abc.abstractmethod
    def _send(self, actions: np.ndarray, ids: np.ndarray) -> None:
        """Have these environments act."""


class EnvPool(_Engine):
    """EnvPool; synchronous where the batch is as large as the pool."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        assert workload == "breakout" and predictor is None
        import envpool

        super().__init__(settings["num_envs"])
        self._envs = envpool.make_gymnasium(
            "Breakout-v5", stack_num=1, reward_clip=False, noop_max=30, **settings
        )
        self._envs.async_reset()
        # The first resets take long; play only counts what comes after them.
        ready: set[int] = set()
        while len(ready) < settings["num_envs"]:
            *_, info = self._receive()
            ready.update(info["env_id"].tolist())
            self._send(np.zeros(len(info["env_id"]), np.int32), info["env_id"])

    def _receive(self) -> Any:
        return self._envs.recv()

    def _send(self, actions: np.ndarray, ids: np.ndarray) -> None:
        self._envs.send(actions, ids)

    def close(self) -> None:
        """Stop the threads."""
        self._envs.close()


class AleVector(_Engine):
    """ALE's own vector environment."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        assert workload == "breakout" and predictor is None
        from ale_py.vector_env import AtariVectorEnv

        super().__init__(settings["num_envs"])
        self._envs = AtariVectorEnv("breakout", stack_num=1, reward_clipping=False, **settings)
        self._first: Any = self._envs.reset(seed=0)

    def _receive(self) -> Any:
        if self._first is None:
            return self._envs.recv()
        (frames, info), self._first = self._first, None
        nothing = np.zeros(len(frames), bool)
        return frames, nothing, nothing, nothing, info

    def _send(self, actions: np.ndarray, ids: np.ndarray) -> None:
        self._envs.send(actions)

    def close(self) -> None:
        """Stop the threads."""
        self._envs.close()


class Collector(Session):
    """torchrl's MultiAsyncCollector and a replay buffer of tensors.

    Either its workers write to the shared buffer themselves (`start`), or the batches that it
    yields are stored here.
    """

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        assert predictor is None
        import torch
        from torchrl.collectors import MultiAsyncCollector
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

        torch.set_num_threads(1)
        make = _TorchEnv(workload)
        shared = settings["workers_write"]
        storage = (LazyMemmapStorage if shared else LazyTensorStorage)(MEMORY_ROWS)
        self._buffer = TensorDictReplayBuffer(storage=storage, batch_size=64, shared=shared)
        self._collector = MultiAsyncCollector(
            [make] * settings["workers"],
            None,
            frames_per_batch=settings["frames_per_batch"],
            total_frames=-1,
            storing_device="cpu",
            compact_obs=True,
            replay_buffer=self._buffer if shared else None,
        )
        self._batches: Any = None
        self._written = 0
        if shared:
            self._collector.start()
            while not self._buffer.write_count:
                time.sleep(0.01)
            self._written = self._buffer.write_count
        else:
            self._batches = iter(self._collector)
            next(self._batches)

    def turn(self) -> int:
        """Store a batch, or count what was stored meanwhile."""
        if self._batches is not None:
            batch = next(self._batches)
            self._buffer.extend(batch.reshape(-1))
            return int(batch.numel())
        time.sleep(0.01)
        before, self._written = self._written, self._buffer.write_count
        return int(self._written - before)

    def close(self) -> None:
        """Stop the workers."""
        self._collector.shutdown()


class _TorchEnv:
    """Makes a simulator behind torchrl's face, in the worker."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __call__(self) -> Any:
        from torchrl.envs import GymWrapper

        return GymWrapper(factory(self._workload)(), categorical_action_encoding=True)


class Actor:
    """A simulator in a Ray actor, which plays many steps per task."""

    def __init__(self, workload: str, seed: int) -> None:
        self._env = factory(workload)()
        self._rng = np.random.default_rng(seed)
        self._env.reset(seed=seed)
        self._over = False

    def play(self, num_rows: int) -> tuple[Any, ...]:
        """So many frames, with what was done before each; a reset is a row, too.

        Returns:
            The rows, and how many transitions are among them.
        """
        frames = np.empty((num_rows, 84, 84), np.uint8)
        actions = self._rng.integers(NUM_ACTIONS, size=num_rows, dtype=np.int32)
        rewards = np.zeros(num_rows, np.float32)
        ends = np.zeros(num_rows, np.uint8)
        transitions = num_rows
        for i, action in enumerate(actions.tolist()):
            if self._over:
                frames[i], _ = self._env.reset()
                self._over = False
                transitions -= 1
                continue
            frames[i], rewards[i], terminated, truncated, _ = self._env.step(action)
            ends[i] = self._over = terminated or truncated
        return frames, actions, rewards, ends, transitions


class RayActors(Session):
    """Ray actors with two outstanding tasks each, whose rows are stored as they are done."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        assert predictor is None
        import ray

        self._ray = ray
        workers, self._rows = settings["workers"], settings["steps"]
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            logging_level="error",
            object_store_memory=500_000_000,
        )
        remote = ray.remote(num_cpus=1)(Actor)
        self._actors = [remote.remote(workload, seed) for seed in range(workers)]
        self._ring = Ring(workers)
        self._tasks: dict[Any, int] = {}
        for _ in range(2):
            for i in range(workers):
                self._ask(i)

    def _ask(self, worker: int) -> None:
        self._tasks[self._actors[worker].play.remote(self._rows)] = worker

    def turn(self) -> int:
        """Take in the first task that is done, and ask for another one."""
        (done,), _ = self._ray.wait(list(self._tasks), num_returns=1)
        worker = self._tasks.pop(done)
        self._ask(worker)
        *rows, transitions = self._ray.get(done)
        self._ring.extend(worker, *rows)
        return int(transitions)

    def close(self) -> None:
        """Stop Ray."""
        self._ray.shutdown()


ENGINES = (
    Contender(
        "EnvPool, synchronous",
        "envpool",
        "https://envpool.readthedocs.io/en/latest/content/python_interface.html",
        "batch_size = num_envs; a thread per core",
        [{"num_envs": n, "batch_size": n, "num_threads": 2} for n in (2, 8, 32, 64)],
        EnvPool,
        engine=True,
    ),
    Contender(
        "EnvPool, asynchronous",
        "envpool",
        "https://envpool.readthedocs.io/en/latest/content/benchmark.html",
        "2.5 to 4 times as many simulators as a batch has; a thread per core, or two",
        [
            {"num_envs": n, "batch_size": b, "num_threads": t}
            for n, b, t in ((6, 2, 2), (8, 4, 2), (32, 8, 2), (32, 8, 4), (64, 16, 2))
        ],
        EnvPool,
        engine=True,
    ),
    Contender(
        "ALE AtariVectorEnv",
        "ale_py",
        "https://ale.farama.org/v0.11.2/vector-environment/",
        "send/recv, so that storing overlaps with emulation; a thread per core",
        [
            {"num_envs": n, "batch_size": b, "num_threads": 2}
            for n, b in ((2, 0), (8, 0), (32, 0), (64, 0), (64, 32))
        ],
        AleVector,
        engine=True,
    ),
    Contender(
        "torchrl MultiAsyncCollector",
        "torchrl",
        "https://docs.pytorch.org/rl/stable/reference/collectors.html",
        "workers write to the shared buffer, or batches are stored here; compact_obs",
        [
            {"workers": w, "frames_per_batch": 200, "workers_write": write}
            for w in (2, 4)
            for write in (False, True)
        ],
        Collector,
    ),
    Contender(
        "Ray actors",
        "ray",
        "https://docs.ray.io/en/latest/ray-core/patterns/pipelining.html",
        "tasks of many steps, two under way per actor, taken in by ray.wait",
        [{"workers": w, "steps": s} for w in (2, 3) for s in (64, 256)],
        RayActors,
        restless=True,
    ),
)
