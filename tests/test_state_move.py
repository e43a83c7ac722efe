"""A reload that changes where the daemon keeps its ledger. tests/live has the real Slurm.

The hardest inputs: a ledger of somebody else in the new directory; a disk that fails half way; a daemon that
is killed in the midst, and one that is killed when all is done but the note; orders that are given meanwhile;
there and back again, with marks that are stale by then, and the log of a crash; one place under two names;
mode, lever and directory at once.
"""

import os
import sqlite3
import time
from pathlib import Path

import moving_desk
import pytest
import reloading
from moving_desk import locked, names
from raw_queue import waiting
from reloading import hup, left

from tias_slurm import hands
from tias_slurm.errors import InputError
from tias_slurm.ledger import schema
from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import SqliteStore, gone_to
from tias_slurm.service import relocate, state_move
from tias_slurm.service.state_lock import take

desk, place = moving_desk.desk, moving_desk.place
sprio = reloading.sprio


def test_the_ledger_and_the_marks_go_along(place):
    daemon = place.daemon
    hands.ignore(str(place.old), "101", "me", "why")
    old = time.time() - 1000
    os.utime(place.old / "ignored" / "101", (old, old))
    (place.old / "ledger.sqlite.schema4").write_bytes(b"of before")
    sent = list(daemon.adapter.sent)
    seen = place.go(place.new)
    assert place.refused() == []
    assert (seen.result, seen.overridden, daemon.adapter.sent) == ("ok", 0, sent)
    assert daemon.store.path == str(place.new / "ledger.sqlite")
    assert daemon.store.load()[1][:, FOUND].tolist() == [5.0, 5.0, 5.0]
    assert names(place.new) == ["ignored", "ledger.sqlite", "ledger.sqlite.schema4", "lock", "status.json"]
    assert (locked(place.new), locked(place.old)) == (True, False)
    assert abs((place.new / "ignored" / "101").stat().st_mtime - old) < 1
    assert (place.new / "ledger.sqlite").stat().st_mode & 0o777 == 0o640
    assert place.new.stat().st_mode & 0o777 == 0o750
    # nothing in the old place is taken for news, and nobody goes on there
    assert names(place.old) == ["ignored", "ledger.sqlite", "ledger.sqlite.schema4", "lock"]
    assert hands.ignored(str(place.old)) == ()
    with pytest.raises(InputError, match=f'set \\[daemon\\] state_dir = "{place.new}"'):
        SqliteStore(str(place.old / "ledger.sqlite"))
    assert place.desk.said("the state directory moved")
    hands.pause(str(place.new), "me", "")
    assert daemon.cycle().paused


@pytest.mark.parametrize("mode", ["enforce", "dry-run"])
def test_nobody_starts_on_the_old_directory(place, mode):
    place.go(place.new)
    place.daemon.close()
    place.desk.state = place.old
    place.desk.write(mode=mode)
    with pytest.raises(InputError, match="went to"):
        place.desk.daemon(waiting(3))
    assert not locked(place.old)
    place.desk.state = place.new
    place.desk.write()
    assert place.desk.daemon(waiting(3, nice=5)).cycle().overridden == 0


@pytest.mark.parametrize("fails", [False, True])
def test_back_to_a_ledger_whose_log_a_crash_left(place, monkeypatch, fails):
    """It would be taken for the log of the new one."""
    place.go(place.new)
    past = place.old / "ledger.sqlite"
    db = sqlite3.connect(past)
    db.execute("UPDATE job SET found = 77")
    db.commit()
    kept = {more: Path(f"{past}{more}").read_bytes() for more in ("", "-wal")}
    db.close()
    for more, data in kept.items():
        Path(f"{past}{more}").write_bytes(data)
    assert kept["-wal"]
    if fails:
        monkeypatch.setattr(place.daemon, "may_ask", lambda: "the daemon ends")
        place.desk.state = place.old
        place.desk.write()
        place.daemon._on_reload()
        place.daemon._apply_reload()
        assert len(place.refused()) == 1
        assert {more: Path(f"{past}{more}").read_bytes() for more in kept} == kept
        return
    place.go(place.old)
    assert place.refused() == []
    assert place.daemon.store.load()[1][:, FOUND].tolist() == [5.0] * 3
    assert place.daemon.store._rows("PRAGMA integrity_check") == [("ok",)]
    assert Path(f"{past}.moved-wal").read_bytes() == kept["-wal"]


@pytest.mark.parametrize("went", ["", "/elsewhere"])
def test_who_asks_where_a_ledger_went_changes_nothing(tmp_path, went):
    """It was left by a crash: what it says is in its log alone."""
    store = SqliteStore(str(tmp_path / "whole"), shared=False)
    store.went("/first")
    store.went(went)
    left = tmp_path / "a ?directory" / "left"
    left.parent.mkdir()
    for more in ("", "-wal"):
        Path(f"{left}{more}").write_bytes(Path(f"{store.path}{more}").read_bytes())
        os.utime(f"{left}{more}", (1, 1))
    store.close()
    assert Path(f"{left}-wal").stat().st_size > 0
    assert gone_to(str(left)) == went
    assert [Path(f"{left}{more}").stat().st_mtime for more in ("", "-wal")] == [1, 1]
    assert gone_to(str(tmp_path / "none")) == ""


def test_there_and_back_again(place):
    hands.pause(str(place.old), "me", "")
    place.go(place.new)
    assert place.daemon.paused()
    hands.resume(str(place.new))
    place.go(place.old)
    assert place.refused() == []
    # a pause that was over does not come back
    assert not place.daemon.paused()
    assert gone_to(str(place.new / "ledger.sqlite")) == str(place.old)
    assert gone_to(str(place.old / "ledger.sqlite")) == ""
    assert place.daemon.store.load()[1][:, FOUND].tolist() == [5.0, 5.0, 5.0]
    place.go(place.new)
    assert place.refused() == []
    assert place.daemon.cycle().writes == 0


def test_marks_that_cannot_all_be_taken_leave_none(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / "paused").symlink_to("nothing")
    hands.ignore(str(old), "1", "me")
    hands.ignore(str(old), "2", "me")
    hands.ignore(str(new), "2", "me", "mine")
    with monkeypatch.context() as patch:
        replace = hands.replace_file

        def fail(path, text):
            if path.endswith("/1"):
                raise InputError("no room")
            replace(path, text)

        patch.setattr(hands, "replace_file", fail)
        with pytest.raises(InputError, match="no room"):
            hands.take_along(str(old), str(new))
    assert (hands.paused(str(new)), hands.ignored(str(new))) == (False, ("2",))
    assert hands.take_along(str(old), str(new)) == ["paused", "ignored/1"]
    assert hands.paused(str(new))
    assert hands.read_file(str(new / "ignored" / "2"))["reason"] == "mine"


def test_one_place_under_two_names(place):
    link = place.old.parent / "link"
    link.symlink_to(place.old)
    store, lock = place.daemon.store, place.daemon._lock
    assert place.go(link).result == "ok"
    assert place.refused() == []
    assert (place.daemon.store, place.daemon._lock) == (store, lock)
    assert gone_to(str(place.old / "ledger.sqlite")) == ""


def foreign(place):
    place.new.mkdir()
    SqliteStore(str(place.new / "ledger.sqlite")).close()


def garbage(place):
    place.new.mkdir()
    (place.new / "ledger-dry-run.sqlite").write_text("no database")


def used(place):
    place.held = take(str(place.new))


def shared_use(place):
    place.held = take(str(place.new), "ctl9")


def a_file(place):
    place.new.write_text("a file")


def read_only(place):
    make = os.makedirs

    def fail(path, **how):
        if str(path) == str(place.new):
            raise OSError(30, "Read-only file system")
        make(path, **how)

    place.desk.monkeypatch.setattr("tias_slurm.service.state_lock.os.makedirs", fail)


def full_disk(place):
    copied = []

    def copy(db, path, tell=None):
        copied.append(path)
        Path(path).write_bytes(b"SQLite format 3\0 and no more")
        raise sqlite3.OperationalError("database or disk is full")

    place.desk.monkeypatch.setattr(schema, "write_copy", copy)


def marks_fail(place):
    def fail(*_):
        raise InputError("paused: Input/output error")

    place.desk.monkeypatch.setattr(hands, "take_along", fail)


def commit_fails(place):
    place.reader = sqlite3.connect(place.old / "ledger.sqlite", isolation_level=None)
    place.reader.execute("BEGIN IMMEDIATE")
    place.daemon.store._db.execute("PRAGMA busy_timeout=50")


def ends(place):
    place.desk.monkeypatch.setattr(place.daemon, "may_ask", lambda: "the daemon ends")


FAULTS = {
    "a ledger of somebody else": (foreign, "a ledger lies there already"),
    "what is no ledger": (garbage, "a ledger lies there already"),
    "another daemon": (used, "holds the lock"),
    "daemons of other hosts": (shared_use, "holds the lock"),
    "a file": (a_file, "cannot be made"),
    "a read-only place": (read_only, "ReadWritePaths="),
    "a full disk": (full_disk, "disk is full"),
    "marks that cannot be written": (marks_fail, "Input/output error"),
    "the last step": (commit_fails, "database is locked"),
    "the end": (ends, "the daemon ends"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_move_that_fails_leaves_all_as_it_was(place, name):
    fault, words = FAULTS[name]
    hands.ignore(str(place.old), "4711", "me")
    fault(place)
    there = names(place.new) if place.new.is_dir() else None
    whole = vars(place.daemon).copy()
    place.desk.state = place.new
    place.desk.write()
    place.daemon._on_reload()
    place.daemon._apply_reload()
    assert [words in said for said in place.refused()] == [True]
    for part in ("config", "adapter", "store", "_made", "_lock", "_keeper", "_term"):
        assert vars(place.daemon)[part] is whole[part], part
    if there is None:
        assert not place.new.is_dir()
    else:
        assert [n for n in names(place.new) if n not in ("lock", "lock.ctl9")] == [
            n for n in there if n not in ("lock", "lock.ctl9")
        ]
    if hasattr(place, "reader"):
        place.reader.close()
    place.desk.monkeypatch.undo()
    assert gone_to(str(place.old / "ledger.sqlite")) == ""
    assert locked(place.old)
    seen = place.daemon.cycle()
    assert (seen.result, hands.ignored(str(place.old))) == ("ok", ("4711",))


def killed(place, monkeypatch, at):
    """What a daemon leaves that is killed in a reload."""

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(state_move.ExitStack, "__exit__", lambda *_: None)
        patch.setattr(state_move.StateMove, at, die)
        place.desk.state = place.new
        place.desk.write()
        with pytest.raises(Killed):
            hup(place.daemon)
    place.daemon.close()
    for held in (place.old, place.new):
        (held / "lock").unlink()  # the process is not really gone


def test_killed_before_the_step_that_counts(place, monkeypatch):
    killed(place, monkeypatch, "commit")
    with pytest.raises(InputError, match=f'still there: start with \\[daemon\\] state_dir = "{place.old}"'):
        place.desk.daemon(waiting(3, nice=5))
    place.desk.state = place.old
    place.desk.write()
    place.daemon = place.desk.daemon(waiting(3, nice=5))
    assert place.daemon.cycle().result == "ok"
    # what is left of the first attempt is in nobody's way
    place.go(place.new)
    assert place.refused() == []
    assert place.daemon.store.load()[1][:, FOUND].tolist() == [5.0, 5.0, 5.0]
    assert state_move.NOTE not in names(place.new)


def test_killed_and_the_note_is_empty(place, monkeypatch):
    """As a power cut leaves a file that was never settled."""
    killed(place, monkeypatch, "commit")
    (place.new / state_move.NOTE).write_text("")
    with pytest.raises(
        InputError, match=r"still there: start with \[daemon\] state_dir as it was before, then"
    ):
        place.desk.daemon(waiting(3, nice=5))


def test_killed_after_it(place, monkeypatch):
    killed(place, monkeypatch, "finish")
    assert state_move.NOTE in names(place.new)
    daemon = place.desk.daemon(waiting(3, nice=5))
    assert daemon.cycle().result == "ok"
    assert state_move.NOTE not in names(place.new)


def test_orders_of_this_moment(place, monkeypatch):
    """A pause by `touch` while the ledger is copied."""
    commit = state_move.StateMove.commit

    def late(self, *more):
        (place.old / "paused").touch()
        commit(self, *more)

    monkeypatch.setattr(state_move.StateMove, "commit", late)
    assert place.go(place.new).paused


def test_orders_that_were_given_by_the_new_settings(place):
    place.new.mkdir()
    hands.pause(str(place.new), "me", "early")
    assert place.go(place.new).paused
    assert hands.why_paused(str(place.new))["reason"] == "early"


def test_mode_lever_and_directory_at_once(place):
    seen = place.go(place.new, lever="priority")
    assert place.refused() == []
    assert place.desk.said("values put back")
    assert seen.result == "ok"
    assert place.daemon.store.get("lever") == "priority"
    place.go(place.old, lever="priority", mode="dry-run")
    assert place.refused() == []
    assert place.daemon.store.path == str(place.old / "ledger-dry-run.sqlite")
    # the real one is there too, and knows what stands
    real = SqliteStore(str(place.old / "ledger.sqlite"))
    assert (real.load()[1][:, SET] > 0).any()
    real.close()
    place.go(place.new, lever="priority", mode="enforce")
    assert place.refused() == []
    assert place.daemon.cycle().writes == 0
    assert left(place.desk)["mode"] == "enforce"


def test_systemd_hears_that_a_copy_goes_on(place, monkeypatch):
    monkeypatch.setattr(relocate, "TELL_S", 0.0)
    told = []
    monkeypatch.setattr(place.daemon, "takes_its_time", lambda: told.append(1))
    place.go(place.new)
    assert told
