"""``mprunner collect``: a simulator's experience into a replay memory.

Owns the course of a run: build, run, report.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mprunner.cli.defaults import choose_history_len, choose_memory_size
from mprunner.cli.meter import Meter, Snapshot
from mprunner.cli.options import CollectOptions, add_collect_arguments
from mprunner.cli.output import (
    OutputClosed,
    is_terminal,
    one_sentence,
    print_note,
    print_out,
    was_interrupted,
)
from mprunner.cli.policies import load_policy, search_working_directory
from mprunner.cli.progress import Observer, PlainLines, Watch
from mprunner.cli.report import Report
from mprunner.cli.scalars import Scalars
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
    """One run, from its options to its report.

    However it ends, what has landed is saved if that was asked for, and with ``--json`` one
    object is printed.
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
        job = _Job(options, report)
        job.run()
    except BaseException as error:
        report.interrupted = was_interrupted(error)
        if report.interrupted:
            print_note(f"interrupted; {report.landed()}")
        if not isinstance(error, (KeyboardInterrupt, OutputClosed)):
            report.error, report.error_type = one_sentence(error), type(error).__name__
        raise
    finally:
        if options.json:
            print_out(report.as_json())


@dataclass(frozen=True)
class _Parts:
    simulator: Simulator
    memory: ReplayMemory
    runners: list[EnvRunner]


class _Job:
    """A run: everything is checked and made when this is, but nothing started."""

    def __init__(self, options: CollectOptions, report: Report) -> None:
        self._options = options
        self._report = report
        search_working_directory()
        _check_file(options.save)
        self._parts = _build(options)
        self._scalars = [] if options.tensorboard is None else [Scalars(options.tensorboard)]
        simulator = self._parts.simulator
        report.state_shape, report.dtype = simulator.state_shape, str(simulator.dtype)

    def run(self) -> None:
        """Collect, save, and say what it was."""
        try:
            snapshot = self._collect()
        except BaseException:
            if self._save():
                print_note(f"mprunner: what had landed is saved in {self._report.saved}")
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
            # Not before the manager is closed, which takes in what was on its way.
            if meter is not None:
                report.take(meter.read())
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
                f"{options.steps:,} steps of {options.env_id} in {options.num_runners} "
                f"runners ({options.backend_name})"
            )
        return [*observers, live or PlainLines()]

    def _save(self) -> bool:
        """Write the memory, if there is something in it and a file was named."""
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
    predictor = load_policy(options.policy)
    if predictor is not None and options.exploration == 1.0:
        print_note("mprunner: at --exploration 1 the policy is never asked")
    history_len = choose_history_len(options.history_len, simulator)
    memory = ReplayMemory(
        choose_memory_size(options, simulator, history_len),
        simulator.state_shape,
        history_len,
        simulator.dtype,
    )
    runners = [
        EnvRunner(simulator.make, predictor, memory, history_len)
        for _ in range(options.num_runners)
    ]
    return _Parts(simulator, memory, runners)


def _live_display(options: CollectOptions) -> Observer | None:
    """For a terminal, drawn by rich; None, and one hint, if only rich is missing."""
    if not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        return None
    try:
        from mprunner.cli.live import LiveDisplay
    except ImportError as error:
        if error.name != "rich":
            raise
        print_note("mprunner: for a live display: pip install 'mprunner[cli]'")
        return None
    return LiveDisplay(options.steps, options.verbose)


def _check_file(path: Path | None) -> None:
    """Refuse a file that can't be written before the run, not after it."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigurationError(f"--save {path} is a directory; expected a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ConfigurationError(f"--save {path}: there is no directory {path.parent} to write in")
