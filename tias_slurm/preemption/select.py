"""Which running jobs to requeue so that which waiting jobs start. Pure. The walk itself is in walk.py."""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints, Occupancy
from tias_slurm.preemption.needless import needed
from tias_slurm.preemption.shadow import freeable, requeue
from tias_slurm.preemption.tables import Budget, Entries, Queue, Shadow, copy
from tias_slurm.preemption.walk import walk

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
    `limit` waiting jobs may preempt, of those in `may` (None: all). Jobs of a user whose `budget` is used up
    are no victims; one who would need more than is left of the whole gets none. For the first of those in
    `front` that does not fit nodes are set aside. In the end the order is walked once more with the victims
    gone, as Slurm will walk it: who would not start, since somebody before him takes the room, has nobody
    requeued, and a victim without whom all others start stays, even if then nobody is requeued for one of
    them (`checked` = False: neither). `gpus`, `level`, `preemptible`, `loss`, `may` and `front` have shape
    (n,), rows as in the snapshot.
    """
    o, n = occupancy, len(level)
    if budget is None:
        budget = Budget(NO_LIMIT, np.full(1, NO_LIMIT, dtype=np.int64), np.zeros(n, dtype=np.int64))
    elif budget.left_of.min(initial=NO_LIMIT) <= 0:
        preemptible = preemptible & (budget.left_of[budget.user] > 0)
    if limit <= 0 or budget.left <= 0 or not len(order) or not preemptible.any():
        return _NONE, _NONE
    may = gpus > 0 if may is None else may & (gpus > 0)
    if o.certain is not None:
        may &= o.certain
    # from the last waiting job that stands above some victim on, nobody preempts
    at = np.flatnonzero(may[order] & (level[order] < level[preemptible].max()))
    if not len(at):
        return _NONE, _NONE
    order = order[: at[-1] + 1]
    if front is None:
        front = np.zeros(n, dtype=np.bool_)
    last = int(level.max())
    queue = Queue(
        order, np.where(may, level, last)[order], o.partition[order], o.nodes[order], gpus[order],
        o.node_gpus[order], o.node_cpus[order], o.node_mem_mb[order], front[order],
    )  # fmt: skip
    world = Shadow(
        o.free_gpus, o.free_cpus, o.free_mem_mb, o.total_gpus, o.free_cpus, o.free_mem_mb, o.member, o.nodes,
        gpus, o.node_gpus, o.node_cpus, o.node_mem_mb, o.partition, o.first, o.count, o.held, level,
        preemptible, np.empty((3, 0, 0), dtype=np.int64),
    )  # fmt: skip
    return _choose(world, queue, last + 1, loss, limit, budget, checked)


@njit
def _prepare(world: Shadow, levels: int) -> tuple[Shadow, Entries]:
    """The world as it stands, with the sizes of nodes and what could be freed; and by whom."""
    size = len(world.total_gpus)
    rows = np.flatnonzero(world.spread > 0)
    count = world.spread[rows]
    job = np.repeat(rows, count)
    at = np.arange(len(job)) + np.repeat(world.first[rows] - (np.cumsum(count) - count), count)
    node = world.held[at]
    gpus = np.where(world.nodes[job] == 0, world.total_gpus[node], world.node_gpus[job])
    cpus, mem = world.node_cpus[job], world.node_mem[job]
    mine = world.usable[job]
    entries = Entries(job[mine], node[mine], gpus[mine], cpus[mine], mem[mine])
    gain = freeable(world.level, world.usable, entries, levels, size)
    used_cpus = np.bincount(node, weights=cpus.astype(np.float64), minlength=size).astype(np.int64)
    used_mem = np.bincount(node, weights=mem.astype(np.float64), minlength=size).astype(np.int64)
    return copy(world, world.free_cpus + used_cpus, world.free_mem + used_mem, gain), entries


@njit
def _choose(
    world: Shadow, q: Queue, levels: int, loss: Floats, limit: int, budget: Budget, checked: bool
) -> tuple[Ints, Ints]:
    """See select. `world` is left as it is; its `gain` and sizes in CPUs and memory are not used."""
    shadow, entries = _prepare(world, levels)
    nobody = np.zeros(len(world.level), dtype=np.bool_)
    victims, wanted_by, _, _ = walk(shadow, q, entries, loss, limit, budget, len(q.row), nobody)
    if not checked or not len(victims):
        return victims, wanted_by
    none = np.full(len(q.row), levels - 1)
    calm = Queue(q.row, none, q.partition, q.nodes, q.gpus, q.node_gpus, q.node_cpus, q.node_mem, q.front)
    for _ in range(_PASSES):
        # what could be freed is of no account any more
        freed = copy(world, shadow.total_cpus, shadow.total_mem, shadow.gain)
        for v in victims:
            requeue(freed, v, 1)
        waits_for = np.zeros(len(world.level), dtype=np.bool_)
        waits_for[wanted_by] = True
        upto = np.flatnonzero(waits_for[q.row])[-1] + 1
        placed = copy(freed, freed.total_cpus, freed.total_mem, freed.gain)
        _, _, started, looks = walk(placed, calm, entries, loss, 0, budget, upto, nobody)
        starts = started[wanted_by]
        if starts.all():
            return needed(freed, calm, entries, loss, budget, upto, victims, wanted_by, looks)
        victims, wanted_by = victims[starts], wanted_by[starts]
        if not len(victims):
            break
    return victims[:0], wanted_by[:0]
