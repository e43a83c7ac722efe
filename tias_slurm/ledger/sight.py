"""What a dry run has seen, taken into the ledger of the daemon that goes over to enforcement.

A claim is judged at its first sight, and a dry run sees as well as anybody. What it would have set, requeued
or told never was: of that nothing comes along.
"""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import AbstractContextManager
from urllib.parse import quote

from tias_slurm.errors import InputError, printable
from tias_slurm.ledger import schema, tally
from tias_slurm.ledger.table import COLUMNS, UNKNOWN

# what is done to a job, and what its fields were before: the ledger that was in earnest has that
DEEDS = (
    "requeues", "found", "nice", "set", "before", "refused", "requeued_at", "preempted_at", "warned_at",
    "warned_for", "redone", "hold",
)  # fmt: skip
SEEN = tuple(name for name in COLUMNS if name not in DEEDS)
# single values that come of looking: what finished jobs taught, quotas used, the rules of the last look
VALUES = ("learned", "quota", "claim_rules")


def looked_at(path: str) -> float:
    """When the queue was last taken into the ledger at `path`, epoch s; -inf: never, or it is none.

    By reading alone: the file's age counts elsewhere (start.seed)."""
    try:
        where = f"file:{quote(path)}?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True, timeout=10.0)) as db:
            return tally.last_look(db)
    except sqlite3.Error:
        return float("-inf")


def take(db: sqlite3.Connection, path: str, transaction: AbstractContextManager[None]) -> int:
    """Take what the ledger at `path`, which looked later, has seen into the one of `db`: how many jobs it
    knew. Jobs that were not known here have had nothing done to them. Raises sqlite3.Error, InputError."""
    db.execute("ATTACH DATABASE ? AS other", (path,))
    try:
        if db.execute("PRAGMA other.user_version").fetchone()[0] != schema.SCHEMA:
            raise InputError(f"{printable(path, 300)}: the ledger of another version of tias-slurm")
        with transaction:
            return _take(db)
    finally:
        db.execute("DETACH DATABASE other")


def _take(db: sqlite3.Connection) -> int:
    # numbers come again: as in ledger.rows, but the other one was looking when this one did
    requeued = "o.restarts > m.restarts AND o.first_submit <= m.first_submit"
    same = f"m.job_id IS NOT NULL AND (m.submit = o.submit OR {requeued})"
    columns = {name: f'o."{name}"' for name in SEEN}
    for name in DEEDS:
        # a user's nice may be another one by now, and is looked at anew, like the value found
        never = "NULL" if name in UNKNOWN or name == "nice" else f'o."{name}"' if name == "found" else "0.0"
        columns[name] = f'CASE WHEN {same} THEN m."{name}" ELSE {never} END'
    # with a new run a new spell of waiting begins
    columns["hold"] = f"CASE WHEN {same} AND o.restarts = m.restarts THEN m.hold ELSE 0.0 END"
    names = ", ".join(f'"{name}"' for name in columns)
    count = db.execute(
        f"INSERT OR REPLACE INTO main.job (job_id, {names}, gone) "  # noqa: S608
        f"SELECT o.job_id, {', '.join(columns.values())}, o.gone "
        "FROM other.job AS o LEFT JOIN main.job AS m ON m.job_id = o.job_id"
    ).rowcount
    db.execute("DELETE FROM main.learned")
    db.execute("INSERT INTO main.learned SELECT * FROM other.learned")
    db.executemany(
        "INSERT OR REPLACE INTO main.setting (name, value) "
        "SELECT name, value FROM other.setting WHERE name = ?",
        [(name,) for name in VALUES],
    )
    return int(count)
