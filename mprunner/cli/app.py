"""From the arguments to an exit code.

Owns the commands' list, what becomes of an error or of Ctrl-C, and of an output that nobody
reads. Knows nothing of what a command does.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType

from mprunner._version import __version__
from mprunner.cli import collect, replay
from mprunner.cli.output import (
    NoteHandler,
    OutputClosed,
    one_sentence,
    print_error,
    was_interrupted,
)

ERROR, INTERRUPTED = 1, 130
# One Ctrl-C can reach us twice: from the terminal, and passed on by a program around us.
_SAME_CTRL_C_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """See `mprunner.cli.main`."""
    try:
        _catch_ctrl_c()
        options = _parser().parse_args(argv)
        logger = logging.getLogger("mprunner")
        logger.addHandler(NoteHandler())
        logger.setLevel(logging.INFO if options.verbose else logging.WARNING)
        return _run(options)
    finally:
        _flush_or_mute()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mprunner",
        description="A pool of simulator processes that fills one replay memory.",
        epilog="Exit codes: 0; 1 an error; 2 wrong usage; 130 Ctrl-C.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mprunner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    collect.add_parser(commands)
    replay.add_parser(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OutputClosed:
        return ERROR
    except Exception as error:
        if options.verbose:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        else:
            print_error(one_sentence(error))
        return INTERRUPTED if was_interrupted(error) else ERROR
    return 0


def _catch_ctrl_c() -> None:
    """The first Ctrl-C is a KeyboardInterrupt; one after that leaves at once.

    Nothing is left behind by that: the workers end with this process.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    first = 0.0

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not first:
            first = now
            raise KeyboardInterrupt
        if now - first > _SAME_CTRL_C_S:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, interrupt)


def _flush_or_mute() -> None:
    """Flush the output; where nobody reads it, keep the interpreter from saying so."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
