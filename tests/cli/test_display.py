"""What a run shows while it goes on: in a terminal, without rich, for TensorBoard."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path
from typing import Any

from tests.support.commands import CONTROL, collect, command, refused
from tests.support.waiting import HANG_S


def _in_terminal(*arguments: Any, **environment: str) -> str:
    """What a terminal of 80 columns would have been sent."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        command("collect", *arguments),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    )
    os.close(terminal)
    received = b""
    try:
        while chunk := os.read(controller, 65536):
            received += chunk
    except OSError:  # how a pseudo terminal says that the other end is closed
        pass
    finally:
        os.close(controller)
    assert process.wait(timeout=HANG_S) == 0, received
    return received.decode()


def test_live_display_in_a_terminal() -> None:
    """A bar by rich, the cursor given back, then the summary."""
    shown = _in_terminal("CartPole-v1", "--steps", 3000, "--backend", "inline")
    assert "3000/3000" in shown and "outstanding" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "CartPole-v1: 3,000 steps stored" in shown


def test_terminal_without_rich(tmp_path: Path) -> None:
    """Plain lines, and one hint how to get the display."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rich': raise ModuleNotFoundError('rich', name='rich')\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    shown = _in_terminal(
        *("CartPole-v1", "--steps", 300, "--backend", "inline"), PYTHONPATH=str(tmp_path)
    )
    assert shown.count("pip install 'mprunner[cli]'") == 1
    assert not CONTROL.search(shown.replace("\r", ""))


def test_tensorboard_or_how_to_install_it(tmp_path: Path) -> None:
    """An event file where tensorboard is installed, else one sentence."""
    arguments = ("CartPole-v1", "--steps", 200, "--backend", "inline", "--tensorboard", tmp_path)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        assert "pip install 'mprunner[tensorboard]'" in refused(*arguments)
    else:
        assert collect(*arguments).returncode == 0
        assert list(tmp_path.glob("events.out.tfevents.*"))
