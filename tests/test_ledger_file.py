"""The ledger's file: what is refused, who may read it, several who open it, an old one."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import ledger_file
import numpy as np
import pytest
from ledger_file import NOBODY, again, rows
from worlds import job_table, snapshot

from tias_slurm.errors import InputError
from tias_slurm.ledger import table as ledger_table
from tias_slurm.ledger.book import COLUMNS, Ledger
from tias_slurm.ledger.schema import SCHEMA
from tias_slurm.ledger.store import SqliteStore

path = ledger_file.path


def test_a_ledger_that_breaks_under_us(path):
    store = SqliteStore(path)
    store.save(np.arange(1, 500), rows(499), NOBODY, None)
    store.close()
    raw = bytearray(Path(path).read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    Path(path).write_bytes(raw)
    with pytest.raises(InputError, match=r"cannot be used as a ledger: .*malformed"):
        SqliteStore(path).load()


def test_two_openers(path):
    one, two = SqliteStore(path), SqliteStore(path)
    one.save(np.array([1]), rows(1), NOBODY, None)
    two.save(np.array([2]), rows(1), NOBODY, None)
    assert one.load()[0].tolist() == two.load()[0].tolist() == [1, 2]
    one.close()
    two.close()


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
