"""How long jobs wait for nothing but nodes and their turn, in the ledger's table. Pure.

Rows are those of the snapshot; the table is changed in place.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, Snapshot
from tias_slurm.ledger.table import (
    BEFORE,
    BLOCKED_AT,
    HELD_BY_US,
    HOLD,
    LATE,
    LET_GO,
    RELEASED,
    SET,
    SINCE,
)
from tias_slurm.levers import HELD


def follow_holds(t: Floats, lever: Floats) -> None:
    """Whether what we hold is held still: nothing of ours is left on a job that somebody released.

    Shapes (n, columns), (n,).
    """
    held = lever == HELD
    stood, meant = t[:, HOLD] == HELD_BY_US, t[:, SET] == HELD
    if not (stood | meant).any():
        return
    released = stood & meant & ~held
    t[held & meant, HOLD] = HELD_BY_US
    t[stood & ~held, HOLD] = LET_GO
    t[released, HOLD] = RELEASED
    t[released, SET] = t[released, BEFORE] = np.nan


def follow_waits(t: Floats, snapshot: Snapshot, ours: Bools) -> Bools:
    """When each wait began; what a limit, a hold, a dependency or a person made a job wait is not counted.

    `ours`: jobs whose value nobody else decided, and whose writes Slurm took. Returns who runs, or waits for
    nothing but nodes and its turn. Shapes (n, columns), (n,) -> (n,).
    """
    jobs, now = snapshot.jobs, snapshot.now
    waits = jobs.state == PENDING
    # what we hold ourselves waits for its turn
    able = (jobs.can_start | (t[:, HOLD] == HELD_BY_US)) & ours
    begins = np.isnan(t[:, SINCE])
    # a release begins a new spell for Slurm; one that ends a hold of ours does not
    spell = begins | (t[:, HOLD] == 0)
    t[spell, SINCE] = np.fmax(t[:, SINCE], jobs.since)[spell]
    blocked = np.isfinite(t[:, BLOCKED_AT])
    stops, goes = waits & ~able & ~blocked, blocked & (able | ~waits)
    if stops.any():
        t[stops, BLOCKED_AT] = np.where(begins, t[:, SINCE], now)[stops]
    if goes.any():
        t[goes, SINCE] += np.maximum(now - t[goes, BLOCKED_AT], 0.0)
        t[goes, BLOCKED_AT] = np.nan
    t[waits, LATE] = 0.0
    return np.asarray(~waits | able, dtype=np.bool_)
