"""Planning for a site whose Slurm preempts by itself (requeue mode "slurm"). Pure.

Slurm compares the explicit priorities of waiting and running jobs, so running jobs have one too: the top of
their level, where no waiting job of that level or a worse one stands above them. Slurm cancels a victim that
it cannot requeue, so whoever may not be requeued stands above every waiting job.

A value that could not be written protects nobody. So no waiting job is given more than the least value of
the running jobs that it may not have requeued, as these values are and not as they should be; and no running
job is lowered past a waiting one that may not have it requeued.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, History, Ints, Snapshot
from tias_slurm.levers import PRIORITY_BASE, Lever
from tias_slurm.planner import Limits, Plan, Planner
from tias_slurm.policy.base import Ranking

# above every value of a waiting job, far below what Slurm can hold
SHIELD = 2 * PRIORITY_BASE


class SlurmPreempts(Planner):
    """Writes running jobs as well, and before any waiting job is raised. Requeues nobody.

    It does so while nobody waits too: whoever comes next is compared with them before we see it.
    """

    waiting_only = False

    def __init__(self, lever: Lever, limits: Limits) -> None:
        super().__init__(lever, limits)
        self._asked: dict[int, float] = {}  # running job -> the value that the plan wanted for it
        self._before: dict[int, float] = {}  # likewise, of the cycle before
        self._seen: Snapshot | None = None

    def plan(
        self, snapshot: Snapshot, history: History, ranking: Ranking, barred: Bools | None = None
    ) -> Plan:
        """See Planner. A job in front of all goes before its own level only: Slurm would preempt for it.

        Writes come in the order in which each is safe by what was written before it: running jobs are raised,
        waiting ones lowered, running ones lowered, waiting ones raised. See `LiveCluster.apply` for what
        becomes of the later ones where an earlier one fails.
        """
        jobs, left = snapshot.jobs, self.limits.max_writes
        runs = jobs.state != PENDING
        free = np.ones(len(jobs), dtype=np.bool_) if barred is None else ~barred
        calm = replace(
            ranking,
            front=np.zeros_like(ranking.front),
            urgency=np.where(ranking.front, 1.0, ranking.urgency),
            site_order=np.where(ranking.front, False, ranking.site_order),
        )
        level = self.preempts_by(snapshot, ranking)
        victim = self.preemptible(snapshot, jobs.restarts.astype(np.float64), ranking)
        aim = np.where(victim, self._tops(history, ranking, level), float(SHIELD))

        protect = np.flatnonzero(runs & free & (aim > jobs.lever))[:left]
        stands = np.where(free, np.minimum(jobs.lever, aim), jobs.lever)
        counted = protect[self._counted_on(snapshot, protect, aim)]
        stands[counted] = aim[counted]
        cap = _least(np.where(runs, stands, np.inf), level, victim)

        ours = jobs.writable & free
        wanted = self.targets(snapshot, history, calm, ours)
        # 0: no explicit priority. What stands at Slurm's own was not raised by us, however that compares
        target = np.where(wanted > cap, np.maximum(cap, 0.0), wanted)
        band = self.limits.dead_band_steps * self.lever.unit
        off = ours & ((np.abs(target - jobs.lever) > band) | (jobs.lever > np.maximum(cap, 0.0)))
        left -= len(protect)
        fall = _largest(off & (target < jobs.lever), jobs.lever - target, left)
        value = jobs.lever.copy()
        value[fall] = target[fall]

        # a value above all of ours is a person's, who wants that job to go first
        most = self._tops(history, ranking, np.zeros_like(level))
        floor = _most(np.where(runs | (value > most), -np.inf, value), level, victim)
        aim = np.where(aim < jobs.lever, np.minimum(np.maximum(aim, floor), jobs.lever), aim)
        left -= len(fall)
        lower = np.flatnonzero(runs & free & (aim < jobs.lever))[:left]
        left -= len(lower)
        rise = _largest(off & (target > jobs.lever), target - jobs.lever, left)

        write = np.concatenate([protect, fall, lower, rise])
        due = np.where(runs, free & (aim != jobs.lever), off)
        none = np.empty(0, dtype=np.int64)
        return Plan(
            write=write,
            old=jobs.lever[write],
            new=np.where(runs, aim, target)[write],
            victims=none,
            beneficiaries=none,
            held_back=int(due.sum()) - len(write),
            kept_low=int((ours & (wanted > target)).sum()),
        )

    def _tops(self, history: History, ranking: Ranking, level: Ints) -> Floats:
        """The most that a waiting job of each level may have. Shapes (n,)."""
        top = replace(
            ranking,
            level=level,
            urgency=np.ones_like(ranking.urgency),
            site_order=np.ones_like(ranking.site_order),
            front=np.zeros_like(ranking.front),
        )
        return self.lever.target(history.found, top)

    def _counted_on(self, snapshot: Snapshot, rows: Ints, aim: Floats) -> Bools:
        """Which of the running jobs to be raised are taken to be so by whoever is raised after them.

        Not one that should have been in the last cycle and was not, whatever the reason. Shapes (k,), (n,).
        """
        if snapshot is not self._seen:
            self._seen, self._before = snapshot, self._asked
        ids, lever = snapshot.jobs.job_id[rows].tolist(), snapshot.jobs.lever[rows].tolist()
        self._asked = dict(zip(ids, aim[rows].tolist(), strict=True))
        before = [self._before.get(job, value) for job, value in zip(ids, lever, strict=True)]
        return np.array([value >= was for value, was in zip(lever, before, strict=True)], dtype=np.bool_)


def _largest(which: Bools, change: Floats, most: int) -> Ints:
    """At most so many rows, those with the largest change; in their order."""
    rows = np.flatnonzero(which)
    if len(rows) > most:
        rows = np.sort(rows[np.argsort(-change[rows], kind="stable")[:most]])
    return rows


def _least(stands: Floats, level: Ints, victim: Bools) -> Floats:
    """For each job the least of the values of running jobs that it may not have requeued. Shapes (n,).

    `stands`: inf for jobs that do not run. `victim`: who may be requeued, for jobs of better levels.
    """
    least = np.full(int(level.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, level[victim], stands[victim])
    least = np.minimum.accumulate(least)
    others = float(stands[~victim].min(initial=np.inf))
    return np.asarray(np.minimum(least, others)[level], dtype=np.float64)


def _most(stands: Floats, level: Ints, victim: Bools) -> Floats:
    """For each running job the most of the values of waiting jobs that may not have it requeued. Shapes (n,).

    `stands`: -inf for jobs that do not count. `victim`: see _least.
    """
    most = np.full(int(level.max(initial=0)) + 1, -np.inf)
    np.maximum.at(most, level, stands)
    most = np.maximum.accumulate(most[::-1])[::-1]
    return np.asarray(np.where(victim, most[level], most[0]), dtype=np.float64)
