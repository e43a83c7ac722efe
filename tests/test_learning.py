"""What finished jobs teach: it fades, no user speaks for all, and nobody learns from the future."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import HOUR, prepared, workload

from tias_slurm.config import Config
from tias_slurm.policy.learning import (
    ALONE,
    DAY_S,
    HALF_LIFE_D,
    MOST_USERS,
    OF_OTHERS,
    SHRINK_WEIGHT,
    Learner,
)
from tias_slurm.replay import simulate
from tias_slurm.slurm.nodes import uniform


def taught(jobs, users, used=0.5, learner=None):
    learner = learner or Learner()
    for user in users:
        learner.learn(np.full(jobs, HOUR), np.full(jobs, used * HOUR), [user] * jobs)
    return learner


def crowd(each=10, users=40, used=0.5):
    return taught(each, [f"u{i}" for i in range(users)], used)


def test_a_user_alone_is_worth_few_jobs():
    assert taught(10_000, ["ann"]).counts.sum() == pytest.approx(ALONE)


def test_users_nobody_knows_are_taken_as_they_come():
    assert taught(500, [""]).counts.sum() == 500.0


def test_a_user_among_others_has_a_share():
    learner = crowd()
    others = learner.counts.sum()
    taught(100_000, ["cheat"], used=0.01, learner=learner)
    assert learner.counts.sum() - others == pytest.approx(OF_OTHERS * others)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 3), st.integers(1, 4000), st.integers(10, 60))
def test_one_user_moves_no_belief_by_more_than_a_share(used, jobs, users):
    honest, gamed = crowd(users=users), crowd(users=users)
    taught(jobs, ["cheat"], used=used, learner=gamed)
    moved = np.abs(gamed.survival() - honest.survival()).max()
    # by weights: his own in the class, and again in the cluster that the class is drawn to
    own = max(ALONE, OF_OTHERS * honest.counts[0].sum())
    share = own / (own + honest.counts[0].sum() + SHRINK_WEIGHT)
    assert moved <= share + SHRINK_WEIGHT / (honest.counts[0].sum() + SHRINK_WEIGHT)


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
    assert learner.fade(HALF_LIFE_D * DAY_S)
    assert np.allclose(learner.counts, whole / 2)
    assert learner.users["u3"][0] == pytest.approx(5.0)
    # and all of it in the end: the prior again
    learner.fade(100 * HALF_LIFE_D * DAY_S)
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
    """Every decision before `until`, as it is written down."""
    config = Config.model_validate({"policy": {"preset": preset}})
    run, wanted = prepared(workload(rows), uniform(32, 8), "tias@on", config)
    sink = io.StringIO()
    cluster, controller = run.prepare(wanted, sink)
    simulate.run(cluster, controller, 60.0)
    learned = controller.ledger.learner.counts.sum()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    return [d for d in lines if d["time"] < until], learned


@pytest.mark.parametrize("preset", ["balanced", "slots"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_after_t_changes_a_decision_before_it(preset, seed):
    rng = np.random.default_rng(seed)
    middle, end = START + 8 * HOUR, START + 14 * HOUR
    past = jobs_of(rng, 90, START, middle)
    future = jobs_of(rng, 60, middle, end)
    before, learned = decided(past + future, preset, middle)
    assert len(before) > 50
    assert learned > 10
    # another future: other jobs, deadlines and users
    other = jobs_of(np.random.default_rng(seed + 99), 40, middle, end)
    assert decided(past + other, preset, middle)[0] == before
    # what had not ended by then turns out otherwise
    solo = pd.DataFrame(past)
    for row, job in enumerate(past):
        # a job that was submitted a moment ago cannot have ended
        if job["submit"] + min(job["work"], solo.loc[row, "work"]) >= middle:
            job["work"] = middle - job["submit"] + float(rng.uniform(1.0, 3e4))
            job["state"] = str(rng.choice(["COMPLETED", "FAILED"]))
    assert decided(past + other, preset, middle)[0] == before


def test_what_ended_before_t_does_change_what_is_decided():
    """The test above would see a leak: other outcomes before t do make other decisions."""
    rng = np.random.default_rng(0)
    middle = START + 8 * HOUR
    past = jobs_of(rng, 90, START, middle)
    before, _ = decided(past, "balanced", middle)
    for job in past[:40]:
        job["state"] = "FAILED"
    assert decided(past, "balanced", middle)[0] != before
