"""The soak, until some workers have been killed; `make soak` runs it for ten minutes."""

from __future__ import annotations

import pytest

from tests.faults.soak import soak


@pytest.mark.parametrize(
    ("num_kills", "seed"), [(10, 1), pytest.param(50, 2, marks=pytest.mark.slow)]
)
def test_soak(num_kills, seed, tmp_path):
    report = soak(seed, tmp_path, num_kills=num_kills)
    print(*report.lines(), sep="\n")
    assert report.restarts > 0
    assert report.stacks > 0
