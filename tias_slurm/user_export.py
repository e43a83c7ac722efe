"""What `explain` needs of the ledger, for users: each one's file holds that one's jobs, and only that one may
read it.

The daemon is not root and cannot give files away. It keeps them, and lets their users read them by an access
control entry (acl(5)), which the owner of a file may set. Where the file system has none nothing is left.
What root makes is given to the daemon's account, or the daemon itself could not go on with it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import stat
import struct

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats, Ints
from tias_slurm.ledger import table as ledger_table
from tias_slurm.own_files import hint
from tias_slurm.policy.learning import Learner

FILE = "jobs.json"
VERSION = 1
# a file that is larger is none of ours
_MOST_BYTES = 100_000_000
# acl(5) as the kernel keeps it (linux/posix_acl_xattr.h): version 2, then tag, permissions, id
_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def export(
    directory: str, users: tuple[str, ...], user: Ints, ids: Ints, table: Floats, state_dir: str = ""
) -> None:
    """Leave a file for each user who has jobs, and an empty one for each who had some before.

    `user` (n,): row in `users` of each job; `ids` (n,), `table` (n, columns): of the ledger. All files are
    written every time and lie in a directory of their user's: neither a size nor a time of change tells
    others anything. A directory that root makes belongs to the owner of `state_dir`, and what lies in it to
    its own owner. Raises InputError.
    """
    at = directory
    order = np.argsort(user, kind="stable")
    bounds = np.searchsorted(user[order], np.arange(len(users) + 1))
    jobs: dict[int, list[list[float | None]]] = {}
    try:
        # to be entered, not to be listed
        if not os.path.isdir(directory):
            os.makedirs(directory, mode=0o711, exist_ok=True)
            if os.geteuid() == 0 and state_dir:
                ours = os.stat(state_dir)
                os.chown(directory, ours.st_uid, ours.st_gid, follow_symlinks=False)
        owner = os.stat(directory)
        jobs.update((int(name), []) for name in os.listdir(directory) if name.isdecimal())
        for number, name in enumerate(users):
            try:
                uid = pwd.getpwnam(name).pw_uid
            except (KeyError, ValueError):
                continue  # not known on this machine
            for r in np.sort(order[bounds[number] : bounds[number + 1]]).tolist():
                row = [None if v != v else v for v in table[r].tolist()]
                jobs.setdefault(uid, []).append([int(ids[r]), *row])
        for uid, rows in jobs.items():
            document = {"version": VERSION, "columns": ledger_table.COLUMNS, "jobs": rows}
            at = os.path.join(directory, str(uid))
            _leave(at, json.dumps(document), uid, owner)
    except OSError as error:
        raise InputError(_unusable(at, directory, error)) from None


def _unusable(at: str, directory: str, error: OSError) -> str:
    do = "give a directory of the daemon's on a file system with ACLs"
    if error.errno in (errno.EPERM, errno.EACCES):
        do = f"all of it must belong to the daemon's account: chown -R ACCOUNT {printable(directory, 300)}"
    elif error.errno == errno.ENOSPC:
        do = "make room there"
    elif error.errno == errno.EROFS:
        do = hint(error).removeprefix("; ")
    return f"{printable(at, 300)}: cannot be used for [daemon] user_export: {error.strerror or error}; {do}"


def _leave(directory: str, text: str, uid: int, owner: os.stat_result) -> None:
    """Nobody but the user can read it, not even while it is made. `owner`: whose all of it is."""
    if not os.path.isdir(directory):
        os.mkdir(directory, 0o700)
    # root follows no link that the owner may have left there
    where = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    temp = f"{FILE}.{os.getpid()}.tmp"
    try:
        _give(where, owner)
        if uid != owner.st_uid:
            os.setxattr(where, _ACL, _open_to(uid, 5))
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(temp, new, 0o600, dir_fd=where)
        try:
            with os.fdopen(file, "w", encoding="ascii") as out:
                _give(file, owner)
                out.write(text)
                if uid != owner.st_uid:
                    os.setxattr(file, _ACL, _open_to(uid, 4))
            os.replace(temp, FILE, src_dir_fd=where, dst_dir_fd=where)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp, dir_fd=where)
            raise
    finally:
        os.close(where)


def _give(file: int, owner: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.fchown(file, owner.st_uid, owner.st_gid)


def problem(directory: str, account: int) -> tuple[str, str]:
    """Why the daemon, as the user `account`, could not leave files there or users not find them, and what to
    do; ("", ""): nothing is in the way. Looks, and changes nothing."""
    shown, name = printable(directory, 300), _name(account)
    make = f"install -d -m 0711 -o {name} {shown}"
    try:
        seen = os.stat(directory)
    except FileNotFoundError:
        return f"{shown}: no such directory", make
    except OSError as error:
        return f"{shown}: {error.strerror}", make
    if not stat.S_ISDIR(seen.st_mode):
        return f"{shown}: is no directory", make
    try:
        if seen.st_uid != account:  # first: who is not its owner may not list it
            return _belongs(directory, seen.st_uid, name), f"chown -R {name} {shown}"
        for at in (e.path for e in os.scandir(directory) if e.name.isdecimal()):
            if (whose := os.lstat(at).st_uid) != account:
                return _belongs(at, whose, name), f"chown -R {name} {shown}"
        os.getxattr(directory, _ACL)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return (
                f"{shown}: its file system has no ACLs",
                "give a directory on one that has: ext4, XFS, tmpfs",
            )
        if error.errno != errno.ENODATA:  # which is said where there are some, but not on this one
            return f"{shown}: {error.strerror}", make
    for at in _above(os.path.realpath(directory)):
        if not os.stat(at).st_mode & stat.S_IXOTH:
            return f"{printable(at, 300)}: users may not enter it", f"chmod o+x {printable(at, 300)}"
    return "", ""


def _belongs(path: str, whose: int, name: str) -> str:
    return f"{printable(path, 300)}: belongs to {_name(whose)}, not to {name}"


def _above(path: str) -> list[str]:
    """A directory and all those above it."""
    found = [path]
    while found[-1] != "/":
        found.append(os.path.dirname(found[-1]))
    return found


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _open_to(uid: int, may: int) -> bytes:
    """The owner may do all, the user `may` (4: read, 1: enter), nobody else anything."""
    entries = ((_OWNER, 7, _NOBODY), (_USER, may, uid), (_GROUP, 0, _NOBODY), (_MASK, may, _NOBODY),
               (_OTHER, 0, _NOBODY))  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def withdraw(directory: str) -> None:
    """Remove all that `export` left there, and nothing else. Raises InputError."""
    try:
        names = [name for name in os.listdir(directory) if name.isdecimal()]
        for name in names:
            where = os.path.join(directory, name)
            if os.path.islink(where):
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(where, FILE))
            with contextlib.suppress(OSError):  # something else lies in it
                os.rmdir(where)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"{printable(directory, 300)}: what was left for users cannot be removed: {error.strerror}"
        ) from None


class UserStore:
    """A ledger.Store of what the daemon left for the user who runs this; it keeps nothing."""

    def __init__(self, directory: str) -> None:
        """Raises InputError for a file that cannot be read."""
        self._path = os.path.join(directory, str(os.getuid()), FILE)
        self.jobs: frozenset[int] | None = None  # in the file; None: there is none
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                document = json.loads(file.read(_MOST_BYTES))
            if document["version"] != VERSION or tuple(document["columns"]) != ledger_table.COLUMNS:
                raise ValueError("made by another version of tias-slurm")
            rows = sorted(document["jobs"])
            self._ids = np.array([row[0] for row in rows], dtype=np.int64)
            self.jobs = frozenset(self._ids.tolist())
            values = [[np.nan if v is None else float(v) for v in row[1:]] for row in rows]
            self._table = np.array(values, dtype=np.float64).reshape(len(rows), len(ledger_table.COLUMNS))
        except FileNotFoundError:
            self._ids, self._table = np.empty(0, dtype=np.int64), np.empty((0, len(ledger_table.COLUMNS)))
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            raise InputError(
                f"{printable(self._path, 300)}: cannot be used: {error}; ask your site"
            ) from None

    def load(self) -> tuple[Ints, Floats, Floats]:
        """See ledger.Store. What was learned is of all users, and is not told."""
        return self._ids, self._table, Learner().counts

    def recall(self, ids: Ints) -> tuple[Ints, Floats]:
        """See ledger.Store."""
        return np.empty(0, dtype=np.int64), np.empty((0, len(ledger_table.COLUMNS)))

    def save(self, *_: object) -> None:
        """Keep nothing."""

    def get(self, name: str) -> str | None:
        """See ledger.Store: nothing that is of all users is told."""
        return None

    def put(self, name: str, value: str) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Nothing is open."""
