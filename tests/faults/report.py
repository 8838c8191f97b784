"""The matrix as a table: printed, and put in the README; made from what a run has found."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.faults.matrix import NOT_POSSIBLE
from tests.support.faulty_players import STAGES, WAYS

BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"
_SECTION = "## What happens when a worker dies\n\n"
_INTRO = """\
Made by `make matrix` from {total} runs on {cores} cores, of which {passed} ended as they must. A
pool of three; one of its workers meets its end in the way of the row, at the stage of the column.
A cell says what the user sees with `on_failure="raise"`, and after how many seconds (the slower of
{methods}; for a hang beyond `step_timeout`, `start_timeout` or `close_timeout`). With
`on_failure="restart"` the worker was replaced in every cell but those of "close" (there is nothing
to replace it for; the error is the same), and the steps asked for were the steps that stored plus
those counted as lost. In every run the other workers' data were whole, and processes,
descriptors, threads and shared memory were back to what they had been. The pool was closed at
most {close:.1f} s after the error. Load of the machine at the end of the run: {load}.

"""
_LEGEND = "\n\n*A dash: no line of the user's runs there, so nothing of theirs can be raised.*\n"


def table(cells: list[dict[str, Any]], policy: str) -> list[list[str]]:
    """Rows of ways to die, columns of stages; the first row and column are their names."""
    rows = [["", *STAGES]]
    for way in WAYS:
        rows.append([way, *(_cell(cells, way, stage, policy) for stage in STAGES)])
    return rows


def _cell(cells: list[dict[str, Any]], way: str, stage: str, policy: str) -> str:
    if (way, stage) in NOT_POSSIBLE:
        return "—"
    found = [
        cell for cell in cells
        if (cell["way"], cell["stage"], cell["policy"]) == (way, stage, policy)
    ]
    if not found:
        return "(failed)"
    seen = "/".join(sorted({cell["seen"] for cell in found}))
    beyond = "+" if way == "hang" else ""
    return f"{seen}, {beyond}{max(cell['notice_s'] for cell in found):.2f} s"


def markdown(rows: list[list[str]]) -> str:
    """As a table of Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text(rows: list[list[str]]) -> str:
    """For a terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def put_in(readme: str, body: str) -> str:
    """The README with what is between the markers replaced; a section at its end if none is."""
    if BEGIN not in readme:
        readme = f"{readme.rstrip()}\n\n{_SECTION}{BEGIN}\n{END}\n"
    head, rest = readme.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{body}{END}{rest.split(END, 1)[1]}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="written by the run")
    parser.add_argument("readme", type=Path)
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    cells = results["cells"]
    for policy in ("raise", "restart"):
        print(f"on_failure={policy!r}:\n{text(table(cells, policy))}\n")
    print(f"{len(cells)} of {results['total']} runs ended as they must")
    intro = _INTRO.format(
        total=results["total"],
        passed=len(cells),
        cores=results["cores"],
        methods=" and ".join(sorted({cell["method"] for cell in cells})),
        load=results["load"],
        close=max(cell["close_s"] for cell in cells),
    )
    body = intro + markdown(table(cells, "raise")) + _LEGEND
    options.readme.write_text(put_in(options.readme.read_text(), body))


if __name__ == "__main__":
    main()
