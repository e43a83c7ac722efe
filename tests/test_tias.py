"""TIAS: the ten jobs of docs/policy.md, each rule of the two levels, and what must hold for any jobs."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DAY, HOUR, rank_input, take

from tias_slurm.policy.learning import BINS, PRIOR_UPPER, Learner, interpolate, window_class
from tias_slurm.policy.tias import PRESETS, Tias, preset

NOW = 1_790_000_000.0
PRIOR = Learner().survival()
THREE = ("jct-first", "wide-fair", "guard")


def claim(window, gpus, *, waited=0.0, ran=0.0, running=False):
    """A deadline job: its window, GPUs, and what happened since its submit."""
    submit = NOW - waited - ran
    return {
        "first_submit": submit,
        "deadline": submit + window,
        "gpus": gpus,
        "executed": ran,
        "running": running,
    }


def rank(name, *jobs, survival=PRIOR, **overrides):
    policy = Tias(preset(name, **overrides))
    columns = {key: np.array([j[key] for j in jobs]) for key in jobs[0]}
    return policy.rank(NOW, rank_input(**columns), survival)


TEN = {
    "no deadline, 8 GPUs, new": ({"first_submit": NOW, "gpus": 8, "deadline": np.nan}, (1, 1, 1)),
    "12 h x 1, new": (claim(12 * HOUR, 1), (0, 0, 0)),
    "24 h x 1, new": (claim(24 * HOUR, 1), (0, 4, 0)),
    "24 h x 1, waited 20 h": (claim(24 * HOUR, 1, waited=20 * HOUR), (0, 4, 0)),
    "24 h x 1, waited 21 h": (claim(24 * HOUR, 1, waited=21 * HOUR), (11, 11, 0)),
    "72 h x 8, new": (claim(72 * HOUR, 8), (8, 8, 8)),
    "72 h x 8, running for 60 h": (claim(72 * HOUR, 8, ran=60 * HOUR, running=True), (6, 10, 6)),
    "7 d x 32, new": (claim(7 * DAY, 32), (10, 10, 10)),
    "72 h x 8, running for 70 h": (claim(72 * HOUR, 8, ran=70 * HOUR, running=True), (6, 6, 6)),
    "past its deadline": (claim(24 * HOUR, 1, waited=25 * HOUR), (11, 11, 13)),
}


@pytest.mark.parametrize("name", TEN)
@pytest.mark.parametrize(("at", "preset_name"), list(enumerate(THREE)))
def test_the_ten_jobs(name, at, preset_name):
    job, levels = TEN[name]
    assert rank(preset_name, job).level.tolist() == [levels[at]]


@pytest.mark.parametrize(
    ("job", "term", "value"),
    [
        ("12 h x 1, new", "r", 0.130),
        ("24 h x 1, new", "r", 0.065),
        ("24 h x 1, waited 21 h", "M0", 0.098),
        ("72 h x 8, new", "r", 0.022),
        ("72 h x 8, running for 70 h", "r", 0.090),
    ],
)
def test_the_terms_of_the_ten_jobs(job, term, value):
    assert rank("jct-first", TEN[job][0]).terms[term][0] == pytest.approx(value, abs=5e-4)


def test_seventy_hours_done_and_waiting_is_hopeless():
    # the same numbers as the running job: hopeless for p_h = 0.10, not for guard's 0.03
    job = claim(72 * HOUR, 8, ran=70 * HOUR)
    assert [rank(p, job).level[0] for p in THREE] == [11, 11, 6]


@pytest.mark.parametrize("name", PRESETS)
def test_number_of_levels(name):
    queues = {"guard": 6}.get(name, 5)
    assert Tias(preset(name)).levels == 2 * queues + 2


@pytest.mark.parametrize(
    ("attained", "level"),
    [(0, 1), (17_999, 1), (18_000, 3), (71_999, 3), (72_000, 5), (300_000, 7), (1_500_000, 9), (9e9, 9)],
)
def test_jobs_without_deadline_fall_by_attained_service(attained, level):
    job = rank_input(gpus=1, first_submit=NOW - DAY, attained=attained)
    assert Tias(preset("jct-first")).rank(NOW, job, PRIOR).level.tolist() == [level]


def test_a_lost_claim_is_no_way_to_the_top():
    # to remove a hopeless or overdue claim leaves the job in the last non-deadline queue, 2K - 1
    jobs = rank_input(gpus=[1, 1], first_submit=NOW - DAY, claim_lost=[True, False])
    assert Tias(preset("jct-first")).rank(NOW, jobs, PRIOR).level.tolist() == [9, 1]
    assert Tias(preset("guard")).rank(NOW, jobs, PRIOR).level.tolist() == [11, 1]


def test_overdue_best_effort_governs_hopeless_too():
    jobs = [
        dict(claim(24 * HOUR, 1, waited=25 * HOUR), executed=0.0),
        claim(24 * HOUR, 1, waited=21.5 * HOUR),
        claim(24 * HOUR, 8, waited=13 * HOUR, ran=12 * HOUR, running=True),
    ]
    assert rank("jct-first", *jobs).level.tolist() == [11, 11, 11]
    # 8 GPUs x 12 h = 345,600 GPU-s: queue 3
    assert rank("jct-first", *jobs, overdue="best-effort").level.tolist() == [1, 1, 7]


def test_a_running_job_is_overdue_but_never_hopeless():
    r = rank("jct-first", claim(24 * HOUR, 1, waited=23.9 * HOUR, running=True))
    assert r.level[0] < 11
    assert r.terms["M0"][0] < 0.10


def test_exactly_at_the_deadline_is_overdue():
    assert rank("jct-first", claim(12 * HOUR, 1, waited=12 * HOUR)).level[0] == 11
    assert rank("jct-first", claim(12 * HOUR, 1, ran=12 * HOUR, running=True)).level[0] == 11


class TestCaps:
    # a week on 32 GPUs: calm at the very back of all presets while nothing is lost
    WIDE = staticmethod(lambda w: claim(7 * DAY, 32, waited=w))

    def test_jct_first_has_none(self):
        assert rank("jct-first", self.WIDE(3 * DAY)).level[0] == 10

    def test_from_one_interval_of_waiting_on(self):
        levels = [rank("wide-fair", self.WIDE(w)).level[0] for w in (0, 59.0, 60.0, 3 * DAY)]
        assert levels == [10, 10, 6, 6]
        assert rank("wide-fair", self.WIDE(60.0), interval_s=300.0).level[0] == 10

    def test_guard_tightens_with_the_loss(self):
        # c = w / (1.28 x 7 d): 0.05 after 10.75 h, 0.10 after 21.5 h
        levels = [rank("guard", self.WIDE(h * HOUR)).level[0] for h in (1, 10.7, 10.8, 21.4, 21.6)]
        assert levels == [6, 6, 4, 4, 2]

    def test_a_cap_on_real_loss_asks_for_no_interval(self):
        # 20 s of a 200-s window; not urgent because only 20 s are left
        job = claim(200.0, 512, waited=20.0, ran=160.0, running=True)
        r = rank("guard", job, urgent_risk=0.9, warming_ratio=1.0)
        assert r.terms["c"][0] == pytest.approx(20 / 96)
        assert r.terms["q_d"][0] == 2
        assert r.level[0] == 2  # and not 6

    def test_never_for_the_hopeless_and_the_overdue(self):
        hopeless, overdue = claim(DAY, 32, waited=23.9 * HOUR), claim(DAY, 32, waited=25 * HOUR)
        assert rank("guard", hopeless, overdue).level.tolist() == [13, 13]

    def test_never_lowers_a_job(self):
        job = claim(12 * HOUR, 1, waited=HOUR)
        assert rank("guard", job).level[0] == 0


class TestUrgency:
    A = claim(12 * HOUR, 2, waited=1 * HOUR)
    B = claim(10 * HOUR, 4, waited=1 * HOUR)
    C = claim(10 * HOUR, 2, ran=5 * HOUR, running=True)

    def order(self, kind):
        r = rank("jct-first", self.A, self.B, self.C, queue_urgency=kind)
        assert not r.site_order.any()
        return r.urgency

    def test_u_is_time_left_by_gpus_by_what_is_not_served(self):
        assert self.order("u") == pytest.approx([11 * HOUR * 2, 9 * HOUR * 4, 5 * HOUR * 2 * 0.5])

    def test_edf_is_time_left(self):
        assert self.order("edf") == pytest.approx([11 * HOUR, 9 * HOUR, 5 * HOUR])

    def test_laxity_takes_the_mean_of_the_prior(self):
        # 0.64 D - e still to do
        assert self.order("laxity") == pytest.approx([(11 - 7.68) * HOUR, (9 - 6.4) * HOUR, (5 - 1.4) * HOUR])

    def test_elapsed_by_left_turned_over(self):
        assert self.order("elapsed") == pytest.approx([DAY * 11 / 1, DAY * 9 / 1, DAY * 5 / 5])

    def test_the_lost_and_those_without_deadline_stand_in_the_sites_order(self):
        r = rank(
            "jct-first",
            claim(DAY, 1, waited=23.9 * HOUR),
            {"first_submit": NOW, "gpus": 8, "deadline": np.nan, "executed": 0.0, "running": False},
            claim(DAY, 1),
        )
        assert r.site_order.tolist() == [True, True, False]


class TestLearnedRisk:
    def test_the_prior_is_uniform(self):
        edges = np.arange(BINS + 1) * (PRIOR_UPPER / BINS)
        assert np.allclose(PRIOR, 1 - edges / 1.28)

    def test_without_experience_it_is_the_closed_form(self):
        # linear S: M(0) = 1 - (1.28 - 1 + w/D) / (1.28 - x) = l / (1.28 D - e)
        jobs = [
            claim(12 * HOUR, 1),
            claim(24 * HOUR, 4, waited=2 * HOUR, ran=3 * HOUR),
            claim(5 * HOUR, 8, waited=HOUR),
            claim(90 * HOUR, 8, waited=11 * HOUR, ran=50 * HOUR, running=True),
        ]
        closed = rank("balanced", *jobs, risk="closed-form").terms
        learned = rank("balanced", *jobs).terms
        assert np.allclose(learned["M0"], closed["M0"], atol=1e-9)
        assert np.allclose(learned["r"], closed["r"], atol=1e-9)

    def test_risk_of_a_long_window_is_not_lost_in_a_bin(self):
        # an hour of a 30-day window is a tenth of a bin
        assert rank("balanced", claim(30 * DAY, 8)).terms["r"][0] == pytest.approx(1 / (1.28 * 720), rel=1e-6)

    def test_jobs_that_use_little_of_their_window_are_safe_for_long(self):
        learner = Learner()
        learner.learn(np.full(5000, 30 * HOUR), np.full(5000, 0.1 * 30 * HOUR))
        job = claim(30 * HOUR, 1, waited=10 * HOUR)
        r = rank("balanced", job, survival=learner.survival())
        # what has not run yet almost surely needs 0.10..0.12 of 30 h; 20 h are left
        assert r.terms["M0"][0] > 0.99
        assert r.terms["r"][0] < 0.01
        assert rank("balanced", job).terms["M0"][0] < 0.6

    def test_classes_by_window_and_shrinkage(self):
        hours = np.array([0.5, 1.99, 2, 7.9, 8, 23.9, 24, 900])
        assert window_class(hours * HOUR).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        learner = Learner()
        learner.learn(np.full(5, HOUR), np.full(5, 0.5 * HOUR))  # five jobs of one class, bin 25
        s = learner.survival()
        at = 26  # S(0.52): the share above bin 25
        prior = (BINS - at) / BINS
        cluster = 5 * prior / (5 + 5)  # half experience, half prior
        assert s[0, at] == pytest.approx(5 * cluster / (5 + 5))  # half its own, half the cluster's
        assert s[3, at] == pytest.approx(cluster)  # a class without jobs is the cluster

    def test_more_than_all_bins_counts_in_the_last(self):
        learner = Learner()
        learner.learn(np.array([HOUR, HOUR]), np.array([50 * HOUR, 1.28 * HOUR]))
        assert learner.counts[0].tolist() == [0.0] * (BINS - 1) + [2.0]

    def test_learning_is_seen_at_once_and_nothing_else_changes_it(self):
        learner = Learner()
        before = learner.survival()
        assert learner.survival() is before
        learner.learn(np.empty(0), np.empty(0))
        assert learner.survival() is before
        learner.learn(np.array([HOUR]), np.array([0.0]))
        assert not np.array_equal(learner.survival(), before)

    def test_interpolation_ends_at_one_and_zero(self):
        phi = np.array([-3.0, 0.0, 0.01, 1.27, 1.28, 9.0])
        classes = np.zeros(6, dtype=np.int64)
        assert interpolate(PRIOR, classes, phi) == pytest.approx([1, 1, 1 - 0.01 / 1.28, 0.01 / 1.28, 0, 0])


@st.composite
def any_jobs(draw):
    n = draw(st.integers(1, 12))
    seconds = st.floats(0, 40 * DAY, allow_nan=False)
    rows = []
    for _ in range(n):
        age = draw(seconds)
        rows.append(
            {
                "first_submit": NOW - age,
                "gpus": draw(st.sampled_from([1, 2, 4, 8, 16, 64, 512])),
                "executed": age * draw(st.sampled_from([0.0, 0.0, 0.3, 0.9999, 1.0])),
                "deadline": draw(
                    st.one_of(
                        st.just(np.nan),
                        st.floats(1.0, 80 * DAY).map(lambda w, age=age: NOW - age + w),
                        st.just(NOW),
                        st.just(NOW + 1e-6),
                    )
                ),
                "running": draw(st.booleans()),
                "claim_lost": draw(st.booleans()),
            }
        )
    return rank_input(**{key: np.array([r[key] for r in rows]) for key in rows[0]})


SURVIVALS = [PRIOR]
for _seed in range(3):
    _rng, _learner = np.random.default_rng(_seed), Learner()
    _windows = _rng.lognormal(10, 1.5, 300)
    _learner.learn(_windows, _windows * _rng.choice([0.01, 0.3, 0.99, 1.5], 300))
    SURVIVALS.append(_learner.survival())

anyone = {
    "jobs": any_jobs(),
    "name": st.sampled_from(sorted(PRESETS)),
    "kind": st.sampled_from(["u", "edf", "laxity", "elapsed"]),
    "survival": st.sampled_from(SURVIVALS),
}


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(window=windows, gpus=gpu_counts, part=st.floats(0, 0.99), more=st.floats(0, 0.99))
def test_waiting_alone_never_raises_a_job_of_jct_first(window, gpus, part, more):
    w1, w2 = sorted((part * window, more * window))
    first, second = rank("jct-first", claim(window, gpus, waited=w1), claim(window, gpus, waited=w2)).level
    assert second >= first


@settings(max_examples=150, deadline=None)
@given(window=windows, gpus=gpu_counts, part=st.floats(0, 1), more=st.floats(0, 1))
def test_the_closed_form_does_not_look_at_the_time_left(window, gpus, part, more):
    # while l >= Delta = 2 h, with the same e
    w = [p * (window - 2 * HOUR) for p in (part, more)]
    r = rank("jct-first", *(claim(window, gpus, waited=x) for x in w)).terms["r"]
    assert r[0] == pytest.approx(r[1], rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(THREE), window=windows, gpus=gpu_counts, parts=st.tuples(*[st.floats(0, 1)] * 2))
def test_service_raises_risk(name, window, gpus, parts):
    # the longer a job has run, the larger the risk, at the same time left >= Delta
    left = 0.3 * window + 2 * HOUR
    ran = sorted(p * (window - left) for p in parts)
    jobs = [claim(window, gpus, waited=window - left - e, ran=e, running=True) for e in ran]
    r = rank(name, *jobs).terms["r"]
    assert r[1] >= r[0] * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(["wide-fair", "guard"]), window=windows, gpus=gpu_counts, parts=st.data())
def test_with_caps_waiting_never_lowers_until_it_is_hopeless(name, window, gpus, parts):
    # l >= Delta, so that the risk stands still and only the caps move
    most = max(window - 2 * HOUR, 0.0)
    w1, w2 = sorted(parts.draw(st.floats(0, most)) for _ in range(2))
    r = rank(name, claim(window, gpus, waited=w1), claim(window, gpus, waited=w2))
    if not r.terms["hopeless"][1]:
        assert r.level[1] <= r.level[0]


@settings(max_examples=100, deadline=None)
@given(waited=st.floats(0, 100 * DAY), ran=st.floats(0, 100 * DAY), gpus=gpu_counts)
def test_without_a_deadline_time_alone_changes_nothing(waited, ran, gpus):
    def level(w):
        jobs = rank_input(gpus=gpus, first_submit=NOW - w - ran, executed=ran)
        return Tias(preset("jct-first")).rank(NOW, jobs, PRIOR).level[0]

    assert level(waited) == level(0.0)


def flagged(jobs, **columns):
    """The same RankInput with columns replaced."""
    n = len(jobs)
    kept = {k: getattr(jobs, k) for k in jobs.__dataclass_fields__}
    return type(jobs)(**{**kept, **{k: np.broadcast_to(v, n).copy() for k, v in columns.items()}})


class TestLateClaims:
    """A deadline that came during the run does not better the level: else it would make any job immune."""

    def levels(self, name, late, **columns):
        jobs = rank_input(first_submit=NOW - DAY, executed=DAY, running=True, **columns)
        return Tias(preset(name)).rank(NOW, flagged(jobs, late=late), PRIOR)

    @pytest.mark.parametrize("name", PRESETS)
    def test_an_hour_to_go(self, name):
        columns = {"gpus": 8, "deadline": NOW + HOUR}
        assert self.levels(name, False, **columns).level[0] < 7
        r = self.levels(name, True, **columns)
        assert r.level.tolist() == [7]  # as without: 8 GPUs for a day, queue 3
        assert r.site_order.tolist() == [True]

    def test_one_that_lowers_counts(self):
        assert self.levels("jct-first", True, gpus=8, deadline=NOW + 30 * DAY).level.tolist() == [10]
        assert self.levels("jct-first", True, gpus=8, deadline=NOW - 1.0).level.tolist() == [11]

    @settings(max_examples=100, deadline=None)
    @given(
        name=st.sampled_from(sorted(PRESETS)),
        window=st.floats(HOUR, 60 * DAY),
        part=st.floats(0, 1.2),
        gpus=st.sampled_from([1, 8, 64]),
    )
    def test_never_better_than_without(self, name, window, part, gpus):
        ran = part * window
        job = {"gpus": gpus, "first_submit": NOW - ran, "executed": ran, "running": True}
        policy = Tias(preset(name))
        late = policy.rank(NOW, flagged(rank_input(**job, deadline=NOW - ran + window), late=True), PRIOR)
        assert late.level[0] >= policy.rank(NOW, rank_input(**job), PRIOR).level[0]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_window_of_nothing_is_overdue(name):
    """The clock went back behind the submit."""
    jobs = rank_input(gpus=[1, 1], first_submit=NOW + 60.0, deadline=[NOW + 60.0, NOW + 30.0])
    policy = Tias(preset(name))
    with np.errstate(all="raise"):
        r = policy.rank(NOW, jobs, PRIOR)
    assert r.level.tolist() == [policy.levels - 1] * 2
    assert r.fallen.all()


class TestSizeHint:
    def rank(self, limits, hint="time-limit"):
        jobs = flagged(rank_input(gpus=[8] * len(limits), first_submit=NOW), time_limit=limits)
        return Tias(preset("jct-first", size_hint=hint)).rank(NOW, jobs, PRIOR)

    def test_a_third_of_the_limit_counts_as_size(self):
        # 8 GPUs x 1 h / 3 = 9,600 GPU-s; 8 x 24 h / 3 = 230,400: queue 2
        r = self.rank([HOUR, 24 * HOUR])
        assert r.level.tolist() == [1, 5]
        assert r.urgency.tolist() == [8 * HOUR, 8 * 24 * HOUR]

    def test_no_limit_is_the_largest_and_no_way_to_the_top(self):
        r = self.rank([np.inf, 24 * HOUR])
        assert r.level.tolist() == [9, 5]
        assert np.isfinite(r.urgency).all()

    def test_without_gpus_no_limit_is_no_size(self):
        jobs = flagged(rank_input(gpus=[0, 8], first_submit=NOW), time_limit=[np.inf, HOUR])
        with np.errstate(invalid="raise"):
            r = Tias(preset("jct-first", size_hint="time-limit")).rank(NOW, jobs, PRIOR)
        assert r.level.tolist() == [1, 1]
        assert r.urgency.tolist() == [1.0, 8 * HOUR]

    def test_a_limit_that_is_not_known_tells_nothing(self):
        r = self.rank([np.nan])
        assert r.level.tolist() == [1]
        assert r.site_order.tolist() == [True]

    def test_without_the_setting_limits_do_not_matter(self):
        r = self.rank([np.inf, HOUR, np.nan], "none")
        assert r.level.tolist() == [1, 1, 1]
        assert r.site_order.all()


def test_no_jobs_at_all():
    r = Tias(preset("balanced")).rank(NOW, rank_input(gpus=[]), PRIOR)
    assert len(r.level) == len(r.urgency) == len(r.site_order) == 0


def test_an_unknown_preset_is_an_error():
    with pytest.raises(KeyError):
        preset("fast")
