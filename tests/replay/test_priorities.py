"""Prioritised sampling: proportions, weights, and what becomes of rows that are gone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mprunner.errors import ConfigurationError, NotEnoughRows
from mprunner.replay.memory import ReplayMemory
from mprunner.replay.priorities import Priority, SumTree
from mprunner.rows import TERMINATED
from tests.support.chi_square import chi_square_limit
from tests.support.replay_model import Writer


def prioritised(num_rows=60, max_size=64, **config):
    memory = ReplayMemory(max_size, (2,), 3, "int32", seed=3, priority=Priority(**config))
    writer = Writer(memory, memory.claim_stream(), max_size, itertools.count(1))
    for number in range(1, num_rows + 1):
        writer.step(TERMINATED if number % 10 == 0 else 0)
        if number % 4 == 0:
            writer.flush()
    writer.flush()
    return memory, writer


def all_indices(memory):
    found = {}
    while len(found) < len(memory):
        batch = memory.sample_batch(len(memory), beta=0.0)
        found.update(zip(batch.state[:, 0, -1].tolist(), batch.indices.tolist()))
    return found


def test_transitions_are_drawn_in_proportion_to_their_priorities():
    memory, _ = prioritised(alpha=0.7, epsilon=0.01)
    names = all_indices(memory)
    tags = sorted(names)
    priorities = np.linspace(0, 5, len(tags))
    memory.update_priorities([names[tag] for tag in tags], priorities)
    chances = (priorities + 0.01) ** 0.7
    chances /= chances.sum()
    counts = dict.fromkeys(tags, 0)
    for _ in range(2000):
        for tag in memory.sample_batch(10).state[:, 0, -1].tolist():
            counts[tag] += 1
    found = np.array([counts[tag] for tag in tags])
    want = chances * found.sum()
    assert ((found - want) ** 2 / want).sum() < chi_square_limit(len(tags) - 1)


def test_weights_are_those_of_the_paper():
    memory, _ = prioritised(alpha=0.5, epsilon=1e-3)
    names = all_indices(memory)
    tags = sorted(names)
    given_to = dict(zip(tags, np.linspace(0.1, 9, len(tags))))
    memory.update_priorities([names[tag] for tag in tags], list(given_to.values()))
    chance = {tag: (p + 1e-3) ** 0.5 for tag, p in given_to.items()}
    total = sum(chance.values())
    batch = memory.sample_batch(16, beta=0.4)
    drawn = [chance[tag] / total for tag in batch.state[:, 0, -1].tolist()]
    weights = (len(memory) * np.array(drawn)) ** -0.4
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)
    assert (memory.sample_batch(16, beta=0.0).weights == 1).all()


def test_new_rows_get_the_largest_priority_so_far():
    memory, writer = prioritised(num_rows=20)
    names = all_indices(memory)
    memory.update_priorities(list(names.values()), [1e-9] * len(names))
    memory.update_priorities(list(names.values())[:1], [1e6])
    memory.update_priorities(list(names.values())[:1], [0.0])
    writer.step()
    writer.flush()
    newest = max(t for e in writer.model.episodes for t in e.observations[:-1])
    drawn = memory.sample_batch(21).state[:, 0, -1].tolist()
    assert drawn.count(newest) >= 20


def test_rows_that_were_overwritten_are_ignored():
    memory, writer = prioritised(num_rows=60)
    old = memory.sample_batch(20)
    for _ in range(200):
        writer.step()
        writer.flush()
    names = all_indices(memory)
    memory.update_priorities(old.indices, np.full(20, 1e9))
    memory.update_priorities(list(names.values()), np.ones(len(names)))
    assert (memory.sample_batch(20, beta=1.0).weights == 1).all()


def test_names_of_rows_do_not_come_again_when_streams_change():
    memory, writer = prioritised(num_rows=60)
    before = set(all_indices(memory).values())
    writer.release()
    memory.claim_streams(4)
    after = set(all_indices(memory).values())
    assert before.isdisjoint(after)
    memory.update_priorities(list(before), np.full(len(before), 1e9))
    assert (memory.sample_batch(20, beta=1.0).weights == 1).all()


def test_priorities_are_kept_when_streams_change():
    memory, writer = prioritised(num_rows=60)
    names = all_indices(memory)
    favourite = sorted(names)[20]
    memory.update_priorities(list(names.values()), [0.0] * len(names))
    memory.update_priorities([names[favourite]], [1e6])
    writer.release()
    memory.claim_streams(2)
    assert (memory.sample_batch(20).state[:, 0, -1] == favourite).mean() > 0.9


@pytest.mark.parametrize("bad", [[np.nan], [-1.0], [np.inf], [1.0, 2.0], [[1.0]]])
def test_unusable_priorities_are_refused(bad):
    memory, _ = prioritised()
    with pytest.raises(ConfigurationError, match="priorities"):
        memory.update_priorities([0], bad)
    with pytest.raises(ValueError, match="integers"):
        memory.update_priorities([0.5], [1.0])


@pytest.mark.parametrize(
    "config", [{"alpha": -0.1}, {"alpha": 1.1}, {"beta": 2}, {"epsilon": 0}, {"beta": np.nan}]
)
def test_unusable_settings_are_refused(config):
    with pytest.raises(ConfigurationError, match=next(iter(config))):
        Priority(**config)


def test_a_uniform_memory_says_how_to_prioritise():
    memory = ReplayMemory(16, (2,), 1)
    with pytest.raises(ConfigurationError, match=r"priority=Priority\(\)"):
        memory.update_priorities([0], [1.0])
    with pytest.raises(ConfigurationError, match=r"priority=Priority\(\)"):
        memory.sample_batch(1, beta=0.4)
    with pytest.raises(ConfigurationError, match="Priority or None"):
        ReplayMemory(16, (2,), 1, priority=0.6)


def test_sampling_too_early_is_the_same_error():
    memory = ReplayMemory(16, (2,), 1, priority=Priority())
    with pytest.raises(NotEnoughRows):
        memory.sample_batch(1)


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(1, 9000),
    updates=st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.floats(0, 1e12), st.integers(1, 50)), max_size=8
    ),
    shares=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_the_tree_finds_what_a_plain_sum_finds(size, updates, shares):
    tree, plain = SumTree(size), np.zeros(size)
    for seed, weight, num in updates:
        slots = np.random.default_rng(seed).integers(0, size, num)
        tree.set(slots, np.full(num, weight))
        plain[slots] = weight
    np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
    if not plain.any():
        return
    found = tree.find(np.array(shares))
    assert (plain[found] > 0).all()
    bounds = np.cumsum(plain)
    slack = 1e-9 * bounds[-1]
    for share, slot in zip(shares, found.tolist()):
        assert bounds[slot] - plain[slot] - slack <= share * bounds[-1] <= bounds[slot] + slack
