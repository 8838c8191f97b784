"""From two full gray screens to one small observation: the maximum of both, and the resize."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from mprunner.errors import ConfigurationError

Frame = npt.NDArray[np.uint8]

#: Names of the interpolations, and of their constants in cv2.
INTERPOLATIONS = {"area": "INTER_AREA", "linear": "INTER_LINEAR"}

#: Redoing a few unchanged groups of rows is cheaper than one more call of cv2.resize.
_WORTHWHILE_GAP = 2


class FrameReducer:
    """Pools the last two screens by their maximum and shrinks the result to a square.

    Of one screen and the next only a few rows differ in most games. Where the ratio of the
    heights allows it (210 to 84 does), only bands of rows that differ from the pooled screen
    before are resized again. That is exact, not approximate: groups of ``rows`` screen rows
    become ``small_rows`` rows of the observation and nothing else depends on them, and the
    arithmetic of cv2 for a band is that for the whole, because the scale is a binary fraction.

    cv2 needs no thread limit here: it splits only images of over 65,536 pixels.

    Args:
        cv2: the module.
        screen_shape: (height, width) of a screen in pixels.
        size: height and width of an observation in pixels, at least 1.
        interpolation: "area" or "linear".

    Attributes:
        older: screen before the last, ``screen_shape`` uint8; fill it in place. Leave it zero to
            have no maximum.
        newest: the last screen, likewise.

    Raises:
        ConfigurationError: `interpolation` is unknown.
    """

    def __init__(
        self, cv2: Any, screen_shape: tuple[int, int], size: int, interpolation: str
    ) -> None:
        if interpolation not in INTERPOLATIONS:
            raise ConfigurationError(
                f"interpolation is {interpolation!r}; expected one of "
                f"{', '.join(map(repr, INTERPOLATIONS))}"
            )
        self._resize = cv2.resize
        self._interpolation = getattr(cv2, INTERPOLATIONS[interpolation])
        self.older: Frame = np.zeros(screen_shape, np.uint8)
        self.newest: Frame = np.zeros(screen_shape, np.uint8)
        # All zero, like the screen that it belongs to: the first comparison needs no exception.
        self._small: Frame = np.zeros((size, size), np.uint8)
        self._pooled: Frame = np.zeros(screen_shape, np.uint8)
        self._spare: Frame = np.zeros(screen_shape, np.uint8)
        self._difference = np.zeros(screen_shape, np.uint8)
        ratio = Fraction(screen_shape[0], size)
        self._rows, self._small_rows = ratio.numerator, ratio.denominator
        self._groups = screen_shape[0] // ratio.numerator
        self._by_bands = (
            interpolation == "area"
            and min(screen_shape) >= size
            and self._groups > 4
            and ratio.denominator & (ratio.denominator - 1) == 0
            and self._rows * screen_shape[1] % 8 == 0
        )

    def begin(self) -> None:
        """Forget the screen before the last; the maximum is then the last one alone."""
        self.older.fill(0)

    def observe(self, fresh: bool = True) -> Frame:
        """The observation of the screens as they are now.

        Args:
            fresh: False pools `older` with the pooled screen before, instead of with `newest`.

        Returns:
            A new array ``(size, size)`` uint8. (The copy takes 0.3 us; an array that changes
            under its owner's hands would cost more.)
        """
        previous, pooled = self._pooled, self._spare
        np.maximum(self.newest if fresh else previous, self.older, out=pooled)
        self._pooled, self._spare = pooled, previous
        if self._by_bands:
            self._shrink_changes(pooled, previous)
        else:
            self._shrink(0, self._groups)
        return self._small.copy()

    def _shrink_changes(self, pooled: Frame, previous: Frame) -> None:
        np.bitwise_xor(pooled, previous, out=self._difference)
        words = self._difference.reshape(self._groups, -1).view(np.uint64)
        changed = np.bitwise_or.reduce(words, axis=1).nonzero()[0].tolist()
        if not changed:
            return
        if len(changed) > self._groups * 3 // 4:
            self._shrink(0, self._groups)
            return
        start = stop = changed[0]
        for group in changed:
            if group - stop > _WORTHWHILE_GAP:
                self._shrink(start, stop)
                start = group
            stop = group + 1
        self._shrink(start, stop)

    def _shrink(self, start: int, stop: int) -> None:
        """Resize the groups of rows from `start` to before `stop`."""
        small = self._small[start * self._small_rows : stop * self._small_rows]
        self._resize(
            self._pooled[start * self._rows : stop * self._rows],
            small.shape[::-1],
            dst=small,
            interpolation=self._interpolation,
        )
