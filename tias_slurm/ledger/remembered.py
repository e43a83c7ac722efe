"""A history joined with what the ledger knows of the same jobs: first submits, claims, work that was kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.ledger.rows import find
from tias_slurm.ledger.table import ATTAINED, CLAIM, COLUMNS, COUNTS, FIRST, KEPT, LOST, REDONE, SUBMIT
from tias_slurm.replay.workload import weight_of

# accounting and controller may round a time differently
_SLACK_S = 1.0


class Rows(Protocol):
    """Where the ledger's rows are. See ledger.table.Store."""

    def load(self) -> tuple[Ints, Floats, Floats]:
        """Of the jobs that were there at the last look."""

    def recall(self, ids: Ints) -> tuple[Ints, Floats]:
        """Of those of the ids that are gone."""


@dataclass(frozen=True)
class Memory:
    """The ledger's rows in the order of a history."""

    known: Bools  # (n,) the ledger has this very job, and not another one of its number
    table: Floats  # (n, COLUMNS); of rows that are not known it says nothing

    @property
    def redone(self) -> Floats:
        """Seconds of work that our requeues have cost each job; NaN where that is not known. Shape (n,)."""
        return np.where(self.known, self.table[:, REDONE], np.nan)


@dataclass(frozen=True)
class Learned:
    """What the ledger knew better than the history, as numbers of jobs."""

    jobs: int = 0  # known to the ledger
    first_submits: int = 0  # earlier than the history tells
    kept: int = 0  # with work of earlier runs that counts
    claims: int = 0  # deadlines that the last comment does not tell
    moved: int = 0  # deadlines that were others than the last comment says
    not_held: int = 0  # deadlines of a last comment that never held, or were withdrawn
    over_quota: int = 0  # deadlines that did not count
    withdrawn: int = 0  # given up when they were lost


def recall(store: Rows, jobs: pd.DataFrame) -> Memory:
    """What is kept of the jobs of a history, which has the column raw_id. Raises LedgerError."""
    raw = jobs["raw_id"].to_numpy(np.int64)
    wanted = np.unique(raw[raw >= 0])  # negative: no number
    here, gone = store.load()[:2], store.recall(wanted)
    ids, table = (np.concatenate([a, b]) for a, b in zip(here, gone, strict=True))
    order = np.argsort(ids, kind="stable")
    ids, table = ids[order], table[order]
    if not len(ids):
        return Memory(np.zeros(len(jobs), dtype=np.bool_), np.full((len(jobs), len(COLUMNS)), np.nan))
    at, known = find(ids, raw)
    rows = table[at]
    first, end = (jobs[c].to_numpy(np.float64) for c in ("first_submit", "end"))
    # ids are used again: the submit that was seen last is one of this job's runs
    seen = rows[:, SUBMIT]
    known = known & (seen >= first - _SLACK_S) & (seen <= np.where(np.isnan(end), np.inf, end) + _SLACK_S)
    return Memory(known & (rows[:, FIRST] <= seen + _SLACK_S), rows)


def take_times(jobs: pd.DataFrame, memory: Memory) -> Learned:
    """First submits over requeues, and what earlier runs did and saved, in place: before claims are read,
    since some count from the first submit. `work` is then all that a job needed, and two columns say what of
    that lies in the history: last_work, in the last run, and kept_work, saved by the runs before it."""
    known, table = memory.known, memory.table
    first, work, lost = (jobs[c].to_numpy(np.float64) for c in ("first_submit", "work", "lost_work"))
    earlier = known & (table[:, FIRST] < first - _SLACK_S)
    jobs["first_submit"] = np.where(earlier, table[:, FIRST], first)
    # the last run went on from there, and without our requeues would have had to do it as well
    kept = np.where(known & (jobs["runs"].to_numpy() > 0), np.nan_to_num(table[:, KEPT]), 0.0)
    weight = weight_of(jobs)
    before = np.where(known & (weight > 0), np.nan_to_num(table[:, ATTAINED]) / np.maximum(weight, 1e-9), 0.0)
    jobs["last_work"], jobs["kept_work"] = work, np.minimum(kept, lost)
    jobs["work"], jobs["lost_work"] = work + kept, np.maximum(np.maximum(before, lost) - kept, 0.0)
    return Learned(int(known.sum()), int(earlier.sum()), int((kept > 0).sum()))


def take_claims(jobs: pd.DataFrame, memory: Memory, learned: Learned) -> Learned:
    """Deadlines as they held, in place, after those of the comments are read."""
    known = memory.known
    said, held = jobs["deadline"].to_numpy(np.float64), memory.table[:, CLAIM]
    counts = memory.table[:, COUNTS] > 0
    claimed, told = known & np.isfinite(held), known & np.isfinite(said)
    jobs["deadline"] = np.where(known, np.where(counts, held, np.nan), said)
    return Learned(
        learned.jobs,
        learned.first_submits,
        learned.kept,
        claims=int((claimed & ~told).sum()),
        moved=int((claimed & told & (np.abs(held - said) > _SLACK_S)).sum()),
        not_held=int((told & ~claimed).sum()),
        over_quota=int((claimed & ~counts).sum()),
        withdrawn=int((known & ~np.isfinite(held) & (memory.table[:, LOST] > 0)).sum()),
    )
