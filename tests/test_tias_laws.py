"""TIAS: what must hold for any jobs."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tias_jobs import NOW, PRIOR, THREE, anyone, claim, rank
from worlds import DAY, HOUR, rank_input, take

from tias_slurm.policy.tias import Tias, preset


@settings(max_examples=300)
@given(**anyone, overdue=st.sampled_from(["last", "best-effort"]))
def test_any_ranking_is_sound(jobs, name, kind, survival, overdue):
    policy = Tias(preset(name, queue_urgency=kind, overdue=overdue))
    before = {k: np.copy(getattr(jobs, k)) for k in jobs.__dataclass_fields__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranking = policy.rank(NOW, jobs, survival)
        again = policy.rank(NOW, jobs, survival)
    n = len(jobs)
    assert ranking.level.shape == ranking.urgency.shape == ranking.site_order.shape == (n,)
    assert ((ranking.level >= 0) & (ranking.level < policy.levels)).all()
    assert (np.isfinite(ranking.urgency) & (ranking.urgency > 0)).all()
    # pure: the same again, and nothing changed
    assert np.array_equal(ranking.level, again.level)
    assert np.array_equal(ranking.urgency, again.urgency)
    for key, value in before.items():
        assert np.array_equal(getattr(jobs, key), value, equal_nan=True)
    # classes have levels of their own: odd ones belong to those who stand in the site's order
    last = policy.levels - 1
    assert np.array_equal(ranking.level % 2 == 1, ranking.site_order)
    none = np.isnan(jobs.deadline)
    assert (ranking.level[none] < last).all()
    if ranking.terms:
        for key in ("M0", "r"):
            live = ~ranking.terms["overdue"]
            assert ((ranking.terms[key][live] >= 0) & (ranking.terms[key][live] <= 1)).all()
        assert not (ranking.terms["hopeless"] & jobs.running[ranking.terms["rows"]]).any()
    for row in range(n):
        assert policy.reason(ranking, row).startswith(f"level {ranking.level[row]}: ")


@settings(max_examples=100)
@given(**anyone, seed=st.integers(0, 99))
def test_a_job_is_ranked_by_itself_alone(jobs, name, kind, survival, seed):
    """The order of the rows does not matter, nor who else is there."""
    policy = Tias(preset(name, queue_urgency=kind))
    whole = policy.rank(NOW, jobs, survival)
    rows = np.random.default_rng(seed).permutation(len(jobs))
    mixed = policy.rank(NOW, take(jobs, rows), survival)
    assert np.array_equal(mixed.level, whole.level[rows])
    assert np.array_equal(mixed.urgency, whole.urgency[rows])
    if name != "slots":  # where a holder's place depends on who else wants one
        alone = policy.rank(NOW, take(jobs, rows[:1]), survival)
        assert alone.level[0] == whole.level[rows[0]]


windows = st.floats(10 * HOUR, 30 * DAY)
gpu_counts = st.sampled_from([1, 2, 8, 32])


@settings(max_examples=150)
@given(window=windows, gpus=gpu_counts, part=st.floats(0, 0.99), more=st.floats(0, 0.99))
def test_waiting_alone_never_raises_a_job_of_jct_first(window, gpus, part, more):
    w1, w2 = sorted((part * window, more * window))
    first, second = rank("jct-first", claim(window, gpus, waited=w1), claim(window, gpus, waited=w2)).level
    assert second >= first


@settings(max_examples=150)
@given(window=windows, gpus=gpu_counts, part=st.floats(0, 1), more=st.floats(0, 1))
def test_the_closed_form_does_not_look_at_the_time_left(window, gpus, part, more):
    # while l >= Delta = 2 h, with the same e
    w = [p * (window - 2 * HOUR) for p in (part, more)]
    r = rank("jct-first", *(claim(window, gpus, waited=x) for x in w)).terms["r"]
    assert r[0] == pytest.approx(r[1], rel=1e-9)


@settings(max_examples=150)
@given(name=st.sampled_from(THREE), window=windows, gpus=gpu_counts, parts=st.tuples(*[st.floats(0, 1)] * 2))
def test_service_raises_risk(name, window, gpus, parts):
    # the longer a job has run, the larger the risk, at the same time left >= Delta
    left = 0.3 * window + 2 * HOUR
    ran = sorted(p * (window - left) for p in parts)
    jobs = [claim(window, gpus, waited=window - left - e, ran=e, running=True) for e in ran]
    r = rank(name, *jobs).terms["r"]
    assert r[1] >= r[0] * (1 - 1e-9)


@settings(max_examples=150)
@given(name=st.sampled_from(["wide-fair", "guard"]), window=windows, gpus=gpu_counts, parts=st.data())
def test_with_caps_waiting_never_lowers_until_it_is_hopeless(name, window, gpus, parts):
    # l >= Delta, so that the risk stands still and only the caps move
    most = max(window - 2 * HOUR, 0.0)
    w1, w2 = sorted(parts.draw(st.floats(0, most)) for _ in range(2))
    r = rank(name, claim(window, gpus, waited=w1), claim(window, gpus, waited=w2))
    if not r.terms["hopeless"][1]:
        assert r.level[1] <= r.level[0]


@settings(max_examples=100)
@given(waited=st.floats(0, 100 * DAY), ran=st.floats(0, 100 * DAY), gpus=gpu_counts)
def test_without_a_deadline_time_alone_changes_nothing(waited, ran, gpus):
    def level(w):
        jobs = rank_input(gpus=gpus, first_submit=NOW - w - ran, executed=ran)
        return Tias(preset("jct-first")).rank(NOW, jobs, PRIOR).level[0]

    assert level(waited) == level(0.0)
