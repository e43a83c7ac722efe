"""A reload that changes where the daemon keeps its ledger, or the lease by which it leads.

The hardest inputs: a ledger of somebody else in the new directory; a disk that fails half way; a daemon that
is killed in the midst, and one that is killed when all is done but the note; orders that are given meanwhile;
there and back again, with marks that are stale by then; one place under two names; mode, lever and directory
at once; a pair, the one that stands by first; a leader that loses its lease in the midst; a new lease that
another holds; a lease that goes away while another daemon waits for it.
"""

import json
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import daemon_desk
import pytest
import two_daemons
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import waiting
from test_reload import hup, left, rewrite, sprio  # noqa: F401
from two_daemons import Pair, turn

from tias_slurm import hands, status
from tias_slurm.errors import InputError
from tias_slurm.ledger import schema
from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import LedgerError, SqliteStore, gone_to
from tias_slurm.service import start, state_move
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.leadership import peek
from tias_slurm.service.state_lock import take

desk = daemon_desk.desk
pair = two_daemons.pair


@pytest.fixture
def place(desk):
    """A daemon that has set values, and a way to have its directory changed."""

    class Place:
        old, new = desk.state, desk.state.parent / "other"

        def go(self, where, *lines, **more):
            desk.state = where
            desk.write(*lines, **more)
            return hup(self.daemon)

        def refused(self):
            return [line["message"] for line in desk.said("reload refused")]

    made = Place()
    made.desk = desk
    made.daemon = desk.daemon(waiting(3, nice=5, comment="deadline=+3h"))
    made.daemon.cycle()
    return made


def locked(directory, host=""):
    return status.holder(str(directory), host).running


def names(directory):
    """Without what comes and goes."""
    return sorted(p.name for p in directory.iterdir() if not p.name.endswith(("-wal", "-shm", "in-use.json")))


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
    from tias_slurm.service import relocate

    monkeypatch.setattr(relocate, "TELL_S", 0.0)
    told = []
    monkeypatch.setattr(place.daemon, "takes_its_time", lambda: told.append(1))
    place.go(place.new)
    assert told


# ---- a lease


@pytest.fixture
def two(pair):
    class Two:
        refused = staticmethod(
            lambda: [e["message"] for e in pair.log.entries if e["event"].startswith("reload refused")]
        )
        lease, other = pair.path / "lease", pair.path / "second"

        def on(self, daemon, old, new):
            host = Path(daemon._path).stem
            for name in ("leadership", "start"):
                pair.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: host)
            rewrite(daemon, old, new)
            return daemon.cycle().result

        def path(self, daemon, old="lease", new="second"):
            return self.on(daemon, f'"{pair.path / old}"', f'"{pair.path / new}"')

    made = Two()
    made.pair = pair
    pair.in_charge = ""
    made.a, made.b = pair.daemon("ctl1"), pair.daemon("ctl2")
    assert turn(made.a, made.b) == ["ok", "standby"]
    return made


def test_the_leader_goes_first(two):
    a, b = two.a, two.b
    assert two.path(a) == "ok"
    assert (peek(two.other).host, peek(two.other).sent) == ("ctl1", 1)
    assert (peek(two.lease).holder, peek(two.lease).moved) == ("", str(two.other))
    # the other one does not take what was left, not even when the leader is dead, and says what to do
    for two.pair.in_charge in ("ctl1", "ctl2", ""):
        assert turn(b) == ["standby"]
        assert f'lease_path = "{two.other}"' in b._keeper.why
    assert two.path(b) == "standby"
    assert turn(a, b) == ["ok", "standby"]
    assert b._keeper.why == "ctl1 leads"
    a.close()
    assert turn(b) == ["ok"]
    assert len(two.pair.slurm.sent) == 3
    assert b.store.load()[1][:, FOUND].tolist() == [7.0] * 3
    assert two.refused() == []
    # and back again
    assert two.path(b, "second", "lease") == "ok"
    assert (peek(two.lease).host, peek(two.other).moved) == ("ctl2", str(two.lease))


def test_who_stands_by_does_not_go_first(two):
    assert two.path(two.b) == "standby"
    assert ["ctl1 leads by the old one" in said for said in two.refused()] == [True]
    assert not two.other.exists()
    assert two.b._keeper.lease.path == str(two.lease)
    assert turn(two.a, two.b) == ["ok", "standby"]


def test_a_leader_that_loses_its_lease_in_the_midst(two):
    from tias_slurm.service import relocate

    seek = relocate._lease

    def slow(*args):
        made = seek(*args)
        two.a._keeper.lease.give_back()
        two.b._keeper.look()
        return made

    two.pair.monkeypatch.setattr(relocate, "_lease", slow)
    assert two.path(two.a) == "standby"
    assert ["ctl2 leads by the old one" in said for said in two.refused()] == [True]
    assert peek(two.other) is None or peek(two.other).holder == ""
    two.pair.monkeypatch.setattr(relocate, "_lease", seek)
    assert turn(two.b) == ["ok"]
    assert len(two.pair.slurm.sent) == 3


def test_another_holds_the_new_lease(two):
    """One that shares the ledger was started on the new settings instead of reloaded."""
    two.b.close()
    config = two.pair.path / "ctl2.toml"
    two.pair.daemon("ctl2").close()
    config.write_text(config.read_text().replace(str(two.lease), str(two.other)))
    for name in ("leadership", "start"):
        two.pair.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: "ctl2")
    b = type(two.a)(str(config), {}, two.a._log)
    two.pair.open.append(b)
    b.open()
    assert turn(b) == ["ok"]
    # until it is reloaded the first one keeps nothing more, and so sends nothing
    with pytest.raises(LedgerError, match="another tias-slurm leads by now"):
        two.a.cycle()
    assert two.path(two.a) == "standby"
    assert two.refused() == []
    assert turn(b, two.a) == ["ok", "standby"]
    assert peek(two.lease).moved == str(two.other)


def test_another_of_another_ledger_holds_it(two):
    stranger = two.pair.daemon("ctl3", state="elsewhere")
    two.on(stranger, "no such words", "")
    stranger.close()
    config = Path(stranger._path)
    config.write_text(config.read_text().replace(str(two.lease), str(two.other)))
    stranger = type(two.a)(str(config), {}, two.a._log)
    two.pair.open.append(stranger)
    stranger.open()
    assert turn(stranger) == ["ok"]
    assert two.path(two.a) == "ok"
    assert ["may not know what this daemon wrote" in said for said in two.refused()] == [True]
    assert peek(two.other).host == "ctl3"
    assert peek(two.lease).moved == ""


def test_alone_from_now_on(two):
    a, b = two.a, two.b
    assert two.on(b, f'"{two.lease}"', '""') == "standby"
    assert "only the one that leads" in two.refused()[-1]
    # the other one shares the directory, and would not know
    assert two.on(a, f'"{two.lease}"', '""') == "ok"
    assert "the daemon of another host uses this directory too" in two.refused()[-1]
    assert a._keeper.leads
    b.close()
    assert two.on(a, "no such words", "") == "ok"
    assert (a._keeper, peek(two.lease).moved) == (None, "-")
    assert a.store._rows("PRAGMA journal_mode") == [("wal",)]
    assert names(two.pair.path / "state") >= ["ledger.sqlite", "lock"]
    assert (locked(a.config.daemon.state_dir), locked(a.config.daemon.state_dir, "ctl1")) == (True, False)
    assert len(two.pair.slurm.sent) == 3
    # one that comes without the directory hears of it by the lease
    c = two.pair.daemon("ctl3", state="elsewhere")
    assert turn(c) == ["standby"]
    assert "ctl1 went on without this lease" in c._keeper.why
    # and back again
    assert two.on(a, '""', f'"{two.lease}"') == "ok"
    assert (peek(two.lease).host, a._keeper.leads, a._term) == ("ctl1", True, a._keeper.lease.term)
    assert a.store._rows("PRAGMA journal_mode") == [("delete",)]
    assert turn(a, c) == ["ok", "standby"]
    assert c._keeper.why == "ctl1 leads"


def test_a_lease_and_a_shared_directory_for_one_that_was_alone(place, monkeypatch):
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: None)
    lease = place.old.parent / "lease"
    assert place.go(place.new, f'lease_path = "{lease}"').result == "ok"
    assert place.refused() == []
    daemon = place.daemon
    assert peek(lease).sent == 1
    host = daemon._keeper.lease.host
    assert (locked(place.new, host), locked(place.new)) == (True, False)
    with pytest.raises(InputError, match="holds the lock"):
        take(str(place.new))
    assert daemon.cycle().result == "ok"
    assert len(daemon.adapter.sent) == 3
    assert json.loads((place.new / f"status.{host}.json").read_text())["leadership"]["leads"]


def test_one_that_was_alone_stands_by_where_its_controller_does(place, monkeypatch):
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: False)
    lease = place.old.parent / "lease"
    assert place.go(place.old, f'lease_path = "{lease}"').result == "standby"
    # who comes with another ledger is told
    assert (peek(lease).sent, peek(lease).holder) == (1, "")
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: None)


def test_the_directory_of_a_pair(two):
    a, b = two.a, two.b
    old, new = str(two.pair.path / "state"), str(two.pair.path / "new")
    assert two.on(b, f'"{old}"', f'"{new}"') == "standby"
    assert ["ctl1 uses" in said and "leads first" in said for said in two.refused()] == [True]
    assert not os.path.exists(new)
    assert two.on(a, f'"{old}"', f'"{new}"') == "ok"
    assert len(two.refused()) == 1
    # the other one cannot lead by what is of the past
    a._keeper.lease.give_back()
    assert turn(b) == ["standby"]
    assert "went to" in b._keeper.why
    assert turn(a) == ["ok"]
    assert two.on(b, "no such words", "") == "standby"
    assert len(two.refused()) == 1
    a.close()
    assert turn(b) == ["ok"]
    assert (b.store.path, len(two.pair.slurm.sent)) == (f"{new}/ledger.sqlite", 3)
    assert b.store.load()[1][:, FOUND].tolist() == [7.0] * 3


# ---- any order of it


STEP = st.one_of(
    st.tuples(st.just("reload"), st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from("123-")),
    st.tuples(st.just("reload"), st.sampled_from("ab"), st.just("x"), st.sampled_from("12")),
    st.tuples(st.just("charge"), st.sampled_from(["ctl1", "ctl2", ""])),
    st.tuples(st.just("turn"), st.sampled_from(["ab", "ba", "a", "b"])),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(STEP, min_size=3, max_size=14))
def test_never_two_that_lead_and_never_a_value_lost(steps):
    """Whoever is reloaded in whatever order, leads by whatever: one writes at most, and knows all."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(Keeper, "start", lambda _: None)  # no look but ours
        bed = Pair(Path(directory), patch)
        daemons = {"a": bed.daemon("ctl1"), "b": bed.daemon("ctl2")}
        text = Path(daemons["a"]._path).read_text()

        def leaders():
            return [n for n, d in daemons.items() if d._keeper is None or d._keeper.leads]

        def reload(name, state, lease):
            daemon = daemons[name]
            host = Path(daemon._path).stem
            for module in ("leadership", "start"):
                patch.setattr(f"tias_slurm.service.{module}.this_host", lambda: host)
            new = text.replace(str(bed.path / "state"), str(bed.path / (state if state != "x" else "state")))
            path = "" if lease == "-" else str(bed.path / (lease if lease != "1" else "lease"))
            Path(daemon._path).write_text(new.replace(str(bed.path / "lease"), path))
            daemon._on_reload()
            daemon.cycle()

        try:
            turn(daemons["a"], daemons["b"])
            bed.in_charge = ""  # who leads is left to the lease alone
            for kind, *more in steps:
                if kind == "reload":
                    reload(*more)
                elif kind == "charge":
                    [bed.in_charge] = more
                else:
                    for name in more[0]:
                        if daemons[name]._keeper is not None:
                            daemons[name]._keeper.look()
                        daemons[name].cycle()
                assert len(leaders()) <= 1, (kind, more)
                assert len(bed.slurm.sent) == 3
            # however it stands: one is reloaded after the other until both are at one place, and one leads
            bed.in_charge = ""
            order = leaders() + [n for n in "ab" if n not in leaders()]
            state, lease = daemons[order[0]].config.daemon.state_dir, "lease"
            state = Path(state).name.replace("state", "x")
            for _ in range(2):
                for name in order:
                    reload(name, state, "1")
                    daemons[name]._keeper.look()
                    daemons[name].cycle()
            assert len(leaders()) == 1, lease
            assert {d.config.daemon.lease_path for d in daemons.values()} == {str(bed.path / "lease")}
            [name] = leaders()
            daemons[name].cycle()
            assert daemons[name].store.load()[1][:, FOUND].tolist() == [7.0] * 3
            assert not [e for e in bed.log.entries if e.get("overridden")]
            assert not [e for e in bed.log.entries if "internal error" in str(e.get("message"))]
        finally:
            bed.close()
