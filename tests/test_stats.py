"""Counters that never lie: scores, ages, percentiles, and one flat dict for loggers."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from mprunner.stats import Distribution, Histogram, ManagerStats, Recorder, WorkerStats
from tests.support.waiting import HANG_S, Background


def summary_of(values):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram.summary()


def test_nothing_yet():
    assert summary_of([]) == Distribution(0, None, None, None, None)


@pytest.mark.parametrize("value", [1e-6, 0.003, 1.0, 17.0, 1e5])
def test_one_value(value):
    found = summary_of([value])
    assert (found.count, found.mean, found.max) == (1, value, value)
    assert found.p50 == found.p95 == pytest.approx(value, rel=0.03)
    assert found.p95 <= found.max


def test_zeros():
    assert summary_of([0.0, 0.0]) == Distribution(2, 0.0, 0.0, 0.0, 0.0)
    found = summary_of([0.0] * 9 + [5.0])
    assert (found.p50, found.max) == (0.0, 5.0)
    assert found.p95 == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_within_a_bin(seed):
    values = np.random.default_rng(seed).lognormal(-5, 2, 2000)
    found = summary_of(values.tolist())
    assert found.count == 2000
    assert found.mean == pytest.approx(values.mean())
    assert found.max == values.max()
    assert found.p50 == pytest.approx(np.percentile(values, 50, method="lower"), rel=0.03)
    assert found.p95 == pytest.approx(np.percentile(values, 95, method="lower"), rel=0.03)


def test_many_at_once():
    histogram = Histogram()
    histogram.add(2.0, 3)
    histogram.add(8.0)
    assert histogram.summary().count == 4
    assert histogram.summary().mean == 3.5


def test_a_block_is_counted():
    recorder = Recorder(2)
    recorder.version = 5
    recorder.add_block(1, 13, [3.0, 4.0], [(0.5, 4), (0.25, 6)], {5: 7, 3: 3})
    recorder.add_block(0, 1, [], [(1.0, 1)], {5: 1})
    assert (recorder.rows, recorder.games) == ([1, 13], [0, 2])
    assert recorder.age_s.summary().count == 11
    assert recorder.age_s.summary().mean == pytest.approx((4 * 0.5 + 6 * 0.25 + 1) / 11)
    assert recorder.version_lag() == {0: 8, 2: 3}
    assert recorder.take_scores() == [3.0, 4.0]
    assert recorder.score_summary() == (3.5, 4.0)
    assert recorder.take_scores() == []


def test_restarts_are_counted():
    recorder = Recorder(2)
    recorder.add_restart(1)
    recorder.add_restart(1)
    assert recorder.restarts == [0, 2]


def test_scores_are_taken_once_whoever_adds_them():
    recorder = Recorder(4)
    start = threading.Barrier(5)

    def add(worker):
        start.wait(HANG_S)
        for i in range(500):
            recorder.add_block(worker, 1, [worker * 500.0 + i], [(0.1, 1)], {0: 1})

    adding = [Background(lambda worker=worker: add(worker)) for worker in range(4)]
    start.wait(HANG_S)
    taken = []
    while any(one.running for one in adding):
        taken.extend(recorder.take_scores())
    for one in adding:
        one.result()
    taken.extend(recorder.take_scores())
    assert sorted(taken) == list(map(float, range(2000)))
    assert recorder.rows == [500] * 4
    assert recorder.age_s.summary().count == 2000


def worker_stats(**changes):
    given = {"pid": 7, "state": "running", "steps": 1, "rows": 2, "games": 3, "restarts": 0,
             "share_player": 0.5, "share_job": 0.25, "share_prediction": 0.125,
             "share_block": 0.0}
    return WorkerStats(**{**given, **changes})


def manager_stats():
    return ManagerStats(
        steps_asked=10, steps_stored=8, steps_lost=1, outstanding=1, outstanding_peak=4,
        episodes=3, score_mean=-1.5, score_max=None,
        age_s=Distribution(8, 0.5, 0.4, 0.9, 1.0), version=2,
        version_lag={0: 5, 2: 3}, batch_size=Distribution(), batch_latency_s=Distribution(),
        restarts=0, workers=(worker_stats(), worker_stats(pid=None, state="restarting")),
    )


def test_a_flat_dict_for_loggers():
    flat = manager_stats().as_dict()
    assert all(type(value) is float for value in flat.values())
    assert flat["steps_stored"] == 8.0
    assert flat["age_s/p95"] == 0.9
    assert flat["version_lag/2"] == 3.0
    assert flat["worker/0/pid"] == 7.0
    assert flat["worker/1/share_player"] == 0.5
    assert flat["batch_size/count"] == 0.0
    assert flat["score_mean"] == -1.5
    for name in ("score_max", "batch_size/mean", "worker/1/pid", "worker/0/state"):
        assert name not in flat


def test_snapshots_are_frozen():
    stats = manager_stats()
    for record, name in ((stats, "episodes"), (stats.workers[0], "steps"), (stats.age_s, "max")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, 0)
