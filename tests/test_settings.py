"""Options: what cannot be kept is refused by name, on every backend; what is kept, is kept."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields

import pytest

from mprunner import ConfigurationError, EnvRunner, EnvRunnerManager, ReplayMemory
from mprunner.settings import Settings
from tests.support.tagged import TAG_SHAPE, TagPlayer

ELSEWHERE = [
    ("step_timeout", 1.0, ["inline"]),
    ("start_timeout", 1.0, ["inline"]),
    ("close_timeout", 1.0, ["inline"]),
    ("start_method", "spawn", ["inline", "thread"]),
    ("address", "auto", ["inline", "thread", "process"]),
    ("resources_per_runner", {"CPU": 1}, ["inline", "thread", "process"]),
]


def pool(backend, **options):
    memory = ReplayMemory(100, TAG_SHAPE, 1, "int32")
    runners = [EnvRunner(TagPlayer, None, memory, 1) for _ in range(2)]
    return EnvRunnerManager(runners, 4, backend=backend, **options)


@pytest.mark.parametrize(
    ("name", "value", "backend"),
    [(name, value, backend) for name, value, backends in ELSEWHERE for backend in backends],
)
def test_an_option_that_the_backend_cannot_keep_is_refused(name, value, backend):
    with pytest.raises(ConfigurationError, match=f"{name} is for .*the backend is '{backend}'"):
        pool(backend, **{name: value})


def test_one_runner_runs_inline_and_has_no_step_timeout():
    memory = ReplayMemory(100, TAG_SHAPE, 1, "int32")
    with pytest.raises(ConfigurationError, match="the backend is 'inline'"):
        EnvRunnerManager([EnvRunner(TagPlayer, None, memory, 1)], 4, step_timeout=1.0)


@pytest.mark.parametrize("method", ["nonsense", "fork"])
@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_a_start_method_that_is_none(backend, method):
    with pytest.raises(ConfigurationError, match="start_method is "):
        pool(backend, start_method=method)


def test_fork_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="lock that is held"):
        pool("process", start_method="fork")


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_close_without_a_limit(backend):
    manager = pool(backend, close_timeout=math.inf)
    manager.step(1.0, num_steps=4)
    manager.close()
    assert manager.stats().steps_stored == 4


def test_the_manager_has_each_option_with_its_default():
    signature = inspect.signature(EnvRunnerManager).parameters
    for field in fields(Settings):
        if field.init and field.name not in ("maximum_staleness", "backend"):
            assert signature[field.name].default == field.default, field.name
    assert len(signature) == 1 + sum(field.init for field in fields(Settings))
