"""Looking into a file, also while it is written."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from mprunner.errors import ConfigurationError, MissingExtraError, StorageError
from mprunner.replay import inspect
from mprunner.replay.memory import ReplayMemory
from mprunner.rows import TERMINATED, TRUNCATED
from tests.replay.test_mapped import written


def test_info_of_a_live_file(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, writers = written(path, num_rows=12, max_size=64)
    found = inspect.info(path)
    assert found.transitions == len(memory) == 24
    assert found.rows == 24 + 2 + 2
    assert (found.max_size, found.state_shape, found.history_len) == (64, (2, 3), 2)
    assert (found.dtype, found.num_streams, found.format_version) == ("int32", 2, 2)
    assert (found.games, found.mean_score, found.max_score) == (4, 7.5, 10.0)
    # One has ended in each stream; the running one reads as truncated.
    assert found.episodes == 4
    versions = [s[3] for w in writers for e in w.model.episodes for s in e.steps]
    assert found.newest_version == max(versions)
    assert found.mean_version_lag == pytest.approx(np.mean(max(versions) - np.array(versions)))
    assert found.file_bytes == path.stat().st_size
    assert found.used_bytes == 28 * (2 * 3 * 4 + 16)
    assert set(found.as_dict()) >= {"rows", "games", "dtype"}
    # The writer was not disturbed: its episode goes on.
    writers[0].step(TERMINATED)
    writers[0].flush()
    assert len(memory) == 25
    assert sum(memory.sample_batch(25).truncated) == 0


def test_info_of_an_empty_file(tmp_path):
    with ReplayMemory(16, (2,), 1, path=tmp_path / "a.mpr"):
        found = inspect.info(tmp_path / "a.mpr")
    assert (found.rows, found.transitions, found.games) == (0, 0, 0)
    assert found.mean_score is None and found.max_score is None


def test_show_is_what_sample_gives(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, _ = written(path, num_rows=40)
    for index in range(len(memory)):
        shown = inspect.show(path, index)
        state, reward, action, is_over = memory.sample(index)
        np.testing.assert_array_equal(np.moveaxis(shown.frames, 0, -1), state)
        assert (shown.reward, shown.action, shown.terminated) == (reward, action, is_over)
    with pytest.raises(IndexError):
        inspect.show(path, len(memory))
    assert shown.strip().shape == (2, 9)


def test_show_refuses_a_row_that_is_overwritten_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "replay.mpr"
    _, writers = written(path, num_rows=40)
    frames = inspect.Gatherer.frames

    def interrupted(*arguments):
        for _ in range(5):
            writers[0].step()
            writers[0].flush()
        return frames(*arguments)

    monkeypatch.setattr(inspect.Gatherer, "frames", interrupted)
    with pytest.raises(StorageError, match="overwritten while it was read"):
        inspect.show(path, 0)


@pytest.mark.parametrize(
    ("shape", "picture"),
    [((4, 5), (4, 15)), ((4, 5, 1), (4, 15)), ((1, 4, 5), (4, 15)), ((4, 5, 3), (4, 15, 3)),
     ((3, 6, 5), (6, 15, 3)), ((4, 5, 4), (4, 15, 4))],
)
def test_a_strip_has_the_frames_side_by_side(shape, picture):
    frames = np.arange(3 * np.prod(shape)).reshape(3, *shape).astype("uint8")
    made = inspect.strip(frames)
    assert made.shape == picture and made.dtype == np.uint8
    first = np.moveaxis(frames[0], 0, -1) if shape[0] in (1, 3) and len(shape) == 3 else frames[0]
    np.testing.assert_array_equal(made[:, :5].reshape(first.shape), first)


def test_a_strip_scales_what_is_not_uint8():
    made = inspect.strip(np.array([[[0.0, 0.5], [1.0, 0.25]]]))
    assert made.tolist() == [[0, 128], [255, 64]]
    assert inspect.strip(np.full((1, 2, 2), 7.0)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("shape", [(4,), (5, 5, 2)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(ConfigurationError, match="no pictures"):
        inspect.strip(np.zeros((3, *shape)))


@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 3), (7, 9, 4)])
def test_a_png_reads_back(tmp_path, shape):
    cv2 = pytest.importorskip("cv2")
    picture = np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
    inspect.write_png(tmp_path / "a.png", picture)
    read = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED)
    if len(shape) == 3:
        read = read[..., [2, 1, 0, 3][: shape[2]]]
    np.testing.assert_array_equal(read, picture)


def test_episodes_are_the_retained_ones(tmp_path):
    path = tmp_path / "replay.mpr"
    memory, writers = written(path, num_rows=40, max_size=32)
    found = list(inspect.episodes(path))
    for episode in found:
        tags = episode.observations[:, 0, 0].tolist()
        assert all(b > a for a, b in zip(tags, tags[1:]))
        assert (episode.flags[:-1] == 0).all()
        assert episode.flags[-1] in (TERMINATED, TRUNCATED)
        assert len(tags) == len(episode.actions) + 1 == len(episode.rewards) + 1
    rows = sum(len(episode.observations) for episode in found)
    assert rows == inspect.info(path).rows


def test_export_to_minari(tmp_path, monkeypatch):
    path = tmp_path / "replay.mpr"
    written(path, num_rows=20)[0].close()
    made = {}
    collector = types.ModuleType("minari.data_collector")
    collector.EpisodeBuffer = lambda **fields: types.SimpleNamespace(**fields)
    minari = types.ModuleType("minari")
    minari.create_dataset_from_buffers = lambda **options: made.update(options)
    monkeypatch.setitem(sys.modules, "minari", minari)
    monkeypatch.setitem(sys.modules, "minari.data_collector", collector)
    for needed in ("h5py", "PIL"):
        monkeypatch.setitem(sys.modules, needed, types.ModuleType(needed))
    count = inspect.export_minari(path, "tags/test-v0")
    assert made["dataset_id"] == "tags/test-v0" and len(made["buffer"]) == count > 2
    first = made["buffer"][0]
    assert made["observation_space"].contains(first.observations[0])
    assert made["action_space"].contains(first.actions[0])
    assert first.terminations[-1] ^ first.truncations[-1]


def test_export_without_minari_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"mprunner\[minari\]"):
        inspect.export_minari(tmp_path / "none.mpr", "a-v0")
