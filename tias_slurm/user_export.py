"""What `explain` needs of the ledger, for users: each one's file holds that one's jobs, and only that one may
read it.

The daemon is not root and cannot give files away. It keeps them, and lets their users read them by an access
control entry (acl(5)), which the owner of a file may set. Where the file system has none nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import struct

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats, Ints
from tias_slurm.ledger import table as ledger_table
from tias_slurm.policy.learning import Learner

FILE = "jobs.json"
VERSION = 1
# a file that is larger is none of ours
_MOST_BYTES = 100_000_000
# acl(5) as the kernel keeps it (linux/posix_acl_xattr.h): version 2, then tag, permissions, id
_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def export(directory: str, users: tuple[str, ...], user: Ints, ids: Ints, table: Floats) -> None:
    """Leave a file for each user who has jobs, and an empty one for each who had some before.

    `user` (n,): row in `users` of each job; `ids` (n,), `table` (n, columns): of the ledger. All files are
    written every time and lie in a directory of their user's: neither a size nor a time of change tells
    others anything. Raises InputError.
    """
    order = np.argsort(user, kind="stable")
    bounds = np.searchsorted(user[order], np.arange(len(users) + 1))
    jobs: dict[int, list[list[float | None]]] = {}
    try:
        # to be entered, not to be listed
        os.makedirs(directory, mode=0o711, exist_ok=True)
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
            _leave(os.path.join(directory, str(uid)), json.dumps(document), uid)
    except OSError as error:
        raise InputError(
            f"{printable(directory, 300)}: cannot be used for [daemon] user_export: "
            f"{error.strerror or error}; give a directory of the daemon's on a file system with ACLs"
        ) from None


def _leave(directory: str, text: str, uid: int) -> None:
    """Nobody but the user can read it, not even while it is made."""
    if not os.path.isdir(directory):
        os.mkdir(directory, 0o700)
    if uid != os.geteuid():
        os.setxattr(directory, _ACL, _open_to(uid, 5), follow_symlinks=False)
    path = os.path.join(directory, FILE)
    temp = f"{path}.{os.getpid()}.tmp"
    file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(file, "w", encoding="ascii") as out:
            out.write(text)
            if uid != os.geteuid():
                os.setxattr(out.fileno(), _ACL, _open_to(uid, 4))
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise


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
