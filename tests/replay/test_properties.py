"""Any order of steps, blocks, boundaries and wraps, against the model that keeps episodes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mprunner.experience import Experience
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.priorities import Priority
from mprunner.rows import CLOSING, TERMINATED, TRUNCATED
from tests.support.replay_model import Writer, assert_batch, assert_stack, paint

STEPS = st.sampled_from(
    ["step"] * 8 + ["flush"] * 3 + [TERMINATED, TRUNCATED, TERMINATED | TRUNCATED, "seal", "check"]
)
OPERATIONS = st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=150)
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def run(writers, operations, check):
    for number, operation in operations:
        writer = writers[number % len(writers)]
        if operation == "check":
            for each in writers:
                each.flush()
            check()
        elif operation == "flush":
            writer.flush()
        elif operation == "seal":
            writer.flush()
            writer.seal()
        else:
            writer.step(0 if operation == "step" else operation)
    for writer in writers:
        writer.flush()
    check()


def transitions_of(writers):
    return [(w, e, t) for w in writers for e, t in w.model.transitions()]


def check_all(memory, writers, n_step, discount):
    """Every index and some batches; each transition is known by its newest frame."""
    transitions = transitions_of(writers)
    assert len(memory) == len(transitions)
    for index, (writer, episode, step) in enumerate(transitions):
        want = writer.model.expected(episode, step, 1, discount)
        state, reward, action, is_over = memory.sample(index)
        assert_stack(state, want.state + want.next_state[-1:], memory)
        assert (reward, action, is_over) == (want.reward, want.action, want.terminated)
    if transitions:
        by_tag = {w.model.stack(e, t)[-1]: (w, e, t) for w, e, t in transitions}
        for _ in range(3):
            batch = memory.sample_batch(len(memory), n_step=n_step, discount=discount)
            picks = [by_tag[int(tag)] for tag in batch.state[:, 0, -1]]
            assert_batch(batch, memory, writers, n_step, discount, picks)


@SETTINGS
@given(
    operations=OPERATIONS,
    num_streams=st.integers(1, 3),
    history_len=st.integers(1, 5),
    spare=st.integers(0, 20),
    n_step=st.integers(1, 6),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    priority=st.sampled_from([None, Priority()]),
    seed=st.integers(0, 1000),
)
def test_streams_hold_what_the_model_holds(
    operations, num_streams, history_len, spare, n_step, discount, priority, seed
):
    max_size = num_streams * (history_len + 1) + spare
    memory = ReplayMemory(
        max_size, (2,), history_len, "int32", seed=seed, num_streams=num_streams, priority=priority
    )
    caps = [len(part) for part in np.array_split(np.arange(max_size), num_streams)]
    tags = itertools.count(1)
    writers = [Writer(memory, memory.claim_stream(), cap, tags) for cap in caps]
    run(writers, operations, lambda: check_all(memory, writers, n_step, discount))


@SETTINGS
@given(
    first=OPERATIONS,
    second=OPERATIONS,
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    history_len=st.integers(1, 4),
    spare=st.integers(0, 20),
    priority=st.sampled_from([None, Priority()]),
)
def test_another_number_of_streams_keeps_what_is_whole(
    first, second, counts, history_len, spare, priority
):
    max_size = 3 * (history_len + 1) + spare
    memory = ReplayMemory(max_size, (2,), history_len, "int32", seed=0, priority=priority)
    tags = itertools.count(1)
    known = {}
    for operations, count in zip((first, second), counts):
        before = set(held(memory))
        streams = memory.claim_streams(count)
        kept = set(held(memory))
        assert kept <= before
        assert len(kept) >= len(before) - 6 * (history_len + 2)
        writers = [Writer(memory, stream, max_size, tags) for stream in streams]

        def check():
            for w in writers:
                for e in w.model.episodes:
                    known.update({e.observations[t]: (w, e, t) for t in range(len(e.steps))})
            check_known(memory, known)

        run(writers, operations, check)
        for writer in writers:
            writer.release()
        check()


def held(memory):
    return [int(memory.sample(index)[0][0, -2]) for index in range(len(memory))]


def count_one_by_one(memory):
    found = 0
    for ring in memory._streams.rings:
        oldest = max(0, ring.end - ring.cap)
        for row in range(oldest, ring.end):
            meta = memory._streams.storage.meta[ring.slot(row)]
            found += not meta["flags"] & CLOSING and row - int(meta["age"]) >= oldest
    return found


def check_known(memory, known):
    """Every transition is one that was written, whole; only truncations may be new."""
    tags = held(memory)
    assert len(set(tags)) == len(tags) == count_one_by_one(memory)
    if not tags:
        return
    for n_step in (1, 3):
        batch = memory.sample_batch(len(tags), n_step=n_step, discount=0.5)
        for i, tag in enumerate(batch.state[:, 0, -1].tolist()):
            writer, episode, step = known[tag]
            steps = next(
                n for n in range(1, n_step + 1)
                if batch.next_state[i, 0, -1] == episode.observations[step + n]
            )
            want = writer.model.expected(episode, step, steps, 0.5)
            assert_stack(batch.state[i], want.state, memory)
            assert_stack(batch.next_state[i], want.next_state, memory)
            assert batch.action[i] == want.action
            np.testing.assert_allclose(batch.reward[i], want.reward, rtol=1e-6, atol=1e-6)
            assert batch.terminated[i] == want.terminated
            assert batch.discount[i] == np.float32(want.discount)
            assert batch.truncated[i] >= want.truncated
            assert steps == n_step or batch.truncated[i] or batch.terminated[i] or (
                len(episode.steps) == step + steps
            )


@SETTINGS
@given(
    overs=st.lists(st.sampled_from([False, False, False, True]), max_size=60),
    history_len=st.integers(1, 4),
    spare=st.integers(0, 10),
)
def test_append_stores_what_the_original_would(overs, history_len, spare):
    memory = ReplayMemory(history_len + 1 + spare, (2,), history_len, "int32")
    rows, episode = [], []
    for number, over in enumerate(overs, 1):
        memory.append(Experience(paint([number], memory)[0], -number, number / 2, over))
        episode.append(number)
        rows.append((number, list(episode), over))
        if over:
            rows.append((0, [], False))
            episode = []
    newest = len(rows) - 1
    expected = [
        (stack, over, rows[k + 1][0])
        for k, (number, stack, over) in enumerate(rows)
        if number and k < newest
        and k - min(len(stack) - 1, history_len - 1) >= len(rows) - memory.max_size
    ]
    assert len(memory) == len(expected)
    for index, (stack, over, following) in enumerate(expected):
        state, reward, action, is_over = memory.sample(index)
        frames = ([0] * history_len + stack)[-history_len:]
        assert_stack(state, [*frames, following], memory)
        assert (reward, action, is_over) == (stack[-1] / 2, -stack[-1], over)
