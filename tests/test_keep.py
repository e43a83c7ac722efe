"""Who is kept: deadline jobs that run and were served a share of their windows (`keep_served`)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tias_jobs import NOW, PRIOR, TEN, anyone, claim, rank
from worlds import DAY, HOUR, rank_input

from tias_slurm.policy.tias import PRESETS, Tias, preset

X = 0.15
# as steady has them
LEVELS = {name: levels[0] for name, (_, levels) in TEN.items()} | {
    "72 h x 8, running for 60 h": 0,
    "72 h x 8, running for 70 h": 0,
}


@pytest.mark.parametrize("name", TEN)
def test_the_ten_jobs(name):
    assert rank("steady", TEN[name][0]).level.tolist() == [LEVELS[name]]


@pytest.mark.parametrize(("served", "level"), [(0.0, 8), (0.149, 8), (0.15, 0), (0.5, 0), (0.99, 0)])
def test_from_which_share_on(served, level):
    """Useful time counts, over all runs; one that waited before keeps what it had."""
    week = claim(7 * DAY, 1, ran=served * 7 * DAY, running=True)
    expected = level if level == 0 else rank("jct-first", week).level[0]
    assert rank("steady", week).level[0] == expected
    late = claim(7 * DAY, 1, waited=0.8 * 7 * DAY, ran=min(served, 0.19) * 7 * DAY, running=True)
    assert (rank("steady", late).level[0] == 0) == (served >= X)


def test_it_waits_like_all_others():
    """What was served keeps the nodes that a job has; it gets nobody new ones."""
    job = claim(7 * DAY, 8, ran=5 * DAY)
    assert rank("steady", job).level[0] == rank("jct-first", job).level[0] > 0


def test_not_beyond_the_deadline():
    assert rank("steady", claim(DAY, 8, waited=HOUR, ran=DAY, running=True)).level[0] == 11


def test_not_for_a_deadline_that_came_during_the_run():
    """Else a window of a few minutes would make any running job immune."""
    jobs = rank_input(first_submit=NOW - DAY, deadline=NOW + HOUR, gpus=8, executed=DAY, attained=8 * DAY)
    jobs.running[:] = True
    policy = Tias(preset("steady"))
    assert policy.rank(NOW, jobs, PRIOR).level[0] == 0
    jobs = replace(jobs, late=np.ones(1, dtype=bool))
    assert policy.rank(NOW, jobs, PRIOR).level[0] == 7


def test_why():
    told = rank("steady", claim(72 * HOUR, 8, ran=36 * HOUR, running=True))
    assert Tias(preset("steady")).reason(told, 0) == "level 0: kept, served 0.500 of its window >= 0.15"
    assert "kept" not in Tias(preset("steady")).reason(rank("steady", claim(72 * HOUR, 8)), 0)


@settings(max_examples=200)
@given(**anyone)
def test_nothing_else_changes(jobs, name, kind, survival):
    base = preset(name, queue_urgency=kind, keep_served=0.0)
    without = Tias(base).rank(NOW, jobs, survival)
    kept = Tias(replace(base, keep_served=X)).rank(NOW, jobs, survival)
    t = without.terms
    served = np.zeros(len(jobs), dtype=bool)
    if t:
        assert ((t["x"] >= 0) & (t["x"] <= 1.0 + 1e-9)).all()
        served[t["rows"]] = jobs.running[t["rows"]] & ~t["overdue"] & (t["x"] >= X)
    assert (kept.level[served] == 0).all()
    assert np.array_equal(kept.level[~served], without.level[~served])
    assert np.array_equal(kept.urgency, without.urgency)
    assert np.array_equal(kept.slot, without.slot)


def test_the_other_presets_keep_nobody():
    assert {name for name, p in PRESETS.items() if p.keep_served} == {"steady"}
