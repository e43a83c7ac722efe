"""Which writes of a plan are still safe after those that failed, where Slurm preempts by priorities.

Without writes of running jobs (any other requeue mode) all of them are.
"""

from __future__ import annotations

from collections.abc import Callable

from tias_slurm.jobs import PENDING, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.slurm.live import WriteResult


class Order:
    """Follows the writes of one plan, in their order; see SlurmPreempts.plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._ids = snapshot.jobs.job_id[plan.write].tolist()
        self._runs = (snapshot.jobs.state != PENDING)[plan.write].tolist()
        self._rises = (plan.new > plan.old).tolist()
        self._new = plan.new.tolist()
        self._protected: dict[int, float] = {}  # running jobs that were raised and not looked at since
        self._open = False  # a running job could not be put out of reach of those that are raised after it
        self._above = False  # a waiting job could not be put below those that are lowered after it

    def unsafe(self, number: int, in_place: Callable[[dict[int, float]], bool]) -> str:
        """Why this write is not to be sent; "": it may be. `in_place`: whether running jobs have these values
        now; asked once, before the first waiting job is raised."""
        if self._runs[number]:
            lowered_too_far = self._above and not self._rises[number]
            return "not lowered: a waiting job could not be lowered before it" if lowered_too_far else ""
        if not self._rises[number]:
            return ""
        if self._protected and not self._open:
            self._open = not in_place(self._protected)
        self._protected = {}
        return "not raised: a running job could not be protected from it" if self._open else ""

    def done(self, number: int, result: WriteResult) -> None:
        """What became of it."""
        failed = result.result not in ("ok", "gone")
        if self._runs[number] and self._rises[number]:
            self._open |= failed
            if result.result == "ok":
                self._protected[self._ids[number]] = self._new[number]
        elif not self._runs[number] and not self._rises[number]:
            self._above |= failed
