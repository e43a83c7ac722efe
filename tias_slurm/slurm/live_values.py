"""The value of a lever as Slurm shows it, and how another one is brought about. A hold is a value, too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tias_slurm.jobs import Floats
from tias_slurm.levers import HELD
from tias_slurm.slurm.live import Adapter, Field, RawTable, WriteResult


def explicit(raw: RawTable, pinned: Mapping[int, bool] | None, unknown: float) -> Floats:
    """Explicit priorities, rows as in the table: 0 for a job without one, HELD for one that is held.

    `pinned`: see live.Adapter; None: all priorities are explicit. `unknown`: what a priority is multiplied by
    where `pinned` does not say whose it is.
    """
    values = raw.priority.astype(np.float64)
    if pinned is not None:
        values *= np.array([pinned.get(j, unknown) for j in raw.job_id.tolist()], dtype=np.float64)
    waits = np.array([state == "PENDING" for state in raw.state], dtype=np.bool_)
    values[waits & (raw.priority == 0)] = HELD
    return values


def write(adapter: Adapter, job: int, field: Field, old: float, value: float) -> WriteResult:
    """Bring a value about. Slurm takes no other one of a held job before that is released."""
    if value == HELD:
        return adapter.hold(job)
    if old == HELD:
        released = adapter.release(job)
        if released.result != "ok" or (field == "priority" and value == 0):
            return released
    if field == "priority" and value == 0:
        return adapter.unpin(job)  # 0 stands for none, and would be a hold
    return adapter.write(job, field, int(value))
