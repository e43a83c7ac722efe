"""The ledger kept within its bounds of age and size, a little at a time."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

# rows of one transaction: small ones, so that nobody who reads is kept waiting
_JOBS, _AUDIT = 200, 1000
_PAGES = 256  # given back to the file system at once
# of the pages of the file, that many may be free before they are given back although there is no need
_FREE_SHARE = 0.2
# a job that left so lately may come back, requeued after its end, with a value of ours, s
COMES_BACK_S = 86_400.0
# `status` counts the requeues of so long out of the audit records, s
RECENT_S = 3600.0
# what is kept beside audit records goes with them
_ORPHANS = "DELETE FROM gain WHERE NOT EXISTS (SELECT 1 FROM audit WHERE id = record)"
DROPPED = "dropped"  # the setting that counts what went for the size

Transaction = Callable[[], AbstractContextManager[None]]


class Trimmed(NamedTuple):
    """What one call did, and how the ledger stands."""

    jobs: int  # that left, dropped for the size, with their records
    audit: int  # records dropped for the size
    bytes: int  # of the file
    finished: bool  # nothing is left to do for now
    within: bool  # the file is no larger than wanted, or can become so by further calls


class Bounds(NamedTuple):
    """What is to be kept."""

    before: float  # epoch s: what ended before it goes
    most_bytes: float  # the file is to be no larger
    now: float  # epoch s


def pages(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Pages of the file, how many of them are free, and the bytes of one."""
    count, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return count, free, size


def trim(
    db: sqlite3.Connection, transaction: Transaction, bounds: Bounds, seconds: float, *, age: bool
) -> Trimmed:
    """Drop for so many seconds what is beyond the bounds; `age`: look also for what is too old.

    Jobs that left go first, with all their records, who left longest ago before all others; then the oldest
    audit records of jobs that are here. What is known of jobs that are here never goes, nor single values
    (budgets, terms, what was learned). Raises sqlite3.Error.
    """
    stop = time.monotonic() + seconds
    jobs = audit = 0
    finished = within = True
    for limits, for_size in (
        (_Limits(bounds.before, bounds.before), False),
        (_Limits(bounds.now - COMES_BACK_S, bounds.now - RECENT_S), True),
    ):
        while for_size or age:
            if for_size and not _over(db, bounds.most_bytes, used=True):
                break
            if time.monotonic() >= stop:
                finished = False
                break
            with transaction():
                gone, records = _drop(db, limits)
                if for_size:
                    _count(db, gone, records, bounds.now)
            if not gone and not records:
                within = within and not for_size
                break
            jobs, audit = jobs + for_size * gone, audit + for_size * records
    finished &= _give_back(db, bounds.most_bytes, stop)
    count, _, size = pages(db)
    within &= count * size <= bounds.most_bytes or not finished
    return Trimmed(jobs, audit, count * size, finished, within)


class _Limits(NamedTuple):
    jobs: float  # who left before it may go
    audit: float  # records from before it


def _drop(db: sqlite3.Connection, limits: _Limits) -> tuple[int, int]:
    """Some jobs that left and their records, or else some records; how many of each."""
    gone = [
        row[0]
        for row in db.execute(
            "SELECT job_id FROM job WHERE gone IS NOT NULL AND gone < ? ORDER BY gone LIMIT ?",
            (limits.jobs, _JOBS),
        )
    ]
    if gone:
        marks = ", ".join("?" * len(gone))
        records = db.execute(f"DELETE FROM audit WHERE job_id IN ({marks})", gone).rowcount  # noqa: S608
        db.execute(f"DELETE FROM job WHERE job_id IN ({marks})", gone)  # noqa: S608
        db.execute(_ORPHANS)
        return len(gone), records
    # records are numbered as time goes
    cursor = db.execute(
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?) AND time < ?",
        (_AUDIT, limits.audit),
    )
    if cursor.rowcount:
        db.execute(_ORPHANS)
    return 0, cursor.rowcount


def _over(db: sqlite3.Connection, most: float, *, used: bool) -> bool:
    count, free, size = pages(db)
    return (count - free if used else count) * size > most


def _give_back(db: sqlite3.Connection, most: float, stop: float) -> bool:
    """Free pages to the file system, where they are many or the file is too large; whether that is done."""
    given = False
    while True:
        count, free, _ = pages(db)
        if not free or not (free > _FREE_SHARE * count or _over(db, most, used=False)):
            if given:  # from the log into the file, which only then becomes smaller
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            return True
        if time.monotonic() >= stop:
            return False
        given = True
        # one page a step, and `execute` takes only the first
        db.executescript(f"PRAGMA incremental_vacuum({_PAGES});")
        if pages(db)[0] == count:
            return True  # a ledger that cannot be made smaller


def _count(db: sqlite3.Connection, jobs: int, audit: int, now: float) -> None:
    found = db.execute("SELECT value FROM setting WHERE name = ?", (DROPPED,)).fetchone()
    so_far = dropped(found[0] if found else None)
    text = json.dumps({"jobs": so_far["jobs"] + jobs, "audit": so_far["audit"] + audit, "last": now})
    db.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (DROPPED, text))


def dropped(text: str | None) -> dict[str, float]:
    """How many jobs that left and audit records went for the size so far, and when the last, epoch s."""
    try:
        said = json.loads(text or "{}")
        return {"jobs": int(said["jobs"]), "audit": int(said["audit"]), "last": float(said["last"])}
    except (ValueError, TypeError, KeyError):
        return {"jobs": 0, "audit": 0, "last": 0.0}
