"""Checks of arguments: each names what was found and what was expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from mprunner.errors import ConfigurationError


def at_least(name: str, value: Any, least: int) -> int:
    """`value` as an integer of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigurationError(
            f"{name} is {value!r:.80}; expected an integer of at least {least}"
        )
    return number


def seconds(name: str, value: Any) -> float:
    """`value` as a positive number of seconds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise ConfigurationError(f"{name} is {value!r:.80}; expected a positive number of seconds")
    return number


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """`value`, which is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r:.80}; expected one of {', '.join(choices)}")
    return str(value)


def check_exploration(exploration: float, has_predictor: bool) -> float:
    """`exploration` as a float in [0, 1].

    Raises:
        ConfigurationError: it is not; or it is below 1 and no predictor could be asked.
    """
    try:
        value = float(exploration)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"exploration is {exploration!r:.80}; expected a number in [0, 1]")
    if value < 1.0 and not has_predictor:
        raise ConfigurationError(
            f"exploration is {value}, but the predictor is None; without one it must be 1"
        )
    return value
