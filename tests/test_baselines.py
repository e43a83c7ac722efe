"""What TIAS is compared with: each order worked out by hand, and what must hold for any jobs."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import HOUR, rank_input, take

from tias_slurm.levers import ExactLever
from tias_slurm.policy.baselines import Aemon, DeadlineFirst, Las, OracleLaxity, OracleSrtf
from tias_slurm.policy.learning import Learner

NOW = 1_790_000_000.0
NAN = np.nan
S = Learner().survival()


def place(policy, jobs, now=NOW):
    """The order of the jobs' rows, ties by row."""
    r = policy.rank(now, jobs, S)
    value = ExactLever().target(np.zeros(len(jobs)), r)
    return np.lexsort((np.arange(len(jobs)), value)).tolist()


def test_deadline_first():
    jobs = rank_input(gpus=1, first_submit=NOW - 10, deadline=NOW + np.array([NAN, 500, NAN, 50, -5, 500]))
    r = DeadlineFirst().rank(NOW, jobs, S)
    assert r.level.tolist() == [1, 0, 1, 0, 0, 0]
    # the overdue job keeps its place by deadline; others in the order of their submit
    assert place(DeadlineFirst(), jobs) == [4, 3, 1, 5, 0, 2]


def test_las_thresholds_are_gpu_hours_5_20_83():
    attained = [0, 17_999, 18_000, 71_999, 72_000, 299_999, 300_000, 1e9]
    jobs = rank_input(gpus=4, first_submit=NOW - 1e9, attained=attained)
    r = Las().rank(NOW, jobs, S)
    assert r.level.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert r.site_order.all()  # first come first served inside


def test_las_is_blind_to_deadlines():
    jobs = rank_input(gpus=1, first_submit=NOW - 10, deadline=[NOW + 5, NAN], attained=[50_000, 50_000])
    assert len(set(Las().rank(NOW, jobs, S).level)) == 1


def test_aemon_bands():
    # u = elapsed / left; left = 1000 s
    elapsed = np.array([0, 99, 100, 999, 1000, 9999, 10_000])
    jobs = rank_input(gpus=1, first_submit=NOW - elapsed, deadline=NOW + 1000)
    assert Aemon().rank(NOW, jobs, S).level.tolist() == [7, 7, 5, 5, 3, 3, 1]


def test_aemon_non_deadline_jobs_go_first_in_each_pair():
    jobs = rank_input(gpus=1, first_submit=NOW - 1e9, attained=[0, 18_000, 72_000, 300_000])
    assert Aemon().rank(NOW, jobs, S).level.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("left", [0.0, -1.0, -1e9])
def test_aemon_gives_up_on_the_overdue(left):
    jobs = rank_input(gpus=1, first_submit=NOW - 5000, deadline=NOW + left)
    assert Aemon().rank(NOW, jobs, S).level.tolist() == [7]


def test_oracle_srtf_by_remaining_time():
    work = np.array([100.0, 5000.0, 70.0, 4000.0])
    jobs = rank_input(gpus=1, first_submit=NOW - 9000, executed=[0, 4000, 0, 3999.5])
    r = OracleSrtf(work).rank(NOW, jobs, S)
    # remaining 100, 1000, 70, 1 (never less): powers of two 6, 9, 6, 0
    assert r.level.tolist() == [6, 9, 6, 0]
    assert place(OracleSrtf(work), jobs) == [3, 2, 0, 1]


def test_oracle_laxity_waits_until_it_has_to():
    # one hour of work each; margin 3600 + 5 % of it = 3780 s
    work = np.full(5, HOUR)
    laxity = np.array([3779.0, 3781.0, 0.0, -1.0, NAN])
    jobs = rank_input(gpus=1, first_submit=NOW - 10, deadline=NOW + HOUR + laxity)
    r = OracleLaxity(work).rank(NOW, jobs, S)
    others = 1 + 11  # 2^11 <= 3600 < 2^12
    assert r.level.tolist() == [0, others, 0, 33, others]
    assert place(OracleLaxity(work), jobs)[:2] == [2, 0]  # the latest start that is first


def test_oracles_know_of_jobs_that_never_run():
    """Their work is NaN: they leave the queue by themselves."""
    jobs = rank_input(gpus=1, first_submit=NOW - 10, deadline=[NOW + 100, NAN])
    for policy in OracleSrtf(np.full(2, NAN)), OracleLaxity(np.full(2, NAN)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            r = policy.rank(NOW, jobs, S)
        assert ((r.level >= 0) & (r.level < policy.levels)).all()
        assert np.isfinite(ExactLever().target(np.zeros(2), r)).all()


POLICIES = {
    "deadline-first": lambda work: DeadlineFirst(),
    "las": lambda work: Las(),
    "aemon": lambda work: Aemon(),
    "oracle-srtf": OracleSrtf,
    "oracle-laxity": OracleLaxity,
}
JOB = st.tuples(
    st.floats(0, 1e7),  # age
    st.one_of(st.just(NAN), st.floats(-1e6, 1e7)),  # time left
    st.sampled_from([0.0, 0.2, 1.0]),  # share of the age that it ran
    st.sampled_from([1, 8, 512]),
    st.one_of(st.just(NAN), st.floats(0, 1e8)),  # true work
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=80)
@given(jobs=st.lists(JOB, min_size=1, max_size=10), seed=st.integers(0, 99))
def test_any_ranking_is_sound(name, jobs, seed):
    age, left, part, gpus, work = (np.array(c, dtype=float) for c in zip(*jobs, strict=True))
    columns = rank_input(gpus=gpus, first_submit=NOW - age, deadline=NOW + left, executed=age * part)
    policy = POLICIES[name](work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        r = policy.rank(NOW, columns, S)
    assert ((r.level >= 0) & (r.level < policy.levels)).all()
    assert (np.isfinite(r.urgency) & (r.urgency > 0)).all()
    # the lever keeps levels apart, whatever the urgency
    value = ExactLever().target(np.zeros(len(jobs)), r)
    order = np.argsort(value, kind="stable")
    assert (np.diff(r.level[order]) >= 0).all()
    # the order of the rows does not matter; each job alone at its own time is the same
    rows = np.random.default_rng(seed).permutation(len(jobs))
    mixed = policy.rank(NOW, take(columns, rows), S)
    assert np.array_equal(mixed.level, r.level[rows])
    assert np.array_equal(mixed.urgency, r.urgency[rows])
    each = policy.rank(np.full(len(jobs), NOW), columns, S)
    assert np.array_equal(each.level, r.level)
    assert np.array_equal(each.urgency, r.urgency)
    assert policy.reason(r, 0) == f"level {r.level[0]}"
