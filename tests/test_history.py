"""The stack that is acted on, against the plainest way to build it."""

import numpy as np
import pytest

from mprunner.history import History


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("history_len", [1, 2, 4, 9])
def test_stacks(history_len, shape):
    history = History(history_len, shape, np.dtype("float32"))
    rng = np.random.default_rng(0)
    buffer = np.zeros(shape, np.float32)
    for length in (1, 2, 3, 5, 60, 1, 17):
        frames = []
        for step in range(length):
            buffer[...] = rng.random(shape)
            frames.append(buffer.copy())
            if step:
                assert history.next_age == min(step, history_len - 1)
                history.push(buffer)
            else:
                history.restart(buffer)
            buffer[...] = -1  # the player goes on in the same array
            padded = [np.zeros(shape, np.float32)] * history_len + frames
            state = history.state()
            np.testing.assert_array_equal(state, np.stack(padded[-history_len:], axis=-1))
            assert np.moveaxis(state, -1, 0).flags.c_contiguous
            assert history.age == min(step, history_len - 1)
