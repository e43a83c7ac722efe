"""Small worlds for tests of the core: rank inputs, snapshots, tables of jobs, and dry runs over them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from tias_slurm.config import Config
from tias_slurm.jobs import RUNNING, Ended, History, JobTable, Occupancy, RankInput, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.workload import Refusals, Workload

HOUR = 3600.0
DAY = 24 * HOUR
NODE = (8, 64, 1000)  # GPUs, CPUs, MB
NO_JOBS_ENDED = Ended(*(np.empty(0, dtype=t) for t in (np.int64, float, float, float, bool, np.int64)))


def rank_input(
    *, gpus, first_submit=0.0, deadline=np.nan, executed=0.0, attained=None, running=False, claim_lost=False
):
    """Columns of equal length out of scalars and sequences; attained: executed x gpus if not given."""
    columns = np.broadcast_arrays(
        np.asarray(gpus, dtype=float), first_submit, deadline, executed, running, claim_lost
    )
    gpus, first_submit, deadline, executed, running, claim_lost = (np.atleast_1d(c).copy() for c in columns)
    return RankInput(
        job_id=np.arange(len(gpus)),
        running=running.astype(bool),
        first_submit=first_submit.astype(float),
        deadline=deadline.astype(float),
        gpus=gpus,
        executed=executed.astype(float),
        attained=executed * gpus if attained is None else np.atleast_1d(np.asarray(attained, dtype=float)),
        claim_lost=claim_lost.astype(bool),
        since=first_submit.astype(float),
        time_limit=np.full(len(gpus), np.inf),
        slot=np.zeros(len(gpus), dtype=bool),
        front=np.zeros(len(gpus), dtype=bool),
        able=np.ones(len(gpus), dtype=bool),
        late=np.zeros(len(gpus), dtype=bool),
        capacity=1000.0,
    )


def take(jobs, rows):
    """The rows of a RankInput, in that order."""
    columns = {name: getattr(jobs, name) for name in RankInput.__dataclass_fields__}
    return RankInput(**{k: v if np.ndim(v) == 0 else v[rows] for k, v in columns.items()})


def ranking(level, *, urgency=None, site_order=True, front=False):
    """A ranking as a policy would make it."""
    n = len(level)
    nobody = np.zeros(n, dtype=bool)
    return Ranking(
        np.asarray(level, dtype=np.int64),
        np.ones(n) if urgency is None else np.asarray(urgency, dtype=float),
        np.broadcast_to(site_order, n).copy(),
        {},
        nobody,
        nobody,
        np.broadcast_to(front, n).copy(),
    )


def history(
    n,
    *,
    found=0.0,
    requeues=0,
    requeued_at=np.nan,
    preempted_at=np.nan,
    warned_at=np.nan,
    warned_for=np.nan,
    window=np.nan,
    last_hour=None,
):
    """What a ledger remembers of n jobs."""
    columns = (
        (found, float), (requeues, np.int64), (requeued_at, float), (preempted_at, float), (warned_at, float),
        (warned_for, float), (window, float),
    )  # fmt: skip
    each = (np.broadcast_to(np.asarray(v, dtype=t), n).copy() for v, t in columns)
    return History(*each, Counter(last_hour or {}))


def plan(write=(), new=(), victims=(), beneficiaries=None):
    """A plan of these rows; without beneficiaries the first row gets what is freed."""
    rows = [np.asarray(x, dtype=np.int64) for x in (write, victims)]
    if beneficiaries is None:
        beneficiaries = np.zeros(len(rows[1]), dtype=np.int64)
    values = np.asarray(new, dtype=float)
    return Plan(rows[0], np.zeros(len(values)), values, rows[1], np.asarray(beneficiaries), 0)


def job_table(n, **columns):
    """A JobTable of n jobs, waiting jobs of one GPU unless said otherwise."""
    given = {
        "job_id": np.arange(n),
        "state": 0,
        "submit": 0.0,
        "gpus": 1,
        "deadline": np.nan,
        "run_time": 0.0,
        "restarts": 0,
        "requeueable": True,
        "checkpoint": 600.0,
        "lever": 0.0,
        "can_start": True,
        "nice": 0.0,
        "array_id": 0,
        "time_limit": np.inf,
        "since": 0.0,
        "user": 0,
        "account": 0,
    }
    types = {
        "job_id": int,
        "state": int,
        "gpus": int,
        "restarts": int,
        "requeueable": bool,
        "can_start": bool,
        "writable": bool,
        "array_id": int,
        "user": int,
        "account": int,
    }
    given |= columns
    given.setdefault("weight", given["gpus"])
    given.setdefault("writable", (np.asarray(given["state"]) == 0) & (np.asarray(given["gpus"]) > 0))
    return JobTable(**{k: np.broadcast_to(v, n).astype(types.get(k, float)) for k, v in given.items()})


def occupancy(nodes, requests, held):
    """Who holds what.

    nodes: (GPUs, CPUs, memory) each; requests by job: (node count or 0, GPUs on each node, CPUs, memory);
    held: job -> its nodes.
    """
    total = np.array(nodes, dtype=np.int64).reshape(-1, 3)
    free = total.copy()
    n = len(requests)
    first, count = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    flat: list[int] = []
    asked = np.array(requests, dtype=np.int64).reshape(-1, 4)
    for job, where in held.items():
        first[job], count[job] = len(flat), len(where)
        flat += where
        for v in where:
            free[v] -= asked[job, 1:] if asked[job, 0] else [total[v, 0], *asked[job, 2:]]
    assert (free >= 0).all(), "an impossible world"
    return Occupancy(
        free_gpus=free[:, 0].copy(),
        free_cpus=free[:, 1].copy(),
        free_mem_mb=free[:, 2].copy(),
        total_gpus=total[:, 0].copy(),
        member=np.ones((1, len(total)), dtype=bool),
        partition=np.zeros(n, dtype=np.int64),
        nodes=asked[:, 0].copy(),
        node_gpus=asked[:, 1].copy(),
        node_cpus=asked[:, 2].copy(),
        node_mem_mb=asked[:, 3].copy(),
        first=first,
        count=count,
        held=np.array(flat, dtype=np.int64),
    )


def snapshot(now, jobs, *, ended=NO_JOBS_ENDED, room=None, order=None):
    """A snapshot; ties go by row."""
    n = len(jobs)
    room = room or occupancy([(8, 64, 1000)], [(1, 1, 0, 0)] * n, {})
    assert (room.count > 0).sum() <= (jobs.state == RUNNING).sum()
    order = np.zeros(n) if order is None else order
    return Snapshot(now, jobs, order, np.arange(n), ended, room, ("ann",), ("lab",))


def workload(rows, *, trace=True):
    """A table of jobs from dicts. Needed: submit, work, gpus. `left`: when a job that never ran left."""
    made = []
    for i, row in enumerate(rows):
        left = row.get("left")
        submit = float(row["submit"])
        made.append(
            {
                "job_id": row.get("job_id", str(i)),
                "cluster": "",
                "user": row.get("user", "u"),
                "account": "",
                "partition": row.get("partition", ""),
                "qos": "",
                "state": row.get("state", "COMPLETED" if left is None else "CANCELLED"),
                "first_submit": submit,
                "eligible": float(row.get("eligible", submit)),
                "start": float(row.get("start", np.nan)),
                "end": float(row.get("end", np.nan) if left is None else left),
                "work": float(row["work"]) if left is None else 0.0,
                "lost_work": float(row.get("lost_work", 0.0)),
                "runs": row.get("runs", 1 if left is None else 0),
                "gpus": row["gpus"],
                "gpu_type": "",
                "cpus": row.get("cpus", 0),
                "mem_mb": float(row.get("mem_mb", 0.0)),
                "nodes": row.get("nodes", 0),
                "time_limit": np.nan,
                "comment": "",
                "submit_line": "",
                "native_deadline": np.nan,
                "deadline": float(row.get("deadline", np.nan)),
                "consent": row.get("consent", -1),
                "checkpoint": float(row.get("checkpoint", np.nan)),
            }
        )
    return Workload(pd.DataFrame(made), trace, 1, len(made), Refusals())


def prepared(work, nodes, name, config=None, **options):
    """One policy's run before it begins: (Run, Wanted)."""
    run = Run(work, nodes, config or Config(), Options(**options), [])
    (wanted,) = parse(name, is_trace=work.is_trace, preemption=None)
    return run, wanted


def replay(rows, nodes, name, *, trace=True, config=None, **options):
    """The PolicyResult of one policy over the jobs in `rows`."""
    run, wanted = prepared(workload(rows, trace=trace), nodes, name, config, **options)
    return run.policy(wanted, None, None)
