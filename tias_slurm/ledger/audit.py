"""The actions of a plan in words: one audit record each, made before it is sent, and one line of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tias_slurm.config import Config
from tias_slurm.jobs import Ints, Snapshot
from tias_slurm.ledger.store import Entry
from tias_slurm.levers import HELD, HOLD_REASON, shown
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Policy, Ranking
from tias_slurm.slurm.live import RawTable
from tias_slurm.slurm.live_cluster import job_names


@dataclass(frozen=True)
class Action:
    """One thing that is about to be sent."""

    event: Literal["write", "warn", "requeue"]
    entry: Entry
    said: dict[str, Any]  # for the log


def reason(policy: Policy, ranking: Ranking, row: int, new: float) -> str:
    """Why a job gets a value."""
    return HOLD_REASON if new == HELD else policy.reason(ranking, row)


def actions(
    config: Config,
    policy: Policy,
    raw: RawTable,
    rows: Ints,
    snapshot: Snapshot,
    ranking: Ranking,
    plan: Plan,
    warning: Callable[[int], tuple[str, float]],
) -> list[Action]:
    """Writes, then warnings, then requeues, as LiveCluster.apply numbers them.

    `rows`: row in the raw table of each job of the snapshot. `warning`: see LiveCluster.
    """
    ids, now = snapshot.jobs.job_id, snapshot.now

    def name(row: int) -> str:
        return job_names(raw, [int(rows[row])])[0]

    made = []
    for r, old, new in zip(plan.write.tolist(), plan.old.tolist(), plan.new.tolist(), strict=True):
        kind, why = config.lever.kind, reason(policy, ranking, r, new)
        said = {"job": name(r), "field": kind, "old": shown(old), "new": shown(new), "reason": why}
        made.append(Action("write", Entry(now, int(ids[r]), kind, old, new, why), said))
    for r in plan.warn.tolist():
        sent, seconds = warning(int(ids[r]))
        why = f"to be requeued in {seconds:g} s"
        said = {"job": name(r), "signal": sent, "reason": why}
        made.append(Action("warn", Entry(now, int(ids[r]), "warn", None, None, why), said))
    for r, other in zip(plan.victims.tolist(), plan.beneficiaries.tolist(), strict=True):
        why = f"level {ranking.level[r]}, for job {name(other)}: {policy.reason(ranking, other)}"
        ran = round(float(snapshot.jobs.run_time[r]))
        said = {"job": name(r), "beneficiary": name(other), "run_s": ran, "reason": why}
        made.append(Action("requeue", Entry(now, int(ids[r]), "requeue", None, float(ids[other]), why), said))
    return made
