"""The soak, for some seconds and for a minute; `make soak` runs it for ten."""

from __future__ import annotations

import pytest

from tests.faults.soak import soak


@pytest.mark.parametrize(
    ("duration_s", "seed"),
    [
        (5.0, 1),
        pytest.param(60.0, 2, marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
    ],
)
def test_soak(duration_s, seed, tmp_path):
    report = soak(duration_s, seed, tmp_path)
    print(*report.lines(), sep="\n")
    assert report.restarts >= duration_s / 2
    assert report.stacks > 100
