"""Checks of what a memory is made with and of what is put into it one by one."""

from __future__ import annotations

import math
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from mprunner.checks import at_least
from mprunner.errors import ConfigurationError
from mprunner.experience import Array, Experience
from mprunner.replay.storage import Format
from mprunner.rows import MAX_HISTORY_LEN


def checked_format(
    max_size: int, state_shape: Sequence[int], history_len: int, dtype: npt.DTypeLike
) -> Format:
    """Check the arguments that fix what rows look like.

    Raises:
        ConfigurationError: one of them cannot work.
    """
    max_size = at_least("max_size", max_size, 1)
    history_len = at_least("history_len", history_len, 1)
    if history_len > MAX_HISTORY_LEN:
        raise ConfigurationError(
            f"history_len is {history_len}; expected an integer in 1..{MAX_HISTORY_LEN}"
        )
    try:
        shape = tuple(at_least("each size in state_shape", size, 1) for size in state_shape)
    except TypeError:
        raise ConfigurationError(f"state_shape is {state_shape!r}; expected a tuple") from None
    if not 1 <= len(shape) <= 3:
        raise ConfigurationError(f"state_shape is {shape}; expected 1 to 3 dimensions")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ConfigurationError(f"dtype is {dtype!r}; expected one that numpy knows") from None
    if kind.kind not in "biuf" or not kind.isnative:
        raise ConfigurationError(
            f"dtype is {kind!r}; expected bool, an integer or a float of native byte order"
        )
    return Format(max_size, shape, history_len, kind)


def checked_step(exp: Experience) -> tuple[int, float]:
    """Return the action and reward of an `Experience`.

    Raises:
        ConfigurationError: they cannot be stored.
    """
    try:
        action, reward = int(exp.action), float(exp.reward)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"action and reward are {exp.action!r} and {exp.reward!r}; expected numbers"
        ) from None
    if action != exp.action or not -(2**31) <= action < 2**31:
        raise ConfigurationError(f"action is {exp.action!r}; expected an int32")
    if not math.isfinite(reward):
        raise ConfigurationError(f"reward is {reward} (action {action}); expected a finite number")
    return action, reward


def checked_state(state: Any, form: Format) -> Array:
    """Return an observation that can be stored without being changed.

    Raises:
        ConfigurationError: it has another shape, or a dtype whose values would change.
    """
    found = np.asarray(state)
    if found.shape != form.state_shape:
        raise ConfigurationError(
            f"the state has shape {found.shape}; the memory of these states has {form.state_shape}"
        )
    if np.can_cast(found.dtype, form.dtype, "safe"):
        return found
    if found.dtype.kind in "iu" and form.dtype.kind in "iu":
        cast = found.astype(form.dtype)
        if np.array_equal(cast, found):
            return cast
    raise ConfigurationError(
        f"a state of dtype {found.dtype} cannot be stored in a memory of dtype {form.dtype} "
        f"without changing it; convert it, or make the memory with dtype="
    )
