"""From ``MODULE:FUNCTION`` to a predictor."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from mprunner.errors import ConfigurationError
from mprunner.predictors import LocalPredictor, PredictorFn

RANDOM = "random"


def load_policy(name: str) -> PredictorFn | LocalPredictor | None:
    """The predictor that a policy's factory makes.

    Args:
        name: "random", or "MODULE:FUNCTION": a function without arguments that returns a
            predictor. The module is looked for in the working directory, too.

    Returns:
        None for "random".

    Raises:
        ConfigurationError: there is no such function, it failed, or it made no predictor.
    """
    if name == RANDOM:
        return None
    predictor = _call(name, _find(name))
    if not callable(predictor) and not isinstance(predictor, LocalPredictor):
        raise ConfigurationError(
            f"--policy {name} returned {type(predictor).__name__}; expected a callable or a "
            "LocalPredictor"
        )
    return predictor  # type: ignore[no-any-return]


def search_working_directory() -> None:
    """Let imports find the user's own modules, as ``python -m`` does."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _find(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function_name, None)
    except Exception as error:
        raise ConfigurationError(
            f"--policy {name}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"--policy {name}: the module {module_name} has no function {function_name}"
        )
    return found  # type: ignore[no-any-return]


def _call(name: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except Exception as error:
        raise ConfigurationError(
            f"--policy {name} failed: {type(error).__name__}: {error}"
        ) from error
