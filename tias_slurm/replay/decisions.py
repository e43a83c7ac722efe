"""decisions.jsonl: each action that the daemon would have sent, one JSON object a line, as it is decided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO

from tias_slurm.controller import Recorder
from tias_slurm.jobs import Ints, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Policy, Ranking


def recorder(
    out: IO[str], name: str, policy: Policy, field: str, labels: Sequence[str], row: Ints
) -> Recorder:
    """A recorder that writes to `out`.

    `name`: of the policy; `field`: of the job that the lever writes; `labels` by row of the workload and
    `row` by job number say what users call a job.
    """

    def write(record: dict[str, object]) -> None:
        out.write(json.dumps(record, ensure_ascii=True) + "\n")

    def record(snapshot: Snapshot, ranking: Ranking, plan: Plan) -> None:
        ids = snapshot.jobs.job_id
        for r, old, new in zip(plan.write.tolist(), plan.old.tolist(), plan.new.tolist(), strict=True):
            write(
                {
                    "time": snapshot.now,
                    "policy": name,
                    "job": labels[row[ids[r]]],
                    "action": field,
                    "old": int(old),
                    "new": int(new),
                    "reason": policy.reason(ranking, r),
                }
            )
        for victim, waiting in zip(plan.victims.tolist(), plan.beneficiaries.tolist(), strict=True):
            wanted_by = labels[row[ids[waiting]]]
            write(
                {
                    "time": snapshot.now,
                    "policy": name,
                    "job": labels[row[ids[victim]]],
                    "action": "requeue",
                    "old": "RUNNING",
                    "new": "PENDING",
                    "reason": f"makes room for {wanted_by}: level {ranking.level[waiting]}"
                    f" before level {ranking.level[victim]}",
                }
            )

    return record
