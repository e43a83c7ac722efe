"""The ledger on disk: SQLite, one writer, every write intended before it is sent."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.errors import LedgerError as LedgerError
from tias_slurm.hands import is_there
from tias_slurm.jobs import Floats, Ints
from tias_slurm.ledger import schema as ledger_schema
from tias_slurm.ledger import sight, tally
from tias_slurm.ledger import table as ledger_table
from tias_slurm.ledger import trim as ledger_trim
from tias_slurm.own_files import open_own
from tias_slurm.policy.learning import Learner
from tias_slurm.service.leadership import Knowledge

_NAMES = ledger_schema.NAMES
_AT_ONCE = 500  # ids in one query
_DEPOSED = "another tias-slurm leads by now; nothing more is kept or sent by this one"
# bytes that the write-ahead log keeps when all of it is in the file
_LOG_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One audit record: an action, its reason, and what became of it (None: not known)."""

    time: float
    job_id: int
    action: str  # a lever's field, or "requeue"
    old: float | None
    new: float | None
    reason: str
    result: str | None = None
    message: str = ""


class SqliteStore:
    """A ledger.Store, the audit trail, and the lever that the values belong to.

    Raises InputError for a file that is no ledger of ours, is newer than this version, or cannot be used;
    later LedgerError from any call.
    """

    def __init__(
        self,
        path: str,
        *,
        shared: bool | None = None,
        older: Literal["take over", "leave", "refuse"] = "take over",
    ) -> None:
        """`shared`: whether daemons on several hosts keep it, one after another; None: as it is. `older`:
        what to do with one of an older version; one that is left serves `knowledge` and `copy_to` alone."""
        self.path = path
        self._term: int | None = None
        name = printable(path, 300)
        try:
            # nobody else may read what users wrote
            os.close(open_own(path, os.O_RDWR))
            # the scheduler's thread cycles, one at a time; the main thread opens and closes
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            try:
                self._begin(name, shared, older)
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            why = getattr(error, "strerror", None) or str(error)
            if ledger_schema.passes(error):
                raise LedgerError(
                    f"{name}: the ledger cannot be used now: {why}; is the disk full, or does another "
                    "process hold the file?"
                ) from None
            if isinstance(error, PermissionError):
                raise InputError(f"{name}: {why}; run as the account that owns the directory") from None
            raise InputError(
                f"{name}: cannot be used as a ledger: {why}; move it away or set another [daemon] state_dir"
            ) from None

    def _begin(self, name: str, shared: bool | None, older: str) -> None:
        """Look at the file before anything in it is changed, then make the tables that are missing."""
        version = ledger_schema.version_of(self._db, name)
        if version is not None and version < ledger_schema.SCHEMA and older != "take over":
            if older == "refuse":
                raise InputError(
                    f"{name}: a ledger of an older tias-slurm (schema {version}), which the daemon takes "
                    "over when it starts; start it first"
                )
            return
        if version is not None and version < ledger_schema.SCHEMA:
            ledger_schema.keep_copy(self._db, self.path, version)
        elif version is None:
            self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        if shared is not None or version is None:
            self._share(bool(shared))
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        if version != ledger_schema.SCHEMA:
            with self._transaction():
                ledger_schema.make(self._db)
        if shared is not None and not self._db.execute("PRAGMA auto_vacuum").fetchone()[0]:
            # once, so that it can be made smaller bit by bit; without the room for it it works all the same
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                self._db.execute("VACUUM")

    def _share(self, shared: bool) -> None:
        # sqlite.org/wal.html: all who use a write-ahead log must be on one host
        kind = "delete" if shared else "wal"
        got = str(self._db.execute(f"PRAGMA journal_mode={kind}").fetchone()[0])
        if shared and got != kind:
            raise sqlite3.DatabaseError("it is in use; end whoever looks at it and try again")

    def share(self, shared: bool) -> None:
        """From now on daemons on several hosts keep it, one after another; or no longer."""
        with self._errors():
            self._share(shared)

    def went(self, where: str) -> None:
        """It is kept in another directory from now on: nobody may open this one again. "": it is not."""
        if where:
            self.put(ledger_schema.MOVED, where)
            return
        with self._transaction():
            self._db.execute("DELETE FROM setting WHERE name = ?", (ledger_schema.MOVED,))

    def copy_to(self, path: str, tell: Callable[[], None] | None = None) -> None:
        """Make the ledger at `path` the same as this one, or leave it as it was. `tell`: see write_copy.

        Raises InputError; LedgerError if another try may do better."""
        try:
            ledger_schema.replace_copy(self._db, path, tell)
        except (sqlite3.Error, OSError) as error:
            kind = LedgerError if ledger_schema.passes(error) else InputError
            raise kind(f"{printable(path, 300)}: cannot be written: {error}") from None

    def see_as(self, path: str) -> int:
        """Know what the ledger at `path` saw, that of a dry run: of how many jobs. See ledger.sight."""
        with self._errors():
            return sight.take(self._db, path, self._transaction())

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"{printable(self.path, 300)}: the ledger cannot be used: {error}; is the disk full, or does "
                "another process hold the file?"
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._check_term()
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._errors():
            return self._db.execute(query, values).fetchall()

    def ask(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Rows of a table that has a module of its own."""
        return self._rows(query, values)

    def change(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Change such a table, by one statement for each of the rows of values."""
        with self._transaction():
            self._db.executemany(statement, rows)

    # -- ledger.Store

    def load(self) -> tuple[Ints, Floats, Floats]:
        """See ledger.Store: the jobs that were there when we last looked."""
        rows = self._rows(
            f"SELECT job_id, {', '.join(_NAMES)} FROM job WHERE gone IS NULL ORDER BY job_id"  # noqa: S608
        )
        ids, table = _columns(rows)
        counts = Learner().counts
        for window, at, count in self._rows("SELECT class, bin, count FROM learned"):
            if 0 <= window < counts.shape[0] and 0 <= at < counts.shape[1]:
                counts[window, at] = count
        return ids, table, counts

    def recall(self, ids: Ints) -> tuple[Ints, Floats]:
        """See ledger.Store."""
        rows: list[Any] = []
        for at in range(0, len(ids), _AT_ONCE):
            part = ids[at : at + _AT_ONCE].tolist()
            rows += self._rows(
                f"SELECT job_id, {', '.join(_NAMES)} FROM job WHERE gone IS NOT NULL "  # noqa: S608
                f"AND job_id IN ({', '.join('?' * len(part))}) ORDER BY job_id",
                part,
            )
        return _columns(rows)

    def save(self, ids: Ints, table: Floats, gone: Ints, learned: Floats | None) -> None:
        """See ledger.Store."""
        marks = ", ".join("?" * (len(_NAMES) + 1))
        rows = [
            (job, *(None if v != v else v for v in row))
            for job, row in zip(ids.tolist(), table.tolist(), strict=True)
        ]
        now = time.time()
        with self._transaction():
            self._db.executemany(
                f"INSERT OR REPLACE INTO job (job_id, {', '.join(_NAMES)}) VALUES ({marks})",  # noqa: S608
                rows,
            )
            self._db.executemany(
                "UPDATE job SET gone = ? WHERE job_id = ?", [(now, j) for j in gone.tolist()]
            )
            if learned is not None:
                self._db.execute("DELETE FROM learned")  # what has faded away
                at = [
                    (int(c), int(b), float(learned[c, b])) for c, b in zip(*np.nonzero(learned), strict=True)
                ]
                self._db.executemany("INSERT OR REPLACE INTO learned VALUES (?, ?, ?)", at)

    # -- the audit trail

    def record(self, entries: Sequence[Entry]) -> list[int]:
        """Append audit records; their numbers."""
        numbers = []
        with self._transaction():
            for e in entries:
                cursor = self._db.execute(
                    "INSERT INTO audit (time, job_id, action, old, new, reason, result, message) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (e.time, e.job_id, e.action, e.old, e.new, e.reason, e.result, e.message),
                )
                numbers.append(int(cursor.lastrowid or 0))
        return numbers

    def settle(self, outcomes: Sequence[tuple[int, str, str]]) -> None:
        """Note what became of records: (number, result, the controller's words)."""
        with self._transaction():
            self._db.executemany(
                "UPDATE audit SET result = ?, message = ? WHERE id = ?",
                [(result, printable(words, 300), number) for number, result, words in outcomes],
            )

    def history(self, job_id: int) -> list[Entry]:
        """The audit records of one job, oldest first."""
        found = self._rows(
            "SELECT time, job_id, action, old, new, reason, result, message FROM audit "
            "WHERE job_id = ? ORDER BY id",
            (job_id,),
        )
        return [Entry(*row) for row in found]

    def actions(self, action: str, since: float) -> list[Entry]:
        """The audit records of one action from an epoch second on, oldest first."""
        found = self._rows(
            "SELECT time, job_id, action, old, new, reason, result, message FROM audit "
            "WHERE action = ? AND time >= ? ORDER BY id",
            (action, since),
        )
        return [Entry(*row) for row in found]

    def memory(self, job_id: int) -> dict[str, float | None] | None:
        """What is kept of one job, by ledger_table.COLUMNS, and when it was `gone`; None: nothing."""
        names = (*ledger_table.COLUMNS, "gone")
        rows = self._rows(
            f"SELECT {', '.join(_NAMES)}, gone FROM job WHERE job_id = ?",  # noqa: S608
            (job_id,),
        )
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def ended_claims(self, since: float) -> tuple[int, int]:
        """Jobs with a deadline that have run and left since an epoch second; and how many left after it."""
        row = self._rows(
            'SELECT count(*), coalesce(sum(gone > "claim"), 0) FROM job WHERE gone >= ? '
            'AND "claim" IS NOT NULL AND "run_time" + "attained" > 0',
            (since,),
        )[0]
        return int(row[0]), int(row[1])

    def trim(self, bounds: ledger_trim.Bounds, seconds: float, *, age: bool = True) -> ledger_trim.Trimmed:
        """Drop what is beyond the bounds, for so many seconds; see ledger_trim."""
        if age:
            ledger_schema.drop_copies(self.path, bounds.before)
            with self._transaction():
                self._db.execute(
                    "DELETE FROM setting WHERE name LIKE ? AND CAST(substr(name, ?) AS INTEGER) < ?",
                    (f"{tally.PREFIX}%", len(tally.PREFIX) + 1, bounds.before // tally.HOUR_S),
                )
        with self._errors():
            return ledger_trim.trim(self._db, self._transaction, bounds, seconds, age=age)

    @property
    def bytes(self) -> int:
        """How large the file is, or will be once its log is taken in."""
        with self._errors():
            count, _, size = ledger_trim.pages(self._db)
        return count * size

    @property
    def oldest(self) -> float | None:
        """When the oldest audit record was made, or the first job of those kept left, epoch s; None: neither
        is there."""
        rows = self._rows(
            "SELECT (SELECT time FROM audit ORDER BY id LIMIT 1), "
            "(SELECT min(gone) FROM job WHERE gone IS NOT NULL)"
        )
        return min((float(t) for t in rows[0] if t is not None), default=None)

    # -- several daemons, one after another

    def lead(self, term: int) -> None:
        """From now on keep what is done in this term, and nothing once there is a later one: then every call
        that would change something raises LedgerError."""
        with self._transaction():
            if int(self.get("term") or 0) > term:
                raise LedgerError(_DEPOSED)
            if where := ledger_schema.went_to(self._db):
                raise LedgerError(ledger_schema.moved(printable(self.path, 300), where))
            self._db.execute("INSERT OR REPLACE INTO setting VALUES ('term', ?)", (str(term),))
        self._term = term

    def begin_burst(self) -> Knowledge:
        """Count one burst of writes, before it is sent; what this ledger knows from then on."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO setting VALUES ('id', ?)", (secrets.token_hex(8),))
            self._db.execute(
                "INSERT INTO setting VALUES ('sent', '1') ON CONFLICT (name) DO UPDATE SET value = value + 1"
            )
        return self.knowledge()

    def knowledge(self) -> Knowledge:
        """What this ledger knows of what was written."""
        return Knowledge(self.get("id") or "", int(self.get("sent") or 0), int(self.get("term") or 0))

    def _check_term(self) -> None:
        if self._term is None:
            return
        found = self._db.execute("SELECT value FROM setting WHERE name = 'term'").fetchone()
        if found is not None and int(found[0]) > self._term:
            raise LedgerError(_DEPOSED)

    # -- single values

    def get(self, name: str) -> str | None:
        """A value kept under a name; None: none."""
        rows = self._rows("SELECT value FROM setting WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def put(self, name: str, value: str) -> None:
        """Keep a value under a name."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value))

    def disown(self) -> None:
        """No value of any job is ours any more: another lever may be used from now on."""
        with self._transaction():
            self._db.execute('UPDATE job SET "set" = NULL, "before" = NULL, "refused" = NULL')
            self._db.execute("DELETE FROM setting WHERE name = 'lever'")


def known_to(path: str) -> Knowledge | None:
    """What the ledger at `path` knows of what was written; None: there is none. Changes nothing. Raises
    InputError."""
    if not is_there(path):
        return None
    store = SqliteStore(path, older="leave")  # a daemon of an older version may lead
    try:
        return store.knowledge()
    finally:
        store.close()


def gone_to(path: str) -> str:
    """The directory that the ledger at `path` was moved to; "": it is in use, is none, or is not there."""
    if not is_there(path):
        return ""
    try:
        # reading alone: a log that a crash left is not put into the file, whose age counts (start.seed)
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=10.0)) as db:
            return ledger_schema.went_to(db)
    except sqlite3.Error:
        return ""


def _columns(rows: Sequence[Any]) -> tuple[Ints, Floats]:
    """Ids (n,) and the ledger's columns (n, columns) of rows as SQLite gives them."""
    ids = np.array([r[0] for r in rows], dtype=np.int64)
    table = np.array([[np.nan if v is None else v for v in r[1:]] for r in rows], dtype=np.float64)
    return ids, table.reshape(len(ids), len(ledger_table.COLUMNS))
