"""The account of one job: its terms, what would change it and when; found by asking the policy again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import DAY, HOUR, job_table, rank_input, snapshot

from tias_slurm.explain import HORIZON_S, Asked, Case, State, account, changes, line_for_slot, place, state_of
from tias_slurm.jobs import RUNNING
from tias_slurm.levers import NiceLever
from tias_slurm.policy.learning import Learner
from tias_slurm.policy.tias import Tias, preset

T = 1_000_000.0


def case(settings=None, now=T, lever=0.0, requeueable=True, **columns):
    """A look at jobs that wait since the epoch T unless said otherwise."""
    columns.setdefault("first_submit", now)
    known = replace(rank_input(**columns), capacity=64.0)
    n = len(known)
    policy = Tias(settings or preset("jct-first", starving_s=7 * DAY))
    survival = Learner().survival()
    ranking = policy.rank(now, known, survival)
    nice = NiceLever(policy.levels, 32, 1000)
    jobs = job_table(
        n,
        state=np.where(known.running, RUNNING, 0),
        gpus=known.gpus,
        since=known.since,
        lever=lever,
        requeueable=requeueable,
    )
    order = np.full(n, 100.0)
    room = snapshot(now, job_table(n)).occupancy
    shown = replace(snapshot(now, job_table(n), order=order, room=room), jobs=jobs)
    found = np.zeros(n)
    return Case(shown, known, ranking, survival, policy, nice, found, nice.target(found, ranking))


def course(made, *, runs, row=0):
    return [(c.text, c.after_s) for c in changes(Asked(made, row), runs=runs)]


def test_asked_about_itself_a_job_is_as_it_is():
    made = case(gpus=[1, 8, 8, 1], deadline=[T + 12 * HOUR, T + 72 * HOUR, np.nan, T - 1], first_submit=T - 2)
    for row in range(4):
        assert Asked(made, row).state() == state_of(made.policy, made.ranking, row)
        assert Asked(made, row).later(0.0, runs=False) == state_of(made.policy, made.ranking, row)


@pytest.mark.parametrize("name", ["jct-first", "steady", "wide-fair", "balanced", "guard", "slots"])
@pytest.mark.parametrize("after", [0.0, 600.0, 7 * HOUR, 60 * HOUR, 8 * DAY])
def test_what_is_foretold_is_what_the_policy_says_then(name, after):
    """One job alone, at the later time itself."""
    jobs = {"gpus": [8], "deadline": [T + 72 * HOUR]}
    made = case(preset(name), **jobs)
    then = case(preset(name), now=T + after, first_submit=T, **jobs)
    then = replace(then.known, slot=made.ranking.slot, front=made.ranking.front)
    ranking = made.policy.rank(T + after, then, made.survival)
    assert Asked(made, 0).later(after, runs=False) == state_of(made.policy, ranking, 0)
    served = replace(
        then, running=np.array([True]), executed=np.array([after]), attained=np.array([8.0 * after])
    )
    ranking = made.policy.rank(T + after, served, made.survival)
    assert Asked(made, 0).later(after, runs=True) == state_of(made.policy, ranking, 0)


def test_the_changes_of_a_job_without_a_deadline():
    made = case(gpus=[8])
    waits = course(made, runs=False)
    assert [text for text, _ in waits] == ["goes to the front"]
    assert waits[0][1] == pytest.approx(7 * DAY, abs=2)
    runs = course(made, runs=True)
    assert [text for text, _ in runs] == [f"falls to queue {q}, level {2 * q + 1}" for q in (1, 2, 3, 4)]
    assert [after for _, after in runs] == pytest.approx(
        [t / 8 for t in (18_000, 72_000, 300_000, 1_500_000)], abs=2
    )


def test_when_a_deadline_becomes_hopeless_and_overdue():
    """24 h on one GPU: M(0) = l / (1.28 D - e) falls below 0.1 when l = 0.128 D."""
    made = case(gpus=[1], deadline=[T + 24 * HOUR])
    waits = course(made, runs=False)
    assert [text for text, _ in waits] == ["becomes hopeless, level 11", "becomes overdue, level 11"]
    assert [after for _, after in waits] == pytest.approx([24 * HOUR * (1 - 0.128), 24 * HOUR], abs=2)


def test_a_running_job_never_becomes_hopeless():
    made = case(gpus=[8], deadline=[T + 72 * HOUR], running=True)
    texts = [text for text, _ in course(made, runs=True)]
    assert texts
    assert not any("hopeless" in text for text in texts)
    assert Asked(made, 0).later(73 * HOUR, runs=True).kind == "overdue"


def test_a_short_state_does_not_hide_the_one_that_lasts():
    class Short:
        def later(self, at, *, runs):
            kind = "urgent" if at < 5830 else "calm" if at < 5860 else "hopeless"
            return State({"urgent": 0, "calm": 6, "hopeless": 11}[kind], kind, None, False, False)

    told = [(c.text, c.after_s) for c in changes(Short(), runs=False)]
    assert [text for text, _ in told] == ["becomes calm, level 6", "becomes hopeless, level 11"]
    assert [after for _, after in told] == pytest.approx([5830, 5860], abs=1)


class Course:
    """A job that comes into states at given times, s."""

    def __init__(self, *states):
        self.states = states

    def later(self, at, *, runs):
        return next(state for after, state in reversed(self.states) if at >= after)


def stands(kind, level):
    return State(level, kind, None, False, False)


URGENT, CALM, OVERDUE = stands("urgent", 0), stands("calm", 6), stands("overdue", 11)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        # calm for 13 s: no cycle may see it
        ([(0, URGENT), (9000, CALM), (9013, OVERDUE)], [("becomes overdue, level 11", 9013)]),
        (
            [(0, URGENT), (9000, CALM), (9100, OVERDUE)],
            [("becomes calm, level 6", 9000), ("becomes overdue, level 11", 9100)],
        ),
        # there and back again
        ([(0, URGENT), (9000, CALM), (9020, URGENT), (9300, OVERDUE)], [("becomes overdue, level 11", 9300)]),
        # several short ones in turn
        (
            [(0, CALM), (1000, URGENT), (1040, CALM), (1080, URGENT), (1110, OVERDUE)],
            [("becomes overdue, level 11", 1110)],
        ),
        # the next cycle comes first
        (
            [(0, URGENT), (20, CALM), (9000, OVERDUE)],
            [("becomes calm, level 6", 20), ("becomes overdue, level 11", 9000)],
        ),
    ],
)  # fmt: skip
def test_what_lasts_for_less_than_a_cycle_is_left_out(states, told):
    found = [(c.text, c.after_s) for c in changes(Course(*states), runs=False, cycle_s=60.0)]
    assert [text for text, _ in found] == [text for text, _ in told]
    assert [after for _, after in found] == pytest.approx([after for _, after in told], abs=1)


def test_no_more_changes_than_can_be_read():
    kinds = [URGENT, CALM] * 8
    flips = Course((0, URGENT), *((1000 * 2**i, kind) for i, kind in enumerate(kinds[1:])))
    for cycle in (0.0, 60.0):
        assert len(changes(flips, runs=False, cycle_s=cycle)) == 5


def test_nothing_changes_beyond_the_horizon():
    made = case(preset("jct-first", starving_s=0.0), gpus=[1])
    assert course(made, runs=False) == []
    assert all(after <= HORIZON_S for _, after in course(made, runs=True))


def test_a_full_front_is_no_promise():
    """While others hold the share of the front, a starving job does not come there."""
    made = case(gpus=[8, 8], first_submit=[T - 6 * DAY, T - 8 * DAY])
    assert made.ranking.front.tolist() == [False, True]
    assert course(made, runs=False) == []
    assert course(case(gpus=[8], first_submit=[T - 6 * DAY]), runs=False)[0][1] == pytest.approx(DAY, abs=2)


def test_the_account_of_a_calm_job():
    """72 h on 8 GPUs: level 8, without its deadline 1 (docs/policy.md)."""
    told = account(case(gpus=[8], deadline=[T + 72 * HOUR]), 0)
    assert (told["level"], told["class"], told["queue"]) == (8, "calm", 3)
    assert told["what_if"]["without its deadline"] == {"level": 1, "class": "no deadline"}
    assert told["next_threshold_gpu_s"] == 1_500_000.0
    claim = told["claim"]
    assert claim["risk"] == pytest.approx(7200 / (1.28 * 72 * HOUR))
    assert (claim["left_s"], claim["window_s"], claim["lost_s"]) == (72 * HOUR, 72 * HOUR, 0.0)
    assert claim["chance"] == pytest.approx(1 / 1.28)
    assert told["urgency"] == pytest.approx(72 * HOUR * 8)


def test_past_the_deadline_there_is_neither_chance_nor_risk():
    told = account(case(gpus=[1], deadline=[T - 10], first_submit=[T - HOUR]), 0)
    assert told["class"] == "overdue"
    assert told["queue"] is None
    assert told["next_threshold_gpu_s"] is None
    assert (told["claim"]["chance"], told["claim"]["risk"]) == (None, None)
    assert told["urgency"] is None


def test_what_the_caps_do():
    told = account(case(preset("wide-fair"), gpus=[8], deadline=[T + 72 * HOUR], first_submit=[T - 600.0]), 0)
    assert told["level"] == 6
    assert told["what_if"]["without the caps for lost time"] == {"level": 8, "class": "calm"}


def test_a_claim_that_does_not_count():
    told = account(case(gpus=[1]), 0, claim=T + 3 * HOUR)
    assert (told["level"], told["claim"]) == (1, None)
    assert told["what_if"]["if its deadline counted"] == {"level": 0, "class": "urgent"}


def test_a_lost_claim():
    told = account(case(gpus=[1], claim_lost=True), 0)
    assert told["level"] == 9
    assert told["what_if"]["without the deadline that it gave up"] == {"level": 1, "class": "no deadline"}


def test_long_slots():
    """64 GPUs, 45 % of them for slots: one job of 24 GPUs holds one, the next would need 48 of 64."""
    made = case(preset("slots"), gpus=[24, 24, 1], deadline=[T + 100 * HOUR, T + 101 * HOUR, np.nan])
    assert made.ranking.slot.tolist() == [True, False, False]
    assert account(made, 0)["slot"] == {"held": True, "share": 0.45, "share_needed": None}
    assert account(made, 0)["level"] == 2
    assert account(made, 0)["what_if"]["without a long slot"]["level"] > 2
    assert line_for_slot(made, 1) == pytest.approx(48 / 64, abs=0.001)
    assert line_for_slot(made, 2) is None
    assert line_for_slot(case(gpus=[24], deadline=[T + 100 * HOUR]), 0) is None  # no slots in this preset


def test_the_place_in_the_queue():
    """Now by the values as they stand, then by those that come: the urgent job goes first."""
    made = case(gpus=[1, 2, 4, 8], deadline=[np.nan, np.nan, np.nan, T + 3 * HOUR])
    everybody, able = np.ones(4, dtype=bool), np.array([True, False, True, True])
    assert vars(place(made, 3, everybody, able)) == {
        "jobs": 3, "startable": 2, "gpus": 5, "weight": 5.0, "startable_planned": 0,
    }  # fmt: skip
    assert vars(place(made, 2, everybody, able)) == {
        "jobs": 2, "startable": 1, "gpus": 1, "weight": 1.0, "startable_planned": 2,
    }  # fmt: skip
    assert vars(place(made, 3, np.array([False, False, True, True]), able))["jobs"] == 1


def test_running_jobs_stand_before_nobody():
    made = case(gpus=[1, 1], running=[True, False])
    assert vars(place(made, 1, np.ones(2, dtype=bool), np.ones(2, dtype=bool)))["jobs"] == 0


def test_what_a_requeue_would_make_of_a_running_job():
    near = {"gpus": [8], "deadline": [T + 2 * HOUR], "first_submit": [T - 70 * HOUR]}
    told = account(case(running=True, executed=[70 * HOUR], **near), 0)
    assert told["what_if"]["if it were requeued now"] == {"level": 11, "class": "hopeless"}
    told = account(case(running=True, executed=[70 * HOUR], requeueable=False, **near), 0)
    assert "if it were requeued now" not in told["what_if"]


@pytest.mark.parametrize(("saves", "level"), [(600.0, 6), (0.0, 10)])
def test_a_requeue_would_lose_what_is_not_saved(saves, level):
    made = case(
        running=True, gpus=[8], deadline=[T + 12 * HOUR], first_submit=[T - 60 * HOUR], executed=60 * HOUR
    )
    jobs = replace(made.snapshot.jobs, run_time=np.array([60 * HOUR]), checkpoint=np.array([saves]))
    made = replace(made, snapshot=replace(made.snapshot, jobs=jobs))
    told = account(made, 0)
    assert told["level"] == 6
    got = told["what_if"].get("if it were requeued now", {"level": 6})
    assert got["level"] == level


def test_a_job_that_runs_is_told_what_running_brings():
    told = account(case(gpus=[8], running=True), 0)
    assert {c["if_it"] for c in told["changes"]} == {"runs"}
    assert told["front"]["waited_s"] is None
    told = account(case(gpus=[8]), 0)
    assert {c["if_it"] for c in told["changes"]} == {"waits", "runs"}
