"""Atari games as players, for the extra ``atari``."""

from mprunner.atari.player import AtariPlayer

__all__ = ["AtariPlayer"]
