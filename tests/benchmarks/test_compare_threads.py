"""`python -m benchmarks.compare_threads`: a short run, its record and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.readme import between, replace_between
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]


def test_short_run_fills_the_table(tmp_path: Path) -> None:
    """Measured, recorded, and put between the marks; what is around them stays."""
    readme = tmp_path / "README.md"
    begin, end = "<!-- compare_threads:begin -->", "<!-- compare_threads:end -->"
    readme.write_text(f"before\n{begin}\nold\n{end}\nx")
    record = tmp_path / "results" / "record.json"
    command = [sys.executable, "-m", "benchmarks.compare_threads", "--seconds", "0.05"]
    command += ["--repeats", "2", "--simulators", "Life in plain Python"]
    command += ["--json", record, "--readme", readme, "--update-readme"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    made = json.loads(record.read_text())
    assert [len(series["values"]) for series in made["series"]] == [2, 2, 2]
    assert made["machine"] and made["versions"]["mprunner"] and made["date"]
    text = readme.read_text()
    assert text.startswith(f"before\n{begin}\n| stored steps/s |")
    assert text.endswith(f"\n{end}\nx") and "old" not in text
    assert "| Life in plain Python | " in text and "2 interleaved repeats" in text


def test_marks_that_are_not_there_once() -> None:
    """Better an error than a table in the wrong place."""
    marked = "<!-- a:begin -->\nold\n<!-- a:end -->"
    assert replace_between(marked, "a", "new\n") == marked.replace("old", "new")
    assert between(marked, "a") == "old"
    for text in ("", "<!-- a:end --><!-- a:begin -->", marked + marked):
        with pytest.raises(ValueError, match="once each"):
            replace_between(text, "a", "new")
