"""Checkpoints: one file, old or new and never half, beside the replay memory's own file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

CHECKPOINT = "checkpoint.pt"
REPLAY = "replay.mpr"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint; a kill or a power failure leaves one of the two."""
    partial = folder / f"{CHECKPOINT}.partial"
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / CHECKPOINT)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(folder: Path) -> dict[str, Any] | None:
    """The folder's checkpoint, None if there is none yet."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
