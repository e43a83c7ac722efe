"""The life of a claim: changes are counted, a withdrawal is honoured, what is lost stays lost."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import HOUR, job_table, ranking, snapshot

from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger.book import COUNTS, Ledger
from tias_slurm.ledger.claim_life import CHANGES, PAST, REASONS, TAKEN, Claim, follow

# what a comment may say at one look (time 0, 1, 2, ...), and whether the claim had fallen by then
looks = st.lists(
    st.tuples(st.one_of(st.just(np.nan), st.sampled_from([-5.0, 3.0, 50.0, 60.0, 70.0])), st.booleans()),
    max_size=25,
)


def start(n=1):
    none = np.full(n, np.nan)
    return Claim(none, np.zeros(n), np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64), none)


def step(claim, said, fallen, most, since=0.0, by_settings=False):
    one = np.ones(1)
    return follow(said * one, since * one, claim, np.array([fallen]), most, by_settings=by_settings)


@given(looks, st.integers(0, 4))
def test_a_life(course, most):
    claim = start()
    for at, (said, fallen) in enumerate(course):
        was, claim = claim, step(claim, said, fallen, most, since=float(at))
        took = claim.accepted[0] - was.accepted[0]
        assert took in (0, 1)
        assert claim.accepted[0] <= 1 + most
        # a withdrawal is always honoured
        if np.isnan(said):
            assert np.isnan(claim.deadline[0])
            assert claim.refused[0] == TAKEN
        # what counts is what was accepted last, and nothing that was never accepted
        elif took:
            assert claim.deadline[0] == said
        else:
            assert np.array_equal(claim.deadline, was.deadline, equal_nan=True)
            assert (claim.refused[0] == TAKEN) == (claim.deadline[0] == said)
        assert claim.lost[0] >= was.lost[0]
        gave_up = np.isfinite(was.deadline[0]) and (np.isnan(claim.deadline[0]) or took)
        assert claim.lost[0] == (was.lost[0] or (gave_up and fallen))
        if was.accepted[0] == 0 and took:
            assert said > at


@given(looks, st.integers(0, 4))
def test_saying_the_same_again_changes_nothing(course, most):
    claim = start()
    for at, (said, fallen) in enumerate(course):
        claim = step(claim, said, fallen, most, since=float(at))
        again = step(claim, said, fallen, most, since=float(at))
        assert np.array_equal(again.deadline, claim.deadline, equal_nan=True)
        assert again.accepted[0] == claim.accepted[0]


@given(st.lists(looks, min_size=1, max_size=5))
def test_jobs_do_not_mix(courses):
    n, length = len(courses), max(len(c) for c in courses)
    padded = [c + [(np.nan, False)] * (length - len(c)) for c in courses]
    together, alone = start(n), [start() for _ in courses]
    for at in range(length):
        said = np.array([c[at][0] for c in padded])
        fallen = np.array([c[at][1] for c in padded])
        together = follow(said, np.full(n, float(at)), together, fallen, 2)
        alone = [step(a, *c[at], 2, since=float(at)) for a, c in zip(alone, padded, strict=True)]
    for name in Claim._fields:
        one_by_one = np.concatenate([getattr(a, name) for a in alone])
        assert np.array_equal(getattr(together, name), one_by_one, equal_nan=name in ("deadline", "withheld"))


@given(looks, st.integers(0, 4), st.integers(1, 6))
def test_what_settings_take_away_and_give_back_is_no_change(course, most, times):
    """However often, and wherever in a life; what the user does in between counts as ever."""
    claim = start()
    for at, (said, fallen) in enumerate(course):
        claim = step(claim, said, fallen, most, since=float(at))
    stood, held = claim, claim.deadline[0]
    for _ in range(times):
        claim = step(claim, np.nan, True, most, by_settings=True)
        assert np.isnan(claim.deadline[0])
        claim = step(claim, held, False, most, by_settings=True)
    assert claim.deadline.tolist() == pytest.approx(stood.deadline.tolist(), nan_ok=True)
    assert (claim.accepted[0], claim.lost[0]) == (stood.accepted[0], stood.lost[0])


@given(st.integers(0, 3))
def test_a_change_while_it_is_withheld_counts(most):
    claim = step(start(), 50.0, False, most)
    claim = step(claim, np.nan, False, most, by_settings=True)
    claim = step(claim, 70.0, False, most, by_settings=True)
    assert claim.accepted.tolist() == [2.0 if most else 1.0]
    assert claim.deadline.tolist() == pytest.approx([70.0 if most else np.nan], nan_ok=True)


def test_a_user_s_withdrawal_is_not_the_settings():
    claim = step(start(), 50.0, False, 1)
    claim = step(claim, np.nan, True, 1)
    assert claim.lost.tolist() == [True]
    claim = step(claim, 50.0, False, 1, by_settings=True)
    assert claim.accepted.tolist() == [2.0]
    claim = step(claim, np.nan, True, 1)
    assert step(claim, 50.0, False, 1, by_settings=True).refused.tolist() == [CHANGES]


def test_another_key_gives_another_deadline():
    claim = step(start(), 50.0, True, 1)
    claim = step(claim, 60.0, True, 1, by_settings=True)
    assert (claim.deadline[0], claim.accepted[0], claim.lost[0]) == (60.0, 1.0, False)
    # one that was refused as changed too often does not come in with it
    claim = step(step(claim, 61.0, False, 1), 62.0, False, 1, by_settings=True)
    assert (claim.deadline[0], claim.refused[0]) == (61.0, CHANGES)


def test_why_it_was_not_taken():
    first = step(start(), -5.0, False, 3)
    assert first.refused.tolist() == [PAST]
    claim = step(start(), 50.0, False, 1)
    claim = step(claim, 60.0, False, 1)
    claim = step(claim, 70.0, False, 1)
    assert claim.refused.tolist() == [CHANGES]
    assert claim.deadline.tolist() == [60.0]
    assert len(REASONS) == 3


def one(**columns):
    return job_table(1, **{"job_id": [7], **columns})


def test_refused_changes():
    ledger = Ledger(max_changes=0)
    told = []
    for now, due in ((0.0, 900.0), (60.0, 950.0), (120.0, 950.0), (180.0, 900.0), (240.0, 970.0)):
        ledger.remember(snapshot(now, one(deadline=due)))
        told.append(ledger.unaccepted.tolist())
    assert told == [[TAKEN], [CHANGES], [CHANGES], [TAKEN], [CHANGES]]


class TestWhileItRuns:
    """A deadline that comes during a run does not make a job immune: it counts when it waits again."""

    RUN: ClassVar = {"state": RUNNING, "submit": 0.0}

    def late(self, *shown):
        ledger = Ledger()
        known = None
        for now, columns in shown:
            known = ledger.remember(snapshot(now, one(**columns)))
        return known.late.tolist()

    def test_made_during_the_run(self):
        run = self.RUN
        before = (HOUR, {**run, "run_time": HOUR})
        after = (HOUR + 60, {**run, "run_time": HOUR + 60, "deadline": 2 * HOUR})
        assert self.late(before, after) == [True]

    def test_moved_during_the_run(self):
        run = self.RUN
        before = (HOUR, {**run, "run_time": 600.0, "deadline": 50 * HOUR})
        after = (HOUR + 60, {**run, "run_time": 660.0, "deadline": 2 * HOUR})
        assert self.late(before, after) == [True]

    def test_there_when_we_first_looked(self):
        assert self.late((HOUR, {**self.RUN, "run_time": HOUR, "deadline": 2 * HOUR})) == [False]

    def test_made_while_it_waited(self):
        waits = (0.0, {"deadline": np.nan})
        says = (60.0, {"deadline": 9 * HOUR})
        runs = (120.0, {**self.RUN, "run_time": 30.0, "deadline": 9 * HOUR})
        assert self.late(waits, says, runs) == [False]

    def test_until_it_waits_again(self):
        run = {**self.RUN, "run_time": HOUR}
        says = {**self.RUN, "run_time": HOUR + 60, "deadline": 99 * HOUR}
        back = {"state": PENDING, "submit": 2 * HOUR, "restarts": 1, "deadline": 99 * HOUR}
        assert self.late((HOUR, run), (HOUR + 60, says), (2 * HOUR + 9, back)) == [False]


def test_a_claim_over_its_quota_is_not_washed_clean():
    """It is not ranked, but removing it once its time is over leaves the mark."""
    ledger = Ledger()
    ledger.remember(snapshot(0.0, one(deadline=100.0)))
    ledger._table[:, COUNTS] = 0.0
    ledger.remember(snapshot(90.0, one(deadline=100.0)))
    ledger._table[:, COUNTS] = 0.0
    ledger._last_look = 120.0
    ledger.note(ranking([1]))
    known = ledger.remember(snapshot(150.0, one(deadline=np.nan)))
    assert known.claim_lost.tolist() == [True]


def test_overdue_while_nobody_was_ranked_is_lost_too():
    """Nobody waits, so that there is nothing to rank: the mark does not hang on that."""
    ledger = Ledger()
    for now, due in ((0.0, HOUR), (2 * HOUR, HOUR)):
        known = ledger.remember(snapshot(now, one(deadline=due, state=RUNNING, run_time=now)))
        assert known.deadline.tolist() == [due]
    known = ledger.remember(snapshot(3 * HOUR, one(state=RUNNING, run_time=3 * HOUR)))
    assert known.claim_lost.tolist() == [True]


def test_a_lost_claim_is_no_near_deadline():
    """Else a false one would take a long job out of the cap on long work for good."""
    ledger = Ledger()
    ledger.remember(snapshot(0.0, one(deadline=HOUR)))
    assert ledger.history().window.tolist() == [HOUR]
    ledger.note(replace(ranking([11]), fallen=np.array([True])))
    assert np.isnan(ledger.history().window).all()


def test_no_window_of_nothing_though_the_clock_goes_back():
    ledger = Ledger()
    known = ledger.remember(snapshot(100.0, one(submit=200.0, deadline=200.0)))
    assert np.isnan(known.deadline).all()
    assert ledger.unaccepted.tolist() == [PAST]
