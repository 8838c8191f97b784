"""The memory's public class: what goes in comes out, and nothing else does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mprunner.errors import ConfigurationError, NotEnoughRows
from mprunner.experience import Experience
from mprunner.replay.memory import ReplayMemory
from mprunner.rows import TERMINATED, TRUNCATED, Rows
from tests.support.replay_model import Writer, assert_batch, assert_stack, make_rows, paint


def filled(num_rows, max_size=16, history_len=4, **options):
    """One stream with episodes of 5 steps, in blocks of 3."""
    memory = ReplayMemory(max_size, (2,), history_len, "int32", seed=1, **options)
    writer = Writer(memory, memory.claim_stream(), max_size, itertools.count(1))
    for number in range(1, num_rows + 1):
        writer.step(TERMINATED if number % 5 == 0 else 0)
        if number % 3 == 0:
            writer.flush()
    writer.flush()
    return memory, writer


def by_name(memory, writer):
    """Every transition that can be sampled, by its first observation."""
    return {
        writer.model.stack(e, t)[-1]: (writer, e, t) for e, t in writer.model.transitions()
    }


@pytest.mark.parametrize("history_len", [1, 2, 4])
def test_every_index_at_every_fill_level(history_len):
    for num_rows in range(1, 36):
        check_every_index(*filled(num_rows, history_len=history_len))


def check_every_index(memory, writer):
    transitions = writer.model.transitions()
    assert len(memory) == len(transitions) > 0
    for index, (episode, step) in enumerate(transitions):
        state, reward, action, is_over = memory.sample(index)
        want = writer.model.expected(episode, step, 1, 0.99)
        assert_stack(state, want.state + want.next_state[-1:], memory)
        assert (reward, action, is_over) == (want.reward, want.action, want.terminated)
    for index in (-1, -len(transitions), len(transitions), 16, 35):
        with pytest.raises(IndexError):
            memory.sample(index)


@pytest.mark.parametrize("num_rows", [1, 5, 6, 13, 14, 15, 16, 20, 35])
def test_batches_hold_what_the_model_holds(num_rows):
    memory, writer = filled(num_rows)
    names = by_name(memory, writer)
    drawn = set()
    for _ in range(100):
        batch = memory.sample_batch(1, discount=0.9)
        name = int(batch.state[0, 0, -1])
        assert_batch(batch, memory, [writer], 1, 0.9, [names[name]])
        drawn.add(name)
    assert drawn == set(names)


def test_a_batch_is_one_contiguous_gather_and_its_stacks_are_views():
    memory, _ = filled(30, max_size=64)
    batch = memory.sample_batch(8)
    assert batch.frames.shape == (8, 5, 2) and batch.frames.flags.c_contiguous
    assert batch.state.shape == batch.next_state.shape == (8, 2, 4)
    assert batch.state.base is batch.frames and batch.next_state.base is batch.frames
    assert batch.action.dtype == np.int64 and batch.reward.dtype == np.float32
    assert batch.discount.dtype == np.float32 and batch.version.dtype == np.uint32
    assert batch.terminated.dtype == batch.truncated.dtype == np.bool_
    assert (batch.weights == 1).all() and len(batch) == 8


def test_an_out_batch_is_reused_and_another_size_refused():
    memory, _ = filled(30, max_size=64)
    batch = memory.sample_batch(8)
    assert memory.sample_batch(8, out=batch) is batch
    with pytest.raises(ConfigurationError, match=r"\(9, 5, 2\)"):
        memory.sample_batch(9, out=batch)


def test_a_held_sample_does_not_change_when_the_ring_wraps():
    memory, writer = filled(16)
    held = memory.sample(0)[0]
    batch = memory.sample_batch(4)
    before = held.copy(), batch.frames.copy(), batch.reward.copy()
    for _ in range(100):
        writer.step()
        writer.flush()
    np.testing.assert_array_equal(held, before[0])
    np.testing.assert_array_equal(batch.frames, before[1])
    np.testing.assert_array_equal(batch.reward, before[2])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "int16", "bool"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2)])
def test_dtypes_and_shapes_are_bit_exact(dtype, shape):
    random = np.random.default_rng(0)
    states = random.integers(0, 256, (20, *shape)).astype("uint8")
    if np.dtype(dtype).kind == "f":
        states = random.standard_normal((20, *shape)).astype(dtype)
    states = states.astype(dtype)
    memory = ReplayMemory(32, shape, 1, dtype)
    for state in states:
        memory.append(Experience(state, 2, 1.0, False))
    assert len(memory) == 19
    for index in range(19):
        got = memory.sample(index)[0]
        assert got.dtype == np.dtype(dtype)
        assert got[..., 0].tobytes() == states[index].tobytes()
        assert got[..., 1].tobytes() == states[index + 1].tobytes()


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        ("uint8", np.full((2,), 0.5, np.float32)),
        ("uint8", np.array([1, 300])),
        ("uint8", np.array([-1, 3])),
        ("float32", np.array([0.1, 2.0])),
        ("bool", np.array([0, 1])),
        ("uint8", np.zeros(3, "uint8")),
        ("uint8", np.zeros((1, 2), "uint8")),
    ],
)
def test_append_refuses_what_it_would_change(dtype, state):
    memory = ReplayMemory(16, (2,), 4, dtype)
    with pytest.raises(ConfigurationError, match="memory of"):
        memory.append(Experience(state, 0, 0.0, False))
    assert len(memory) == 0


@pytest.mark.parametrize("state", [np.array([1, 2]), [3, 4], np.array([True, False])])
def test_append_takes_what_it_can_store_exactly(state):
    memory = ReplayMemory(16, (2,), 1, "uint8")
    memory.append(Experience(state, 0, 0.0, True))
    np.testing.assert_array_equal(memory.sample(0)[0][:, 0], state)


@pytest.mark.parametrize(("action", "reward"), [(2**31, 0.0), (1.5, 0.0), (0, "x"), (None, 0.0)])
def test_append_refuses_unusable_steps(action, reward):
    memory = ReplayMemory(16, (2,), 4)
    with pytest.raises(ConfigurationError, match="action"):
        memory.append(Experience(np.zeros(2, "uint8"), action, reward, False))


def test_extend_refuses_other_rows():
    memory, writer = filled(3)
    other = ReplayMemory(16, (2,), 4, "int64")
    third = ReplayMemory(16, (3,), 4, "int32")
    for source in (other, third):
        with pytest.raises(ConfigurationError, match="rows have shape .* the memory's are"):
            writer.stream.extend(_rows_of(source), ())
    good = _rows_of(memory)
    for state, meta in [
        (good.state[:0], good.meta[:0]),
        (good.state, good.meta[:0]),
        (good.state, np.zeros(1, "f8")),
    ]:
        with pytest.raises(ConfigurationError, match="expected as many"):
            writer.stream.extend(Rows(state, meta, False))


def _rows_of(memory):
    return make_rows(memory, [(1, 0, 0.0, 0, 4, 0)], False)


def test_append_makes_a_transition_when_its_successor_arrives_and_a_terminal_one_at_once():
    memory = ReplayMemory(32, (2,), 2, "int32")
    lengths = []
    for number, over in enumerate([False, False, True, False, False, True, True], 1):
        memory.append(Experience(paint([number], memory)[0], number, number, over))
        lengths.append(len(memory))
    assert lengths == [0, 1, 3, 3, 4, 6, 7]
    assert_stack(memory.sample(0)[0], [0, 1, 2], memory)
    assert_stack(memory.sample(2)[0], [2, 3, 0], memory)
    assert_stack(memory.sample(3)[0], [0, 4, 5], memory)
    assert [memory.sample(i)[1:] for i in (1, 2, 6)] == [
        (2.0, 2, False),
        (3.0, 3, True),
        (7.0, 7, True),
    ]


def test_append_works_under_the_lock_as_the_original_does_it():
    memory = ReplayMemory(16, (2,), 1)
    with memory.writer_lock:
        memory.append(Experience(np.zeros(2, "uint8"), 0, 0.0, True))
    assert len(memory) == 1


def test_an_episode_longer_than_the_ring_keeps_the_newest_rows_in_order():
    memory, writer = filled(3, max_size=12)
    for _ in range(60):
        writer.step()
    writer.flush()
    assert [memory.sample(i)[0][0, -2] for i in range(len(memory))] == [
        e.observations[t] for e, t in writer.model.transitions()
    ]
    assert len(memory) == 8


def test_sampling_too_early_is_one_clear_sentence():
    memory = ReplayMemory(100, (2,), 4)
    with pytest.raises(NotEnoughRows, match="can sample 0 so far"):
        memory.sample_batch(1)
    with pytest.raises(IndexError, match="can sample 0"):
        memory.sample(0)
    memory, _ = filled(7, max_size=100)
    assert len(memory.sample_batch(7)) == 7
    with pytest.raises(NotEnoughRows, match="8 transitions were asked for.*can sample 7"):
        memory.sample_batch(8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, (2,), 4), "max_size"),
        ((4, (2,), 4), "at least 5 rows"),
        ((16.0, (2,), 4), "max_size"),
        ((16, (), 4), "1 to 3 dimensions"),
        ((16, (1, 1, 1, 1), 4), "1 to 3 dimensions"),
        ((16, (0,), 4), "state_shape"),
        ((16, 84, 4), "state_shape"),
        ((16, (2,), 0), "history_len"),
        ((1000, (2,), 256), "history_len"),
        ((16, (2,), 4, "object"), "dtype"),
        ((16, (2,), 4, ">f4"), "native"),
        ((16, (2,), 4, "no such"), "dtype"),
        ((16, (2,), 4, "complex64"), "dtype"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        ReplayMemory(*arguments)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": 2.5}, {"n_step": 0}, {"discount": 1.5}]
)
def test_unusable_sample_arguments_are_refused(options):
    memory, _ = filled(10)
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        memory.sample_batch(**{"batch_size": 2, **options})


def test_sealing_truncates_the_unfinished_episode_only():
    memory, writer = filled(8, max_size=32)
    writer.seal()
    writer.seal()
    flags = [memory.sample_batch(8).truncated.any() for _ in range(50)]
    assert any(flags)
    batch = memory.sample_batch(8)
    names = by_name(memory, writer)
    picks = [names[int(name)] for name in batch.state[:, 0, -1]]
    assert_batch(batch, memory, [writer], 1, 0.99, picks)
    writer.step(TRUNCATED)
    writer.flush()
    assert len(memory) == 9


def test_a_memory_is_not_pickled():
    import pickle

    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(ReplayMemory(16, (2,), 1))
