"""``mprunner replay``: inspect a replay file, show a transition, export a data set.

`mprunner.replay.inspect` reads the file; the words are here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mprunner.cli.output import print_out
from mprunner.errors import ConfigurationError
from mprunner.replay import inspect


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    about = "inspect a replay file"
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay", help=about, description=f"{about.capitalize()}.", allow_abbrev=False
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    info = _add_action(actions, "info", "what it holds", _info)
    info.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    show = _add_action(actions, "show", "one transition, as text and as a picture", _show)
    show.add_argument(
        "--index", type=int, default=0, metavar="N", help="which, oldest first; default: 0"
    )
    show.add_argument(
        "--png", type=Path, metavar="PNG", help="write the frames side by side, the next one last"
    )
    export = _add_action(actions, "export", "make a data set of its episodes", _export)
    export.add_argument(
        "--minari", required=True, metavar="NAME", help='of the data set, such as "pong/dqn-v0"'
    )


def _add_action(actions: Any, name: str, about: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=f"{name.capitalize()}: {about}.", allow_abbrev=False
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="of save(), or a memory's own")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    parser.set_defaults(run=run)
    return parser


def _info(options: argparse.Namespace) -> None:
    found = inspect.info(options.file)
    if options.json:
        print_out(json.dumps(found.as_dict()))
        return
    scores = "no game has ended"
    if found.mean_score is not None and found.max_score is not None:
        scores = (
            f"{found.games:,} games, score mean {found.mean_score:,.1f}, "
            f"max {found.max_score:,.1f}"
        )
    lines = [
        f"{found.path}: {found.transitions:,} transitions of {found.state_shape} {found.dtype}, "
        f"history {found.history_len}",
        f"  {found.rows:,} of {found.max_size:,} rows in {found.num_streams} streams, "
        f"{found.episodes:,} ended episodes",
        f"  {scores}",
        f"  weights up to version {found.newest_version}, transitions "
        f"{found.mean_version_lag:.1f} versions behind it on average",
        f"  {found.used_bytes:,} bytes of rows in a file of {found.file_bytes:,} bytes "
        f"(format {found.format_version})",
    ]
    print_out("\n".join(lines))


def _show(options: argparse.Namespace) -> None:
    try:
        shown = inspect.show(options.file, options.index)
    except IndexError as error:
        raise ConfigurationError(f"--index {options.index}: {error}") from None
    ending = [name for name in ("terminated", "truncated") if getattr(shown, name)]
    print_out(
        f"transition {options.index}: action {shown.action}, reward {shown.reward:g}, "
        f"{' and '.join(ending) or 'the episode goes on'}, weights version {shown.version}, "
        f"{shown.age} earlier frames of its episode"
    )
    if options.png is None:
        for i, frame in enumerate(shown.frames):
            place = "next" if i == len(shown.frames) - 1 else f"{i - len(shown.frames) + 2:+d}"
            print_out(f"{place:>5}: {_brief(frame)}")
        return
    inspect.write_png(options.png, shown.strip())
    print_out(f"  written to {options.png}")


def _export(options: argparse.Namespace) -> None:
    num_episodes = inspect.export_minari(options.file, options.minari)
    print_out(f"{options.minari}: {num_episodes:,} episodes")


def _brief(frame: Any) -> str:
    """Small frames as numbers, large ones by their range."""
    if frame.size <= 16:
        return " ".join(f"{value:g}" for value in frame.ravel().astype(float))
    return f"{frame.shape}, from {frame.min():g} to {frame.max():g}, mean {frame.mean():g}"
