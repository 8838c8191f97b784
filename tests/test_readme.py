"""README.md: its examples run as written, and its tables are those of the records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare_threads
from benchmarks.harness.readme import between
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
#: Run by test_recipes.py, some with packages that are no extras.
RECIPES = {path.read_text().strip() for path in (ROOT / "tests" / "recipes").glob("*.py")}
EXAMPLES = [
    block
    for block in re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    if block.strip() not in RECIPES
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_example_runs_as_written(example: str, tmp_path: Path) -> None:
    """From standard input, in an empty directory, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=example,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_example_is_short() -> None:
    """Fifteen lines are what the README promises."""
    assert len(EXAMPLES[0].strip().splitlines()) <= 15


def test_table_of_threads_is_the_records() -> None:
    """It can't drift from what was measured."""
    path = ROOT / "benchmarks" / "results" / "compare_threads.json"
    found = between(README, "compare_threads")
    if path.exists():
        assert found == compare_threads.render(json.loads(path.read_text()))
    else:
        assert found.startswith("Not measured yet")
