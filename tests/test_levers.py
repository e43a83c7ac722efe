"""Level and urgency as values of a field: order kept, bounds kept, each job's value its own."""

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from tias_slurm.levers import NICE_MAX, ExactLever, NiceLever

LEVELS = 12


def ranking(level, urgency, site=False):
    level, urgency, site = (np.atleast_1d(x) for x in np.broadcast_arrays(level, urgency, site))
    return worlds.ranking(level, urgency=urgency, site_order=site)


def values(lever, level, urgency, site=False, found=0.0):
    return lever.target(np.asarray(found, dtype=float), ranking(level, urgency, site)).tolist()


def test_the_last_place_is_the_users_own_nice():
    lever = NiceLever(LEVELS, 32, 0)
    assert values(lever, 11, 2.0**40) == [0]
    assert values(lever, 11, 2.0**40, found=100) == [100]
    assert values(lever, 0, 1.0) == [-383]


def test_urgency_falls_into_steps_by_its_logarithm():
    lever = NiceLever(LEVELS, 32, 0)
    got = values(lever, 11, [1.0, 1.9, 2.0, 3.9, 4.0, 2.0**31, 2.0**32, 2.0**50])
    assert [v + 31 for v in got] == [0, 0, 1, 1, 2, 31, 31, 31]
    assert values(NiceLever(LEVELS, 8, 0), 0, [1.0, 15.9, 16.0]) == [-95, -95, -94]
    assert values(NiceLever(LEVELS, 1, 0), [0, 11], [5.0, 9e9]) == [-11, 0]


def test_where_the_site_orders_urgency_does_not_count():
    lever = NiceLever(LEVELS, 32, 0)
    assert len(set(values(lever, 3, [1.0, 1e6, 1e12], site=True))) == 1


@pytest.mark.parametrize(("weights", "strict"), [(0, True), (4_000, True), (5_592_000, True), (10**7, False)])
def test_one_step_outweighs_the_sites_priority(weights, strict):
    lever = NiceLever(LEVELS, 32, weights)
    assert lever.strict is strict
    best, next_best = values(lever, [0, 0], [1.0, 2.0])
    assert (next_best - best > weights) is strict
    assert min(values(lever, 0, 1.0)) >= -NICE_MAX


@pytest.mark.parametrize("span", [1, 2, 10, 383, 384, 1000, 10_000, NICE_MAX])
@pytest.mark.parametrize("steps", [1, 32, 256])
def test_a_span_is_kept(span, steps):
    lever = NiceLever(LEVELS, steps, 5_000, span)
    level = np.arange(LEVELS).repeat(4)
    ordered = worlds.ranking(level, urgency=np.tile([1.0, 100.0, 1e7, 1e12], LEVELS), site_order=False)
    ordered.front[0] = True
    got = lever.target(np.zeros(len(level)), ordered).tolist()
    assert -span <= min(got)
    assert max(got) <= 0
    assert min(got) <= -0.5 * span, "the span is made use of"
    assert got == sorted(got)
    assert all(v == int(v) for v in got)
    assert lever.strict is (span > 5_000 * LEVELS * steps + LEVELS * steps - 1)


def test_a_span_smaller_than_the_steps_is_never_strict():
    assert NiceLever(LEVELS, 32, 0, 10).strict is False
    assert NiceLever(LEVELS, 32, 0, 384).strict is True


JOBS = st.lists(
    st.tuples(st.integers(0, LEVELS - 1), st.floats(1.0, 2.0**45), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=150)
@given(jobs=JOBS, steps=st.integers(1, 256), weights=st.integers(0, 10**9))
def test_nice_keeps_the_order(jobs, steps, weights):
    level, urgency, site = (np.array(c) for c in zip(*jobs, strict=True))
    lever = NiceLever(LEVELS, steps, weights)
    got = np.array(values(lever, level, urgency, site))
    assert (got >= -NICE_MAX).all()
    assert (got <= 0).all()
    for a in range(len(jobs)):
        for b in range(len(jobs)):
            if level[a] < level[b]:
                assert got[a] < got[b]
            elif level[a] == level[b] and not site[a] and not site[b] and urgency[a] <= urgency[b]:
                assert got[a] <= got[b]
    # a function of the job's own standing alone
    assert values(lever, level[:1], urgency[:1], site[:1]) == got[:1].tolist()


@settings(max_examples=150)
@given(jobs=JOBS)
def test_the_exact_order_is_exact_and_absolute(jobs):
    level, urgency, site = (np.array(c) for c in zip(*jobs, strict=True))
    got = np.array(values(ExactLever(), level, urgency, site))
    assert values(ExactLever(), level, urgency, site, found=7e9) == got.tolist()
    inside = np.where(site, 0.0, np.minimum(urgency, 2.0**40 - 1))
    order = np.lexsort((inside, level))
    assert (np.diff(got[order]) >= 0).all()
    assert (got // 2.0**40 == level).all()
