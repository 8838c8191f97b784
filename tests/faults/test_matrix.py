"""Every way to die at every stage; `make matrix` prints and publishes what is found here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import NOT_POSSIBLE, Case, Outcome, Run, cases
from tests.support.faulty_players import STAGES, WAYS

#: The environment variable that names the file for what is found; `make matrix` sets it.
RECORD = "MPRUNNER_MATRIX"
#: Seconds, on an idle machine: a dead worker is noticed, a pool is closed.
NOTICE_S = 1.0
CLOSE_S = 3.0
#: A few of each kind that run with the unmarked tests.
_QUICK = {
    Case("unpicklable", "step", "raise", "forkserver"),
    Case("raise", "reset", "restart", "forkserver"),
    Case("os._exit", "factory", "raise", "forkserver"),
    Case("SIGKILL", "sending", "restart", "forkserver"),
    Case("SIGKILL", "holding", "restart", "forkserver"),
    Case("SIGKILL", "job wait", "raise", "forkserver"),
    Case("SIGSEGV", "step", "raise", "spawn"),
    Case("hang", "prediction wait", "restart", "forkserver"),
    Case("hang", "step", "raise", "forkserver"),
}


def _parameters() -> Iterator[object]:
    for case in cases():
        yield pytest.param(case, id=str(case), marks=[] if case in _QUICK else pytest.mark.slow)


@pytest.fixture(scope="module")
def results() -> Iterator[dict[Case, Outcome]]:
    """What was found; written where the environment says."""
    found: dict[Case, Outcome] = {}
    yield found
    path = os.environ.get(RECORD)
    if path:
        Path(path).write_text(
            json.dumps(
                {
                    "total": len(list(cases())),
                    "cores": os.cpu_count(),
                    "load": round(os.getloadavg()[0], 1),
                    "cells": [
                        {**asdict(case), **_rounded(asdict(outcome))}
                        for case, outcome in found.items()
                    ],
                },
                indent=1,
            )
            + "\n"
        )


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("case", list(_parameters()))
def test_matrix(case, tmp_path, results):
    outcome = results[case] = Run(case, tmp_path).outcome()
    if os.environ.get(RECORD):  # the figures count on a machine that does nothing else
        assert outcome.notice_s < NOTICE_S, f"noticed after {outcome.notice_s:.2f} s"
        assert outcome.close_s < CLOSE_S, f"closed after {outcome.close_s:.2f} s"


def test_every_combination_is_tried_or_has_a_reason():
    tried = {(case.way, case.stage) for case in cases()}
    assert len(tried) + len(NOT_POSSIBLE) == len(WAYS) * len(STAGES)
    assert all(NOT_POSSIBLE.values())
