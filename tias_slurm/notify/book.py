"""What the ledger keeps of messages: each is noted before it is handed over, so that none is sent twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tias_slurm.errors import printable
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.notify.due import Kept, Key
from tias_slurm.notify.words import Message

_COLUMNS = "job_id, reason, time, about, taken_up, result, how, record, message, text"


class Row(NamedTuple):
    """One message as it is kept."""

    kept: Kept
    how: str  # output, mail: it was sent so, or would have been when it came up
    record: int  # job id of the record that was told; 0: none yet
    message: str  # why it failed
    text: Message


class NoticeBook:
    """The messages of a ledger. Raises LedgerError from any call."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def all(self) -> list[Row]:
        """All that is kept, oldest first."""
        return self._read("ORDER BY time, job_id, reason")

    def of(self, job_id: int) -> list[Row]:
        """What one record, or its array, was or is to be told."""
        return self._read("WHERE job_id = ? OR record = ? ORDER BY time", (job_id, job_id))

    def since(self, time: float) -> list[Row]:
        """Those of an epoch second and later, and those that wait."""
        return self._read("WHERE time >= ? OR taken_up >= ? OR result IS NULL ORDER BY time", (time, time))

    def keep(self, rows: Iterable[Row]) -> None:
        """Keep messages, in place of what was kept under their keys."""
        values = [
            (
                *r.kept.key, r.kept.time, _real(r.kept.about), _real(r.kept.taken_up), r.kept.result or None,
                r.how, r.record, printable(r.message, 300), "\n".join((r.text.subject, *r.text.lines)),
            )
            for r in rows
        ]  # fmt: skip
        marks = ", ".join("?" * (_COLUMNS.count(",") + 1))
        self._store.change(f"INSERT OR REPLACE INTO notice ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608

    def forget(self, keys: Iterable[Key]) -> None:
        """Keep nothing of these any more."""
        self._store.change("DELETE FROM notice WHERE job_id = ? AND reason = ?", list(keys))

    def _read(self, which: str, values: Sequence[object] = ()) -> list[Row]:
        return [_row(row) for row in self._store.ask(f"SELECT {_COLUMNS} FROM notice {which}", values)]  # noqa: S608


def _row(row: Sequence[Any]) -> Row:
    job, reason, time, about, taken_up, result, how, record, message, text = row
    subject, *lines = (text or "").split("\n")
    kept = Kept((job, reason), time, _number(about), _number(taken_up), result or "")
    return Row(kept, how or "", record or 0, message or "", Message(subject, tuple(lines)))


def _real(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
