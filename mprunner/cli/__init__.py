"""The command ``mprunner``: from the arguments to an exit code.

Workers load this module with `mprunner.cli.simulators`, so what a command needs is imported when
the command is run.
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

ERROR, INTERRUPTED = 1, 130
# One Ctrl-C can arrive twice: from the terminal, and passed on by a program around this one.
_SAME_CTRL_C_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; None: those of this process.

    Returns:
        The exit code: 0; 1 for an error; 130 after Ctrl-C.

    Raises:
        SystemExit: with 2 for wrong usage, with 0 for ``--help`` and ``--version``.
    """
    try:
        _catch_ctrl_c()
        return _run(_parser().parse_args(argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _flush_or_mute()


def _parser() -> argparse.ArgumentParser:
    from mprunner._version import __version__
    from mprunner.cli import collect, replay

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
    from mprunner.cli import output

    logger = logging.getLogger("mprunner")
    logger.addHandler(output.NoteHandler())
    logger.setLevel(logging.INFO if options.verbose else logging.WARNING)
    try:
        options.run(options)
    except output.OutputClosed:
        return ERROR
    except Exception as error:
        if options.verbose:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        else:
            output.print_error(output.one_sentence(error))
        return INTERRUPTED if output.was_interrupted(error) else ERROR
    return 0


def _catch_ctrl_c() -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C, and exit at once at a later one.

    The exit leaves nothing behind: the workers end with this process.
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
    """Flush the output; where nobody reads it, keep the interpreter from reporting that."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
