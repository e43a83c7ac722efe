"""Which running jobs to requeue so that which waiting jobs start. Pure."""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints, Occupancy
from tias_slurm.placement import find_nodes, occupy


def select(
    order: Ints,
    gpus: Ints,
    level: Ints,
    preemptible: Bools,
    loss: Floats,
    occupancy: Occupancy,
    limit: int,
) -> tuple[Ints, Ints]:
    """Victims, and for each the waiting job that it makes room for: rows, shape (v,) both.

    The waiting rows in `order` (best first) are placed on a shadow of the cluster one after another; one that
    does not fit may have jobs of a worse level requeued, those with the least `loss` first, never more than
    it needs, and only if it then fits. At most `limit` waiting jobs may preempt. `gpus`, `level`,
    `preemptible` and `loss` have shape (n,), rows as in the snapshot.
    """
    if limit <= 0 or not len(order) or not preemptible.any():
        return _NONE, _NONE
    # from the last waiting job that stands above some victim on, nobody preempts
    able = np.flatnonzero(level[order] < level[preemptible].max())
    if not len(able):
        return _NONE, _NONE
    o = occupancy
    return _select(
        order[: able[-1] + 1],
        gpus,
        level,
        preemptible,
        loss,
        o.free_gpus.copy(),
        o.free_cpus.copy(),
        o.free_mem_mb.copy(),
        o.total_gpus,
        o.member,
        o.partition,
        o.nodes,
        o.node_gpus,
        o.node_cpus,
        o.node_mem_mb,
        o.first,
        o.count,
        o.held,
        limit,
    )


_NONE = np.empty(0, dtype=np.int64)


@njit
def _node_victims(
    v: int,
    my_level: int,
    need: tuple[int, int, int],
    jobs: Ints,
    level: Ints,
    usable: Bools,
    share: Floats,
    amounts: tuple[Ints, Ints, Ints],
    nodes: Ints,
    total_gpus: Ints,
    out: Ints,
) -> int:
    """Write the least-loss victims among `jobs` on node v that free `need` (GPUs, CPUs, memory) to `out`.

    Returns their number, or -1 if they cannot.
    """
    gpus, cpus, mem = need
    if gpus <= 0 and cpus <= 0 and mem <= 0:
        return 0
    found = 0
    for j in jobs:
        if usable[j] and level[j] > my_level:
            at = found
            while at > 0 and share[out[at - 1]] > share[j]:
                out[at] = out[at - 1]
                at -= 1
            out[at] = j
            found += 1
    got = 0
    while got < found and (gpus > 0 or cpus > 0 or mem > 0):
        j = out[got]
        gpus -= total_gpus[v] if nodes[j] == 0 else amounts[0][j]
        cpus -= amounts[1][j]
        mem -= amounts[2][j]
        got += 1
    if gpus > 0 or cpus > 0 or mem > 0:
        return -1
    # a later victim can make an earlier one needless: give back from the costliest down
    kept = got
    for i in range(got - 1, -1, -1):
        j = out[i]
        freed = total_gpus[v] if nodes[j] == 0 else amounts[0][j]
        if gpus + freed <= 0 and cpus + amounts[1][j] <= 0 and mem + amounts[2][j] <= 0:
            gpus += freed
            cpus += amounts[1][j]
            mem += amounts[2][j]
            for k in range(i, kept - 1):
                out[k] = out[k + 1]
            kept -= 1
    return kept


@njit
def _select(
    order: Ints,
    gpus: Ints,
    level: Ints,
    preemptible: Bools,
    loss: Floats,
    free_gpus: Ints,
    free_cpus: Ints,
    free_mem: Ints,
    total_gpus: Ints,
    member: Bools,
    partition: Ints,
    nodes: Ints,
    node_gpus: Ints,
    node_cpus: Ints,
    node_mem: Ints,
    first: Ints,
    count: Ints,
    held: Ints,
    limit: int,
) -> tuple[Ints, Ints]:
    n, size = len(level), len(free_gpus)
    # the running jobs on each node: on_node[start[v]:start[v + 1]]
    start = np.zeros(size + 1, dtype=np.int64)
    for j in range(n):
        for k in range(first[j], first[j] + count[j]):
            start[held[k] + 1] += 1
    for v in range(size):
        start[v + 1] += start[v]
    filled = start[:-1].copy()
    on_node = np.empty(start[size], dtype=np.int64)
    for j in range(n):
        for k in range(first[j], first[j] + count[j]):
            on_node[filled[held[k]]] = j
            filled[held[k]] += 1
    usable = preemptible.copy()
    share = loss / np.maximum(count, 1)
    amounts = (node_gpus, node_cpus, node_mem)
    chosen = np.empty(size, dtype=np.int64)
    cost = np.empty(size, dtype=np.float64)
    scratch = np.empty(n, dtype=np.int64)
    mine = np.empty(n, dtype=np.int64)
    victims = np.empty(n, dtype=np.int64)
    wanted_by = np.empty(n, dtype=np.int64)
    total_victims = 0
    preemptors = 0
    failed = np.empty(64, dtype=np.int64)
    failures = 0
    for row in order:
        known = False
        for i in range(failures):
            f = failed[i]
            if (
                partition[f] == partition[row]
                and nodes[f] == nodes[row]
                and gpus[f] == gpus[row]
                and node_cpus[f] == node_cpus[row]
                and node_mem[f] == node_mem[row]
                and level[f] <= level[row]
            ):
                known = True
                break
        if known:
            continue
        allowed = member[partition[row]]
        got = find_nodes(
            free_gpus,
            free_cpus,
            free_mem,
            total_gpus,
            allowed,
            nodes[row],
            gpus[row],
            node_gpus[row],
            node_cpus[row],
            node_mem[row],
            chosen,
        )
        taken = 0
        if got == 0 and preemptors < limit and gpus[row] > 0:
            # what it costs to make room on each node
            for v in range(size):
                cost[v] = np.inf
                want = total_gpus[v] if nodes[row] == 0 else node_gpus[row]
                if not allowed[v] or total_gpus[v] < want or total_gpus[v] == 0:
                    continue
                need = (want - free_gpus[v], node_cpus[row] - free_cpus[v], node_mem[row] - free_mem[v])
                on_v = on_node[start[v] : start[v + 1]]
                k = _node_victims(
                    v, level[row], need, on_v, level, usable, share, amounts, nodes, total_gpus, scratch
                )
                if k >= 0:
                    cost[v] = 0.0
                    for i in range(k):
                        cost[v] += share[scratch[i]] if nodes[row] != 1 else loss[scratch[i]]
            ranked = np.argsort(cost, kind="mergesort")
            have = 0
            for used in range(size):
                v = ranked[used]
                if cost[v] == np.inf or (nodes[row] == 0 and have >= gpus[row]):
                    break
                if nodes[row] > 0 and used == nodes[row]:
                    break
                want = total_gpus[v] if nodes[row] == 0 else node_gpus[row]
                need = (want - free_gpus[v], node_cpus[row] - free_cpus[v], node_mem[row] - free_mem[v])
                on_v = on_node[start[v] : start[v + 1]]
                k = _node_victims(
                    v, level[row], need, on_v, level, usable, share, amounts, nodes, total_gpus, scratch
                )
                have += total_gpus[v]
                for i in range(k):
                    j = scratch[i]
                    usable[j] = False
                    mine[taken] = j
                    taken += 1
                    held_j = held[first[j] : first[j] + count[j]]
                    occupy(
                        free_gpus,
                        free_cpus,
                        free_mem,
                        total_gpus,
                        held_j,
                        nodes[j],
                        node_gpus[j],
                        node_cpus[j],
                        node_mem[j],
                        1,
                    )
            got = find_nodes(
                free_gpus,
                free_cpus,
                free_mem,
                total_gpus,
                allowed,
                nodes[row],
                gpus[row],
                node_gpus[row],
                node_cpus[row],
                node_mem[row],
                chosen,
            )
            if got == 0:
                for i in range(taken):
                    j = mine[i]
                    usable[j] = True
                    held_j = held[first[j] : first[j] + count[j]]
                    occupy(
                        free_gpus,
                        free_cpus,
                        free_mem,
                        total_gpus,
                        held_j,
                        nodes[j],
                        node_gpus[j],
                        node_cpus[j],
                        node_mem[j],
                        -1,
                    )
                taken = 0
        if got == 0:
            if failures < len(failed):
                failed[failures] = row
                failures += 1
            continue
        if taken > 0:
            preemptors += 1
            failures = 0
            for i in range(taken):
                victims[total_victims] = mine[i]
                wanted_by[total_victims] = row
                total_victims += 1
        occupy(
            free_gpus,
            free_cpus,
            free_mem,
            total_gpus,
            chosen[:got],
            nodes[row],
            node_gpus[row],
            node_cpus[row],
            node_mem[row],
            -1,
        )
    return victims[:total_victims], wanted_by[:total_victims]
