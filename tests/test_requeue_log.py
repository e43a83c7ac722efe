"""What the ledger knows of its own requeues: for hourly budgets, over restarts, and when nothing was sent."""

from collections import Counter

import numpy as np
import pytest
from worlds import job_table, plan, snapshot

from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger.book import Ledger
from tias_slurm.ledger.requeue_log import RequeueLog
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.planner import Applied

NONE = np.empty(0, dtype=np.int64)


def rows(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_exactly_an_hour():
    log = RequeueLog()
    log.add(1000.0, ["ann", "eve", "ann"])
    log.add(1600.0, ["ann"])
    assert log.last_hour(1600.0) == Counter(ann=3, eve=1)
    assert log.last_hour(4599.9) == Counter(ann=3, eve=1)
    assert log.last_hour(4600.0) == Counter(ann=1)
    assert log.last_hour(5200.0).total() == 0


def test_it_stays_small():
    log = RequeueLog()
    for cycle in range(1000):
        log.add(60.0 * cycle, ["ann"] * 10)
    assert log.last_hour(60.0 * 999) == Counter(ann=600)
    assert len(log.dumps()) < 3000


def test_kept_as_text():
    log, other = RequeueLog(), RequeueLog()
    log.add(1000.0, ["ann", 'e"v\n'])
    other.loads(log.dumps())
    assert other.last_hour(1001.0) == log.last_hour(1001.0) == Counter({"ann": 1, 'e"v\n': 1})


@pytest.mark.parametrize("text", ["", "{", "[[1]]", '[["x", {}]]', "7", "[1, 2]", "null"])
def test_what_cannot_be_read_is_nothing(text):
    log = RequeueLog()
    log.add(1.0, ["ann"])
    log.loads(text)
    assert log.last_hour(2.0).total() == 0


def seen(now=5000.0):
    """Three jobs run, two wait."""
    return snapshot(now, job_table(5, state=[RUNNING] * 3 + [PENDING] * 2, submit=1000.0, run_time=2000.0))


def test_it_survives_a_restart(tmp_path):
    store = SqliteStore(str(tmp_path / "ledger"))
    ledger = Ledger(store)
    ledger.remember(seen())
    ledger.intend(seen(), plan(victims=(0, 1), beneficiaries=(3, 4)))
    store.close()
    store = SqliteStore(str(tmp_path / "ledger"))
    again = Ledger(store)
    again.remember(seen(5060.0))
    assert again.history().last_hour == Counter(ann=2)
    assert again.history().preempted_at[3:].tolist() == [5000.0, 5000.0]
    # also of jobs that are gone
    again.remember(snapshot(8599.0, job_table(1)))
    assert again.history().last_hour == Counter(ann=2)
    again.remember(snapshot(8600.0, job_table(1)))
    assert again.history().last_hour.total() == 0
    store.close()


def test_who_was_spared_is_not_counted():
    ledger = Ledger()
    ledger.remember(seen())
    ledger.intend(seen(), plan(victims=(0,), beneficiaries=(3,)))
    ledger.remember(seen(5600.0))
    # job 0 once more, with job 1 for the same one, and job 2 for another one
    ledger.intend(seen(5600.0), plan(victims=(0, 1, 2), beneficiaries=(3, 3, 4)))
    assert ledger.history().last_hour == Counter(ann=4)
    ledger.applied(Applied(NONE, rows(0, 1)), 5600.0)
    known = ledger.history()
    assert known.last_hour == Counter(ann=2)
    assert known.requeues.tolist() == [1, 0, 1, 0, 0]
    assert np.array_equal(known.requeued_at, [5000.0, np.nan, 5600.0, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(known.preempted_at[3:], [5000.0, 5600.0])


def test_one_of_two_victims_was_requeued():
    ledger = Ledger()
    ledger.remember(seen())
    ledger.intend(seen(), plan(victims=(0, 1), beneficiaries=(3, 3)))
    ledger.applied(Applied(NONE, rows(1)), 5000.0)
    assert ledger.history().last_hour == Counter(ann=1)
    assert ledger.history().preempted_at[3] == 5000.0


def test_warnings():
    ledger = Ledger()
    ledger.remember(seen())
    made = plan()
    ledger.intend(seen(), type(made)(**{**vars(made), "warn": rows(0, 2), "warned_for": rows(3, 3)}))
    known = ledger.history()
    assert np.array_equal(known.warned_at, [5000.0, np.nan, 5000.0, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(known.warned_for, [np.nan] * 3 + [5000.0, np.nan], equal_nan=True)
    assert known.last_hour.total() == 0
