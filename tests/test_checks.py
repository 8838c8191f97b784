"""Checks name what was found and what was expected."""

import numpy as np
import pytest

from mprunner.checks import at_least, one_of, seconds
from mprunner.errors import ConfigurationError


@pytest.mark.parametrize("value", [1, np.int64(3), True, 10**12])
def test_integers(value):
    assert at_least("staleness", value, 1) == int(value)


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "1", None, [1], float("nan")])
def test_not_such_integers(value):
    with pytest.raises(ConfigurationError, match=r"staleness is .*; expected .* at least 1"):
        at_least("staleness", value, 1)


@pytest.mark.parametrize("value", [1, 0.5, "2.5", np.float32(3), float("inf")])
def test_seconds(value):
    assert seconds("step_timeout", value) == float(value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), None, "soon", [1]])
def test_not_seconds(value):
    with pytest.raises(ConfigurationError, match=r"step_timeout is .* positive number of seconds"):
        seconds("step_timeout", value)


def test_one_of():
    assert one_of("backend", "thread", ("inline", "thread")) == "thread"
    for value in ("Thread", None, 3, ["thread"]):
        with pytest.raises(ConfigurationError, match="expected one of inline, thread"):
            one_of("backend", value, ("inline", "thread"))
