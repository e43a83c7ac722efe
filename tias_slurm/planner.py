"""Ranking + levers as they stand + budgets -> what to write and whom to requeue. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from tias_slurm.holds import held
from tias_slurm.jobs import PENDING, RUNNING, Bools, Floats, History, Ints, Snapshot, unsaved
from tias_slurm.levers import HELD, Lever
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.learning import PRIOR_UPPER
from tias_slurm.preemption import select as preemption
from tias_slurm.preemption.tables import Budget

_NOBODY = np.empty(0, dtype=np.int64)


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
    cooldown_s: float = 0.0  # whoever had others requeued, or warned, has no new ones for so long
    max_per_hour: int | None = None  # jobs requeued in any hour
    max_per_user_per_hour: int | None = None  # likewise, of one user
    grace_s: float = 0.0  # a victim is warned so long before it is requeued; 0: it is not
    warning_lasts_s: float = 600.0  # a warning counts for so long after its grace has run out
    long_share: float | None = None  # of the GPUs, for all but near deadlines; what is over it is held
    long_window_s: float = 86_400.0  # a deadline job that may run longer than this is long
    prior_upper: float = PRIOR_UPPER  # which it may for this share of its window


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
    # (u,) the waiting row that each is warned for
    warned_for: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # waiting jobs whose values are lower than they should be, since a running one could not be protected
    kept_low: int = 0


@dataclass(frozen=True)
class Applied:
    """What did not become of a plan. Rows of the snapshot."""

    refused: Ints  # Slurm refused to have them written
    spared: Ints  # victims that were not requeued after all


class Planner:
    """Turns an order into the fewest actions that bring it about."""

    waiting_only = True  # whether there is nothing to do while nobody waits

    def __init__(self, lever: Lever, limits: Limits) -> None:
        self.lever = lever
        self.limits = limits

    def plan(
        self, snapshot: Snapshot, history: History, ranking: Ranking, barred: Bools | None = None
    ) -> Plan:
        """What to do.

        `barred`, shape (n,): jobs that a person or Slurm has taken out of our hands.
        """
        jobs, limits = snapshot.jobs, self.limits
        ours = jobs.writable if barred is None else jobs.writable & ~barred
        target = self.targets(snapshot, history, ranking, ours)
        off = self.off(target, jobs.lever)
        write = np.flatnonzero(ours & off)
        held_back = max(0, len(write) - limits.max_writes)
        if held_back:
            # the largest change first
            change = np.abs(target[write] - jobs.lever[write])
            write = np.sort(write[np.argsort(-change, kind="stable")[: limits.max_writes]])
        planned = jobs.lever
        if len(write):
            planned = jobs.lever.copy()
            planned[write] = target[write]
            off[write] = False
        front = np.flatnonzero(ranking.front & (jobs.state == PENDING))
        requeues = _NO_REQUEUES
        if limits.requeue:
            requeues = self._requeues(snapshot, planned, off, history, ranking)
        return Plan(
            write, jobs.lever[write], target[write], requeues.victims, requeues.wanted_by, held_back, front,
            requeues.warn, requeues.warned_for,
        )  # fmt: skip

    def off(self, target: Floats, values: Floats) -> Bools:
        """Which values are further from what they should be than may be left so. Shapes (n,)."""
        return np.asarray(
            np.abs(target - values) > self.limits.dead_band_steps * self.lever.unit, dtype=np.bool_
        )

    def targets(self, snapshot: Snapshot, history: History, ranking: Ranking, ours: Bools) -> Floats:
        """The values that waiting jobs should have. `ours`: those that may be written. Shapes (n,)."""
        jobs, limits = snapshot.jobs, self.limits
        target = self.lever.target(history.found, ranking)
        if limits.long_share is None:
            return target
        # a job that was let go stays so unless one a whole level better wants its place
        let_go = (jobs.lever != HELD) & (jobs.lever != history.found)
        order = target + np.where(let_go, self.lever.level_step, 0.0)
        long = (limits.long_share, limits.long_window_s, limits.prior_upper)
        return np.where(held(snapshot, history, ours, ranking.front, order, *long), HELD, target)

    def compares(self, snapshot: Snapshot) -> bool:
        """Whether somebody may preempt somebody now, so that it matters how both stand once it is done."""
        jobs = snapshot.jobs
        if not self.limits.requeue and self.waiting_only:
            return False
        ripe = jobs.requeueable & (jobs.run_time >= self.limits.min_run_s)
        return bool(ripe.any() and (jobs.state == PENDING).any())

    def preempts_by(self, snapshot: Snapshot, ranking: Ranking) -> Ints:
        """The levels by which jobs preempt and are preempted. Shape (n,).

        A job that would stand worse once it runs, or better once it waits again, counts as that: else two
        jobs could requeue each other in turn, for ever. Whoever preempts stands no worse, once it runs, than
        its victim once that waits.
        """
        if ranking.turned is None:
            return ranking.level
        runs = snapshot.jobs.state != PENDING
        level, turned = ranking.level, ranking.turned
        return np.where(runs, np.minimum(level, turned), np.maximum(level, turned - 1))

    def in_turn(self, snapshot: Snapshot, ranking: Ranking, plan: Plan) -> bool:
        """Whether a victim of the plan could have its beneficiary requeued in turn."""
        level = self.preempts_by(snapshot, ranking)
        rows, others = np.append(plan.victims, plan.warn), np.append(plan.beneficiaries, plan.warned_for)
        return bool((level[others] >= level[rows]).any())

    def preemptible(self, snapshot: Snapshot, requeues: Floats | Ints, ranking: Ranking) -> Bools:
        """Running jobs that may be requeued for others. `requeues`: how often each was. Shapes (n,)."""
        jobs = snapshot.jobs
        may = (jobs.state == RUNNING) & (jobs.gpus > 0)
        for spared in self.spares(snapshot, requeues, ranking).values():
            may &= ~spared
        return np.asarray(may, dtype=np.bool_)

    def spares(
        self, snapshot: Snapshot, requeues: Floats | Ints, ranking: Ranking
    ) -> dict[Literal["no", "young", "often", "front"], Bools]:
        """Jobs that are not requeued, by why: they may not be, run too shortly, were requeued too often,
        started from in front of all. Shapes (n,)."""
        jobs, limits = snapshot.jobs, self.limits
        return {
            "no": ~jobs.requeueable,
            "young": jobs.run_time < limits.min_run_s,
            "often": np.asarray(requeues >= limits.max_requeues_per_job, dtype=np.bool_),
            "front": ranking.front,
        }

    def _requeues(
        self, snapshot: Snapshot, planned: Floats, off: Bools, history: History, ranking: Ranking
    ) -> Requeues:
        """`planned`, `off`: values once the writes are in, and which of them are not what they should be."""
        limits, jobs, now = self.limits, snapshot.jobs, snapshot.now
        preemptible = self.preemptible(snapshot, history.requeues, ranking)
        able = jobs.can_start
        if limits.long_share is not None:
            # who is let go now may take what is freed, but is not sure to start
            able = (able | (jobs.lever == HELD)) & (planned != HELD)
        rows = np.flatnonzero((jobs.state == PENDING) & able)
        if not len(rows) or not preemptible.any():
            return _NO_REQUEUES
        level = self.preempts_by(snapshot, ranking)
        worst = level[preemptible].max()
        stands_above = level[rows] < worst
        if not stands_above.any():
            return _NO_REQUEUES
        # the order in which Slurm will look at them once the writes are in, as far as somebody stands above
        priority = self.lever.priority(snapshot.order[rows], planned[rows])
        ahead = priority >= priority[stands_above].min()
        if not ahead.all():
            rows, priority = rows[ahead], priority[ahead]
        order = rows[np.lexsort((snapshot.tie[rows], -priority))]
        loss = (unsaved(jobs.run_time, jobs.checkpoint) + limits.restart_s) * jobs.weight
        warned = np.zeros(len(jobs), dtype=np.bool_)
        grace = np.full(len(jobs), limits.grace_s) if snapshot.grace is None else snapshot.grace
        if (grace > 0.0).any():
            since = now - history.warned_at
            warned = (since <= grace + limits.warning_lasts_s) & (since <= jobs.run_time)
            # so that the choice stands while the grace runs
            loss = np.where(warned, 0.0, loss)
        # None: all of them
        certain = True if snapshot.occupancy.certain is None else snapshot.occupancy.certain
        may = ~off & jobs.can_start & ~(now - history.preempted_at < limits.cooldown_s) & certain

        def choose(usable: Bools, may: Bools) -> tuple[Ints, Ints]:
            return preemption.select(
                order,
                jobs.gpus,
                level,
                usable,
                loss,
                snapshot.occupancy,
                limits.max_preemptors,
                may=may,
                front=ranking.front,
                budget=self._budget(snapshot, history),
            )

        victims, wanted_by = choose(preemptible, may)
        wait = grace[victims]
        if not (wait > 0.0).any():
            return Requeues(victims, wanted_by, _NOBODY, _NOBODY)
        due = (wait <= 0.0) | (warned[victims] & (now - history.warned_at[victims] >= wait))
        go = ~np.isin(wanted_by, wanted_by[~due])
        # nobody has others warned again and again while those that he has wait out their grace
        warn = ~warned[victims] & (wait > 0.0) & ~(now - history.warned_for[wanted_by] < limits.cooldown_s)
        sent = victims[go], wanted_by[go]
        if go.any() and not go.all():
            # who waits out a grace would take the room of those behind him
            usable, ready = np.zeros_like(may), np.zeros_like(may)
            usable[victims[go]] = ready[wanted_by[go]] = True
            sent = choose(usable, may & ready)
        return Requeues(*sent, victims[warn], wanted_by[warn])

    def _budget(self, snapshot: Snapshot, history: History) -> Budget | None:
        """What the hour leaves. None: no limit."""
        limits = self.limits
        if limits.max_per_hour is None and limits.max_per_user_per_hour is None:
            return None
        spent, each = history.last_hour, limits.max_per_user_per_hour
        total = preemption.NO_LIMIT if limits.max_per_hour is None else limits.max_per_hour - spent.total()
        left_of = [preemption.NO_LIMIT if each is None else each - spent[u] for u in snapshot.users]
        return Budget(total, np.array(left_of, dtype=np.int64), snapshot.jobs.user)


class Requeues(NamedTuple):
    """Whom to requeue now and for whom, whom to warn now and for whom. Rows of the snapshot."""

    victims: Ints
    wanted_by: Ints
    warn: Ints
    warned_for: Ints


_NO_REQUEUES = Requeues(_NOBODY, _NOBODY, _NOBODY, _NOBODY)
