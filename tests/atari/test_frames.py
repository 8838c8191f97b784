"""The resize by bands against cv2.resize of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from mprunner.atari.frames import FrameReducer
from mprunner.errors import ConfigurationError

cv2 = pytest.importorskip("cv2")


@pytest.mark.parametrize("interpolation", ["area", "linear"])
@pytest.mark.parametrize("shape, size", [((210, 160), 84), ((210, 160), 42), ((250, 160), 84)])
def test_bands_are_resized_as_the_whole(
    shape: tuple[int, int], size: int, interpolation: str
) -> None:
    rng = np.random.default_rng(0)
    frames = FrameReducer(cv2, shape, size, interpolation)
    constant = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}[interpolation]
    for round_ in range(1, 300):
        for screen in (frames.older, frames.newest):
            top, height = rng.integers(shape[0]), 1 + round_ % shape[0]
            left, width = rng.integers(shape[1]), 1 + round_ % shape[1]
            patch = screen[top : top + height, left : left + width]
            patch[...] = rng.integers(0, 256, patch.shape)
        whole = np.maximum(frames.older, frames.newest)
        expected = cv2.resize(whole, (size, size), interpolation=constant)
        assert np.array_equal(frames.observe(), expected), round_


def test_the_screen_before_stands_in_for_one_that_was_not_filled() -> None:
    frames = FrameReducer(cv2, (210, 160), 84, "area")
    frames.newest.fill(7)
    frames.observe()
    frames.newest.fill(9)
    frames.older[:100] = 8
    expected = cv2.resize(
        np.maximum(frames.older, np.uint8(7)), (84, 84), interpolation=cv2.INTER_AREA
    )
    assert np.array_equal(frames.observe(fresh=False), expected)
    frames.begin()
    assert (frames.observe() == 9).all()


def test_an_unknown_interpolation() -> None:
    with pytest.raises(ConfigurationError, match="'cubic'; expected one of 'area', 'linear'"):
        FrameReducer(cv2, (210, 160), 84, "cubic")
