"""Ranking + levers as they stand + budgets -> what to write and whom to requeue. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tias_slurm import preemption
from tias_slurm.jobs import PENDING, RUNNING, Bools, Floats, History, Ints, Snapshot
from tias_slurm.levers import Lever
from tias_slurm.policy.base import Ranking


@dataclass(frozen=True)
class Limits:
    """Budgets of one cycle, and what protects a running job."""

    max_writes: int = 1000
    dead_band_steps: int = 0  # a value that is off by no more steps than this is left as it is
    requeue: bool = False
    min_run_s: float = 600.0
    max_requeues_per_job: int = 8
    max_preemptors: int = 10
    restart_s: float = 60.0  # what a restart costs, counted into the loss


@dataclass(frozen=True)
class Plan:
    """The actions of one cycle, as columns. Rows are those of the snapshot."""

    write: Ints  # (w,) rows whose lever changes
    old: Floats  # (w,)
    new: Floats  # (w,)
    victims: Ints  # (v,) rows to requeue
    beneficiaries: Ints  # (v,) the waiting row that each makes room for
    held_back: int  # writes that the budget left for the next cycle
    # (f,) waiting rows in front of all levels: the first that does not fit has nodes kept for it
    front: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # (u,) running rows to be sent the warning signal now
    warn: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Applied:
    """What did not become of a plan. Rows of the snapshot."""

    refused: Ints  # Slurm refused to have them written
    spared: Ints  # victims that were not requeued after all


class Planner:
    """Turns an order into the fewest actions that bring it about."""

    def __init__(self, lever: Lever, limits: Limits) -> None:
        self.lever = lever
        self.limits = limits

    def plan(
        self, snapshot: Snapshot, history: History, ranking: Ranking, barred: Bools | None = None
    ) -> Plan:
        """What to do.

        `barred`, shape (n,): jobs that a person or Slurm has taken out of our hands.
        """
        jobs = snapshot.jobs
        target = self.lever.target(history.found, ranking)
        ours = jobs.writable if barred is None else jobs.writable & ~barred
        band = self.limits.dead_band_steps * self.lever.unit
        write = np.flatnonzero(ours & (np.abs(target - jobs.lever) > band))
        held_back = max(0, len(write) - self.limits.max_writes)
        if held_back:
            # the largest change first
            change = np.abs(target[write] - jobs.lever[write])
            write = np.sort(write[np.argsort(-change, kind="stable")[: self.limits.max_writes]])
        planned = jobs.lever
        if len(write):
            planned = jobs.lever.copy()
            planned[write] = target[write]
        victims, beneficiaries = self._requeues(snapshot, planned, history, ranking)
        front = np.flatnonzero(ranking.front & (jobs.state == PENDING))
        return Plan(write, jobs.lever[write], target[write], victims, beneficiaries, held_back, front)

    def _requeues(
        self, snapshot: Snapshot, planned: Floats, history: History, ranking: Ranking
    ) -> tuple[Ints, Ints]:
        limits, jobs = self.limits, snapshot.jobs
        nobody = np.empty(0, dtype=np.int64)
        if not limits.requeue:
            return nobody, nobody
        preemptible = (
            (jobs.state == RUNNING)
            & jobs.requeueable
            & (jobs.gpus > 0)
            & (jobs.run_time >= limits.min_run_s)
            & (history.requeues < limits.max_requeues_per_job)
            & ~ranking.front
        )
        rows = np.flatnonzero((jobs.state == PENDING) & jobs.can_start)
        if not len(rows) or not preemptible.any():
            return nobody, nobody
        if ranking.level[rows].min() >= ranking.level[preemptible].max():
            return nobody, nobody
        # the order in which Slurm will look at them once the writes are in
        priority = self.lever.priority(snapshot.order[rows], planned[rows])
        order = rows[np.lexsort((snapshot.tie[rows], -priority))]
        saved = np.where(jobs.checkpoint > 0, jobs.run_time % np.maximum(jobs.checkpoint, 1.0), jobs.run_time)
        loss = (saved + limits.restart_s) * jobs.gpus
        return preemption.select(
            order, jobs.gpus, ranking.level, preemptible, loss, snapshot.occupancy, limits.max_preemptors
        )
