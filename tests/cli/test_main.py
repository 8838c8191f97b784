"""The exit codes of `mprunner`, and an output that nobody reads."""

from __future__ import annotations

import os
import subprocess

import pytest

import mprunner
from tests.support.commands import command, run, run_here, running
from tests.support.waiting import HANG_S


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("collect", "CartPole-v1", "--stepz", "3"), "unrecognized arguments: --stepz"),
        (("collect", "CartPole-v1", "--steps", "0"), "expected a whole number of at least 1"),
        (("collect", "CartPole-v1", "--backend", "proces"), "invalid choice: 'proces'"),
        (("collect", "CartPole-v1", "--exploration", "0.5"), "needs a --policy"),
        (("collect", "CartPole-v1", "--address", "auto"), "it needs --backend ray"),
        (("collect", "CartPole-v1", "--policy", "mine"), "expected MODULE:FUNCTION"),
        ((), "required: COMMAND"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what is wrong."""
    with pytest.raises(SystemExit) as left:
        run_here(*arguments)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_version_and_wrong_usage_as_processes() -> None:
    """The same through the interpreter."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"mprunner {mprunner.__version__}\n")
    assert run("colect").returncode == 2


def test_nobody_reads_the_output() -> None:
    """As in `mprunner collect ... 2>&1 | head -n 1`: the run ends, without a traceback."""
    with running("CartPole-v1", "--steps", 10**8, "--backend", "inline") as process:
        assert process.stderr is not None and process.stdout is not None
        process.stderr.close()
        process.stdout.close()
        assert process.wait(timeout=HANG_S) == 1
        process.stderr = process.stdout = None


def test_summary_that_nobody_reads() -> None:
    """As in `mprunner collect ... | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command("collect", "CartPole-v1", "--steps", 100, "--backend", "inline"),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
        )
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert "BrokenPipe" not in done.stderr and "Traceback" not in done.stderr
