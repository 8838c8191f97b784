"""Reading Q values; predictors beside the player."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from mprunner.errors import ConfigurationError, MissingExtraError, PredictorError
from mprunner.predictors import LocalPredictor, from_torch, read_q
from mprunner.weights import WeightsLayout, to_array
from tests.support.toys import GreedyModel, greedy

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
