"""Contenders that step simulators written in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.contenders.base import Contender, Settings
from benchmarks.harness import policies
from benchmarks.harness.pools import HISTORY_LEN, MEMORY_ROWS, make_memory, start_pool
from benchmarks.harness.session import Ring, Session
from benchmarks.harness.workloads import NUM_ACTIONS, SHAPE, factory


class Mprunner(Session):
    """This package, in processes or in threads."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        workers, steps = settings["workers"], settings["steps"]
        self._memory = make_memory()
        local = predictor is not None and settings.get("predictor") == "in the workers"
        make: Callable[..., Any] = policies.local_predictor if local else policies.predictor
        self._manager = start_pool(
            factory(workload),
            workers,
            max(16, 2 * workers * steps),
            backend=settings["backend"],
            predictor=make(predictor),
            memory=self._memory,
        )
        self._steps = steps
        self._exploration = 1.0 if predictor is None else 0.0

    @property
    def pids(self) -> list[int]:  # type: ignore[override]
        """Of the workers."""
        return [w.pid for w in self._manager.stats().workers if w.pid is not None]

    def turn(self) -> int:
        """Ask for one job."""
        self._manager.step(self._exploration, self._steps)
        return int(self._steps)

    @property
    def stored(self) -> int:
        """Steps that the runners have done; `finish` checks that all of them are stored."""
        stats = self._manager.stats()
        return stats.steps_asked - stats.outstanding

    def finish(self) -> None:
        """Wait for all jobs."""
        self._manager.join()
        stats = self._manager.stats()
        assert stats.steps_stored == stats.steps_asked

    def sample(self, batch_size: int) -> None:
        """Uniformly; frames of state and successor in one gather."""
        self._memory.sample_batch(batch_size)

    def close(self) -> None:
        """Stop the workers."""
        self._manager.close()


class Stacks:
    """The newest frames of every simulator, for a predictor in the parent."""

    def __init__(self, frames: np.ndarray) -> None:
        self.frames = np.zeros((len(frames), HISTORY_LEN, *SHAPE), np.uint8)
        self.frames[:, -1] = frames

    def push(self, frames: np.ndarray, begins: np.ndarray) -> None:
        """The next frame of each; where an episode begins, the older ones are blanked."""
        self.frames[:, :-1] = self.frames[:, 1:]
        self.frames[:, -1] = frames
        if begins.any():
            self.frames[begins, :-1] = 0


class Vector(Session):
    """gymnasium's AsyncVectorEnv in lock-step, and a ring that stores each frame once.

    The next-step reset that is its default costs a call in which no transition is made.
    """

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        from gymnasium.vector import AsyncVectorEnv

        num_envs = settings["num_envs"]
        self._all = np.arange(num_envs)
        make = factory(workload)
        self._envs = AsyncVectorEnv(
            [make] * num_envs, shared_memory=True, copy=settings["copy"]
        )
        self._rng = np.random.default_rng(0)
        self._predict = policies.predictor(predictor)
        frames, _ = self._envs.reset(seed=0)
        self._stacks = Stacks(frames)
        self._over = np.zeros(num_envs, bool)
        self._overlap = settings["overlap"]
        self._waiting: tuple[Any, ...] | None = None
        self._make_memory(num_envs)

    @property
    def pids(self) -> list[int]:  # type: ignore[override]
        """Of the workers."""
        return [process.pid for process in self._envs.processes if process.pid is not None]

    def turn(self) -> int:
        """One step of all; with `overlap` the last one is stored while this one is done."""
        actions = self._actions()
        self._envs.step_async(actions)
        if self._waiting is not None:
            self._store(*self._waiting)
            self._waiting = None
        frames, rewards, terminated, truncated, _ = self._envs.step_wait()
        begins, self._over = self._over, terminated | truncated
        row = frames, actions, rewards, self._over, begins
        if self._overlap:
            self._waiting = row
        else:
            self._store(*row)
        return len(actions) - int(begins.sum())

    def close(self) -> None:
        """Stop the workers."""
        self._envs.close(terminate=True)

    def _actions(self) -> np.ndarray:
        if self._predict is None:
            return self._rng.integers(NUM_ACTIONS, size=len(self._all))
        q = self._predict(np.moveaxis(self._stacks.frames, 1, -1))
        actions: np.ndarray = np.asarray(q).argmax(axis=1)
        return actions

    def _make_memory(self, num_envs: int) -> None:
        self._ring = Ring(num_envs)

    def _store(self, frames: Any, actions: Any, rewards: Any, over: Any, begins: Any) -> None:
        if self._predict is not None:
            self._stacks.push(frames, begins)
        self._ring.add(self._all, frames, actions, rewards, over)


class VectorAndBuffer(Vector):
    """AsyncVectorEnv with stable-baselines3's buffer, which can only sample what it stores.

    So stacks are stored, as its own frame stacking does, not frames.
    """

    def _make_memory(self, num_envs: int) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        self._buffer = ReplayBuffer(
            MEMORY_ROWS,
            spaces.Box(0, 255, (HISTORY_LEN, *SHAPE), np.uint8),
            spaces.Discrete(NUM_ACTIONS),
            device="cpu",
            n_envs=num_envs,
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def _store(self, frames: Any, actions: Any, rewards: Any, over: Any, begins: Any) -> None:
        before = self._stacks.frames.copy()
        self._stacks.push(frames, begins)
        self._buffer.add(before, self._stacks.frames, actions, rewards, over, self._infos)

    def sample(self, batch_size: int) -> None:
        """Uniformly, as tensors."""
        self._buffer.sample(batch_size)


class Subproc(Session):
    """stable-baselines3's SubprocVecEnv and ReplayBuffer."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        assert predictor is None
        from stable_baselines3.common.buffers import ReplayBuffer
        from stable_baselines3.common.vec_env import SubprocVecEnv

        num_envs = settings["num_envs"]
        make = factory(workload)
        self._envs = SubprocVecEnv([make] * num_envs, start_method=settings["start_method"])
        self._buffer = ReplayBuffer(
            MEMORY_ROWS,
            self._envs.observation_space,
            self._envs.action_space,
            device="cpu",
            n_envs=num_envs,
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )
        self._rng = np.random.default_rng(0)
        self._frames: Any = self._envs.reset()

    @property
    def pids(self) -> list[int]:  # type: ignore[override]
        """Of the workers."""
        return [process.pid for process in self._envs.processes if process.pid is not None]

    def turn(self) -> int:
        """One step of all."""
        actions = self._rng.integers(NUM_ACTIONS, size=self._envs.num_envs)
        frames, rewards, dones, infos = self._envs.step(actions)
        self._buffer.add(self._frames, frames, actions, rewards, dones, infos)
        self._frames = frames
        return len(actions)

    def close(self) -> None:
        """Stop the workers."""
        self._envs.close()


class Shmem(Session):
    """tianshou's ShmemVectorEnv and VectorReplayBuffer; asynchronous with `wait_num`."""

    def __init__(self, workload: str, settings: Settings, predictor: str | None) -> None:
        super().__init__()
        assert predictor is None
        from tianshou.data import Batch, VectorReplayBuffer
        from tianshou.env import ShmemVectorEnv

        num_envs = settings["num_envs"]
        make = factory(workload)
        self._envs = ShmemVectorEnv([make] * num_envs, wait_num=settings["wait_num"])
        self._buffer = VectorReplayBuffer(
            MEMORY_ROWS, num_envs, stack_num=HISTORY_LEN, ignore_obs_next=True
        )
        self._batch = Batch
        self._rng = np.random.default_rng(0)
        self._frames, _ = self._envs.reset()
        self._actions = np.zeros(num_envs, np.int64)
        self._ids = np.arange(num_envs)

    def turn(self) -> int:
        """One step of all, or of those that are ready."""
        self._actions[self._ids] = self._rng.integers(NUM_ACTIONS, size=len(self._ids))
        frames, rewards, terminated, truncated, infos = self._envs.step(
            self._actions[self._ids], self._ids
        )
        self._ids = ids = np.array([info["env_id"] for info in infos])
        row = self._batch(
            obs=self._frames[ids],
            act=self._actions[ids],
            rew=rewards,
            terminated=terminated,
            truncated=truncated,
        )
        self._buffer.add(row, buffer_ids=ids)
        self._frames[ids] = frames
        over = ids[terminated | truncated]
        if len(over):
            self._frames[over] = self._envs.reset(over)[0]
        return len(ids)

    def close(self) -> None:
        """Stop the workers."""
        self._envs.close()


def _pools(backend: str, workers: Sequence[int], steps: Sequence[int]) -> list[Settings]:
    return [
        {"backend": backend, "workers": w, "steps": s} for w in workers for s in steps
    ]


POOLS = (
    Contender(
        "mprunner",
        "mprunner",
        "README.md",
        "as many workers as cores, or a few more; jobs of many steps",
        _pools("process", (2, 3, 4), (16, 64)),
        Mprunner,
    ),
    Contender(
        "mprunner, threads",
        "mprunner",
        "README.md",
        "the same runners in threads, as the thread-based original has them",
        _pools("thread", (1, 2), (16,)),
        Mprunner,
    ),
    Contender(
        "gymnasium AsyncVectorEnv",
        "gymnasium",
        "https://gymnasium.farama.org/api/vector/async_vector_env/",
        "shared memory; without a copy, or a copy that is stored while the next step is done",
        [
            {"num_envs": n, "copy": overlap, "overlap": overlap}
            for n in (2, 4, 8, 16)
            for overlap in (False, True)
        ],
        Vector,
    ),
    Contender(
        "AsyncVectorEnv + SB3 ReplayBuffer",
        "stable_baselines3",
        "https://stable-baselines3.readthedocs.io/en/master/common/buffers.html",
        "optimize_memory_usage; stacks are stored, since the buffer samples what it stores",
        [{"num_envs": n, "copy": False, "overlap": False} for n in (2, 4, 8, 16)],
        VectorAndBuffer,
    ),
    Contender(
        "SB3 SubprocVecEnv + ReplayBuffer",
        "stable_baselines3",
        "https://stable-baselines3.readthedocs.io/en/master/guide/vec_envs.html",
        "a process per simulator; optimize_memory_usage",
        [{"num_envs": n, "start_method": "fork"} for n in (2, 4, 8, 16)],
        Subproc,
    ),
    Contender(
        "tianshou ShmemVectorEnv + VectorReplayBuffer",
        "tianshou",
        "https://tianshou.org/en/stable/02_deep_dives/L3_Environments.html",
        "shared memory for images; asynchronous with wait_num; ignore_obs_next",
        [
            {"num_envs": n, "wait_num": wait}
            for n, wait in ((2, None), (4, 2), (8, None), (8, 4), (16, None), (16, 4))
        ],
        Shmem,
    ),
)
