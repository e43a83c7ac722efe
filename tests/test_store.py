"""The ledger on disk: what is kept comes back, also after a crash."""

import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import ledger_file
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_file import NOBODY, again, rows
from worlds import job_table, plan, snapshot

from tias_slurm.ledger import table as ledger_table
from tias_slurm.ledger.book import BEFORE, COLUMNS, FOUND, SET, Ledger
from tias_slurm.ledger.store import Entry, LedgerError, SqliteStore
from tias_slurm.ledger.trim import Bounds
from tias_slurm.policy.learning import Learner

path = ledger_file.path


NUMBERS = st.one_of(
    st.just(np.nan), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**40), 2**40)
)


@settings(max_examples=25)
@given(
    st.dictionaries(st.integers(1, 2**32), st.lists(NUMBERS, min_size=len(COLUMNS), max_size=len(COLUMNS)))
)
def test_round_trip(jobs):
    ids = np.array(sorted(jobs), dtype=np.int64)
    table = np.array([jobs[i] for i in ids.tolist()], dtype=np.float64).reshape(-1, len(COLUMNS))
    with tempfile.TemporaryDirectory() as directory:
        where = f"{directory}/ledger.sqlite"
        store = SqliteStore(where)
        store.save(ids, table, NOBODY, None)
        store.close()
        found, kept, _ = again(where)
    assert found.tolist() == ids.tolist()
    np.testing.assert_array_equal(kept, table)


def test_an_empty_ledger(path):
    ids, table, learned = again(path)
    assert (len(ids), table.shape) == (0, (0, len(COLUMNS)))
    assert not learned.any()


def test_who_left_is_kept_aside(path):
    store = SqliteStore(path)
    store.save(np.array([1, 2, 3]), rows(3, np.nan), NOBODY, None)
    store.save(np.array([2]), rows(1, 7.0), np.array([1, 3]), None)
    assert store.load()[0].tolist() == [2]
    ids, table = store.recall(np.array([1, 2, 3, 4]))
    assert ids.tolist() == [1, 3]
    assert np.isnan(table).all()
    store.save(np.array([3]), rows(1), NOBODY, None)  # back again
    assert store.load()[0].tolist() == [2, 3]
    assert store.recall(np.array([3]))[0].tolist() == []
    store.close()


def test_many_are_recalled_at_once(path):
    store = SqliteStore(path)
    ids = np.arange(1, 1801)
    store.save(ids, rows(1800), NOBODY, None)
    store.save(NOBODY, rows(0), ids[::2], None)
    found, table = store.recall(ids)
    assert found.tolist() == ids[::2].tolist()
    assert table.shape == (900, len(COLUMNS))
    store.close()


def test_what_was_learned(path):
    learner = Learner()
    learner.learn(np.array([3600.0, 86400.0, 86400.0]), np.array([100.0, 5000.0, 5000.0]))
    assert learner.counts.any()
    store = SqliteStore(path)
    store.save(NOBODY, rows(0), NOBODY, learner.counts)
    store.save(NOBODY, rows(0), NOBODY, None)  # nothing new: what was there stays
    store.close()
    np.testing.assert_array_equal(again(path)[2], learner.counts)
    store = SqliteStore(path)
    np.testing.assert_array_equal(Ledger(store).learner.counts, learner.counts)
    store.close()


def test_forget(path):
    store = SqliteStore(path)
    store.save(np.array([1, 2]), rows(2), NOBODY, None)
    store.save(NOBODY, rows(0), np.array([1]), None)
    store.record([Entry(100.0, 1, "nice", 0.0, -5.0, "old"), Entry(2e9, 2, "nice", 0.0, -5.0, "new")])
    store.trim(Bounds(1e9, 1e12, 1e9), 10.0)
    assert store.recall(np.array([1]))[0].tolist() == [1]  # it left just now
    assert store.history(1) == []
    assert [e.reason for e in store.history(2)] == ["new"]
    store.trim(Bounds(4e9, 1e12, 4e9), 10.0)
    assert store.recall(np.array([1]))[0].tolist() == []
    assert store.load()[0].tolist() == [2]  # who is here is never forgotten
    store.close()


def test_single_values(path):
    store = SqliteStore(path)
    assert store.get("lever") is None
    store.put("lever", "nice")
    store.put("lever", "priority")
    store.close()
    store = SqliteStore(path)
    assert store.get("lever") == "priority"
    store.close()


def test_disown(path):
    store = SqliteStore(path)
    store.put("lever", "nice")
    store.save(np.array([1, 2]), rows(2), NOBODY, None)
    store.save(NOBODY, rows(0), np.array([2]), None)
    store.disown()
    assert store.get("lever") is None
    for table in (store.load()[1], store.recall(np.array([2]))[1]):
        assert np.isnan(table[:, [SET, BEFORE]]).all()
        assert table[:, FOUND].tolist() == [1.0]
    store.close()


def test_audit(path):
    store = SqliteStore(path)
    numbers = store.record(
        [Entry(1.0, 7, "nice", 0.0, -5.0, "urgent"), Entry(2.0, 7, "nice", -5.0, -9.0, "more")]
    )
    store.settle([(numbers[1], "refused", "no\x1b[2J\nreally" + "x" * 900)])
    first, second = store.history(7)
    assert (first.result, first.message, first.new) == (None, "", -5.0)  # what became of it is not known
    assert second.result == "refused"
    assert second.message.isprintable()
    assert len(second.message) <= 310
    assert store.history(8) == []
    store.close()


def intended(path):
    """A ledger that intends a write; the store stays open, as in a process that is killed now."""
    store = SqliteStore(path)
    book = Ledger(store)
    shown = snapshot(100.0, job_table(2, job_id=[7, 8], lever=[50.0, 0.0], nice=[50.0, 0.0]))
    book.remember(shown)
    book.intend(shown, plan([0], [-300.0]))
    return store


def test_a_crash_between_intention_and_answer(path):
    """Whether the write arrived or not: the next daemon takes both values for ours."""
    store = intended(path)
    for arrived in (50.0, -300.0):
        other = SqliteStore(path)
        book = Ledger(other)
        shown = snapshot(160.0, job_table(2, job_id=[7, 8], lever=[arrived, 0.0], nice=[arrived, 0.0]))
        book.remember(shown)
        assert book.overridden(shown).tolist() == [False, False]
        assert book.found.tolist() == [50.0, 0.0]
        other.close()
    store.close()


def test_killed_in_the_middle(path):
    """A process that dies without a word leaves what it had intended, and nothing of what it had begun."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import intended
store = intended({path!r})
store._db.execute("BEGIN IMMEDIATE")
store._db.execute('UPDATE job SET "set" = 999')
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert done.returncode == -9, done.stderr
    ids, table, _ = again(path)
    assert ids.tolist() == [7, 8]
    assert table[0, [FOUND, SET, BEFORE]].tolist() == [50.0, -300.0, 50.0]
    assert np.isnan(table[1, SET])


def test_what_cannot_be_kept_is_not_sent(path):
    """The intention fails, so the caller never comes to the write."""
    store = SqliteStore(path)
    book = Ledger(store)
    shown = snapshot(100.0, job_table(1, job_id=[7]))
    book.remember(shown)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._db.execute("PRAGMA busy_timeout=10")
    with pytest.raises(LedgerError, match="locked"):
        book.intend(shown, plan([0], [-300.0]))
    other.execute("ROLLBACK")
    other.close()
    assert np.isnan(again(path)[1][0, SET])
    store.close()


def test_a_job_that_ended_and_was_requeued_still_has_our_value(path):
    store = intended(path)
    book = Ledger(store)
    book.remember(snapshot(200.0, job_table(1, job_id=[8])))  # 7 is over
    back = job_table(2, job_id=[7, 8], submit=[250.0, 0.0], restarts=[1, 0], lever=[-300.0, 0.0])
    book.remember(snapshot(260.0, back))
    assert book.found.tolist() == [50.0, 0.0]
    assert book.overridden(snapshot(260.0, back)).tolist() == [False, False]
    store.close()


def test_a_job_with_the_id_of_one_that_left_is_another(path):
    store = intended(path)
    book = Ledger(store)
    book.remember(snapshot(200.0, job_table(1, job_id=[8])))
    book.remember(snapshot(260.0, job_table(2, job_id=[7, 8], submit=[250.0, 0.0], lever=[-300.0, 0.0])))
    assert book.found.tolist() == [-300.0, 0.0]
    store.close()


def test_what_has_faded_is_not_kept(path):
    store = SqliteStore(path)
    learner = Learner()
    learner.learn(np.array([3600.0]), np.array([100.0]), ["ann"])
    learner.fade(0.0)
    store.save(NOBODY, rows(0), NOBODY, learner.counts)
    learner.fade(86_400.0 * 3000)
    store.save(NOBODY, rows(0), NOBODY, learner.counts)
    assert not store.load()[2].any()
    store.close()


def test_who_taught_what_survives(path):
    """Else a user could have his share again after each restart."""
    store = SqliteStore(path)
    book = Ledger(store)
    ended = snapshot(9e4, job_table(0)).ended
    done = type(ended)(
        np.arange(1, 60), np.zeros(59), np.full(59, 3600.0), np.full(59, 60.0), np.ones(59, dtype=bool),
        np.zeros(59, dtype=np.int64),
    )  # fmt: skip
    book.remember(snapshot(9e4, job_table(0), ended=done))
    assert book.learner.counts.sum() == 10.0
    other = Ledger(store)
    assert other.learner.counts.sum() == 10.0
    other.remember(snapshot(9e4 + 60, job_table(0), ended=done))
    assert other.learner.counts.sum() == 10.0
    store.close()


def test_columns_and_places_agree():
    assert [
        COLUMNS[i] for i in (ledger_table.FIRST, ledger_table.SET, ledger_table.BEFORE, ledger_table.UNSEEN)
    ] == [
        "first_submit",
        "set",
        "before",
        "unseen",
    ]
