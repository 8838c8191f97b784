"""Sizes that follow from the simulator where the user names none."""

from __future__ import annotations

import math

from mprunner.cli.options import CollectOptions
from mprunner.cli.simulators import Simulator
from mprunner.experience import ROW

_IMAGE_HISTORY = 4
#: The most that a memory takes by default.
_MEMORY_BYTES = 1 << 30
#: The least rows per runner, whatever they weigh.
_LEAST_ROWS = 256


def choose_history_len(asked: int | None, simulator: Simulator) -> int:
    """Frames per state: what was asked for; else 4 of images, 1 of vectors."""
    if asked is not None:
        return asked
    return _IMAGE_HISTORY if simulator.is_image else 1


def choose_memory_size(options: CollectOptions, simulator: Simulator, history_len: int) -> int:
    """Rows: what was asked for; else enough for every step, up to 1 GiB.

    An episode takes a row more than it has steps, so two rows per step are always enough,
    unless a runner does much more than its share.
    """
    if options.memory_size is not None:
        return options.memory_size
    row_bytes = math.prod(simulator.state_shape) * simulator.dtype.itemsize + ROW.itemsize
    most = _MEMORY_BYTES // row_bytes
    least = (_LEAST_ROWS + history_len) * options.num_runners
    return max(min(2 * options.steps, most), least)
