"""What `mprunner collect` chooses where nothing is said."""

from __future__ import annotations

import argparse

import numpy as np

from mprunner.cli.options import CollectOptions, add_collect_arguments
from mprunner.cli.simulators import Simulator


def test_memory_by_default() -> None:
    """The dtype is the space's; the rows are few for vectors, and at most 1 GiB of images."""
    vectors = Simulator(dict, (4,), np.dtype("float64"))
    images = Simulator(dict, (210, 160, 3), np.dtype("uint8"))
    parser = argparse.ArgumentParser()
    add_collect_arguments(parser)

    def rows(simulator: Simulator, *arguments: str) -> int:
        namespace = parser.parse_args(["Any-v0", *arguments])
        options = CollectOptions.from_namespace(parser, namespace)
        return options.memory_rows(simulator)

    assert rows(vectors) == 40_000
    assert rows(images, "--steps", "1000000") * 210 * 160 * 3 <= 1 << 30
    assert rows(images, "--steps", "1", "--num-runners", "8") > 8 * 200
    assert rows(images, "--memory-size", "77") == 77
