"""`mprunner replay`: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mprunner
from mprunner import EnvRunner, ReplayMemory
from tests.support.commands import run_here
from tests.support.envs import TagEnv


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A file with two and a half games of ten steps."""
    memory = ReplayMemory(100, (4,), 2, "int32", seed=0)
    runner = EnvRunner(TagEnv, None, memory, 2, seed=0)
    for _ in range(25):
        runner.step(1.0)
    runner.close()
    memory.save(tmp_path / "vectors.mpr")
    return tmp_path / "vectors.mpr"


def test_info(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for scripts."""
    assert run_here("replay", "info", vectors) == 0
    text = capsys.readouterr().out
    assert "25 transitions of (4,) int32, history 2" in text
    assert "2 games, score mean 10.0, max 10.0" in text
    assert run_here("replay", "info", vectors, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transitions"] == 25 and found["state_shape"] == [4]


def test_show(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The transition that `sample` gives, in the same order."""
    assert run_here("replay", "show", vectors, "--index", 9) == 0
    first, *frames = capsys.readouterr().out.splitlines()
    assert "reward 1, terminated, weights version 0" in first
    assert [line.split(":")[0].strip() for line in frames] == ["-1", "+0", "next"]
    assert frames[1].split(":")[1].split()[:3] == ["0", "0", "9"]
    assert run_here("replay", "show", vectors, "--index", 25) == 1
    assert "--index 25" in capsys.readouterr().err


def test_show_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A strip of the stack and the next frame; vectors are refused."""
    memory = ReplayMemory(50, (6, 5), 3)
    memory.append(_experience(1))
    memory.append(_experience(2))
    memory.save(tmp_path / "pictures.mpr")
    assert run_here("replay", "show", tmp_path / "pictures.mpr", "--png", tmp_path / "out.png") == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "out.png" in capsys.readouterr().out


def test_refusals(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence each."""
    other = vectors.with_name("other.mpr")
    other.write_text("something else")
    for arguments, words in [
        (("info", vectors.with_name("none")), "No such file"),
        (("info", other), "other.mpr"),
        (("show", vectors, "--png", vectors.with_name("v.png")), "no pictures"),
    ]:
        assert run_here("replay", *arguments) == 1
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_export_or_how_to_install_minari(
    vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, one sentence; with it, see tests/replay."""
    try:
        import minari  # noqa: F401
    except ImportError:
        assert run_here("replay", "export", vectors, "--minari", "test/tag-v0") == 1
        assert "pip install 'mprunner[minari]'" in capsys.readouterr().err


def _experience(shade: int) -> mprunner.Experience:
    state = np.full((6, 5), shade, np.uint8)
    return mprunner.Experience(state=state, action=0, reward=0.0, isOver=False)
