"""The ledger on disk: what is kept comes back, also after a crash; files that are not ours are refused."""

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import job_table, plan, snapshot

from tias_slurm.errors import InputError
from tias_slurm.ledger import table as ledger_table
from tias_slurm.ledger.book import BEFORE, COLUMNS, FOUND, SET, Ledger
from tias_slurm.ledger.schema import SCHEMA
from tias_slurm.ledger.store import Entry, LedgerError, SqliteStore
from tias_slurm.ledger.trim import Bounds
from tias_slurm.policy.learning import Learner

NOBODY = np.empty(0, dtype=np.int64)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger.sqlite")


def again(path):
    """What a new process would load."""
    store = SqliteStore(path)
    try:
        return store.load()
    finally:
        store.close()


def rows(n, value=1.0):
    return np.full((n, len(COLUMNS)), value)


# ---- what is kept ----

NUMBERS = st.one_of(
    st.just(np.nan), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**40), 2**40)
)


@settings(deadline=None, max_examples=25)
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


# ---- the audit trail ----


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


# ---- crashes ----


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


def test_a_ledger_that_breaks_under_us(path):
    store = SqliteStore(path)
    store.save(np.arange(1, 500), rows(499), NOBODY, None)
    store.close()
    raw = bytearray(Path(path).read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    Path(path).write_bytes(raw)
    with pytest.raises(InputError, match="ledger"):
        SqliteStore(path).load()


def test_two_openers(path):
    one, two = SqliteStore(path), SqliteStore(path)
    one.save(np.array([1]), rows(1), NOBODY, None)
    two.save(np.array([2]), rows(1), NOBODY, None)
    assert one.load()[0].tolist() == two.load()[0].tolist() == [1, 2]
    one.close()
    two.close()


# ---- jobs that come back ----


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


# ---- files that cannot be used ----


def refused(path):
    with pytest.raises(InputError) as caught:
        SqliteStore(path)
    words = str(caught.value)
    assert len(words.splitlines()) == 1
    assert words.startswith(path)
    return words.removeprefix(path)


def test_a_newer_schema(path):
    SqliteStore(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version={SCHEMA + 1}")
    db.close()
    assert "upgrade tias-slurm" in refused(path)
    db = sqlite3.connect(path)  # and it is as it was
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA + 1,)
    db.close()


def test_no_database(path):
    Path(path).write_text("hello " * 1000)
    assert "not a database" in refused(path)
    assert Path(path).read_text() == "hello " * 1000


def test_somebody_elses_database(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE job (id INTEGER)")
    db.close()
    before = Path(path).read_bytes()
    assert "a database of something else" in refused(path)
    assert Path(path).read_bytes() == before


def test_a_directory(path):
    Path(path).mkdir()
    assert "directory" in refused(path)


def test_no_such_directory(tmp_path):
    assert "No such file" in refused(str(tmp_path / "absent" / "ledger.sqlite"))


@pytest.mark.skipif(os.geteuid() != 0, reason="another account is needed, and only root can become one")
def test_a_directory_that_we_may_not_write(tmp_path):
    tmp_path.chmod(0o755)
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.errors import InputError
os.setresuid(65534, 65534, 65534)
try:
    SqliteStore("ledger.sqlite")
except InputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "Permission denied" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_may_read_it(path):
    old = os.umask(0)
    try:
        store = SqliteStore(path)
        store.save(np.array([1]), rows(1), NOBODY, None)
        modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in Path(path).parent.iterdir()}
    finally:
        os.umask(old)
    assert modes == dict.fromkeys(("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), 0o640)
    store.close()


def test_a_ledger_of_the_first_schema(path):
    """Its columns come along; what it could not know is not known."""
    old = COLUMNS[: COLUMNS.index("claim")]
    db = sqlite3.connect(path)
    names = ", ".join(f"{name} REAL" for name in old if name != "set")
    db.execute(f'CREATE TABLE job (job_id INTEGER PRIMARY KEY, {names}, "set" REAL, gone REAL) STRICT')
    columns = "job_id, first_submit, submit, kept, attained, run_time, restarts, requeues, found"
    db.execute(f"INSERT INTO job ({columns}) VALUES (7, 10, 10, 5, 20, 0, 0, 1, 3)")
    db.execute("PRAGMA application_id=0x54494153")
    db.execute("PRAGMA user_version=1")
    db.commit()
    db.close()
    store = SqliteStore(path)
    ids, table, _ = store.load()
    assert ids.tolist() == [7]
    known = dict(zip(COLUMNS, table[0].tolist(), strict=True))
    assert (known["kept"], known["requeues"], known["found"]) == (5.0, 1.0, 3.0)
    assert known["counts"] == 1.0
    assert known["accepted"] == known["lost"] == known["slot"] == known["front"] == known["late"] == 0.0
    assert np.isnan([known[name] for name in ledger_table.UNKNOWN]).all()
    # and the next look fills in what it can
    book = Ledger(store)
    shown = snapshot(100.0, job_table(1, job_id=[7], submit=10.0, since=40.0, lever=3.0, deadline=900.0))
    seen = book.remember(shown)
    assert (seen.since[0], seen.deadline[0], seen.able[0]) == (40.0, 900.0, True)
    store.close()
    assert again(path)[0].tolist() == [7]


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
