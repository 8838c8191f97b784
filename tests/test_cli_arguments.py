"""What `mprunner collect` refuses, and what it chooses where nothing is said."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from mprunner.cli.defaults import choose_memory_size
from mprunner.cli.options import CollectOptions, add_collect_arguments
from mprunner.cli.simulators import Simulator
from tests.commands import run_here


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("collect", "CartPole-v1", "--stepz", "3"), "unrecognized arguments: --stepz"),
        (("collect", "CartPole-v1", "--steps", "0"), "expected a whole number of at least 1"),
        (("collect", "CartPole-v1", "--backend", "proces"), "invalid choice: 'proces'"),
        (("collect", "CartPole-v1", "--exploration", "0.5"), "needs a --policy"),
        (("collect", "CartPole-v1", "--address", "auto"), "it needs --backend ray"),
        (("collect", "CartPole-v1", "--policy", "mine"), "expected MODULE:FUNCTION"),
        ((), "required: COMMAND"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what is wrong."""
    with pytest.raises(SystemExit) as left:
        run_here(*arguments)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


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


def test_memory_by_default() -> None:
    """The dtype is the space's; the rows are few for vectors, and at most 1 GiB of images."""
    vectors = Simulator(dict, (4,), np.dtype("float64"))
    images = Simulator(dict, (210, 160, 3), np.dtype("uint8"))
    parser = argparse.ArgumentParser()
    add_collect_arguments(parser)

    def rows(simulator: Simulator, *arguments: str) -> int:
        namespace = parser.parse_args(["Any-v0", *arguments])
        options = CollectOptions.from_namespace(parser, namespace)
        return choose_memory_size(options, simulator, 4)

    assert rows(vectors) == 40_000
    assert rows(images, "--steps", "1000000") * 210 * 160 * 3 <= 1 << 30
    assert rows(images, "--steps", "1", "--num-runners", "8") > 8 * 200
    assert rows(images, "--memory-size", "77") == 77
