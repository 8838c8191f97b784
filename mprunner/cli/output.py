"""Prints to standard output and standard error, and puts an error in one sentence."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO

from mprunner.errors import MprunnerError


class OutputClosed(Exception):
    """Nobody reads the output any more."""


class NoteHandler(logging.Handler):
    """Prints log records as notes, also while a live display has taken standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        with contextlib.suppress(OutputClosed, OSError):
            print_note(f"mprunner: {record.getMessage()}")


def is_terminal(stream: TextIO | None) -> bool:
    """True for a terminal, False for a file, a pipe or no stream at all."""
    return stream is not None and stream.isatty()


def print_out(text: str) -> None:
    """A line (or several) to standard output: what the command is for.

    Raises:
        OutputClosed: nobody reads it.
    """
    _print(text, sys.stdout)


def print_note(text: str) -> None:
    """A line to standard error: progress and remarks.

    Raises:
        OutputClosed: nobody reads it.
    """
    _print(text, sys.stderr)


def print_error(text: str) -> None:
    """An error, in one line; nothing if nobody reads it."""
    with contextlib.suppress(OutputClosed, OSError):
        print_note(f"mprunner: error: {text}")


def one_sentence(error: BaseException) -> str:
    """The first line of an error; with its type, unless it is an error of ours."""
    lines = str(error).strip().splitlines()
    text = " ".join(lines[0].split()) if lines else ""
    if isinstance(error, MprunnerError) and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def was_interrupted(error: BaseException | None) -> bool:
    """True for Ctrl-C, and for what failed while it was handled."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _print(text: str, stream: TextIO | None) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        raise OutputClosed from None
