"""Interleaved repeats, and ratios against targets.

A benchmark gives `interleaved` one task per contender; each repeat runs all of them, so that a
slow moment of the machine hits them alike. A ratio is that of one repeat, and its median is
what counts.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Series:
    """The repeats of one contender.

    Attributes:
        name: of the contender.
        unit: of the values ("steps/s").
        values: one per repeat.
        settings: how the contender was set up.
    """

    name: str
    unit: str
    values: list[float]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Check:
    """A figure and what it must reach.

    Attributes:
        key: stable name ("throughput.jobs_16"), by which the report finds it.
        figure: what it is, in words.
        values: one per repeat; the median counts.
        target: what the median must reach; None where it is only shown.
        sense: ">=" or "<=".
        unit: "x" for a ratio.
    """

    key: str
    figure: str
    values: list[float]
    target: float | None = None
    sense: str = ">="
    unit: str = "x"

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)

    @property
    def holds(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.sense == ">=" else self.median <= self.target


def interleaved(
    tasks: Mapping[str, Callable[[], T]], repeats: int, *, show: bool = True
) -> dict[str, list[T]]:
    """Run every task once per repeat; the order is reversed each time.

    Args:
        tasks: name -> a call that measures once.
        repeats: at least 1.
        show: report progress on stderr.

    Returns:
        name -> what each repeat gave.
    """
    results: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in range(repeats):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            if show:
                print(f"\r\033[K  {repeat + 1}/{repeats} {name}", end="", file=sys.stderr)
            results[name].append(tasks[name]())
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of each repeat."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float]) -> str:
    """"median (lowest to highest)" with three digits."""
    return f"{digits(statistics.median(values))} ({digits(min(values))} to {digits(max(values))})"


def digits(value: float) -> str:
    """Three significant digits, or all of an integer part."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def show(series: Sequence[Series], checks: Sequence[Check]) -> None:
    """Print what was measured, and whether the targets hold."""
    if series:
        print(f"\n{'contender':44} {'unit':>12}  median (lowest to highest)  settings")
    for item in series:
        settings = " ".join(f"{k}={v}" for k, v in item.settings.items())
        print(f"{item.name[:44]:44} {item.unit:>12}  {spread(item.values):26} {settings}")
    if checks:
        print(f"\n{'figure':64} {'value':>28}  {'target':>9}")
    for check in checks:
        target = "" if check.target is None else f"{check.sense} {check.target:g} {check.unit}"
        verdict = {None: "", True: "holds", False: "MISSED"}[check.holds]
        print(f"{check.figure[:64]:64} {spread(check.values):>28}  {target:>9}  {verdict}")
