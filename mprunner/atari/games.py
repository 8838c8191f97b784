"""Which Atari games there are: names, files, and what is known of how they start."""

from __future__ import annotations

import difflib
import importlib
import re
from pathlib import Path
from typing import Any

from mprunner.errors import ConfigurationError, MissingExtraError

#: Games whose start is always the same: for these, restoring the emulator's state of the first
#: start gives what a true reset gives, in 1/100 of the time. Other games start differently each
#: time, by what the RAM held or by a timer whose first value is random, or draw random numbers
#: while they are played, or leave parts of the screen unpainted for some frames; restoring would
#: repeat one game, or show the game before. ``tests/atari/test_player.py`` plays every game both
#: ways.
RESTORABLE = frozenset(
    """
    air_raid asterix atlantis atlantis2 basic_math battle_zone blackjack bowling breakout
    carnival casino centipede defender donkey_kong double_dunk et flag_capture frogger
    gopher jamesbond journey_escape keystone_kapers king_kong lost_luggage mr_do ms_pacman
    name_this_game othello pacman pong road_runner robotank skiing space_invaders turmoil
    video_checkers video_chess video_pinball wizard_of_wor word_zapper
    """.split()
)


def import_extra(module: str, package: str) -> Any:
    """The module, or MissingExtraError that names the package and the extra ``atari``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name != module:
            raise
        raise MissingExtraError("AtariPlayer", package, "atari") from None


def find_rom(ale_py: Any, game: str) -> tuple[str, Path]:
    """The game that a name means.

    Args:
        ale_py: the module.
        game: name of a ROM as ale-py has it ("ms_pacman") or a gymnasium id of such a game
            ("ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"). Case and underscores don't matter.

    Returns:
        The name of the ROM, and its file.

    Raises:
        ConfigurationError: there is no such game, its file is missing or damaged, or it can't
            be played by one player.
    """
    if not isinstance(game, str):
        raise ConfigurationError(
            f"game is {game!r:.80}; expected a name like 'breakout' or 'ALE/Breakout-v5'"
        )
    roms = importlib.import_module("ale_py.roms")
    names = {name.replace("_", ""): name for name in roms.get_all_rom_ids()}
    key = _plain(game)
    if key not in names:
        near = [names[near] for near in difflib.get_close_matches(key, names, n=4, cutoff=0.5)]
        raise ConfigurationError(
            f"there is no Atari game {game!r} among the {len(names)} of ale-py"
            + (f"; near names: {', '.join(near)}" if near else "")
        )
    name = names[key]
    try:
        path = Path(roms.get_rom_path(name))
    except OSError as error:
        raise ConfigurationError(f"the ROM of the Atari game {name!r}: {error}") from error
    # The emulator ends the whole process at a ROM that it doesn't support.
    if ale_py.ALEInterface.isSupportedROM(path) is None:
        raise ConfigurationError(f"the Atari game {name!r} has no version for one player")
    return name, path


def _plain(game: str) -> str:
    """A gymnasium id or a ROM's name without prefix, variant, version and underscores."""
    game = re.sub(r"^ALE/|-v\d+$", "", game)
    game = re.sub(r"-ram$|(NoFrameskip|Deterministic)$", "", game)
    return game.replace("_", "").lower()
