"""What one look at a cluster returns: jobs as columns, nodes, the controller's clock.

A table of jobs is a set of NumPy arrays of one length, one row a job; a single job is a table of
length one. Times are seconds since the epoch (UTC), durations seconds, service GPU-seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PENDING = 0
RUNNING = 1

# Base states as sacct(1) prints them ("JOB STATE CODES"). A flag such as COMPLETING is no state of its own.
ENDED_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REQUEUED",
        "RESIZING",
        "REVOKED",
        "TIMEOUT",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "SPECIAL_EXIT",
        "STOPPED",
    }
)
ACTIVE_STATES = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def unsaved(run_time: Floats, checkpoint: Floats) -> Floats:
    """Seconds of a run that a requeue loses: since the last checkpoint, or all of it. Shapes (n,).

    `checkpoint`: seconds between checkpoints, 0: the job never saves itself.
    """
    since = run_time % np.maximum(checkpoint, 1.0)
    return np.asarray(np.where(checkpoint > 0, since, run_time), dtype=np.float64)


@dataclass(frozen=True)
class JobTable:
    """The jobs of one snapshot that wait or run, as the controller shows them. All arrays have shape (n,)."""

    job_id: Ints  # ascending, unique within the snapshot
    state: Ints  # PENDING or RUNNING
    submit: Floats  # as the controller shows it: a requeue resets it
    gpus: Ints
    deadline: Floats  # epoch seconds; NaN without an admitted claim
    run_time: Floats  # seconds that the current run has executed; 0 while waiting
    restarts: Ints  # how often the job was requeued
    requeueable: Bools  # batch, Requeue=1, and consent of the user or the site
    checkpoint: Floats  # seconds between checkpoints; 0: the job never saves itself
    lever: Floats  # the field that we may write, as it stands now (nice by default)
    can_start: Bools  # waits for resources or priority, not for a date, a limit or a dependency
    writable: (
        Bools  # waiting, and neither held nor special nor out of scope nor blocked by what we cannot cure
    )
    nice: Floats  # as it stands; the same as `lever` where nice is the lever
    array_id: Ints  # ArrayJobId, the record that a task was split from; 0: no array
    weight: Floats  # what all of its GPUs count for in service and urgency, in GPUs
    time_limit: Floats  # seconds; inf: none, NaN: not known
    since: Floats  # when it could first have started in this spell of waiting, epoch s
    user: Ints  # row in Snapshot.users
    account: Ints  # row in Snapshot.accounts

    def __len__(self) -> int:
        return len(self.job_id)

    def take(self, rows: Ints | Bools) -> Self:
        """The same columns for the given rows only."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class RankInput:
    """What a policy may look at: the snapshot joined with what the ledger remembers. Shapes (n,)."""

    job_id: Ints
    running: Bools
    first_submit: Floats  # s
    deadline: Floats  # d of the claim that counts; NaN: none
    gpus: Floats  # g, weighted
    executed: Floats  # e: useful executed seconds over all runs, 0 <= e <= t - s
    attained: Floats  # a: GPU-seconds received over all runs
    claim_lost: Bools  # the job has removed a claim that was hopeless or overdue
    since: Floats  # now less what it has waited while able, in this spell; of a running job, in the last one
    time_limit: Floats  # L; inf: none, NaN: not known
    slot: Bools  # holds a long slot
    front: Bools  # stands in front of all, or has started from there
    able: Bools  # runs, or waits for nothing but nodes and its turn, and can be moved
    late: Bools  # runs, and its claim was made or moved during this run
    capacity: float  # GPUs of the cluster, weighted

    def __len__(self) -> int:
        return len(self.job_id)


@dataclass(frozen=True)
class History:
    """What a planner must know of earlier cycles. Shapes (n,)."""

    found: Floats  # the users' own lever values
    requeues: Ints  # how often we requeued the job
    requeued_at: Floats  # when we did so last, epoch s; NaN: never
    preempted_at: Floats  # when we last requeued others for it; NaN: never
    warned_at: Floats  # when we last warned it of a requeue; NaN: never
    warned_for: Floats  # when we last warned others for it; NaN: never
    window: Floats  # seconds from first submit to deadline of the claim that counts; NaN: none, or it is lost
    last_hour: Counter[str]  # jobs that we requeued in the last hour, by user
    released: Bools | None = None  # that we held and somebody let go; None: none


@dataclass(frozen=True)
class Ended:
    """Jobs that ended since the last snapshot. Shapes (n,)."""

    job_id: Ints
    submit: Floats
    deadline: Floats  # NaN without an admitted claim
    run_time: Floats  # seconds executed in the last run
    completed: Bools  # state COMPLETED
    user: Ints  # row in Snapshot.users

    def take(self, rows: Ints | Bools) -> Self:
        """The same columns for the given rows only."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class Occupancy:
    """Who holds what on which node. N nodes; n jobs, rows as in the JobTable; per-node amounts are equal on
    all nodes of a job."""

    free_gpus: Ints  # (N,)
    free_cpus: Ints  # (N,)
    free_mem_mb: Ints  # (N,)
    total_gpus: Ints  # (N,)
    member: Bools  # (P, N): which nodes belong to each of P partitions
    partition: Ints  # (n,) row of `member`
    nodes: Ints  # (n,) node count asked for; 0: whole nodes until the GPUs suffice
    node_gpus: Ints  # (n,) GPUs on each node
    node_cpus: Ints  # (n,)
    node_mem_mb: Ints  # (n,)
    first: Ints  # (n,) a running job's nodes are held[first : first + count]
    count: Ints  # (n,) 0 while waiting
    held: Ints  # node numbers
    # (n,) waiting jobs that surely start where they fit: others have nobody requeued for them; None: all
    certain: Bools | None = None


class Pools(NamedTuple):
    """Clusters of their own: nodes that share no partition, directly or through others."""

    of: Ints  # (n,) the one that each job belongs to
    gpus: Floats  # (Q,) that jobs could have in each, weighted


@dataclass(frozen=True)
class Snapshot:
    """One look at the cluster."""

    now: float  # the controller's clock
    jobs: JobTable
    order: Floats  # (n,) Slurm's priority without the lever: the larger goes first
    tie: Ints  # (n,) what decides between equal priorities: the smaller goes first
    ended: Ended
    occupancy: Occupancy
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    # (n,) seconds that each job is warned before a requeue; None: all as the limits say
    grace: Floats | None = None
    weighted: Floats | None = None  # (N,) GPUs of each node by their weights; None: each counts 1
    pools: Pools | None = None  # None: as the partitions of the occupancy say
    # (n,) what the GPUs of each job count for the other way round: of one that waits once it runs, at the
    # most; of one that runs once it waits again, at the least; None: as they do now
    allocated: Floats | None = None

    @property
    def capacity(self) -> float:
        """GPUs that jobs could have, weighted."""
        return float(self.node_weights.sum())

    @property
    def node_weights(self) -> Floats:
        """What the GPUs of each node count for. Shape (N,)."""
        return self.occupancy.total_gpus.astype(np.float64) if self.weighted is None else self.weighted
