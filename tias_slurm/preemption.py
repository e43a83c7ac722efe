"""Which running jobs to requeue so that which waiting jobs start. Pure. The walk itself is in shadow.py."""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints, Occupancy
from tias_slurm.shadow import Budget, Entries, Queue, Shadow, requeue, walk

NO_LIMIT = 2**62
# how often the order is walked again before nobody is requeued: what fits moves about too much
_PASSES = 3
_NONE = np.empty(0, dtype=np.int64)


def select(
    order: Ints,
    gpus: Ints,
    level: Ints,
    preemptible: Bools,
    loss: Floats,
    occupancy: Occupancy,
    limit: int,
    *,
    may: Bools | None = None,
    front: Bools | None = None,
    budget: Budget | None = None,
    checked: bool = True,
) -> tuple[Ints, Ints]:
    """Victims, and for each the waiting job that it makes room for: rows, shape (v,) both.

    The waiting rows in `order` (best first) are placed on a shadow of the cluster one after another; one that
    does not fit may have jobs of a worse level requeued: the nodes on which that loses least, on each node
    those with the least `loss` first, never one that it could do without, and only if it then fits. At most
    `limit` waiting jobs may preempt, of those in `may` (None: all). One whose victims would exceed the
    `budget` gets none of them. For the first of those in `front` that does not fit nodes are set aside. In
    the end the order is walked once more with the victims gone, as Slurm will walk it: who would not start,
    since somebody before him takes the room, has nobody requeued (`checked` = False: not so). `gpus`,
    `level`, `preemptible`, `loss`, `may` and `front` have shape (n,), rows as in the snapshot.
    """
    if limit <= 0 or not len(order) or not preemptible.any():
        return _NONE, _NONE
    o, n = occupancy, len(level)
    may = gpus > 0 if may is None else may & (gpus > 0)
    if o.certain is not None:
        may &= o.certain
    # from the last waiting job that stands above some victim on, nobody preempts
    at = np.flatnonzero(may[order] & (level[order] < level[preemptible].max()))
    if not len(at):
        return _NONE, _NONE
    order = order[: at[-1] + 1]
    if budget is None:
        budget = Budget(NO_LIMIT, np.full(1, NO_LIMIT, dtype=np.int64), np.zeros(n, dtype=np.int64))
    if front is None:
        front = np.zeros(n, dtype=np.bool_)
    last = int(level.max())
    eff = np.where(may, level, last)[order]
    queue = Queue(
        order, eff, o.partition[order], o.nodes[order], gpus[order], o.node_gpus[order], o.node_cpus[order],
        o.node_mem_mb[order], front[order],
    )  # fmt: skip
    everyone = np.flatnonzero(o.count > 0)
    jobs, nodes = _stays(o, everyone)
    used = _amounts(o, jobs, nodes)
    mine = preemptible[jobs]
    entries = Entries(jobs[mine], nodes[mine], *(u[mine] for u in used))
    size = len(o.total_gpus)
    gain = np.stack([_gain(level[entries.job], entries.node, u, last + 1, size) for u in entries[2:]])
    hold = np.stack([np.bincount(nodes, weights=u, minlength=size) for u in used]).astype(np.int64)

    def shadow() -> Shadow:
        return Shadow(
            o.free_gpus.copy(), o.free_cpus.copy(), o.free_mem_mb.copy(), o.total_gpus,
            o.free_cpus + hold[1], o.free_mem_mb + hold[2], o.member.copy(), o.nodes, gpus, o.node_gpus,
            o.node_cpus, o.node_mem_mb, o.partition, o.first, o.count, o.held, level, preemptible.copy(),
            gain,
        )  # fmt: skip

    victims, wanted_by, _ = walk(shadow(), queue, entries, loss, limit, budget, len(order))
    if not checked:
        return victims, wanted_by
    for _ in range(_PASSES):
        if not len(victims):
            break
        freed = shadow()
        for v in victims:
            requeue(freed, v, 1)
        upto = int(np.flatnonzero(np.isin(order, wanted_by))[-1]) + 1
        calm = queue._replace(eff=np.full(len(order), last, dtype=np.int64))
        _, _, started = walk(freed, calm, entries, loss, 0, budget, upto)
        starts = started[wanted_by]
        if starts.all():
            return victims, wanted_by
        victims, wanted_by = victims[starts], wanted_by[starts]
    return _NONE, _NONE


def _stays(o: Occupancy, rows: Ints) -> tuple[Ints, Ints]:
    """Every node of every one of these rows: (rows, nodes)."""
    count = o.count[rows]
    start = np.cumsum(count) - count
    at = np.arange(int(count.sum())) + np.repeat(o.first[rows] - start, count)
    return np.repeat(rows, count), o.held[at]


def _amounts(o: Occupancy, jobs: Ints, nodes: Ints) -> tuple[Ints, Ints, Ints]:
    """GPUs, CPUs and memory of the jobs on their nodes."""
    taken = np.where(o.nodes[jobs] == 0, o.total_gpus[nodes], o.node_gpus[jobs])
    return taken, o.node_cpus[jobs], o.node_mem_mb[jobs]


def _gain(level: Ints, node: Ints, amount: Ints, levels: int, size: int) -> Ints:
    """What jobs beyond each level hold on each node. Shape (levels, N)."""
    by_level = np.bincount(level * size + node, weights=amount, minlength=levels * size)
    gain = np.zeros((levels, size), dtype=np.int64)
    gain[:-1] = by_level.reshape(levels, size)[:0:-1].cumsum(axis=0)[::-1]
    return gain
