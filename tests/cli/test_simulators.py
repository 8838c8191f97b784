"""Simulators that `mprunner collect` refuses."""

from __future__ import annotations


import pytest

from tests.support.commands import run_here


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pendulum-v1", "action space Box(-2.0, 2.0, (1,), float32); expected a Discrete"),
        ("FrozenLake-v1", "observation space Discrete(16); expected a Box of 1 to 3 dimensions"),
        ("CartPol-v1", "Did you mean: `CartPole`?"),
        ("nowhere:Some-v0", "No module named 'nowhere'"),
    ],
)
def test_simulators_that_cannot_be_used(
    env_id: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names what was found."""
    assert run_here("collect", env_id) == 1
    out, err = capsys.readouterr()
    assert out == "" and words in err
    assert err.startswith("mprunner: error: ") and err.count("\n") == 1
