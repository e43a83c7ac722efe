"""A full disk, really full: nothing is sent that was not recorded first, it is said, and it goes on after."""

import json
import os
import sqlite3

import pytest
from daemon_desk import REQUEUE, URGENT, VICTIM, desk, full  # noqa: F401
from metrics_reader import get
from raw_queue import queue, waiting
from small_disk import small_disk

from tias_slurm import hands, status
from tias_slurm.errors import InputError
from tias_slurm.ledger.store import LedgerError, SqliteStore
from tias_slurm.ledger.table import FOUND, REQUEUES, SET
from tias_slurm.service.start import ledger_path

MANY = 300


@pytest.fixture
def disk(desk):  # noqa: F811
    """The state directory of the daemons on a disk of four MB."""
    with small_disk(desk.state, 4) as made:
        yield made
        desk.close()
        desk.open.clear()


def recorded(daemon):
    """Jobs that the ledger has a record of, and a value."""
    store = SqliteStore(ledger_path(daemon.config))
    ids, table, _ = store.load()
    values = dict(zip(ids.tolist(), table[:, SET].tolist(), strict=True))
    records = {row[0] for row in store._rows("SELECT job_id FROM audit")}
    store.close()
    return {job for job in records if values.get(job) == values.get(job)}


def test_nothing_is_sent_that_could_not_be_recorded(disk, desk):  # noqa: F811
    listen = '[metrics]\nlisten = "127.0.0.1:0"'
    desk.write(extra=listen)
    daemon = desk.daemon(waiting(1), waiting(MANY))
    assert daemon.cycle().writes == 1
    assert get(daemon.show.port, "/readyz") == (200, "ok\n")
    disk.fill()
    for _ in range(3):
        daemon._guarded()
    assert {job for job, *_ in daemon.adapter.sent} == {100}
    assert len(desk.said("ledger")) == 3
    assert "disk is full" in desk.said("ledger")[0]["message"]
    code, why = get(daemon.show.port, "/readyz")
    assert (code, "disk is full" in why) == (503, True)
    assert get(daemon.show.port, "/healthz")[0] == 200  # a restart would not help
    assert 'cycles_total{result="failed"} 3' in get(daemon.show.port, "/metrics")[1]
    disk.free()
    daemon._guarded()
    assert {job for job, *_ in daemon.adapter.sent} == set(range(100, 100 + MANY)) == recorded(daemon)
    assert get(daemon.show.port, "/readyz") == (200, "ok\n")
    left = status.left(str(desk.state))
    assert (left["cycle"]["result"], left["trouble"], left["cycle"]["overridden"]) == ("ok", "", 0)


def test_full_between_intention_and_record(disk, desk, monkeypatch):  # noqa: F811
    """No requeue is counted that was not asked for, in any of the cycles in which it came to nothing."""
    desk.write(extra=f"{REQUEUE}\nmax_per_hour = 1")
    daemon = full(desk)
    record = daemon.store.record

    def no_room(entries):
        disk.fill()
        return record([*entries] * 100)

    monkeypatch.setattr(daemon.store, "record", no_room)
    for _ in range(3):
        with pytest.raises(LedgerError, match="disk is full"):
            daemon.cycle()
        disk.free()
    assert daemon.adapter.sent == []
    monkeypatch.setattr(daemon.store, "record", record)
    assert daemon.cycle().requeues == 1
    ids, table, _ = daemon.store.load()
    assert table[ids.tolist().index(VICTIM["job_id"]), REQUEUES] == 1.0
    assert sum(daemon._made.ledger.history().last_hour.values()) == 1


def test_full_at_the_intention(disk, desk):  # noqa: F811
    """What could not be noted is not taken for ours afterwards, nor counted."""
    desk.write(extra=f"{REQUEUE}\nmax_per_hour = 1")
    daemon = full(desk, queue(VICTIM, {**URGENT, "nice": 5}))
    note = daemon.controller.ledger.intend

    def no_room(*words):
        disk.fill()
        note(*words)

    daemon.controller.ledger.intend = no_room
    # the log has room for what it already holds: until it is full up, too
    for _ in range(3):
        daemon.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with pytest.raises(LedgerError, match="disk is full"):
            daemon.cycle()
        disk.free()
    ledger = daemon.controller.ledger
    assert all(value != value for value in ledger.table[1][:, SET].tolist())
    assert ledger.table[1][:, REQUEUES].tolist() == [0.0, 0.0]
    assert sum(ledger.history().last_hour.values()) == 0
    daemon.controller.ledger.intend = note
    assert daemon.cycle().requeues == 1


def test_full_while_a_write_is_on_its_way(disk, desk):  # noqa: F811
    """It was recorded; what became of it is not known, and the value is known to be ours."""
    daemon = desk.daemon(waiting(3, comment="deadline=+3h"))
    daemon.adapter.before_write = lambda *_: disk.fill()
    settle = daemon.store.settle
    daemon.store.settle = lambda outcomes: settle([(n, r, "w" * 290) for n, r, _ in outcomes] * 50)
    daemon._guarded()
    sent = {job for job, *_ in daemon.adapter.sent}
    assert sent == {100, 101, 102}
    assert sent <= recorded(daemon)
    disk.free()
    daemon.adapter.before_write = lambda *_: None
    daemon.store.settle = settle
    seen = daemon.cycle()
    assert (seen.result, seen.overridden, seen.writes) == ("ok", 0, 0)


def test_a_daemon_that_starts_with_a_full_disk_can_be_started_again(disk, desk):  # noqa: F811
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    daemon.close()
    disk.fill()
    with pytest.raises(LedgerError, match=r"cannot be used now: .*disk"):
        desk.daemon(waiting(MANY))
    desk.open[-1].close()
    disk.free()
    daemon = desk.daemon(waiting(MANY))
    daemon._guarded()
    assert len(daemon.adapter.sent) == MANY


def test_one_that_crashed_comes_up_with_a_full_disk(disk, desk):  # noqa: F811
    """Its log is there still; what was recorded before is known, and nothing is sent without a record."""
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    # as after kill -9: the ledger was not closed
    copies = {p.name: p.read_bytes() for p in disk.path.iterdir()}
    daemon.close()
    for name, raw in copies.items():
        (disk.path / name).write_bytes(raw)
    disk.fill()
    daemon = desk.daemon(waiting(MANY))
    daemon._guarded()
    assert daemon.adapter.sent == []
    assert desk.said("ledger")
    disk.free()
    daemon._guarded()
    assert len(daemon.adapter.sent) == MANY


def test_a_first_start_with_a_full_disk_is_one_line(disk, desk):  # noqa: F811
    disk.fill()
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: the ledger cannot be used now: .*full"):
        desk.daemon(waiting(1))
    desk.open[-1].close()
    disk.free()
    assert desk.daemon(waiting(1)).cycle().writes == 1


@pytest.mark.parametrize("room", [0, 4096, 12_288])
def test_a_file_is_whole_or_as_it_was(disk, room):
    path = str(disk.path / "status.json")
    hands.replace_file(path, json.dumps({"a": "old"}))
    disk.fill(leave=room)
    text = json.dumps({"a": "x" * 20_000})
    with pytest.raises(InputError, match="No space left"):
        hands.replace_file(path, text)
    assert json.loads((disk.path / "status.json").read_text()) == {"a": "old"}
    assert [p.name for p in disk.path.iterdir() if p.name.endswith(".tmp")] == []


def test_trimming_with_a_full_disk_breaks_nothing(disk):
    """Rows can only be dropped where the log has room for that."""
    from test_ledger_bounds import NOW, grown

    from tias_slurm.ledger.trim import Bounds

    path = str(disk.path / "ledger.sqlite")
    store = grown(path, 2000)
    jobs = store._rows("SELECT count(*) FROM job")
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    disk.fill()
    with pytest.raises(LedgerError, match="disk is full"):
        store.trim(Bounds(0.0, 1e5, NOW), 5.0, age=False)
    assert store._rows("SELECT count(*) FROM job") == jobs
    disk.free()
    assert store.trim(Bounds(0.0, 1e5, NOW), 5.0, age=False).jobs > 0
    assert os.path.getsize(path) > 0
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def test_a_dry_run_that_has_no_room_for_what_was_set_begins_with_that_once_there_is(disk, desk):  # noqa: F811
    desk.daemon(waiting(MANY, nice=5)).cycle()
    desk.close()
    desk.open.clear()
    desk.write(mode="dry-run")
    # to look at the old one, and for a part of a copy
    disk.fill(leave=64 * 1024)
    with pytest.raises(LedgerError, match="disk is full"):
        desk.daemon(waiting(MANY, nice=-9))
    desk.close()
    desk.open.clear()
    assert [name for name in os.listdir(desk.state) if "dry-run" in name] == []
    disk.free()
    daemon = desk.daemon(waiting(MANY, nice=-9))
    assert daemon.store.load()[1][:, FOUND].tolist() == [5.0] * MANY
