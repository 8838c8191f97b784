"""The README's recipes run as they are printed there.

Each is a file of its own in ``tests/recipes``, run by a fresh interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_S

RECIPES = Path(__file__).parent / "recipes"
README = Path(__file__).resolve().parent.parent / "README.md"

#: Recipe -> what it needs besides the package itself.
NEEDS = {
    "legacy_gym": [],
    "minigrid_player": ["minigrid"],
    "sb3_atari": ["stable_baselines3", "ale_py", "cv2"],
    "tensorboard_scalars": ["torch", "tensorboard"],
    "torch_loop": ["torch"],
    "wandb_scalars": [],  # its package is played by a stand-in
}

#: Stands in for Weights & Biases, which wants an account; checks what it is given.
WANDB = '''
class Run:
    def log(self, scalars, step):
        assert scalars and all(type(value) is float for value in scalars.values()), scalars
        print("logged", len(scalars), "scalars at step", step)

    def finish(self):
        print("finished")

def init(project):
    return Run()
'''


def test_every_recipe_is_run() -> None:
    assert {path.stem for path in RECIPES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_the_readme_shows_what_is_run(name: str) -> None:
    text = README.read_text()
    if "## Recipes" not in text:
        pytest.skip("the README has no recipes yet")
    assert (RECIPES / f"{name}.py").read_text().strip() in text


def run(name: str, *arguments: str, path: Path | None = None) -> str:
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}, which `make test-slow` installs")
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, str(RECIPES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_legacy_gym() -> None:
    out = run("legacy_gym")
    assert "1600 transitions" in out
    assert "ended by a win" in out


def test_wandb(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    out = run("wandb_scalars", path=tmp_path)
    assert out.count("logged") == 5 and "finished" in out


@pytest.mark.slow
def test_minigrid() -> None:
    out = run("minigrid_player")
    assert "1600 transitions" in out and "(256, 7, 7, 3, 2)" in out


@pytest.mark.slow
def test_sb3_atari() -> None:
    out = run("sb3_atari")
    assert "1600 transitions" in out and "(32, 84, 84, 1, 4)" in out


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    run("tensorboard_scalars", str(tmp_path))
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_torch_loop() -> None:
    lines = run("torch_loop", "500").splitlines()
    assert len(lines) == 3
