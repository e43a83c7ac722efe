"""The files for users: whose they are, what is said where they cannot be left."""

import errno
import json
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import command_desk
import numpy as np
import pytest
from raw_queue import NOW, queue

from tias_slurm import user_export
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import COLUMNS
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.service.leadership import LeaseFile, timing
from tias_slurm.service.state_lock import take_lock

desk = command_desk.desk

NOBODY = pwd.getpwnam("nobody")
ME = pwd.getpwuid(os.getuid())
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def room():
    """A directory that everybody may enter, as the ones of pytest are not."""
    made = Path(tempfile.mkdtemp(prefix="tias-export-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def leave(where, *names, **more):
    """One job for each of these users."""
    n = len(names)
    table = np.full((n, len(COLUMNS)), np.nan)
    user_export.export(str(where), names, np.arange(n), np.arange(n) + 7, table, **more)


def owners(where):
    return {p.relative_to(where).as_posix(): p.lstat().st_uid for p in (where, *where.rglob("*"))}


@as_root
@pytest.mark.parametrize("there", [False, True])
def test_what_root_leaves_is_the_daemons(room, there):
    """By the state directory where root makes all of it, else by the directory that is there."""
    state, users = room / "state", room / "users"
    state.mkdir()
    os.chown(state, NOBODY.pw_uid, NOBODY.pw_gid)
    if there:
        users.mkdir(mode=0o711)
        os.chown(users, NOBODY.pw_uid, NOBODY.pw_gid)
    leave(users, "root", "nobody", "daemon", state_dir=str(state) if not there else "")
    found = owners(users)
    assert len(found) == 7
    assert set(found.values()) == {NOBODY.pw_uid}
    assert user_export.problem(str(users), NOBODY.pw_uid) == ("", "")
    # whom it is for reads it by an entry of its own, and the daemon's account needs none
    acl = "system.posix_acl_access"
    for uid, has in ((0, True), (pwd.getpwnam("daemon").pw_uid, True), (NOBODY.pw_uid, False)):
        for at in (users / str(uid), users / str(uid) / "jobs.json"):
            assert (acl in os.listxattr(at)) == has, at
            assert stat.S_IMODE(at.stat().st_mode) & 0o007 == 0


@as_root
def test_root_mends_what_root_left_before(room):
    users = room / "users"
    leave(users, "nobody")
    assert set(owners(users).values()) == {0}
    os.chown(users, NOBODY.pw_uid, NOBODY.pw_gid)
    what, do = user_export.problem(str(users), NOBODY.pw_uid)
    assert what == f"{users}/{NOBODY.pw_uid}: belongs to root, not to nobody"
    assert do == f"chown -R nobody {users}"
    leave(users, "nobody")
    assert set(owners(users).values()) == {NOBODY.pw_uid}


@as_root
def test_root_follows_no_link_of_the_daemons_account(room):
    users, other = room / "users", room / "other"
    users.mkdir(mode=0o711)
    other.mkdir()
    (users / str(NOBODY.pw_uid)).symlink_to(other)
    with pytest.raises(InputError, match=f"users/{NOBODY.pw_uid}: cannot be used"):
        leave(users, "nobody")
    assert list(other.iterdir()) == []
    assert other.stat().st_uid == 0


def test_the_message_names_the_place_that_is_in_the_way(room, monkeypatch):
    """As the daemon meets a directory that somebody else made."""

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    users = room / "users"
    with pytest.raises(InputError) as told:
        leave(users, ME.pw_name)
    assert str(told.value).startswith(f"{users}/{ME.pw_uid}: cannot be used for [daemon] user_export: ")
    assert f"chown -R ACCOUNT {users}" in str(told.value)


def test_a_file_system_that_the_unit_may_not_write_to(room, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(InputError, match=r"Read-only file system; under systemd .* ReadWritePaths="):
        leave(room / "users", ME.pw_name)


@as_root
def test_an_account_that_may_not_list_it_hears_at_once_what_to_do(room, monkeypatch):
    users = room / "users"
    users.mkdir(mode=0o711)
    leave(users, ME.pw_name)

    def closed(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", closed)
    what, do = user_export.problem(str(users), NOBODY.pw_uid)
    assert what == f"{users}: belongs to {ME.pw_name}, not to {NOBODY.pw_name}"
    assert do == f"chown -R {NOBODY.pw_name} {users}"


def test_what_is_in_the_way(room, monkeypatch):
    def said(path, account=ME.pw_uid):
        what, do = user_export.problem(str(path), account)
        assert bool(what) == bool(do)
        return what, do

    make = f"install -d -m 0711 -o {ME.pw_name} "
    users, file, closed = room / "users", room / "file", room / "closed"
    assert said(users) == (f"{users}: no such directory", f"{make}{users}")
    assert not users.exists()
    users.mkdir(mode=0o711)
    assert said(users) == ("", "")
    leave(users, ME.pw_name)
    assert said(users) == ("", "")
    other = next(uid for uid in (NOBODY.pw_uid, 0) if uid != ME.pw_uid)
    assert "belongs to" in said(users, other)[0]
    assert "belongs to" in said(users, 4_000_000_000)[0]
    file.touch()
    assert said(file) == (f"{file}: is no directory", f"{make}{file}")
    closed.mkdir(mode=0o750)
    (closed / "users").mkdir(mode=0o711)
    assert said(closed / "users") == (f"{closed}: users may not enter it", f"chmod o+x {closed}")

    def none(*_, **__):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "getxattr", none)
    assert said(users)[0] == f"{users}: its file system has no ACLs"


@as_root
def test_the_lock_and_the_ledgers_that_root_makes_are_the_daemons(room):
    os.chown(room, NOBODY.pw_uid, NOBODY.pw_gid)
    take_lock(str(room / "lock")).close()
    store = SqliteStore(str(room / "ledger.sqlite"))
    store.put("lever", "nice")
    store.copy_to(str(room / "ledger-dry-run.sqlite"))
    found = owners(room)
    store.close()
    assert {"lock", "ledger.sqlite", "ledger.sqlite-wal", "ledger-dry-run.sqlite"} <= found.keys()
    assert set(found.values()) == {NOBODY.pw_uid}
    assert stat.S_IMODE((room / "lock").stat().st_mode) == 0o640
    # what is there stays whose it is, and a link gives nothing away
    other = room / "other"
    other.touch()
    (room / "link").symlink_to(other)
    with pytest.raises(InputError, match="a link"):
        take_lock(str(room / "link"))
    SqliteStore(str(room / "link")).close()
    assert other.stat().st_uid == 0


@as_root
def test_the_lease_that_root_takes_is_the_daemons(room):
    shared = room / "shared"
    shared.mkdir()
    os.chown(shared, NOBODY.pw_uid, NOBODY.pw_gid)
    lease = LeaseFile(str(shared / "lease"), timing(60.0, 30.0), enforce=True)
    assert lease.take(None)
    assert set(owners(shared).values()) == {NOBODY.pw_uid}


def test_explain_without_the_ledger_by_what_was_left_for_the_user(desk, tmp_path):
    """A user sees the first submit that only the ledger knows, and nothing of other users' jobs."""
    text = desk.path.read_text()
    desk.path.write_text(text.replace("[daemon]", f'[daemon]\nuser_export = "{tmp_path / "users"}"'))
    early, late = (
        {"user": ME.pw_name, "submit": NOW - 9000, "eligible": NOW - 9000},
        {"user": ME.pw_name, "restarts": 1},
    )
    others = {"user": "no-such-user"}
    desk.show(queue(early, others), queue({**early, **late}, others))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.cycle()
    daemon.close()
    left = tmp_path / "users" / str(os.getuid())
    assert [p.name for p in (tmp_path / "users").iterdir()] == [str(os.getuid())]
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert stat.S_IMODE((left / "jobs.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(left.parent.stat().st_mode) == 0o711
    assert [row[0] for row in json.loads((left / "jobs.json").read_text())["jobs"]] == [100]
    desk.path.write_text(desk.path.read_text().replace(str(desk.state), str(tmp_path / "unseen")))
    told = desk.json("explain", "100")
    assert told["first_submit"] == NOW - 9000
    assert told["lever"]["set"] < 0


def test_a_user_whose_jobs_are_gone_has_an_empty_file(tmp_path):
    where = str(tmp_path / "users")
    table = np.full((2, len(COLUMNS)), np.nan)
    user_export.export(where, (ME.pw_name,), np.array([0, 0]), np.array([7, 8]), table)
    assert user_export.UserStore(where).load()[0].tolist() == [7, 8]
    assert np.isnan(user_export.UserStore(where).load()[1]).all()
    user_export.export(where, (), np.array([], dtype=int), np.array([], dtype=int), table[:0])
    assert user_export.UserStore(where).load()[0].tolist() == []
    assert user_export.UserStore(str(tmp_path / "none")).load()[0].tolist() == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1, "columns": [], "jobs": []}', "{}", '{"version": 9}']
)
def test_a_users_file_that_is_none(tmp_path, text):
    (tmp_path / str(os.getuid())).mkdir()
    (tmp_path / str(os.getuid()) / "jobs.json").write_text(text)
    with pytest.raises(InputError, match="cannot be used"):
        user_export.UserStore(str(tmp_path))


def test_an_export_that_cannot_be_made(tmp_path):
    (tmp_path / "users").write_text("a file")
    with pytest.raises(InputError, match="user_export"):
        user_export.export(str(tmp_path / "users"), (), np.array([]), np.array([]), np.empty((0, 1)))
