"""Planning for a site whose Slurm preempts by itself (requeue mode "slurm"). Pure.

Slurm compares the explicit priorities of waiting and running jobs, so running jobs have one too: the top of
their level, where no waiting job of that level or a worse one stands above them. Slurm cancels a victim that
it cannot requeue, so whoever may not be requeued stands above every waiting job.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, History, Snapshot
from tias_slurm.levers import PRIORITY_BASE
from tias_slurm.planner import Plan, Planner
from tias_slurm.policy.base import Ranking

# above every value of a waiting job, far below what Slurm can hold
SHIELD = 2 * PRIORITY_BASE


class SlurmPreempts(Planner):
    """Writes running jobs as well, and before any waiting job is raised. Requeues nobody.

    It does so while nobody waits too: whoever comes next is compared with them before we see it.
    """

    waiting_only = False

    def plan(
        self, snapshot: Snapshot, history: History, ranking: Ranking, barred: Bools | None = None
    ) -> Plan:
        """See Planner. A job in front of all goes before its own level only: Slurm would preempt for it."""
        jobs = snapshot.jobs
        runs = jobs.state != PENDING
        calm = replace(
            ranking,
            front=np.zeros_like(ranking.front),
            urgency=np.where(ranking.front, 1.0, ranking.urgency),
            site_order=np.where(ranking.front, False, ranking.site_order),
        )
        waiting = super().plan(snapshot, history, calm, barred)
        target = self._running(snapshot, history, ranking)
        ours = runs if barred is None else runs & ~barred
        write = np.flatnonzero(ours & (target != jobs.lever))
        # while a running job lacks its value nobody is raised past it, whatever is left of the budget
        taken = write[: self.limits.max_writes]
        held_back = len(write) - len(taken)
        may = waiting.new <= waiting.old if held_back else np.ones(len(waiting.write), dtype=np.bool_)
        room = np.cumsum(may) <= self.limits.max_writes - len(taken)
        later = may & room
        return Plan(
            write=np.concatenate([taken, waiting.write[later]]),
            old=np.concatenate([jobs.lever[taken], waiting.old[later]]),
            new=np.concatenate([target[taken], waiting.new[later]]),
            victims=waiting.victims[:0],
            beneficiaries=waiting.beneficiaries[:0],
            held_back=held_back + waiting.held_back + int((~later).sum()),
            front=waiting.front[:0],
        )

    def _running(self, snapshot: Snapshot, history: History, ranking: Ranking) -> Floats:
        """Values of running jobs. Shape (n,)."""
        top = replace(
            ranking,
            urgency=np.ones_like(ranking.urgency),
            site_order=np.ones_like(ranking.site_order),
            front=np.zeros_like(ranking.front),
        )
        # Slurm's requeues are not ours, but are counted by Slurm
        restarts = snapshot.jobs.restarts.astype(np.float64)
        may = self.preemptible(snapshot, restarts, ranking)
        return np.where(may, self.lever.target(history.found, top), float(SHIELD))
