"""The ledger's table brought into the order of a new snapshot: who is known, who is new, who came of whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints, Snapshot
from tias_slurm.ledger.table import (
    ACCEPTED,
    BEFORE,
    BLOCKED_AT,
    CLAIM,
    COLUMNS,
    COUNTS,
    FALLEN,
    FIRST,
    FOUND,
    FRONT,
    HELD_BY_US,
    HOLD,
    LOST,
    NICE,
    RESTARTS,
    SET,
    SINCE,
    SLOT,
    SUBMIT,
    UNKNOWN,
    UNSEEN,
)  # fmt: skip

# rows of jobs that had left, by id: those that are known, ascending, and what was kept of them
Recall = Callable[[Ints], tuple[Ints, Floats]]


def rows_of(snapshot: Snapshot, ids: Ints, table: Floats, recall: Recall | None) -> Floats:
    """The table for the jobs of a snapshot, shape (n, columns), out of the last one's.

    `ids`, ascending, and `table`: of the last snapshot; a place in front that a task takes along is taken
    from its array there.
    """
    jobs = snapshot.jobs
    # by columns, as it is read
    fresh = np.zeros((len(jobs), len(COLUMNS)), order="F")
    fresh[:, FIRST] = fresh[:, SUBMIT] = jobs.submit
    fresh[:, RESTARTS] = jobs.restarts
    fresh[:, FOUND] = jobs.lever
    fresh[:, NICE] = jobs.nice
    fresh[:, [COLUMNS.index(name) for name in UNKNOWN]] = np.nan
    fresh[:, COUNTS] = 1.0
    fresh[:, UNSEEN] = jobs.restarts > 0
    at, here = find(ids, jobs.job_id)
    if len(ids):
        same = here & _same_job(snapshot, table[at], np.arange(len(jobs)))
        split = np.flatnonzero(~same & (jobs.array_id > 0) & (jobs.array_id != jobs.job_id))
        if len(split):
            _inherit(snapshot, ids, table, fresh, split)
        fresh[same] = table[at[same]]
    if recall is not None and not here.all():
        # a job that had left and is back (requeued after its end, or hidden for a while) may still have a
        # value of ours
        known, old = recall(jobs.job_id[~here])
        rows = np.searchsorted(jobs.job_id, known)
        same = _same_job(snapshot, old, rows)
        fresh[rows[same]] = old[same]
    fresh[:, SUBMIT] = jobs.submit
    return fresh


def find(ids: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Where `wanted` are among the ascending `ids`, and which of them are there. Shapes (m,)."""
    if not len(ids):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, ids[at] == wanted


def _same_job(snapshot: Snapshot, old: Floats, rows: Ints) -> Bools:
    """Whether what was kept is of the jobs that now have these rows, and not of others with their ids."""
    jobs = snapshot.jobs
    same = (old[:, SUBMIT] == jobs.submit[rows]) | (jobs.restarts[rows] > old[:, RESTARTS])
    return np.asarray(same, dtype=np.bool_)


def _inherit(snapshot: Snapshot, ids: Ints, table: Floats, fresh: Floats, rows: Ints) -> None:
    """Tasks split off an array: first submit and lever values are those of the record they came from."""
    at, known = find(ids, snapshot.jobs.array_id[rows])
    rows, parent = rows[known], table[at[known]]
    fresh[rows, FIRST] = np.minimum(parent[:, FIRST], fresh[rows, FIRST])
    lever = snapshot.jobs.lever[rows]
    ours = (lever == parent[:, SET]) | (lever == parent[:, BEFORE]) | (parent[:, HOLD] == HELD_BY_US)
    # with its wait what was not able in it
    claim = np.array((CLAIM, ACCEPTED, LOST, FALLEN, COUNTS, SINCE, BLOCKED_AT))
    fresh[np.ix_(rows, claim)] = parent[:, claim]
    # a slot or a place in front was one task's: the first that is split off has it, the rest queue anew
    _, first = np.unique(at[known], return_index=True)
    privilege = np.array((SLOT, FRONT))
    fresh[np.ix_(rows[first], privilege)] = parent[np.ix_(first, privilege)]
    table[np.ix_(at[known][first], privilege)] = 0.0
    inherited = (FOUND, NICE, SET, BEFORE, HOLD)
    fresh[np.ix_(rows[ours], inherited)] = parent[np.ix_(ours, inherited)]
