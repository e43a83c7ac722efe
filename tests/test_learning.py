"""What finished jobs teach: it fades, no user speaks for all, and nobody learns from the future."""

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import HOUR, prepared, workload

from tias_slurm import assemble
from tias_slurm.config import Config
from tias_slurm.policy.learning import (
    DAY_S,
    MOST_USERS,
    PRIOR_UPPER,
    Learner,
    LearnSettings,
    interpolate,
    respread,
)
from tias_slurm.replay import simulate
from tias_slurm.slurm.nodes import uniform

USUAL = LearnSettings()


def taught(jobs, users, used=0.5, learner=None):
    learner = learner or Learner()
    for user in users:
        learner.learn(np.full(jobs, HOUR), np.full(jobs, used * HOUR), [user] * jobs)
    return learner


def crowd(each=10, users=40, used=0.5):
    return taught(each, [f"u{i}" for i in range(users)], used)


def test_a_user_alone_is_worth_few_jobs():
    assert taught(10_000, ["ann"]).counts.sum() == pytest.approx(USUAL.user_jobs)


def test_users_nobody_knows_are_taken_as_they_come():
    assert taught(500, [""]).counts.sum() == 500.0


def test_a_user_among_others_has_a_share():
    learner = crowd()
    others = learner.counts.sum()
    taught(100_000, ["cheat"], used=0.01, learner=learner)
    assert learner.counts.sum() - others == pytest.approx(USUAL.user_share * others)


@settings(max_examples=40)
@given(st.floats(0, 3), st.integers(1, 4000), st.integers(10, 60))
def test_one_user_moves_no_belief_by_more_than_a_share(used, jobs, users):
    honest, gamed = crowd(users=users), crowd(users=users)
    taught(jobs, ["cheat"], used=used, learner=gamed)
    moved = np.abs(gamed.survival() - honest.survival()).max()
    # by weights: his own in the class, and again in the cluster that the class is drawn to
    own = max(USUAL.user_jobs, USUAL.user_share * honest.counts[0].sum())
    share = own / (own + honest.counts[0].sum() + USUAL.prior_jobs)
    assert moved <= share + USUAL.prior_jobs / (honest.counts[0].sum() + USUAL.prior_jobs)


def test_an_outlier_counts_for_one_job_in_the_last_bin():
    learner = crowd()
    before = learner.counts.copy()
    learner.learn(np.array([HOUR]), np.array([1e12]), ["eve"])
    assert (learner.counts - before).sum() == 1.0
    assert learner.counts[0, -1] == 1.0


def test_it_fades_by_half_in_the_half_life():
    learner = crowd()
    whole = learner.counts.copy()
    assert learner.fade(0.0)  # from when on is to be kept
    assert not learner.fade(DAY_S - 1)
    assert learner.fade(USUAL.half_life_s)
    assert np.allclose(learner.counts, whole / 2)
    assert learner.users["u3"][0] == pytest.approx(5.0)
    # and all of it in the end: the prior again
    learner.fade(100 * USUAL.half_life_s)
    assert not learner.counts.any()
    assert learner.users == {}
    assert np.allclose(learner.survival(), Learner().survival())


def test_fading_day_by_day_is_fading_at_once():
    one, two = crowd(), crowd()
    one.fade(0.0)
    two.fade(0.0)
    for day in range(1, 21):
        one.fade(day * DAY_S + 60.0 * day)
    two.fade(20 * DAY_S + 1200.0)
    assert np.allclose(one.counts, two.counts)


def test_users_are_bounded():
    learner = Learner()
    learner.learn(
        np.full(MOST_USERS + 5, HOUR), np.full(MOST_USERS + 5, 60.0), [f"u{i}" for i in range(MOST_USERS + 5)]
    )
    assert len(learner.users) == MOST_USERS
    assert "u0" not in learner.users


def test_what_status_shows():
    prior = Learner().learned()
    assert [c.windows for c in prior] == ["under 2 h", "2 h to 8 h", "8 h to 24 h", "24 h and longer"]
    assert prior[0].jobs == 0.0
    assert prior[0].quantiles == pytest.approx({0.25: 0.32, 0.5: 0.64, 0.75: 0.96, 0.9: 1.152})
    some = crowd().learned()
    assert some[0].jobs == 400.0
    assert 0.5 <= some[0].quantiles[0.5] <= 0.52


def test_it_comes_back_from_a_text_and_nonsense_does_not():
    learner = crowd()
    learner.fade(DAY_S)
    learner.fade(3 * DAY_S)
    again = Learner(counts=learner.counts.copy())
    again.loads(learner.dumps())
    assert again.faded_at == learner.faded_at
    assert sorted(again.users) == sorted(learner.users)
    for text in ("", "nonsense", "[]", "{}", '{"faded_at": 1, "users": {"a": [1, 2]}}', '{"faded_at": 1}'):
        again.loads(text)
        assert again.faded_at == learner.faded_at


def test_a_restart_changes_nothing():
    rng = np.random.default_rng(0)
    one, two = Learner(), Learner()
    for day in range(200):
        n = int(rng.integers(0, 4))
        jobs = rng.choice([HOUR, 9 * HOUR], n), rng.uniform(0.0, HOUR, n), [f"u{rng.integers(3)}"] * n
        for learner in (one, two):
            learner.fade(day * 0.7 * DAY_S)
            learner.learn(*jobs)
        again = Learner(counts=two.counts.copy())
        again.loads(two.dumps())
        two = again
    assert one.counts.sum() > 20
    assert np.array_equal(one.counts, two.counts)


# ---- no future leaks ----

START = 1_700_000_000.0


def jobs_of(rng, n, first, last):
    rows = []
    for at in np.sort(rng.uniform(first, last, n)).tolist():
        work = float(rng.lognormal(7.5, 1.2))
        due = at + work * rng.uniform(1.1, 4.0) if rng.random() < 0.6 else np.nan
        rows.append(
            {
                "submit": at,
                "work": work,
                "gpus": int(rng.choice([1, 1, 2, 4, 8, 16])),
                "deadline": due,
                "user": f"u{rng.integers(5)}",
                "state": "COMPLETED" if rng.random() < 0.9 else "FAILED",
            }
        )
    return rows


def decided(rows, preset, until):
    """Decisions before `until`, as they are written down; jobs learned; by row: last start, end, requeues."""
    config = Config.model_validate({"policy": {"preset": preset}})
    run, wanted = prepared(workload(rows), uniform(32, 8), "tias@on", config)
    sink = io.StringIO()
    cluster, controller = run.prepare(wanted, sink)
    simulate.run(cluster, controller, 60.0)
    learned = controller.ledger.learner.counts.sum()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    s, rows = cluster.state, cluster.req.number
    return [d for d in lines if d["time"] < until], learned, (s.started[rows], s.end[rows], s.restarts[rows])


@pytest.mark.parametrize("preset", ["balanced", "slots"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_after_t_changes_a_decision_before_it(preset, seed):
    rng = np.random.default_rng(seed)
    end = START + 14 * HOUR
    jobs = jobs_of(rng, 90, START, START + 8 * HOUR) + jobs_of(rng, 60, START + 8 * HOUR, end)
    decisions, learned, (start, ends, requeues) = decided(jobs, preset, np.inf)
    assert learned > 10
    for t in START + HOUR * np.arange(4.0, 12.0, 1.5):
        before = [d for d in decisions if d["time"] < t]
        assert len(before) > 20
        # all that had not ended by then turns out otherwise: what had run takes longer, what had not anything
        past = [dict(job) for job in jobs if job["submit"] < t]
        late = np.flatnonzero(~(ends[: len(past)] <= t)).tolist()
        assert len(late) > 5
        for row in late:
            job, more = past[row], float(rng.uniform(1.0, 3e4))
            job["work"] = more if start[row] > t and not requeues[row] else job["work"] + more
            job["state"] = "FAILED" if job["state"] == "COMPLETED" else "COMPLETED"
        # and another future: other jobs, deadlines and users
        other = jobs_of(np.random.default_rng(seed + 99), 40, t, end)
        assert decided(past + other, preset, t)[0] == before


def test_what_ended_before_t_does_change_what_is_decided():
    """The test above would see a leak: other outcomes before t do make other decisions."""
    rng = np.random.default_rng(0)
    middle = START + 8 * HOUR
    past = jobs_of(rng, 90, START, middle)
    before, *_ = decided(past, "balanced", middle)
    for job in past[:40]:
        job["state"] = "FAILED"
    assert decided(past, "balanced", middle)[0] != before


def test_each_constant_of_the_learning_is_a_setting():
    config = Config.model_validate(
        {
            "policy": {"prior_upper": 2.0},
            "learning": {"prior_jobs": 1.0, "half_life_s": DAY_S, "user_jobs": 3.0, "user_share": 0.5},
        }
    )
    learner = assemble.ledger(config, None).learner
    assert learner.settings == LearnSettings(2.0, 1.0, DAY_S, 3.0, 0.5)
    taught(10_000, ["ann"], learner=learner)
    assert learner.counts.sum() == pytest.approx(3.0)
    learner.fade(0.0)
    learner.fade(DAY_S)
    assert learner.counts.sum() == pytest.approx(1.5)


@given(st.floats(0.5, 10.0), st.floats(0.0, 12.0))
def test_the_prior_ends_where_the_settings_say(upper, phi):
    survival = Learner(LearnSettings(upper)).survival()
    got = interpolate(survival, np.zeros(1, dtype=np.int64), np.array([phi]), upper)
    assert got[0] == pytest.approx(max(1.0 - phi / upper, 0.0), abs=1e-9)


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.floats(0.5, 10.0), st.floats(0.5, 10.0))
def test_what_was_learned_outlives_another_width_of_bins(counts, old, new):
    before = np.array([counts] * 4, dtype=np.float64)
    after = respread(before, old, new)
    assert after.min() >= 0.0
    assert after.sum(axis=1) == pytest.approx(before.sum(axis=1))
    # at every edge of a new bin as many jobs ended before it as by the old bins
    edges = np.linspace(0.0, new, 65)[1:-1]
    known = np.interp(edges, np.linspace(0.0, old, 65), np.concatenate(([0.0], np.cumsum(counts))))
    assert after[0].cumsum()[:-1] == pytest.approx(known, abs=1e-6)


def test_a_restart_with_another_width_of_bins_keeps_what_was_learned():
    learner = crowd(used=0.5)
    again = Learner(LearnSettings(2.56), learner.counts.copy())
    again.loads(learner.dumps())
    assert again.counts.sum() == pytest.approx(learner.counts.sum())
    for known, then in zip(again.learned(), learner.learned(), strict=True):
        assert known.jobs == pytest.approx(then.jobs)
    assert again.learned()[0].quantiles[0.5] == pytest.approx(0.5, abs=0.05)
    # and what says nothing of the width has today's usual one
    old = Learner(LearnSettings(PRIOR_UPPER), learner.counts.copy())
    old.loads('{"faded_at": 5.0, "users": {}}')
    assert (old.counts == learner.counts).all()
