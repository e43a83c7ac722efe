"""TIAS: the ten jobs of docs/policy.md, and each rule of the two levels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tias_jobs import NOW, PRIOR, TEN, THREE, claim, flagged, rank
from worlds import DAY, HOUR, rank_input

from tias_slurm.policy.tias import PRESETS, Tias, preset


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

    @settings(max_examples=100)
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
