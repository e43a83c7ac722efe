"""Which writes of a plan are still safe after those that failed, where Slurm preempts by priorities.

Without writes of running jobs (any other requeue mode) all of them are.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import PENDING, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.slurm.live import Adapter, AdapterError, WriteResult


class Order:
    """Follows the writes of one plan, in their order; see SlurmPreempts.plan."""

    def __init__(self, adapter: Adapter, snapshot: Snapshot, plan: Plan) -> None:
        self._adapter = adapter
        self._ids = snapshot.jobs.job_id[plan.write].tolist()
        self._runs = (snapshot.jobs.state != PENDING)[plan.write].tolist()
        self._rises = (plan.new > plan.old).tolist()
        self._new = plan.new.tolist()
        self._protected: dict[int, float] = {}  # running jobs that were raised and not looked at since
        self._open = False  # a running job could not be put out of reach of those that are raised after it
        self._above = False  # a waiting job could not be put below those that are lowered after it

    def unsafe(self, number: int) -> str:
        """Why this write is not to be sent; "": it may be. If running jobs were raised it looks at the queue
        once, before the first waiting one is."""
        if self._runs[number]:
            lowered_too_far = self._above and not self._rises[number]
            return "not lowered: a waiting job could not be lowered before it" if lowered_too_far else ""
        if not self._rises[number]:
            return ""
        if self._protected and not self._open:
            self._open = not self._in_place()
        self._protected = {}
        return "not raised: a running job could not be protected from it" if self._open else ""

    def _in_place(self) -> bool:
        """Whether the running jobs have their new values by now, or are gone: an "ok" is only a word."""
        try:
            raw = self._adapter.jobs()
        except AdapterError:
            return False
        ids = np.fromiter(self._protected, dtype=np.int64, count=len(self._protected))
        return all(
            raw.priority[r] == self._protected[int(raw.job_id[r])]
            or raw.state[r] not in ("RUNNING", "SUSPENDED")
            for r in np.flatnonzero(np.isin(raw.job_id, ids)).tolist()
        )

    def done(self, number: int, result: WriteResult) -> None:
        """What became of it."""
        failed = result.result not in ("ok", "gone")
        if self._runs[number] and self._rises[number]:
            self._open |= failed
            if result.result == "ok":
                self._protected[self._ids[number]] = self._new[number]
        elif not self._runs[number] and not self._rises[number]:
            self._above |= failed
