"""One small Ray for all tests of a module, and what must be left of a pool on it: nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.support.waiting import eventually

#: Quiet and light; set before Ray is loaded, and read by the processes that it starts.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
}
STORE_BYTES = 80 * 2**20
REASON = (
    "Ray is not installed: python -m pip install -e '.[ray]', then python -m pytest -m ray "
    "(make test-slow does both)"
)


def import_ray() -> Any:
    """Ray, or a skip that says how to run the tests."""
    os.environ.update(ENVIRONMENT)
    return pytest.importorskip("ray", reason=REASON)


@contextmanager
def local_ray(num_cpus: int = 8, **options: Any) -> Iterator[Any]:
    """A Ray of this process's own; `options` are those of ``ray.init``."""
    ray = import_ray()
    ray.init(
        address="local",
        num_cpus=num_cpus,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        **options,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


def actors(pid: int | None = None) -> list[int]:
    """Processes below `pid` (or this one) that host a runner."""
    below = psutil.Process(pid).children(recursive=True)
    return [process.pid for process in below if is_actor(process.pid)]


def is_actor(pid: int) -> bool:
    """It lives and hosts a runner."""
    try:
        title = psutil.Process(pid).cmdline()[:1]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return bool(title) and title[0].startswith("ray::Actor")


def check_nothing_left() -> None:
    """No actor of ours, no thread of ours."""
    eventually(lambda: not actors())
    eventually(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("mprunner")], 5
    )
