"""A contender in a process of its own: it plays, and its failure is reported."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.remote import Remote, measured, rate

POOL: dict[str, Any] = {"backend": "thread", "workers": 1, "steps": 16}


def test_a_play_is_counted() -> None:
    """Stored transitions, the start-up time and the settings come back."""
    reading = measured(0.05, contender="mprunner, threads", workload="null", settings=POOL)
    assert reading["stored"] > 0 and rate(reading) > 0
    assert reading["settings"] == POOL and reading["startup_s"] > 0


def test_a_contender_that_fails_is_reported() -> None:
    """With the end of its output."""
    with pytest.raises(RuntimeError, match="(?s)mprunner.* ended:.*KeyError"):
        Remote(contender="mprunner", workload="no such", settings=POOL)
