"""What a run was: the closing summary, the JSON object, the table of workers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from mprunner.cli.meter import Snapshot
from mprunner.stats import ManagerStats

_HEADINGS = ("worker", "pid", "state", "steps", "player", "job", "prediction", "block", "restarts")


@dataclass
class Report:
    """A run from the outside; its fields are the keys of the JSON object.

    Attributes:
        env_id, backend, num_runners, num_steps, seed, maximum_staleness: as asked for, or by
            default.
        state_shape, dtype: of an observation.
        start_s: seconds until every runner stood at its first observation.
        steps_landed, steps_lost, seconds, steps_per_s: from the first step on.
        episodes, mean_score, max_score: of the games that ended; None if none did.
        transitions: that can be sampled from the memory in the end.
        saved: the file that holds them, or None.
        interrupted: ended by Ctrl-C.
        error, error_type: of a run that failed.
        stats: the manager's, as flat scalars.
    """

    env_id: str
    backend: str
    num_runners: int
    num_steps: int
    seed: int
    maximum_staleness: int
    state_shape: tuple[int, ...] | None = None
    dtype: str | None = None
    start_s: float | None = None
    steps_landed: int = 0
    steps_lost: int = 0
    seconds: float = 0.0
    steps_per_s: float = 0.0
    episodes: int = 0
    mean_score: float | None = None
    max_score: float | None = None
    transitions: int = 0
    saved: str | None = None
    interrupted: bool = False
    error: str | None = None
    error_type: str | None = None
    stats: dict[str, float] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> None:
        """Take over the figures of the run's end."""
        self.steps_landed = snapshot.landed
        self.steps_lost = snapshot.stats.steps_lost
        self.seconds = snapshot.seconds
        self.steps_per_s = snapshot.mean_rate
        self.episodes = snapshot.stats.episodes
        self.mean_score = snapshot.mean_score
        self.max_score = snapshot.max_score
        self.stats = snapshot.stats.as_dict()

    def as_json(self) -> str:
        """One object, on one line."""
        return json.dumps(asdict(self))

    def landed(self) -> str:
        """The line that every run ends with."""
        if self.start_s is None:
            return f"{self.env_id}: no step done yet"
        steps = f"{self.steps_landed:,}"
        if self.steps_landed != self.num_steps:
            steps += f" of {self.num_steps:,}"
        return (
            f"{self.env_id}: {steps} steps landed in {self.seconds:.2f} s, "
            f"{self.steps_per_s:,.0f} steps/s"
        )

    def summary(self, snapshot: Snapshot, with_workers: bool) -> str:
        """The closing summary, several lines."""
        stats = snapshot.stats
        runners = "1 runner" if self.num_runners == 1 else f"{self.num_runners} runners"
        lines = [
            self.landed(),
            f"  {runners}, backend {self.backend}, ready in {self.start_s or 0:.2f} s, "
            f"seed {self.seed}",
            f"  {self.episodes:,} episodes, {snapshot.scores()}",
            f"  outstanding at most {stats.outstanding_peak} steps of {self.maximum_staleness}"
            + _age(stats),
            f"  memory: {self.transitions:,} transitions of {self.state_shape} {self.dtype}",
        ]
        if self.steps_lost or stats.restarts:
            lines.append(f"  {stats.restarts} restarts, {self.steps_lost:,} steps lost")
        if self.saved is not None:
            lines.append(f"  saved in {self.saved}")
        if with_workers:
            lines += worker_table(stats)
        return "\n".join(lines)


def worker_table(stats: ManagerStats) -> list[str]:
    """Lines: where each worker's time went, in percent."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for i, worker in enumerate(stats.workers):
        shares = (
            worker.share_player,
            worker.share_job,
            worker.share_prediction,
            worker.share_block,
        )
        rows.append(
            (
                str(i),
                "-" if worker.pid is None else str(worker.pid),
                worker.state,
                f"{worker.steps:,}",
                *(f"{share:.0%}" for share in shares),
                str(worker.restarts),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows
    ]


def _age(stats: ManagerStats) -> str:
    age = stats.age_s
    if age.mean is None or age.p95 is None:
        return ""
    return f"; from call to landing {age.mean * 1e3:.1f} ms on average, 95 % {age.p95 * 1e3:.1f} ms"
