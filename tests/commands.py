"""Runs the command ``mprunner`` inside the test's process."""

from __future__ import annotations

import logging
import signal
from typing import Any

from mprunner.cli import main


def run_here(*arguments: Any) -> int:
    """The exit code; what the command sets in its process is set back."""
    logger = logging.getLogger("mprunner")
    before = signal.getsignal(signal.SIGINT), logger.handlers[:], logger.level
    try:
        return main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGINT, before[0])
        logger.handlers[:] = before[1]
        logger.setLevel(before[2])
