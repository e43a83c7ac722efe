"""What ended runs leave in the ledger's table, and what they teach. Pure; the table is changed in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import Bools, Ended, Floats, Ints, JobTable, unsaved
from tias_slurm.ledger.table import (
    ACCEPTED,
    ATTAINED,
    CLAIM,
    FIRST,
    KEPT,
    REDONE,
    REFUSED,
    REQUEUED_AT,
    RESTARTS,
    RUN_TIME,
)


def close_runs(t: Floats, rows: Ints, jobs: JobTable, weight: Floats, last_look: float) -> None:
    """Runs ended by a requeue: all of their service was received, what was saved is still useful.

    Shapes (n, columns), (k,). `weight`, shape (k,): what the GPUs of each run counted for.
    """
    ran, saves = t[rows, RUN_TIME], jobs.checkpoint[rows]
    t[rows, ATTAINED] += ran * weight
    kept = np.where(saves > 0, t[rows, KEPT] + ran - unsaved(ran, saves), 0.0)
    # the run was ended by us if we asked for that since it began
    by_us = t[rows, REQUEUED_AT] >= last_look - ran
    t[rows, REDONE] += np.where(by_us, ran - (kept - t[rows, KEPT]), 0.0)
    t[rows, KEPT] = kept
    t[rows, RESTARTS] = jobs.restarts[rows]
    t[rows, REFUSED] = np.nan


class Lessons(NamedTuple):
    """What jobs that COMPLETED with a steady claim teach. Shapes (k,)."""

    rows: Ints  # of the ended ones
    window: Floats  # s
    used: Floats  # useful run time, s


def lessons(t: Floats, ended: Ended, rows: Ints, at: Ints, known: Bools) -> Lessons:
    """Of the ended jobs in `rows` those that teach. `at`, `known`, shapes (k,): their rows in the table."""
    kept, first, due = np.zeros(len(rows)), ended.submit[rows], ended.deadline[rows]
    steady = np.ones(len(rows), dtype=np.bool_)
    if len(t):
        kept = np.where(known, t[at, KEPT], 0.0)
        first = np.where(known, t[at, FIRST], first)
        # what was accepted counts, not what the comment came to say
        due = np.where(known, t[at, CLAIM], due)
        # who has moved the deadline may have made it fit the run
        steady = ~known | (t[at, ACCEPTED] <= 1)
    window = due - first
    fine = steady & (np.nan_to_num(window) > 0)
    return Lessons(rows[fine], window[fine], (kept + ended.run_time[rows])[fine])
