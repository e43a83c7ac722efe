"""The ledger stays within its bounds of age and size, bit by bit, and loses nothing that is needed."""

import os
import sqlite3
import tempfile
import time

import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import config

from tias_slurm.ledger.schema import NAMES
from tias_slurm.ledger.store import Entry, LedgerError, SqliteStore
from tias_slurm.ledger.table import COLUMNS, FOUND, SET
from tias_slurm.ledger.trim import COMES_BACK_S, DROPPED, RECENT_S, Bounds, dropped
from tias_slurm.ledger.upkeep import TRIM_S, Upkeep

NOW = float(round(time.time()))
DAY = 86_400.0


def grown(path, jobs=4000, here=50, records=5, *, shared=False, pad=60):
    """A ledger of jobs that left one a minute until an hour ago, and some that are here, all with records."""
    store = SqliteStore(path, shared=shared)
    marks = ", ".join("?" * (len(NAMES) + 2))
    rows = [
        (job, *([float(job)] * len(NAMES)), None if job > jobs else NOW - 60.0 * (jobs - job) - 3600.0)
        for job in range(1, jobs + here + 1)
    ]
    with store._transaction():
        store._db.executemany(f"INSERT INTO job (job_id, {', '.join(NAMES)}, gone) VALUES ({marks})", rows)
        store._db.executemany(
            "INSERT INTO audit (time, job_id, action, old, new, reason) VALUES (?, ?, 'nice', 0, -5, ?)",
            [
                ((gone or NOW - 60.0) - 60.0 * (records - i), job, "x" * pad)
                for job, *_, gone in rows
                for i in range(records)
            ],
        )
    return store


def count(store, what):
    return store._rows(f"SELECT count(*) FROM {what}")[0][0]


def all_of_it(store, bounds, seconds=30.0, *, age=True):
    trimmed = store.trim(bounds, seconds, age=age)
    assert trimmed.finished
    return trimmed


def test_below_its_bounds_nothing_goes(tmp_path):
    store = grown(str(tmp_path / "l"), 100)
    before = count(store, "job"), count(store, "audit")
    trimmed = all_of_it(store, Bounds(NOW - 90 * DAY, 1e9, NOW))
    assert (trimmed.jobs, trimmed.audit, trimmed.within) == (0, 0, True)
    assert (count(store, "job"), count(store, "audit")) == before
    assert store.get(DROPPED) is None
    store.close()


@pytest.mark.parametrize("shared", [False, True])
def test_file_and_log_become_smaller(tmp_path, shared):
    path = str(tmp_path / "l")
    store = grown(path, 8000, shared=shared)
    store.close()
    store = SqliteStore(path, shared=shared)
    size, most = os.path.getsize(path), os.path.getsize(path) / 2
    trimmed = all_of_it(store, Bounds(0.0, most, NOW))
    assert trimmed.within
    assert 0.8 * most < trimmed.bytes <= most  # and not more than it has to
    assert os.path.getsize(path) == trimmed.bytes < size / 2 + 1
    log = f"{path}-wal"
    assert not os.path.exists(log) or os.path.getsize(log) <= 8_500_000
    # who left longest ago went first, with all records; and it is counted
    left = [row[0] for row in store._rows("SELECT job_id FROM job ORDER BY job_id")]
    assert left == list(range(trimmed.jobs + 1, 8051))
    assert store._rows("SELECT min(job_id) FROM audit")[0][0] == left[0]
    assert dropped(store.get(DROPPED)) == {"jobs": trimmed.jobs, "audit": trimmed.audit, "last": NOW}
    store.close()


def test_whatever_the_bound_what_is_needed_stays(tmp_path):
    """Jobs in the queue, who left within a day, the records of the last hour, budgets."""
    path = str(tmp_path / "l")
    store = grown(path, 4000, here=300)
    kept = {"requeues": "[[1, {}]]", "quota": "q", "learned": "l", "lever": "nice", "hour:3": "{}"}
    for name, text in kept.items():
        store.put(name, text)
    store.record([Entry(NOW - 100.0, 4001, "requeue", None, 1.0, "now")])
    ids, table, _ = store.load()
    trimmed = all_of_it(store, Bounds(0.0, 1e5, NOW), age=False)
    assert not trimmed.within
    again, same, _ = store.load()
    assert again.tolist() == ids.tolist()
    np.testing.assert_array_equal(same, table)
    lately = store._rows("SELECT min(gone) FROM job WHERE gone IS NOT NULL")[0][0]
    assert NOW - COMES_BACK_S <= lately < NOW - COMES_BACK_S + 61.0
    recent = store._rows("SELECT min(time), count(*) FROM audit")[0]
    assert recent[0] >= NOW - RECENT_S
    assert recent[1] >= 1 + 300 * 4
    assert {name: store.get(name) for name in kept} == kept
    # one that comes back has its value still
    (job, row) = store.recall(np.array([3999]))
    assert row[0, [FOUND, SET]].tolist() == [3999.0, 3999.0]
    assert job.tolist() == [3999]
    store.close()


def test_records_of_jobs_that_are_here_go_last(tmp_path):
    store = grown(str(tmp_path / "l"), 4000, here=0)
    store.save(np.array([9000]), np.ones((1, len(COLUMNS))), np.empty(0, dtype=np.int64), None)
    store.record([Entry(NOW - 60 * DAY, 9000, "nice", 0.0, -1.0, "long ago")] * 3000)
    half = Bounds(0.0, store.bytes * 0.7, NOW)
    assert all_of_it(store, half, age=False).jobs > 0
    assert len(store.history(9000)) == 3000
    all_of_it(store, Bounds(0.0, 1e5, NOW), age=False)
    assert store.history(9000) == []
    assert store.load()[0].tolist() == [9000]
    store.close()


def test_a_cycle_is_not_kept_long(tmp_path):
    """The work of one call is bounded, and calls come to an end."""
    store = grown(str(tmp_path / "l"), 30_000, records=8)
    bounds, calls, longest = Bounds(0.0, 2e6, NOW), 0, 0.0
    while True:
        began = time.monotonic()
        trimmed = store.trim(bounds, 0.05, age=False)
        longest = max(longest, time.monotonic() - began)
        calls += 1
        if trimmed.finished:
            break
        assert trimmed.within  # more can be done
    assert calls > 3
    assert longest < 1.0
    assert not trimmed.within or trimmed.bytes <= 2e6
    assert count(store, "job") < 2000
    began = time.monotonic()
    assert store.trim(Bounds(0.0, 1e9, NOW), 0.5, age=False).finished
    assert time.monotonic() - began < 0.1
    store.close()


def test_too_old_goes_bit_by_bit_too(tmp_path):
    store = grown(str(tmp_path / "l"), 20_000)
    bounds = Bounds(NOW - DAY, 1e12, NOW)
    assert not store.trim(bounds, 0.02).finished
    trimmed = all_of_it(store, bounds)
    assert (trimmed.jobs, trimmed.audit) == (0, 0)  # not for the size
    assert store._rows("SELECT min(gone) FROM job")[0][0] >= NOW - DAY
    assert store._rows("SELECT min(time) FROM audit")[0][0] >= NOW - DAY - 600.0
    assert count(store, "job WHERE gone IS NULL") == 50
    store.close()


def test_somebody_reads_meanwhile(tmp_path):
    """A `status` that looks does not stop it, nor is it kept out; the file shrinks afterwards."""
    path = str(tmp_path / "l")
    store = grown(path, 6000)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    jobs = reader.execute("SELECT count(*) FROM job").fetchone()
    bounds = Bounds(0.0, 1e6, NOW)
    assert all_of_it(store, bounds, age=False).jobs > 0
    assert reader.execute("SELECT count(*) FROM job").fetchone() == jobs
    reader.close()
    store.put("a", "b")
    store.close()
    assert os.path.getsize(path) < 1.3e6


def test_who_no_longer_leads_drops_nothing(tmp_path):
    path = str(tmp_path / "l")
    store = grown(path, 4000)
    store.lead(1)
    other = SqliteStore(path)
    other.lead(2)
    with pytest.raises(LedgerError, match="another tias-slurm leads"):
        store.trim(Bounds(0.0, 1e5, NOW), 1.0, age=False)
    assert count(other, "job") == 4050
    other.close()
    store.close()


def test_said_once(tmp_path):
    """Not in every cycle in which something goes."""
    store = grown(str(tmp_path / "l"), 20_000, here=3000)
    log = structlog.testing.LogCapture()
    upkeep = Upkeep(structlog.wrap_logger(structlog.PrintLogger(), processors=[log]))
    at_bound = config(daemon={"max_ledger_mb": store.bytes / 1e6 * 0.9, "state_dir": str(tmp_path)})
    assert upkeep.after_cycle(config(daemon={"keep_days": 1e5}), store, None).jobs == 0
    assert log.entries == []
    for _ in range(3):
        upkeep.after_cycle(at_bound, store, None)
    (said,) = log.entries
    assert said["event"].startswith("the ledger is at its bound")
    tight = config(daemon={"max_ledger_mb": 1.0, "state_dir": str(tmp_path)})
    for _ in range(50):
        began = time.monotonic()
        done = upkeep.after_cycle(tight, store, None).finished
        assert time.monotonic() - began < TRIM_S + 1.0
        if done:
            break
    upkeep.after_cycle(tight, store, None)
    assert done
    assert [entry["event"][:20] for entry in log.entries][1:] == ["the ledger cannot be"]
    store.close()


AGES = st.lists(st.one_of(st.none(), st.floats(0, 40 * DAY)), max_size=40)


@settings(max_examples=40)
@given(AGES, st.lists(st.tuples(st.integers(1, 45), st.floats(0, 40 * DAY)), max_size=60), st.integers(0, 40))
def test_any_ledger(ages, records, keep_days):
    """Jobs: exactly those that left before the bound are gone. Records: none that is younger and whose job is
    kept, nor any that is older."""
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore(f"{directory}/l")
        ids = np.arange(1, len(ages) + 1)
        store.save(ids, np.ones((len(ids), len(COLUMNS))), np.empty(0, dtype=np.int64), None)
        for job, age in enumerate(ages, 1):
            if age is not None:
                store._db.execute("UPDATE job SET gone = ? WHERE job_id = ?", (NOW - age, job))
        made = sorted(records, key=lambda r: -r[1])
        store.record([Entry(NOW - age, job, "nice", None, None, "") for job, age in made])
        before = NOW - keep_days * DAY
        all_of_it(store, Bounds(before, 1e12, NOW))
        old = {job for job, age in enumerate(ages, 1) if age is not None and NOW - age < before}
        assert {r[0] for r in store._rows("SELECT job_id FROM job")} == set(ids.tolist()) - old
        kept = [(j, t) for j, t in store._rows("SELECT job_id, time FROM audit")]
        assert kept == [(j, NOW - a) for j, a in made if NOW - a >= before and j not in old]
        store.close()


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "nonsense", '{"jobs": "x"}'])
def test_a_count_that_cannot_be_read(text):
    assert dropped(text) == {"jobs": 0, "audit": 0, "last": 0.0}
