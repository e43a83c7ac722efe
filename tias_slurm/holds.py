"""The cap on long work: which waiting jobs are held so that near deadlines always find some GPUs. Pure.

Where nobody is requeued, what blocks an urgent job is a long one that runs. So all work without a deadline
and all deadline jobs that may run long together get a share of the GPUs, and what waits beyond that is held.
Jobs wider than the share are never held: they would never start.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import PENDING, RUNNING, Bools, Floats, History, Ints, Pools, Snapshot
from tias_slurm.levers import HELD
from tias_slurm.policy.learning import PRIOR_UPPER
from tias_slurm.policy.shares import grant


def held(
    snapshot: Snapshot,
    history: History,
    ours: Bools,
    front: Bools,
    order: Floats,
    share: float,
    long_window_s: float,
    prior_upper: float = PRIOR_UPPER,
) -> Bools:
    """Which jobs are held from now on. Shapes (n,).

    `prior_upper`: how long a deadline job may run, as a share of its window. `ours`: jobs that may be
    written; `order`: where they would stand, the larger goes first. Nodes that share no partition are
    clusters of their own, each with its share. What runs counts, whatever its width. Inside a share one
    that does not fit is passed over, but nobody passes one in `front`: no job waits for ever. Whom somebody
    released is not held again.
    """
    jobs, o = snapshot.jobs, snapshot.occupancy
    long = (jobs.weight > 0) & ~(prior_upper * history.window <= long_window_s)
    pool, total = snapshot.pools or in_pools(o.member, o.partition, snapshot.node_weights)
    room = share * total
    held_now = jobs.lever == HELD
    waits = (jobs.state == PENDING) & ours & (jobs.can_start | held_now)
    if history.released is not None:
        waits &= ~history.released
    able = waits & long & (jobs.weight <= room[pool])
    stays: Bools = able.copy()
    for p in np.unique(pool[able]):
        rows = np.flatnonzero(able & (pool == p))
        rows = rows[np.lexsort((snapshot.tie[rows], -order[rows], ~front[rows]))]
        runs = (jobs.state == RUNNING) & long & (pool == p)
        first = rows[front[rows]]
        released = grant(first, jobs.weight, runs, float(room[p]), strict=True)
        if released[first].all():
            released = grant(rows[len(first) :], jobs.weight, released, float(room[p]), strict=False)
        stays[released] = False
    return stays


def in_pools(member: Bools, partition: Ints, gpus: Floats) -> Pools:
    """The pools of jobs by their row of `member`, shape (P, N); `gpus`, shape (N,), weighted, of nodes."""
    pool_of = pools(member)
    total = np.zeros(len(pool_of))
    for p in np.unique(pool_of):
        total[p] = gpus[member[pool_of == p].any(axis=0)].sum()
    return Pools(pool_of[partition], total)


def pools(member: Bools) -> Ints:
    """For each partition, the first of those that it shares nodes with, directly or through others.

    Shape (P, N) -> (P,).
    """
    pool = np.arange(len(member))
    for p in range(len(member)):
        for q in range(p):
            if (member[p] & member[q]).any():
                pool[pool == max(pool[p], pool[q])] = min(pool[p], pool[q])
    return pool
