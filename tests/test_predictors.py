"""Reading Q values; weights on a board that is never torn."""

from __future__ import annotations

import pickle
import struct
import threading

import numpy as np
import pytest

from mprunner.errors import ConfigurationError, MissingExtraError, PredictorError
from mprunner.predictors import (
    LocalPredictor,
    WeightsBoard,
    WeightsLayout,
    from_torch,
    read_q,
    to_array,
)
from tests.toys import GreedyModel, greedy
from tests.waiting import HANG_S, Background

Q = np.arange(6, dtype=np.float32).reshape(2, 3)


class Tensor:
    """As much of a torch tensor as is looked at."""

    def __init__(self, array, dtype="torch.float32"):
        self._array, self.dtype = array, dtype
        self.calls = []

    def detach(self):
        self.calls.append("detach")
        return self

    def cpu(self):
        self.calls.append("cpu")
        return self

    def float(self):
        self.calls.append("float")
        return Tensor(self._array)

    def __array__(self, dtype=None, copy=None):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._array


class ArrayLike:
    def __array__(self, dtype=None, copy=None):
        return Q


# ---- read_q


@pytest.mark.parametrize(
    "output",
    [
        Q,
        Q.tolist(),
        [Q],
        (Q, "whatever"),
        [Q, np.zeros((9, 9))],
        (Q, Q),
        Tensor(Q),
        [Tensor(Q), None],
        Tensor(Q, "torch.bfloat16"),
        ArrayLike(),
        (ArrayLike(),),
        Q.astype(np.float16),
        Q.astype(np.int64),
        [Q.tolist()],
    ],
)
def test_q_that_is_understood(output):
    found = read_q(output, 2, 3)
    assert found.shape == (2, 3)
    np.testing.assert_array_equal(found, Q)


def test_q_of_a_batch_whose_first_row_could_be_q_itself():
    # A list of two rows, each of which is a (3,) array: not "a sequence whose first item is Q".
    np.testing.assert_array_equal(read_q([Q[0], Q[1]], 2, 3), Q)


def test_infinite_q_is_allowed():
    masked = np.array([[1.0, -np.inf]])
    np.testing.assert_array_equal(read_q(masked, 1, 2), masked)


@pytest.mark.parametrize(
    "output, words",
    [
        (None, r"shape \(\)"),
        ((), r"shape \(0,\)"),
        (Q.T, r"shape \(3, 2\); expected Q values of shape \(2, 3\)"),
        (Q[0], r"shape \(3,\)"),
        (Q[:1], r"shape \(1, 3\)"),
        (Q[None], r"shape \(1, 2, 3\)"),
        ([Q.T, Q], "expected Q values of shape"),
        ("text", r"shape \(\)"),
        ({"q": Q}, r"shape \(\)"),
        (Q.astype(str), "dtype <U.*; expected numbers"),
        (Q.astype(object), "dtype object; expected numbers"),
        (Q.astype(complex), "dtype complex128; expected numbers"),
        (np.where(Q == 4, np.nan, Q), "NaN"),
        ([[1, 2, 3], [4]], "returned list"),
    ],
)
def test_q_that_is_refused(output, words):
    with pytest.raises(PredictorError, match=words):
        read_q(output, 2, 3)


def test_a_tensor_is_detached_and_fetched():
    tensor = Tensor(Q)
    np.testing.assert_array_equal(to_array(tensor), Q)
    assert tensor.calls == ["detach", "cpu"]


@pytest.mark.slow
def test_real_torch():
    torch = pytest.importorskip("torch")
    q = torch.arange(6.0).reshape(2, 3).requires_grad_()
    for output in (q, [q], q.bfloat16(), (q.half(), q)):
        np.testing.assert_array_equal(read_q(output, 2, 3), Q)


@pytest.mark.slow
def test_a_torch_module_beside_the_player():
    torch = pytest.importorskip("torch")

    def make_net():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))

    net = make_net()
    model = from_torch(make_net)()
    layout = WeightsLayout(net.state_dict())
    model.set_weights(layout.unpack(layout.pack(net.state_dict())))
    states = np.random.default_rng(0).random((5, 2, 3), np.float32)  # history last
    with torch.no_grad():
        expected = net(torch.from_numpy(np.ascontiguousarray(states.transpose(0, 2, 1))))
    np.testing.assert_allclose(read_q(model(states), 5, 3), expected.numpy(), rtol=1e-5)
    assert torch.get_num_threads() == 1


def test_from_torch_without_torch(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"mprunner\[torch\]"):
        from_torch(lambda: None)()


# ---- LocalPredictor


def test_a_local_predictor_takes_no_weights_along():
    predictor = LocalPredictor(GreedyModel, {"w": np.zeros(10**6)})
    sent = pickle.dumps(predictor)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert again.weights is None
    assert again.layout.num_bytes == 8 * 10**6


@pytest.mark.parametrize("factory", [None, 3, "model"])
def test_a_factory_that_is_none(factory):
    with pytest.raises(ConfigurationError, match="factory is"):
        LocalPredictor(factory, greedy(0))


@pytest.mark.parametrize("weights", [None, 3, "w", np.zeros(3), {1, 2}, {"w": object()}])
def test_weights_that_are_none(weights):
    with pytest.raises(ConfigurationError, match="weights"):
        LocalPredictor(GreedyModel, weights)


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


def board_of(size=64):
    """A board with version 0 on it, its buffer, and weights that show their version."""

    def weights(version):
        return [np.full(size, version, np.int64)]

    layout = WeightsLayout(weights(0))
    buffer = bytearray(WeightsBoard.size_bytes(layout))
    board = WeightsBoard(layout, buffer)
    board.publish(weights(0), 0)
    return board, buffer, weights


def shown(board):
    """(version, the one value of all its weights)."""
    version, (array,) = board.read()
    assert (array == array[0]).all(), "torn weights"
    return version, int(array[0])


def test_the_newest_is_read():
    board, _, weights = board_of()
    for version in range(6):
        board.publish(weights(version), version)
        assert board.version == version
        assert shown(board) == (version, version)


def test_what_is_read_is_the_readers_own():
    board, _, weights = board_of()
    _, (array,) = board.read()
    board.publish(weights(1), 1)
    board.publish(weights(2), 2)
    assert (array == 0).all()
    array[...] = 9
    assert shown(board) == (2, 2)


def test_what_does_not_fit_is_not_published():
    board, buffer, _ = board_of()
    before = bytes(buffer)
    with pytest.raises(ConfigurationError):
        board.publish([np.zeros(3)], 1)
    assert bytes(buffer) == before


@pytest.mark.parametrize("newest", [1, 2])
def test_a_writer_that_dies_half_way_leaves_the_current_weights_whole(newest):
    board, buffer, weights = board_of(8)
    for version in range(1, newest + 1):
        board.publish(weights(version), version)
    before = bytes(buffer)
    board.publish(weights(newest + 1), newest + 1)
    after = bytes(buffer)
    # The order of the writer: the slot's header, its weights, its header, the version.
    slot = 16 + ((newest + 1) % 2) * (8 * 8 + 32)
    order = [
        *[range(slot, slot + 8)],
        *[range(at, at + 1) for at in range(slot + 32, slot + 32 + 64)],
        *[range(slot + 8, slot + 32)],
    ]
    torn = bytearray(before)
    reader = WeightsBoard(WeightsLayout(weights(0)), torn)
    for part in order:
        torn[part.start:part.stop] = after[part.start:part.stop]
        assert shown(reader) == (newest, newest)
    torn[:8] = after[:8]
    assert shown(reader) == (newest + 1, newest + 1)
    assert bytes(torn) == after


def test_a_reader_that_is_overtaken_waits_for_whole_weights():
    board, buffer, weights = board_of()
    board.publish(weights(1), 1)
    whole = bytes(buffer)
    board.publish(weights(2), 2)
    board.publish(weights(3), 3)
    newest = bytes(buffer)
    # As the reader sees it that has read the version 1 and then finds its slot half rewritten.
    half = (16 + 96 // 2) + len(newest) // 2
    buffer[:] = whole
    buffer[half:] = newest[half:]
    reading = Background(lambda: shown(board))
    assert reading.running
    buffer[8:] = newest[8:]
    buffer[:8] = newest[:8]
    assert reading.result() == (3, 3)


def test_a_checksum_settles_what_memory_order_leaves_open():
    board, buffer, weights = board_of()
    board.publish(weights(1), 1)
    right = bytes(buffer)
    start = 16 + 64 * 8 + 32
    assert struct.unpack_from("<qq", buffer, start) == (1, 1)
    buffer[start + 32 + 100] ^= 0xFF  # the header has arrived before the weights
    reading = Background(lambda: shown(board))
    assert reading.running
    buffer[:] = right
    assert reading.result() == (1, 1)


def test_readers_beside_a_writer_see_whole_weights_only():
    board, _, weights = board_of(512)
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
        board.publish(weights(version), version)
    for reader in readers:
        reader.result()
    for versions in seen:
        assert versions == sorted(versions)
