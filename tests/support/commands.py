"""Runs the command ``mprunner``: inside the test's process, or as one of its own."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mprunner.cli import main
from tests.support.waiting import HANG_S

#: Any control character but the line feed.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


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


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "mprunner", *map(str, arguments)]


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=HANG_S, **options
    )


def collect(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("collect", *arguments, **options)


def refused(*arguments: Any, **options: Any) -> str:
    """The one line of an error that a run ends with."""
    done = collect(*arguments, **options)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("mprunner: error: ")
    assert "Traceback" not in done.stderr
    return lines[0]


@contextmanager
def running(*arguments: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own, on its way: its first line has come."""
    process = subprocess.Popen(
        command("collect", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    assert process.stderr is not None
    try:
        assert "steps of" in process.stderr.readline()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
