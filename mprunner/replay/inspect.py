"""What is in a replay file: as figures, as a picture of one transition, as a Minari data set.

Files are opened read-only, so that a live writer is not disturbed.
"""

from __future__ import annotations

import importlib
import os
import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from mprunner.errors import ConfigurationError, MissingExtraError, StorageError
from mprunner.experience import Array
from mprunner.replay.fileformat import FORMAT_VERSION
from mprunner.replay.index import TransitionIndex
from mprunner.replay.mapped import open_for_reading
from mprunner.replay.repair import close_all
from mprunner.replay.sampling import Gatherer
from mprunner.rows import CLOSING, TERMINATED, TRUNCATED


@dataclass(frozen=True)
class ReplayInfo:
    """What a replay file holds.

    Attributes:
        path: of the file.
        format_version: of its layout.
        max_size, state_shape, history_len, dtype: as the memory was made.
        num_streams: into how many rings it is divided.
        rows: retained, final observations included.
        transitions: that can be sampled.
        episodes: retained that have ended, also by a lost life or by truncation.
        games: that ended since the memory was made, with their mean_score and max_score; None
            if none did.
        newest_version: of the weights that chose an action; 0 if none were published.
        mean_version_lag: by how many versions the retained transitions lie behind it.
        file_bytes: length of the file.
        used_bytes: of retained rows.
    """

    path: str
    format_version: int
    max_size: int
    state_shape: tuple[int, ...]
    history_len: int
    dtype: str
    num_streams: int
    rows: int
    transitions: int
    episodes: int
    games: int
    mean_score: float | None
    max_score: float | None
    newest_version: int
    mean_version_lag: float
    file_bytes: int
    used_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Shown:
    """One transition of a file.

    Attributes:
        frames: ``(history_len + 1, *state_shape)``: the stack and the next observation.
        action, reward, terminated, truncated, version: of the transition.
        age: earlier frames of the stack that belong to the episode.
    """

    frames: Array
    action: int
    reward: float
    terminated: bool
    truncated: bool
    version: int
    age: int

    def strip(self) -> Array:
        """Return the frames side by side as a picture; see `strip`."""
        return strip(self.frames)


class _View:
    """A file as it was at one moment: observations mapped, records copied and repaired."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.storage = open_for_reading(Path(path))
        self.form = self.storage.form
        self.rings, _ = self.storage.counters.read()
        self.meta = self.storage.meta.copy()
        # A live writer may have gone on: what it may have overwritten is torn.
        reserved = [self.storage.counters.reserved(ring.index) for ring in self.rings]
        close_all(self.rings, reserved, self.meta, self.form.history_len)
        fields = self.meta["flags"], self.meta["age"]
        self.index = TransitionIndex(self.rings, *fields, self.form.history_len)

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *details: object) -> None:
        self.storage.close()

    def slots(self) -> Array:
        """Return the slots of all retained rows, stream by stream, oldest first."""
        return np.concatenate([self.rings.retained_slots(ring.index) for ring in self.rings])

    def still_there(self, stream: int, row: int) -> bool:
        """Return whether no live writer has overwritten a row's history meanwhile."""
        reserved = self.storage.counters.reserved(stream)
        return row - self.form.history_len >= reserved - self.rings[stream].cap


def info(path: str | os.PathLike[str]) -> ReplayInfo:
    """Return what a replay file holds, also while it is being written.

    Raises:
        StorageError: it is not a replay file, or damaged.
    """
    with _View(path) as view:
        meta = view.meta[view.slots()]
        moves = meta[meta["flags"] < CLOSING]
        ended = moves["flags"] & (TERMINATED | TRUNCATED)
        rings = view.rings
        games = sum(ring.games for ring in rings)
        newest = int(moves["version"].max(initial=0))
        lag = newest - moves["version"].astype(np.float64)
        form = view.form
        return ReplayInfo(
            path=str(path),
            format_version=FORMAT_VERSION,
            max_size=form.max_size,
            state_shape=form.state_shape,
            history_len=form.history_len,
            dtype=str(form.dtype),
            num_streams=len(rings),
            rows=len(meta),
            transitions=view.index.count(),
            episodes=int(np.count_nonzero(ended)),
            games=games,
            mean_score=sum(ring.score_sum for ring in rings) / games if games else None,
            max_score=max(ring.score_max for ring in rings) if games else None,
            newest_version=newest,
            mean_version_lag=float(lag.mean()) if len(lag) else 0.0,
            file_bytes=os.stat(path).st_size,
            used_bytes=len(meta) * (form.state_bytes + meta.itemsize),
        )


def show(path: str | os.PathLike[str], index: int) -> Shown:
    """Return the ``index``-th transition of a replay file, in the order of `ReplayMemory.sample`.

    Raises:
        IndexError: there are not that many.
        StorageError: it is not a replay file, or its writer has just overwritten the row.
    """
    with _View(path) as view:
        stream, row = view.index.find(index)
        gather = Gatherer(view.rings, view.storage.state, view.meta, view.form.history_len)
        frames = gather.frames(stream, row)
        ring = view.rings[stream]
        if ring.end > ring.cap and not view.still_there(stream, row):
            raise StorageError(f"transition {index} of {path} was overwritten while it was read")
        meta = view.meta[ring.slot(row)]
        return Shown(
            frames=frames,
            action=int(meta["action"]),
            reward=float(meta["reward"]),
            terminated=bool(meta["flags"] & TERMINATED),
            truncated=bool(meta["flags"] & TRUNCATED),
            version=int(meta["version"]),
            age=int(meta["age"]),
        )


def strip(frames: Array) -> Array:
    """Put frames side by side, as a picture.

    Args:
        frames: ``(N, *state_shape)``. A shape of two dimensions is height and width; of three,
            with 1, 3 or 4 channels first or last. Anything but uint8 is scaled to 0..255.

    Returns:
        ``(height, N * width)`` or ``(height, N * width, channels)``, uint8.

    Raises:
        ConfigurationError: such observations are no pictures.
    """
    if frames.ndim == 4 and frames.shape[1] in (1, 3, 4) and frames.shape[3] not in (1, 3, 4):
        frames = np.moveaxis(frames, 1, -1)
    if frames.ndim == 4 and frames.shape[3] == 1:
        frames = frames[..., 0]
    if frames.ndim not in (3, 4) or (frames.ndim == 4 and frames.shape[3] not in (3, 4)):
        raise ConfigurationError(
            f"observations of shape {frames.shape[1:]} are no pictures; expected (height, "
            f"width), or that with 1, 3 or 4 channels"
        )
    if frames.dtype != np.uint8:
        values = frames.astype(np.float64)
        low, high = values.min(), values.max()
        frames = ((values - low) * (255 / (high - low or 1))).round().astype(np.uint8)
    return np.concatenate(list(frames), axis=1)


def write_png(path: str | os.PathLike[str], picture: Array) -> None:
    """Write a picture as PNG.

    Args:
        path: of the file.
        picture: uint8, ``(height, width)`` or ``(height, width, 3 or 4)``.
    """
    height, width = picture.shape[:2]
    colour = {2: 0, 3: 2 if picture.shape[-1] == 3 else 6}[picture.ndim]
    lines = picture.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")):
            check = struct.pack(">I", zlib.crc32(kind + body))
            file.write(struct.pack(">I", len(body)) + kind + body + check)


@dataclass(frozen=True)
class RetainedEpisode:
    """What is retained of one episode, oldest first.

    Attributes:
        observations: ``(N + 1, *state_shape)``.
        actions, rewards, flags: ``(N,)``.
    """

    observations: Array
    actions: Array
    rewards: Array
    flags: Array


def episodes(path: str | os.PathLike[str]) -> Iterator[RetainedEpisode]:
    """Yield the retained episodes of a replay file; a stream's oldest may lack its start.

    Do not use it on a file that is being written.

    Raises:
        StorageError: it is not a replay file.
    """
    with _View(path) as view:
        for stream in range(len(view.rings)):
            slots = view.rings.retained_slots(stream)
            closing = np.flatnonzero(view.meta["flags"][slots] >= CLOSING)
            for part in np.split(slots, closing + 1):
                if len(part) > 1:
                    meta = view.meta[part[:-1]]
                    yield RetainedEpisode(
                        view.storage.state[part], meta["action"], meta["reward"], meta["flags"]
                    )


def export_minari(path: str | os.PathLike[str], name: str) -> int:
    """Make a Minari data set of the retained episodes of a replay file.

    Args:
        path: of the file.
        name: of the data set, such as "breakout/dqn-v0".

    Returns:
        How many episodes it has.

    Raises:
        MissingExtraError: Minari is not installed.
        StorageError: it is not a replay file, or holds no episode.
    """
    try:
        minari = importlib.import_module("minari")
        collector = importlib.import_module("minari.data_collector")
        # Minari loads these when it writes, and does not ask for the second itself.
        importlib.import_module("h5py")
        importlib.import_module("PIL")
    except ImportError as error:
        package = error.name or "minari"
        raise MissingExtraError("replay export --minari", package, "minari") from None
    from gymnasium import spaces

    buffers = []
    for number, episode in enumerate(episodes(path)):
        buffers.append(
            collector.EpisodeBuffer(
                id=number,
                observations=episode.observations,
                actions=episode.actions.astype(np.int64),
                rewards=episode.rewards,
                terminations=(episode.flags & TERMINATED) != 0,
                truncations=(episode.flags & TRUNCATED) != 0,
            )
        )
    if not buffers:
        raise StorageError(f"{path} holds no episode to export")
    shape, dtype = buffers[0].observations.shape[1:], buffers[0].observations.dtype
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        observation_space: Any = spaces.Box(low, high, shape, dtype.type)
    elif dtype.kind == "b":
        observation_space = spaces.MultiBinary(shape)
    else:
        observation_space = spaces.Box(-np.inf, np.inf, shape, dtype.type)
    actions = int(max(buffer.actions.max() for buffer in buffers)) + 1
    with warnings.catch_warnings():
        # It asks for an author, a permalink and the like, which are not ours to know.
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=buffers,
            observation_space=observation_space,
            action_space=spaces.Discrete(actions),
            algorithm_name="mprunner",
            description="What an mprunner replay memory held: episodes, whole or their last part.",
        )
    return len(buffers)
