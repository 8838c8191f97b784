"""The command ``mprunner``; a thin layer over the public classes.

Nothing is imported here but at the call: workers load `mprunner.cli.simulators`, and with it
this module, and need nothing else of it.
"""

from __future__ import annotations

from collections.abc import Sequence


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
        from mprunner.cli import app

        return app.main(argv)
    except KeyboardInterrupt:
        return 130
