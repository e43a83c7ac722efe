"""Why nobody is requeued for a waiting job, and why a running one is not requeued for others. Pure.

No rule stands here: the planner is asked, also with other budgets than its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tias_slurm.jobs import RUNNING, Bools, History, Snapshot
from tias_slurm.planner import Limits, Plan, Planner
from tias_slurm.policy.base import Ranking
from tias_slurm.replay.wording import plural


@dataclass(frozen=True)
class Asked:
    """What a cycle planned by, and what it planned. Rows are those of the snapshot."""

    planner: Planner
    snapshot: Snapshot
    history: History
    ranking: Ranking
    barred: Bools  # (n,) see Planner.plan
    plan: Plan
    may_not: Callable[[int], str]  # why the job of a row may not be requeued at all; "": it may be
    unsure: dict[int, str]  # waiting rows, by why it is not sure where they would start


def spared_by(asked: Asked, row: int) -> str:
    """Why a running job is not requeued for others now; "": it may be."""
    planner, now = asked.planner, asked.snapshot
    if planner.preemptible(now, asked.history.requeues, asked.ranking)[row]:
        return ""
    spares = planner.spares(now, asked.history.requeues, asked.ranking)
    for why in (why for why, hit in spares.items() if hit[row]):
        if why == "no":
            return asked.may_not(row) or "not requeueable"
        if why == "young":
            return f"younger than {planner.limits.min_run_s:g} s"
        if why == "often":
            return f"requeued {plural(planner.limits.max_requeues_per_job, 'time')} already"
        return "started from the front"
    return "without GPUs"


def nobody_for(asked: Asked, row: int, left_alone: str) -> dict[str, Any]:
    """Whether others are requeued for the waiting job in a row, and if not why; ready for JSON.

    `left_alone`: why a job that cannot start is not helped. Returns `planned`, jobs to be requeued or warned
    in the next cycle; `why`, "" if there are some; `worse`, how many run that stand worse, by why they are
    spared, "": they may be requeued; `no_worse`, how many others run.
    """
    s, plan, planner, history = asked.snapshot, asked.plan, asked.planner, asked.history
    planned = int((plan.beneficiaries == row).sum() + (plan.warned_for == row).sum())
    level = planner.preempts_by(s, asked.ranking)
    runs = s.jobs.state == RUNNING
    worse = np.flatnonzero(runs & (level > level[row]))
    counts = Counter(spared_by(asked, r) for r in worse.tolist())
    return {
        "planned": planned,
        "why": "" if planned else _why(asked, row, counts, left_alone),
        "cool_down_until": _until(planner, history, s.now, row),
        "worse": dict(counts),
        "no_worse": int(runs.sum()) - len(worse),
    }


def _until(planner: Planner, history: History, now: float, row: int) -> float | None:
    """When the job may have others requeued again, epoch s; None: now."""
    until = float(history.preempted_at[row]) + planner.limits.cooldown_s
    return until if until > now else None


def _in_place(asked: Asked, row: int) -> bool:
    """Whether the job has its value, or gets it in this cycle."""
    s, plan = asked.snapshot, asked.plan
    ours = s.jobs.writable & ~asked.barred
    values = s.jobs.lever.copy()
    values[plan.write] = plan.new
    target = asked.planner.targets(s, asked.history, asked.ranking, ours)
    return not asked.planner.off(target, values)[row]


def _why(asked: Asked, row: int, counts: Counter[str], left_alone: str) -> str:
    s, planner, history, limits = asked.snapshot, asked.planner, asked.history, asked.planner.limits
    if not s.jobs.can_start[row]:
        return left_alone
    if not counts:
        runs, level = s.jobs.state == RUNNING, asked.ranking.level
        if (runs & (level > level[row])).any():
            return "those that stand worse would not any more once they and it had changed places"
        return "nobody runs who stands worse"
    if not counts[""]:
        return "those that stand worse may not be requeued"
    if not _in_place(asked, row):
        return "its own value is not as it should be"
    if _until(planner, history, s.now, row) is not None:
        return "others were requeued for it lately"
    if row in asked.unsure:
        return f"where it would start is not sure: {asked.unsure[row]}"
    if limits.max_per_hour is not None and history.last_hour.total() >= limits.max_per_hour:
        jobs = plural(limits.max_per_hour, "job was", "jobs were")
        return f"{jobs} requeued in the last hour, as many as may be"
    before = plural(limits.max_preemptors, "job before it has", "jobs before it have")
    spent = "is spent, or is less than it needs"
    lifts: tuple[tuple[str, Limits], ...] = (
        (
            f"what the users of those that stand worse have left of their requeues in an hour {spent}",
            replace(limits, max_per_user_per_hour=None),
        ),
        (f"what is left of the requeues in an hour {spent}", replace(limits, max_per_hour=None)),
        (
            f"what is left of the requeues in an hour, in all and by user, {spent}",
            replace(limits, max_per_hour=None, max_per_user_per_hour=None),
        ),
        (
            f"{before} others requeued in this cycle",
            replace(limits, max_preemptors=len(s.jobs)),
        ),
    )
    for words, lifted in lifts:
        plan = type(planner)(planner.lever, lifted).plan(s, history, asked.ranking, asked.barred)
        if row in plan.beneficiaries or row in plan.warned_for:
            return words
    return "they would not free enough on its nodes, or somebody before it takes the room"
