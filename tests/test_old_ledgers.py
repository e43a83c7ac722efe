"""Ledgers of every older version: taken over with nothing lost, or left as they were."""

import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import old_ledgers
import pytest
from daemon_desk import desk  # noqa: F401
from old_ledgers import AUDIT, COLUMNS, JOBS, LEARNED, make, read, schema, settings
from raw_queue import Scripted, queue, waiting
from small_disk import small_disk

from tias_slurm.errors import InputError, LedgerError
from tias_slurm.ledger import table as ledger_table
from tias_slurm.ledger.schema import SCHEMA, copy_path, drop_copies
from tias_slurm.ledger.store import SqliteStore, known_to
from tias_slurm.ledger.trim import Bounds
from tias_slurm.restore import restore

VERSIONS = list(COLUMNS)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def path(tmp_path, version):
    make(tmp_path / "ledger.sqlite", version)
    return tmp_path / "ledger.sqlite"


def expected(version, job):
    """What today's code must know of a job: what was kept, and what nothing is known of as such."""
    kept = COLUMNS[version]
    return {
        name: (
            JOBS[job].get(name, 0.0)
            if name in kept
            else None
            if name in ledger_table.UNKNOWN
            else float(name == "counts")
        )
        for name in ledger_table.COLUMNS
    } | {"gone": JOBS[job].get("gone")}


def test_nothing_is_lost(path, version):
    store = SqliteStore(str(path), shared=False)
    for job in JOBS:
        assert store.memory(job) == expected(version, job)
    ids, table, counts = store.load()
    assert ids.tolist() == [7, 8]
    here = [expected(version, job) for job in (7, 8)]
    for row, known in zip(table, here, strict=True):
        np.testing.assert_array_equal(
            row, [np.nan if known[name] is None else known[name] for name in ledger_table.COLUMNS]
        )
    assert store.recall(np.array([7, 9]))[0].tolist() == [9]
    assert store._rows("SELECT * FROM audit ORDER BY id") == AUDIT
    assert {name: store.get(name) for name in settings(version)} == settings(version)
    assert [float(counts[window, at]) for window, at, _ in LEARNED] == [count for *_, count in LEARNED]
    store.close()
    # and again, by the next process
    store = SqliteStore(str(path), shared=False)
    assert store.memory(7) == expected(version, 7)
    assert store._rows("PRAGMA user_version") == [(SCHEMA,)]
    store.close()


def test_restore_puts_back_what_an_older_version_set(path):
    """Job 7 stands at what was set, 8 was never ours; 9 left, and its id is not here."""
    shown = queue(
        {"job_id": 7, "submit": 2000.0, "nice": -300, "restarts": 1},
        {"job_id": 8, "submit": 1500.0, "nice": 3},
    )
    adapter, store = Scripted(shown), SqliteStore(str(path))
    assert [(r.job_id, r.new, r.outcome) for r in restore(adapter, store, "nice")] == [(7, 50, "restored")]
    assert adapter.sent == [(7, "nice", 50)]
    store.close()


def test_a_daemon_goes_on_with_it(version, desk):  # noqa: F811
    """What it had set is ours, what it found the user's own; who left is known when he comes back."""
    desk.state.mkdir()
    make(desk.state / "ledger.sqlite", version)
    jobs = queue(
        {"job_id": 7, "submit": 2000.0, "nice": -300, "restarts": 1},
        {"job_id": 9, "submit": 100.0, "nice": -77},
    )
    daemon = desk.daemon(jobs)
    seen = daemon.cycle()
    assert (seen.result, seen.overridden) == ("ok", 0)
    assert daemon.controller.ledger.found.tolist() == [50.0, 1.0]
    assert (desk.state / f"ledger.sqlite.schema{schema(version)}").exists()


def test_a_copy_is_kept_as_it_was(path, version):
    before = read(path, version)
    path.chmod(0o640)
    SqliteStore(str(path), shared=False).close()
    kept = Path(copy_path(str(path), schema(version)))
    assert read(kept, version) == before
    assert before[0] == schema(version)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    # for as long as anything is kept
    drop_copies(str(path), time.time() - 60)
    assert kept.exists()
    store = SqliteStore(str(path))
    store.trim(Bounds(time.time() + 60, 1e12, time.time()), 1.0, age=True)
    store.close()
    assert not kept.exists()


def test_who_only_looks_changes_nothing(path, version):
    raw = path.read_bytes()
    term = known_to(str(path)).term
    assert term == int(settings(version).get("term", 0))
    with pytest.raises(
        InputError, match=r"of an older tias-slurm \(schema \d\), which the daemon takes over"
    ):
        SqliteStore(str(path), older="refuse")
    assert path.read_bytes() == raw
    assert [p.name for p in path.parent.iterdir() if "schema" in p.name] == []


def test_an_older_daemon_that_still_runs(path, version):
    """On the other controller, or until the package has restarted it: what it goes on to keep is whole."""
    db = sqlite3.connect(path, isolation_level=None)
    SqliteStore(str(path)).close()
    old_ledgers.save(db, version, 10, JOBS[7])
    db.close()
    store = SqliteStore(str(path))
    assert store.memory(10) == expected(version, 7)
    store.close()


@pytest.mark.parametrize("newer", [SCHEMA + 1, 99])
def test_a_newer_one_is_left_alone(tmp_path, newer):
    path = tmp_path / "ledger.sqlite"
    SqliteStore(str(path), shared=False).close()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE something_new (x)")
    db.execute(f"PRAGMA user_version={newer}")
    db.close()
    raw = path.read_bytes()
    for how in ("take over", "leave", "refuse"):
        with pytest.raises(InputError, match=rf"newer tias-slurm \(schema {newer}\); upgrade tias-slurm"):
            SqliteStore(str(path), shared=False, older=how)
    assert path.read_bytes() == raw
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.sqlite"]


# ---- what comes in between

DIES = """
import os, sys
sys.path.insert(0, {root!r})
from tias_slurm.ledger import schema as ledger_schema
from tias_slurm.ledger.store import SqliteStore

def die(*_):
    os.kill(os.getpid(), 9)

where = {where!r}
if where == "copy":
    ledger_schema.os.replace = die
elif where == "tables":
    make = ledger_schema.make
    ledger_schema.make = lambda db: (make(db), die())
elif where == "rewriting":
    make = ledger_schema.make
    ledger_schema.make = lambda db: (make(db), db.set_progress_handler(die, 5000))
else:
    keep = ledger_schema.keep_copy
    # counts SQLite's own steps: somewhere in the tables or the index
    ledger_schema.keep_copy = lambda db, *w: (keep(db, *w), db.set_progress_handler(die, where))
SqliteStore({path!r}, shared=False)
print("got through")
"""


@pytest.mark.parametrize("where", ["copy", "tables", 100, 1_000, 10_000, "rewriting"])
@pytest.mark.parametrize("which", ["1", "2b", "3"])
def test_killed_in_the_middle(tmp_path, where, which):
    path = tmp_path / "ledger.sqlite"
    make(path, which, more=3000)
    before = read(path, which)
    code = DIES.format(root=str(Path(__file__).parents[1]), where=where, path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-9, ""), done.stderr
    number, jobs, rows = read(path, which)
    assert number in (schema(which), SCHEMA)
    if where in ("copy", "tables", 100):
        assert number == schema(which)  # usable by the old version as if nothing had been
    if where == "rewriting":
        assert number == SCHEMA
    assert (jobs, rows) == before[1:]
    store = SqliteStore(str(path), shared=False)
    assert store.memory(7) == expected(which, 7)
    assert store._rows("PRAGMA user_version") == [(SCHEMA,)]
    store.close()
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []
    assert read(Path(copy_path(str(path), schema(which))), which) == before


@pytest.mark.parametrize("room_kb", [0, 40, 200])
def test_a_disk_without_room_for_it(tmp_path, room_kb):
    """Room for nothing, for a part of the copy, or for the copy and not for the rest."""
    with small_disk(tmp_path / "disk", 3) as disk:
        path = disk.path / "ledger.sqlite"
        make(path, "2b", more=4000)
        size = path.stat().st_size
        # to open it takes some room of its own, for the log and its index
        disk.fill(leave=40_000 + (size if room_kb == 200 else 0) + 1024 * room_kb // 4)
        before = read(path, "2b")
        for _ in range(2):
            with pytest.raises(LedgerError, match="full"):
                SqliteStore(str(path), shared=False)
            assert read(path, "2b") == before
        assert [p.name for p in disk.path.iterdir() if p.name.endswith(".tmp")] == []
        disk.free()
        store = SqliteStore(str(path), shared=False)
        assert store.memory(7) == expected("2b", 7)
        store.close()


def test_without_room_to_write_it_anew_it_works_all_the_same(tmp_path):
    """It cannot give anything back to the file system then; the next start tries again."""
    with small_disk(tmp_path / "disk", 6) as disk:
        path = disk.path / "ledger.sqlite"
        make(path, "3", more=6000)
        size = path.stat().st_size
        disk.fill(leave=2 * size)
        store = SqliteStore(str(path), shared=False)
        assert store._rows("PRAGMA auto_vacuum") == [(0,)]
        store.put("a", "b")
        assert store.memory(7) == expected("3", 7)
        store.close()
        disk.free()
        os.unlink(copy_path(str(path), 3))
        store = SqliteStore(str(path), shared=False)
        assert store._rows("PRAGMA auto_vacuum") == [(2,)]
        assert (store.get("a"), store.memory(7)) == ("b", expected("3", 7))
        store.close()


def test_a_dry_run_begins_with_an_older_one_and_leaves_it(version, desk):  # noqa: F811
    desk.state.mkdir()
    make(desk.state / "ledger.sqlite", version)
    raw = (desk.state / "ledger.sqlite").read_bytes()
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(1))
    assert daemon.store.memory(7) == expected(version, 7)
    assert (desk.state / "ledger.sqlite").read_bytes() == raw
