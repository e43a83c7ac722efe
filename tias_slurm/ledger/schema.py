"""The ledger's tables, and how the ledger of an older version is taken over."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable

from tias_slurm.errors import InputError, LedgerError, printable
from tias_slurm.ledger import table as ledger_table
from tias_slurm.own_files import open_own

SCHEMA = 5
_PAGES = 1000  # of a copy in one step
# marks a file as ours: "TIAS" (see sqlite.org, PRAGMA application_id)
MARK = 0x54494153
NAMES = [f'"{name}"' for name in ledger_table.COLUMNS]
_HEADER = b"SQLite format 3\0"  # sqlite.org/fileformat2.html
MOVED = "moved"  # a setting: where the ledger went
_KEPT = frozenset({"job", "learned", "audit", "setting"})  # the tables that every version had
_TABLES = f"""
CREATE TABLE IF NOT EXISTS job (job_id INTEGER PRIMARY KEY, {", ".join(f"{n} REAL" for n in NAMES)},
    gone REAL) STRICT;
CREATE INDEX IF NOT EXISTS job_gone ON job (gone) WHERE gone IS NOT NULL;
CREATE TABLE IF NOT EXISTS learned (class INTEGER, bin INTEGER, count REAL NOT NULL,
    PRIMARY KEY (class, bin)) STRICT;
CREATE TABLE IF NOT EXISTS audit (id INTEGER PRIMARY KEY, time REAL NOT NULL, job_id INTEGER NOT NULL,
    action TEXT NOT NULL, old REAL, new REAL, reason TEXT NOT NULL, result TEXT, message TEXT) STRICT;
CREATE INDEX IF NOT EXISTS audit_job ON audit (job_id);
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS notice (job_id INTEGER NOT NULL, reason TEXT NOT NULL, time REAL NOT NULL,
    about REAL, taken_up REAL, result TEXT, how TEXT NOT NULL, record INTEGER NOT NULL, message TEXT NOT NULL,
    text TEXT NOT NULL, PRIMARY KEY (job_id, reason)) STRICT;
CREATE TABLE IF NOT EXISTS gain (record INTEGER PRIMARY KEY, became TEXT NOT NULL, after_s REAL,
    job_id INTEGER NOT NULL) STRICT;
"""


def version_of(db: sqlite3.Connection, name: str) -> int | None:
    """The schema of a ledger; None: nothing is in the file yet. Changes nothing.

    Raises sqlite3.DatabaseError for what is no ledger of ours, InputError for one of a newer version.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    mark = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = {str(row[0]) for row in db.execute("SELECT name FROM sqlite_schema")}
    # the very first ledgers had no mark
    if tables and mark != MARK and not (mark == 0 and version == 1 and tables >= _KEPT):
        raise sqlite3.DatabaseError("a database of something else")
    if version > SCHEMA:
        raise InputError(f"{name}: a ledger of a newer tias-slurm (schema {version}); upgrade tias-slurm")
    if "setting" in tables and (where := went_to(db)):
        raise InputError(moved(name, where))
    return version if tables else None


def went_to(db: sqlite3.Connection) -> str:
    """The directory that a ledger was moved to, so that this one is of the past; "": it is in use."""
    rows = db.execute("SELECT value FROM setting WHERE name = ?", (MOVED,)).fetchall()
    return str(rows[0][0]) if rows else ""


def moved(name: str, where: str) -> str:
    """What to tell of a ledger that is of the past."""
    where = printable(where, 300)
    return (
        f"{name}: the ledger went to {where} by a reload, and knows nothing since: set [daemon] state_dir "
        f'= "{where}"; to come back, set it anew and reload the daemon that runs there'
    )


def make(db: sqlite3.Connection) -> None:
    """Bring the tables to this version's, of none or of any older one; in a transaction of the caller's."""
    for statement in _TABLES.split(";"):
        db.execute(statement)
    here = {row[1] for row in db.execute("PRAGMA table_info(job)")}
    for name in ledger_table.COLUMNS:
        if name not in here:
            # as a default and not as values: it takes no time, and holds for what an older daemon that
            # still runs goes on to write
            value = "" if name in ledger_table.UNKNOWN else f" DEFAULT {1.0 if name == 'counts' else 0.0}"
            db.execute(f'ALTER TABLE job ADD COLUMN "{name}" REAL{value}')
    db.execute(f"PRAGMA application_id={MARK}")
    db.execute(f"PRAGMA user_version={SCHEMA}")


def copy_path(path: str, version: int) -> str:
    """Where the ledger of an older version is kept, as it was when it was taken over."""
    return f"{path}.schema{version}"


def keep_copy(db: sqlite3.Connection, path: str, version: int) -> None:
    """Keep a ledger as it is, for a way back. Raises InputError, and leaves nothing half done."""
    kept = copy_path(path, version)
    temp = f"{kept}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)  # of one that was killed
        write_copy(db, temp)
        owner = os.stat(path)
        if os.geteuid() == 0:
            os.chown(temp, owner.st_uid, owner.st_gid)
        os.replace(temp, kept)
    except (sqlite3.Error, OSError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        why = getattr(error, "strerror", None) or str(error)
        kind = LedgerError if passes(error) else InputError
        raise kind(
            f"{printable(kept, 300)}: the ledger of an older version cannot be kept there: {why}; it is as "
            f"it was; {os.path.getsize(path) / 1e6:.0f} MB of room are needed"
        ) from None


def replace_copy(db: sqlite3.Connection, path: str, tell: Callable[[], None] | None = None) -> None:
    """As `write_copy`, but what was at `path` stays until all of the new one is there: half of one would be
    taken for newer than its source (start.seed). Raises sqlite3.Error, OSError, and what `tell` does."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as there:
        if (begins := there.read(len(_HEADER))) and begins != _HEADER:
            raise sqlite3.DatabaseError("file is not a database")  # somebody's own
    temp = f"{path}.tmp"
    beside = ("-wal", "-shm", "-journal")
    _drop(temp, *(f"{temp}{more}" for more in beside))  # of one that was killed
    try:
        write_copy(db, temp, tell)
        _drop(*(f"{path}{more}" for more in beside))  # they would pass for those of the new one
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _drop(temp, *(f"{temp}{more}" for more in beside))
        raise


def _drop(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_copy(db: sqlite3.Connection, path: str, tell: Callable[[], None] | None = None) -> None:
    """Make the database at `path` the same as this one. `tell` is called every few MB, and may raise.

    Raises sqlite3.Error, OSError.
    """
    os.close(open_own(path, os.O_RDWR | os.O_NOFOLLOW))
    other = sqlite3.connect(path, timeout=10.0)
    try:
        if tell is None:
            db.backup(other)
        else:
            db.backup(other, pages=_PAGES, progress=lambda *_: tell(), sleep=0.05)
    finally:
        other.close()


def passes(error: Exception) -> bool:
    """Whether another try may do better: the disk is full, or somebody holds the file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    name = getattr(error, "sqlite_errorname", "") or ""
    return str(name).startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY"))


def drop_copies(path: str, before: float) -> None:
    """Remove kept ledgers of older versions that were kept before an epoch second."""
    for version in range(1, SCHEMA):
        kept = copy_path(path, version)
        with contextlib.suppress(OSError):
            if os.stat(kept).st_mtime < before:
                os.unlink(kept)
