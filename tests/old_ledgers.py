"""Ledgers as older versions of tias-slurm made them: their SQL as it was, and rows as they left them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

MARK = 0x54494153
FIRST = (
    "first_submit", "submit", "kept", "attained", "run_time", "restarts", "requeues", "found", "nice", "set",
    "before", "refused",
)  # fmt: skip
CLAIMS = ("claim", "accepted", "lost", "fallen", "counts", "slot", "front")
REQUEUES = ("requeued_at", "preempted_at", "warned_at")
WAITS = ("late", "since", "blocked_at")
# columns by version: the schema's number, and a letter where the columns grew without it
COLUMNS = {
    "1": FIRST,  # not marked as ours yet
    "1b": (*FIRST, "unseen"),
    "2": (*FIRST, "unseen", *CLAIMS, *REQUEUES, "redone"),
    "2b": (*FIRST, "unseen", *CLAIMS, *WAITS, *REQUEUES, "redone"),
    "2c": (*FIRST, "unseen", *CLAIMS, *WAITS, *REQUEUES, "warned_for", "redone"),
    "3": (*FIRST, "unseen", *CLAIMS, *WAITS, *REQUEUES, "warned_for", "redone", "hold"),
    "4": (*FIRST, "unseen", *CLAIMS, *WAITS, *REQUEUES, "warned_for", "redone", "hold"),
}
# jobs in the queue that we set and that we did not, and one that left: by column; 0 where nothing is said
JOBS = {
    7: {"first_submit": 1000.0, "submit": 2000.0, "attained": 7200.5, "requeues": 2.0, "found": 50.0,
        "nice": 50.0, "set": -300.0, "before": -200.0, "restarts": 1.0, "refused": None, "claim": 9e9,
        "accepted": 2.0, "counts": 0.0, "slot": 1.0, "warned_for": 5.0, "since": 3000.0, "hold": 2.0},
    8: {"first_submit": 1500.0, "submit": 1500.0, "found": 3.0, "nice": 3.0, "set": None, "before": None,
        "refused": 99.5, "counts": 1.0, "claim": None},
    9: {"first_submit": 100.0, "submit": 100.0, "found": 1.0, "nice": 1.0, "set": -77.0, "before": 1.0,
        "refused": None, "claim": None, "counts": 1.0, "gone": 4000.0},
}  # fmt: skip
AUDIT = [
    (1, 5000.0, 7, "nice", 50.0, -200.0, "level 2", "ok", ""),
    (2, 5060.0, 7, "requeue", None, 8.0, "level 9, for job 8", None, ""),
    (3, 5120.0, 8, "nice", 3.0, -9.0, "level 1", "refused", "by a job_submit.lua"),
]
SETTINGS = {"lever": "nice", "requeues": '[[5060.0, {"ann": 1}]]'}
LATER = {"id": "00ff", "sent": "4", "term": "3"}  # from 2c on
LEARNED = [(0, 3, 1.5), (1, 12, 0.25)]


def schema(version: str) -> int:
    """The schema's number."""
    return int(version[0])


def settings(version: str) -> dict[str, str]:
    """The single values in such a ledger."""
    return SETTINGS | (LATER if version in ("2c", "3", "4") else {})


def make(path: Path, version: str, more: int = 0) -> None:
    """Make one. `more`: so many jobs that left, beside the others, with a record each."""
    columns = COLUMNS[version]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("BEGIN IMMEDIATE")
    db.execute(
        "CREATE TABLE IF NOT EXISTS job (job_id INTEGER PRIMARY KEY, "
        + ", ".join(f'"{name}" REAL' for name in columns)
        + ", gone REAL) STRICT"
    )
    db.execute(
        "CREATE TABLE IF NOT EXISTS learned (class INTEGER, bin INTEGER, count REAL NOT NULL, "
        "PRIMARY KEY (class, bin)) STRICT"
    )
    db.execute(
        "CREATE TABLE IF NOT EXISTS audit (id INTEGER PRIMARY KEY, time REAL NOT NULL, "
        "job_id INTEGER NOT NULL, action TEXT NOT NULL, old REAL, new REAL, reason TEXT NOT NULL, "
        "result TEXT, message TEXT) STRICT"
    )
    db.execute("CREATE INDEX IF NOT EXISTS audit_job ON audit (job_id)")
    db.execute("CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
    if version != "1":
        db.execute(f"PRAGMA application_id={MARK}")
    db.execute(f"PRAGMA user_version={schema(version)}")
    for job, known in JOBS.items():
        save(db, version, job, known)
    for job in range(1000, 1000 + more):
        save(db, version, job, JOBS[9])
    db.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", AUDIT)
    db.executemany(
        "INSERT INTO audit (time, job_id, action, reason) VALUES (4000, ?, 'nice', 'level 5 (no deadline)')",
        [(job,) for job in range(1000, 1000 + more)],
    )
    db.executemany("INSERT INTO setting VALUES (?, ?)", settings(version).items())
    db.executemany("INSERT INTO learned VALUES (?, ?, ?)", LEARNED)
    db.execute("COMMIT")
    db.close()


def save(db: sqlite3.Connection, version: str, job: int, known: dict[str, float | None]) -> None:
    """Keep one job, as that version did: with its own columns."""
    columns = COLUMNS[version]
    marks = ", ".join("?" * (len(columns) + 2))
    names = ", ".join(f'"{name}"' for name in columns)
    values = [known.get(name, 0.0) for name in columns]
    db.execute(
        f"INSERT OR REPLACE INTO job (job_id, {names}, gone) VALUES ({marks})",
        [job, *values, known.get("gone")],
    )


def read(path: Path, version: str) -> tuple[int, list[tuple[object, ...]], dict[str, int]]:
    """What that version would read: the schema's number, its columns of jobs 7, 8 and 9, rows by table."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        names = ", ".join(f'"{name}"' for name in COLUMNS[version])
        jobs = db.execute(
            f"SELECT job_id, {names}, gone FROM job WHERE job_id < 100 ORDER BY job_id"
        ).fetchall()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = {
            name: int(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0])
            for name in ("job", "audit", "learned", "setting")
        }
        return int(db.execute("PRAGMA user_version").fetchone()[0]), jobs, rows
    finally:
        db.close()
