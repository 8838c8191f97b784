"""Names of games, and the games themselves."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from mprunner.atari.games import RESTORABLE, find_rom
from mprunner.errors import ConfigurationError

ale_py = pytest.importorskip("ale_py")
gymnasium.register_envs(ale_py)


@pytest.mark.parametrize(
    "game",
    ["ms_pacman", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "MsPacman-v0", "mspacman",
     "MsPacmanDeterministic-v4", "MsPacman-ram-v0"],
)
def test_names(game: str) -> None:
    assert find_rom(ale_py, game)[0] == "ms_pacman"


def test_every_id_of_gymnasium_names_its_game() -> None:
    for spec in list(gymnasium.registry.values()):
        if spec.entry_point == "ale_py.env:AtariEnv":
            assert find_rom(ale_py, spec.id)[0] == spec.kwargs["game"]


def test_an_unknown_game() -> None:
    with pytest.raises(ConfigurationError, match="'ALE/Brakeout-v5'.*near names: breakout"):
        find_rom(ale_py, "ALE/Brakeout-v5")
    with pytest.raises(ConfigurationError, match=r"no Atari game 'zzzzzzzz' among the \d+ of"):
        find_rom(ale_py, "zzzzzzzz")


@pytest.mark.parametrize("game", ["combat", "joust", "maze_craze", "warlords"])
def test_a_game_for_two(game: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{game}' has no version for one player"):
        find_rom(ale_py, game)


def test_restorable_games_exist() -> None:
    assert {find_rom(ale_py, game)[0] for game in RESTORABLE} == RESTORABLE


def test_a_damaged_rom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pong.bin").write_bytes(b"no game")
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match="'pong': The hash of pong.bin"):
        find_rom(ale_py, "pong")
    with pytest.raises(ConfigurationError, match="'breakout': .*No such file"):
        find_rom(ale_py, "breakout")
