"""Weights on their way: packed and unpacked, on a board that is never torn."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest

from mprunner.errors import ConfigurationError
from mprunner.weights import WeightsBoard, WeightsLayout
from tests.support.waiting import HANG_S, Background

# ---- WeightsLayout


WEIGHTS = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array(2.5),
    "steps": np.array([3], np.int64),
    "none": np.zeros((0, 5), np.float16),
    "mask": np.array([True, False, True]),
}


@pytest.mark.parametrize("weights", [WEIGHTS, list(WEIGHTS.values()), {}, [], [[1.0, 2.0], 3]])
def test_pack_and_unpack(weights):
    layout = WeightsLayout(weights)
    again = layout.unpack(layout.pack(weights))
    assert type(again) is type(weights)
    if isinstance(weights, dict):
        assert list(again) == list(weights)
        weights, again = list(weights.values()), list(again.values())
    assert len(again) == len(weights)
    for one, other in zip(weights, again):
        one = np.asarray(one)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def test_packed_arrays_are_aligned_and_apart():
    layout = WeightsLayout(WEIGHTS)
    ends = [
        offset + np.dtype(dtype).itemsize * int(np.prod(shape))
        for offset, (shape, dtype) in zip(layout.offsets, layout.specs)
    ]
    assert all(offset % 16 == 0 for offset in layout.offsets)
    assert all(end <= start for end, start in zip(ends, [*layout.offsets[1:], layout.num_bytes]))


def test_weights_that_are_not_contiguous():
    weights = [np.arange(12.0).reshape(3, 4).T, np.arange(10)[::-2]]
    layout = WeightsLayout(weights)
    for one, other in zip(weights, layout.unpack(layout.pack(weights))):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "weights, words",
    [
        ({**WEIGHTS, "w": WEIGHTS["w"].T}, r"weights\['w'\] has shape \(4, 3\)"),
        ({**WEIGHTS, "b": np.float32(2.5)}, r"weights\['b'\] has .* dtype float32"),
        ({**WEIGHTS, "more": np.zeros(1)}, "names"),
        ({"w": WEIGHTS["w"]}, "names"),
        (dict(reversed(WEIGHTS.items())), "names"),
        (list(WEIGHTS.values()), "the names none"),
        (None, "weights are NoneType"),
    ],
)
def test_weights_of_another_form(weights, words):
    with pytest.raises(ConfigurationError, match=words):
        WeightsLayout(WEIGHTS).pack(weights)


def test_a_list_of_another_length():
    layout = WeightsLayout([np.zeros(2), np.zeros(3)])
    for weights in ([np.zeros(2)], [np.zeros(2), np.zeros(3), np.zeros(4)], []):
        with pytest.raises(ConfigurationError):
            layout.pack(weights)


# ---- WeightsBoard


class ShownBoard(WeightsBoard):
    """A board of `size` weights, each of which is the version; version 0 is on it."""

    def __init__(self, size=64, buffer=None):
        layout = WeightsLayout([np.zeros(size, np.int64)])
        self.buffer = bytearray(WeightsBoard.size_bytes(layout)) if buffer is None else buffer
        super().__init__(layout, self.buffer)
        if buffer is None:
            self.show(0)

    def show(self, version):
        """Publish it."""
        layout = self._layout
        weights = [np.full(layout.specs[0][0], version, np.int64)]
        self.publish(layout.pack(weights), version)


def shown(board):
    """(version, the one value of all its weights)."""
    version, (array,) = board.read()
    assert (array == array[0]).all(), "torn weights"
    return version, int(array[0])


def test_the_newest_is_read():
    board = ShownBoard()
    for version in range(6):
        board.show(version)
        assert board.version == version
        assert shown(board) == (version, version)


def test_what_is_read_is_the_readers_own():
    board = ShownBoard()
    _, (array,) = board.read()
    board.show(1)
    board.show(2)
    assert (array == 0).all()
    array[...] = 9
    assert shown(board) == (2, 2)


@pytest.mark.parametrize("newest", [1, 2])
def test_a_writer_that_dies_half_way_leaves_the_current_weights_whole(newest):
    board = ShownBoard(8)
    buffer = board.buffer
    for version in range(1, newest + 1):
        board.show(version)
    before = bytes(buffer)
    board.show(newest + 1)
    after = bytes(buffer)
    # The order of the writer: the slot's header, its weights, its header, the current version.
    start, end = board._place((newest + 1 + 1) % 2)
    torn = bytearray(before)
    reader = ShownBoard(8, torn)
    header = torn[start:start + 16] = struct.pack("<qIxxxx", -1, 0)
    assert len(header) == 16
    for at in range(start + 16, end):
        torn[at] = after[at]
        assert shown(reader) == (newest, newest)
    torn[start:end] = after[start:end]
    assert shown(reader) == (newest, newest)
    torn[:8] = after[:8]
    assert shown(reader) == (newest + 1, newest + 1)
    assert bytes(torn) == after


def test_a_writer_that_is_interrupted_twice_leaves_the_current_weights_whole():
    board = ShownBoard(8)
    board.show(1)
    start, _ = board._place((1 + 1 + 1) % 2)
    for _ in range(2):
        board.buffer[start:start + 40] = bytes(40)  # half-way
        assert shown(board) == (1, 1)
    board.show(4)
    assert shown(board) == (4, 4)


def test_a_reader_that_is_overtaken_waits_for_whole_weights():
    board = ShownBoard()
    buffer = board.buffer
    board.show(1)
    whole = bytes(buffer)
    board.show(2)
    board.show(3)
    newest = bytes(buffer)
    # As the reader sees it that has read the version 1 and then finds its slot half rewritten.
    start, end = board._place((3 + 1) % 2)
    half = (start + end) // 2
    buffer[:] = whole
    buffer[half:] = newest[half:]
    reading = Background(lambda: shown(board))
    assert reading.running
    buffer[8:] = newest[8:]
    buffer[:8] = newest[:8]
    assert reading.result() == (3, 3)


def test_a_checksum_settles_what_memory_order_leaves_open():
    board = ShownBoard()
    buffer = board.buffer
    board.show(1)
    right = bytes(buffer)
    start, _ = board._place((1 + 1) % 2)
    assert struct.unpack_from("<q", buffer, start) == (1,)
    buffer[start + 16 + 100] ^= 0xFF  # the header has arrived before the weights
    reading = Background(lambda: shown(board))
    assert reading.running
    buffer[:] = right
    assert reading.result() == (1, 1)


def test_readers_beside_a_writer_see_whole_weights_only():
    board = ShownBoard(512)
    last = 300
    seen = []
    start = threading.Barrier(3)

    def read():
        start.wait(HANG_S)
        versions = []
        while not versions or versions[-1] < last:
            version, value = shown(board)
            assert version == value
            versions.append(version)
        seen.append(versions)

    readers = [Background(read) for _ in range(2)]
    start.wait(HANG_S)
    for version in range(1, last + 1):
        board.show(version)
    for reader in readers:
        reader.result()
    for versions in seen:
        assert versions == sorted(versions)
