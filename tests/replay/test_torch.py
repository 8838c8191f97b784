"""Batches as tensors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mprunner.errors import MissingExtraError
from tests.replay.test_mapped import written


def test_tensors_share_the_batch_on_the_cpu():
    torch = pytest.importorskip("torch")
    batch = written(num_rows=20, max_size=64)[0].sample_batch(8, n_step=3)
    tensors = batch.as_torch()
    assert tensors.state.shape == tensors.next_state.shape == (8, 2, 2, 3)
    np.testing.assert_array_equal(np.moveaxis(batch.state, -1, 1), tensors.state.numpy())
    np.testing.assert_array_equal(np.moveaxis(batch.next_state, -1, 1), tensors.next_state.numpy())
    batch.frames[0] = 77
    assert (tensors.state[0] == 77).all()
    assert tensors.action.dtype == tensors.version.dtype == torch.int64
    assert tensors.reward.dtype == tensors.discount.dtype == torch.float32
    assert tensors.terminated.dtype == torch.bool
    assert tensors.indices is batch.indices


def test_without_torch_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    batch = written(num_rows=20, max_size=64)[0].sample_batch(8)
    with pytest.raises(MissingExtraError, match=r"mprunner\[torch\]"):
        batch.as_torch()
