"""``mprunner collect``: a simulator's experience into a replay memory."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mprunner.cli.display import (
    AGE,
    FIGURES,
    GAMES,
    JSON,
    LOSSES,
    LiveDisplay,
    Meter,
    Observer,
    PlainLines,
    Scalars,
    Snapshot,
    Watch,
    worker_table,
)
from mprunner.cli.options import CollectOptions, add_collect_arguments
from mprunner.cli.output import (
    OutputClosed,
    is_terminal,
    one_sentence,
    print_note,
    print_out,
    was_interrupted,
)
from mprunner.cli.simulators import Simulator, find_simulator
from mprunner.errors import ConfigurationError
from mprunner.manager import EnvRunnerManager
from mprunner.replay.memory import ReplayMemory
from mprunner.runner import EnvRunner


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "collect",
        help="collect experience from a simulator",
        description="Collect experience from a simulator into a replay memory.",
        allow_abbrev=False,
    )
    add_collect_arguments(parser)
    parser.set_defaults(
        run=lambda namespace: collect(CollectOptions.from_namespace(parser, namespace))
    )


def collect(options: CollectOptions) -> None:
    """Do one run, from its options to its report.

    However it ends, what is stored is saved if that was asked for, and with ``--json`` one object
    is printed.
    """
    report = Report(
        env_id=options.env_id,
        backend=options.backend_name,
        num_runners=options.num_runners,
        num_steps=options.steps,
        seed=options.seed,
        maximum_staleness=options.maximum_staleness,
    )
    try:
        _Job(options, report).run()
    except BaseException as error:
        report.interrupted = was_interrupted(error)
        if report.interrupted:
            print_note(f"interrupted; {report.headline()}")
        if not isinstance(error, (KeyboardInterrupt, OutputClosed)):
            report.error, report.error_type = one_sentence(error), type(error).__name__
        raise
    finally:
        if options.json:
            print_out(report.as_json())


@dataclass
class Report:
    """What a run was: the closing summary and the JSON object.

    Attributes:
        env_id, backend, num_runners, num_steps, seed, maximum_staleness: as asked for, or by
            default.
        state_shape, dtype: of an observation.
        start_s: seconds until every runner was at its first observation.
        transitions: that can be sampled from the memory in the end.
        saved: the file that holds them, or None.
        interrupted: ended by Ctrl-C.
        error, error_type: of a run that failed.
        stats: the manager's, as flat scalars.
        figures: of `FIGURES`, those for the JSON object; they are keys of it.
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
    transitions: int = 0
    saved: str | None = None
    interrupted: bool = False
    error: str | None = None
    error_type: str | None = None
    stats: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float | None] = field(
        default_factory=lambda: {f.key: f.initial for f in FIGURES if JSON in f.places}
    )

    def update(self, snapshot: Snapshot) -> None:
        """Take over the figures of the run's end."""
        self.figures = {f.key: f.read(snapshot) for f in FIGURES if JSON in f.places}
        self.stats = snapshot.stats.as_dict()

    def as_json(self) -> str:
        """Return one object, on one line."""
        values = asdict(self)
        return json.dumps({**values.pop("figures"), **values})

    def headline(self) -> str:
        """Return the line that every run ends with."""
        if self.start_s is None:
            return f"{self.env_id}: no step done yet"
        stored = self.figures["steps_stored"]
        steps = f"{stored:,}" if stored == self.num_steps else f"{stored:,} of {self.num_steps:,}"
        return (
            f"{self.env_id}: {steps} steps stored in {self.figures['seconds']:.2f} s, "
            f"{self.figures['steps_per_s']:,.0f} steps/s"
        )

    def summary(self, snapshot: Snapshot, with_workers: bool) -> str:
        """Return the closing summary, several lines."""
        stats, age = snapshot.stats, snapshot.text(AGE)
        lines = [
            self.headline(),
            f"  {_runners(self.num_runners)}, backend {self.backend}, "
            f"ready in {self.start_s or 0:.2f} s, seed {self.seed}",
            f"  {snapshot.text(GAMES)}",
            f"  outstanding at most {stats.outstanding_peak} steps of {self.maximum_staleness}"
            + (f"; {age}" if age else ""),
            f"  memory: {self.transitions:,} transitions of {self.state_shape} {self.dtype}",
        ]
        if stats.steps_lost or stats.restarts:
            lines.append(f"  {snapshot.text(LOSSES)}")
        if self.saved is not None:
            lines.append(f"  saved in {self.saved}")
        if with_workers:
            lines += worker_table(stats)
        return "\n".join(lines)


def _runners(number: int) -> str:
    return "1 runner" if number == 1 else f"{number} runners"


@dataclass(frozen=True)
class _Parts:
    simulator: Simulator
    memory: ReplayMemory
    runners: list[EnvRunner]


class _Job:
    """A run. Making it checks and makes everything, but starts nothing."""

    def __init__(self, options: CollectOptions, report: Report) -> None:
        self._options = options
        self._report = report
        _search_working_directory()
        _check_file(options.save)
        self._parts = _build(options)
        self._scalars = [] if options.tensorboard is None else [Scalars(options.tensorboard)]
        simulator = self._parts.simulator
        report.state_shape, report.dtype = simulator.state_shape, str(simulator.dtype)

    def run(self) -> None:
        """Collect, save, and print the summary."""
        try:
            snapshot = self._collect()
        except BaseException:
            if self._save():
                print_note(f"mprunner: what was stored is saved in {self._report.saved}")
            raise
        self._save()
        if not self._options.json:
            print_out(self._report.summary(snapshot, self._options.verbose))

    def _collect(self) -> Snapshot:
        options, report = self._options, self._report
        began = time.monotonic()
        meter = None
        try:
            with EnvRunnerManager(
                self._parts.runners,
                options.maximum_staleness,
                backend=options.backend,
                address=options.address,
                seed=options.seed,
                start_method=options.start_method,
                on_failure=options.on_failure,
            ) as manager:
                report.start_s = time.monotonic() - began
                meter = Meter(manager, options.steps)
                with Watch(meter, self._observers()) as watch:
                    self._step(manager, watch)
                snapshot = meter.read()
        finally:
            # After the manager is closed, which stores the rows that were still on their way.
            if meter is not None:
                report.update(meter.read())
        return snapshot

    def _step(self, manager: EnvRunnerManager, watch: Watch) -> None:
        options = self._options
        left = options.steps
        while left > 0:
            num_steps = min(options.num_steps_per_job, left)
            manager.step(options.exploration, num_steps)
            left -= num_steps
            watch.check()
        manager.join()

    def _observers(self) -> list[Observer]:
        options = self._options
        observers: list[Observer] = [*self._scalars]
        live = _live_display(options)
        if live is None:
            print_note(
                f"{options.steps:,} steps of {options.env_id} in "
                f"{_runners(options.num_runners)} ({options.backend_name})"
            )
        return [*observers, live or PlainLines()]

    def _save(self) -> bool:
        """Write the memory if it holds something and a file was named; tell whether it did."""
        path, memory = self._options.save, self._parts.memory
        self._report.transitions = len(memory)
        if path is None or not len(memory):
            return False
        memory.save(path)
        self._report.saved = str(path)
        return True


def _build(options: CollectOptions) -> _Parts:
    simulator = find_simulator(options.env_id)
    for remark in simulator.remarks:
        print_note(f"mprunner: {remark}")
    predictor = options.predictor()
    if predictor is not None and options.exploration == 1.0:
        print_note("mprunner: at --exploration 1 the policy is never queried")
    history_len = options.history_of(simulator)
    memory = ReplayMemory(
        options.memory_rows(simulator), simulator.state_shape, history_len, simulator.dtype
    )
    runners = [
        EnvRunner(simulator.make, predictor, memory, history_len)
        for _ in range(options.num_runners)
    ]
    return _Parts(simulator, memory, runners)


def _live_display(options: CollectOptions) -> Observer | None:
    """Return the display for a terminal; None without one, or, with a hint, without rich."""
    if not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        return None
    try:
        return LiveDisplay(options.steps, options.verbose)
    except ImportError as error:
        if error.name != "rich":
            raise
    print_note("mprunner: for a live display: pip install 'mprunner[cli]'")
    return None


def _search_working_directory() -> None:
    """Let imports find the user's own modules, as ``python -m`` does."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _check_file(path: Path | None) -> None:
    """Refuse a file that can't be written before the run, not after it."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigurationError(f"--save {path} is a directory; expected a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ConfigurationError(f"--save {path}: there is no directory {path.parent} to write in")
