"""The risk that TIAS sees in what finished jobs taught."""

import numpy as np
import pytest
from tias_jobs import PRIOR, claim, rank
from worlds import DAY, HOUR

from tias_slurm.policy.learning import BINS, PRIOR_UPPER, Learner, interpolate, window_class


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
