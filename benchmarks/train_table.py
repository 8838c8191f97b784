"""Trains CartPole-v1 with five seeds and writes the README's table.

Each run is a process of its own, as `make train` starts it, and its wall time is that of the
whole process. ``--readme`` only rebuilds the table from the records that are there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.dqn.plots import plot_evaluations
from benchmarks.harness.readme import README, replace_between
from benchmarks.harness.record import RESULTS, ROOT, arguments, environment, write_json

CARTPOLE, PONG = RESULTS / "dqn_cartpole.json", RESULTS / "dqn_pong.json"
TIME_TO_SCORE = RESULTS / "time_to_score.json"


def run_dqn(arguments: list[str], timeout_s: float) -> dict[str, Any]:
    """One run of `benchmarks.dqn` in a process of its own.

    Args:
        arguments: of it.
        timeout_s: after which it is ended.

    Returns:
        Its record, with "wall_s", the time from the start of the process to its end.

    Raises:
        RuntimeError: it ended without a record.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        command = [sys.executable, "-m", "benchmarks.dqn", *arguments, "--json", str(path)]
        began = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, timeout=timeout_s).returncode
        wall_s = time.monotonic() - began
        if not path.exists():
            raise RuntimeError(f"{' '.join(command)} ended with status {status}")
        record: dict[str, Any] = json.loads(path.read_text())
    return {**record, "wall_s": wall_s, "exit_status": status}


def cartpole_lines(record: dict[str, Any]) -> list[str]:
    """The table of the five seeds."""
    lines = [
        "| seed | mean score of 100 final games | wall time | environment steps | updates |",
        "|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        lines.append(
            f"| {run['config']['seed']} | {run['final']['mean']:.1f} | {run['wall_s']:.0f} s "
            f"| {run['steps']:,} | {run['updates']:,} |"
        )
    machine = record["machine"]
    lines += [
        "",
        f"CartPole-v1, `make train`, whole process, {machine['num_cpus']} cores "
        f"({machine['processor']}), {record['date'][:10]}; the target is 475.",
    ]
    return lines


def pong_lines(record: dict[str, Any]) -> list[str]:
    """One sentence about the Pong run."""
    final = record["final"]
    replayed = record["updates"] * record["config"]["batch_size"] / record["steps"]
    return [
        "",
        f"Pong, {record['elapsed_s'] / 60:.0f} minutes on {record['machine']['num_cpus']} cores, "
        f"{record['steps']:,} steps, {record['updates']:,} updates: mean score "
        f"{final['mean']:.1f} over {final['games']} games (random play: -20.7). Each step was "
        f"replayed {replayed:.1f} times, in the Nature agent 8 times: on two CPU cores the "
        "network has no time for more, and this is too little. "
        "The curve: [`dqn_pong.png`](benchmarks/results/dqn_pong.png).",
    ]


def time_lines(record: dict[str, Any]) -> list[str]:
    """Threads against processes."""
    lines = [
        "",
        "| seed | threads: time to the score | processes: time to the score | times faster |",
        "|---|---|---|---|",
    ]
    limit = record["max_seconds"]

    def text(seconds: float | None) -> str:
        return f"not in {limit:.0f} s" if seconds is None else f"{seconds:.1f} s"

    for row in record["rows"]:
        thread, process = row["thread"], row["process"]
        faster = "-"
        if process is not None:
            least = (limit if thread is None else thread) / process
            faster = f"{'> ' if thread is None else ''}{least:.1f}"
        lines.append(f"| {row['seed']} | {text(thread)} | {text(process)} | {faster} |")
    lines += [
        "",
        "CartPole-v1 with 1 ms of Python per step, two simulators, one update for eight steps, the "
        "same seeds and settings; time of training, without evaluations, until one of them reaches "
        f"{record['target_score']:g} ([curves](benchmarks/results/time_to_score.png)).",
    ]
    return lines


def update_readme() -> None:
    """Rebuild the README's part from the records that are there."""
    lines: list[str] = []
    for path, build in (
        (CARTPOLE, cartpole_lines), (PONG, pong_lines), (TIME_TO_SCORE, time_lines)
    ):
        if path.exists():
            lines += build(json.loads(path.read_text()))
    README.write_text(replace_between(README.read_text(), "train", "\n".join(lines)))
    print(f"written: {README}")


def main() -> int:
    """Run it; returns the exit status."""
    parser = arguments(__doc__, "dqn_cartpole")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--readme", action="store_true", help="only build the README's table")
    options = parser.parse_args()
    if options.readme:
        update_readme()
        return 0
    runs = [run_dqn(["--seed", str(seed)], timeout_s=400) for seed in options.seeds]
    record = {"benchmark": "train_table", "runs": runs, **environment()}
    write_json(options.json, record)
    plot_evaluations(
        options.json.with_suffix(".png"), "DQN on CartPole-v1: evaluations of 20 games", runs
    )
    print("\n".join(cartpole_lines(record)))
    return max(int(run["exit_status"]) for run in runs)


if __name__ == "__main__":
    sys.exit(main())
