"""Which running jobs to requeue so that which waiting jobs start. Pure."""

from __future__ import annotations

from typing import NamedTuple

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
    does not fit may have jobs of a worse level requeued, those with the least `loss` first, never one that it
    could do without, and only if it then fits. At most `limit` waiting jobs may preempt. `gpus`, `level`,
    `preemptible` and `loss` have shape (n,), rows as in the snapshot.
    """
    if limit <= 0 or not len(order) or not preemptible.any():
        return _NONE, _NONE
    # from the last waiting job that stands above some victim on, nobody preempts
    able = np.flatnonzero(level[order] < level[preemptible].max())
    if not len(able):
        return _NONE, _NONE
    o = occupancy
    shadow = _Shadow(
        free_gpus=o.free_gpus.copy(),
        free_cpus=o.free_cpus.copy(),
        free_mem=o.free_mem_mb.copy(),
        total_gpus=o.total_gpus,
        member=o.member,
        partition=o.partition,
        nodes=o.nodes,
        gpus=gpus,
        node_gpus=o.node_gpus,
        node_cpus=o.node_cpus,
        node_mem=o.node_mem_mb,
        first=o.first,
        spread=o.count,
        held=o.held,
        level=level,
        usable=preemptible.copy(),
    )
    return _select(shadow, order[: able[-1] + 1], loss, limit)


_NONE = np.empty(0, dtype=np.int64)


class _Shadow(NamedTuple):
    """What the cluster would look like. N nodes, n jobs; see jobs.Occupancy."""

    free_gpus: Ints
    free_cpus: Ints
    free_mem: Ints
    total_gpus: Ints
    member: Bools
    partition: Ints
    nodes: Ints
    gpus: Ints
    node_gpus: Ints
    node_cpus: Ints
    node_mem: Ints
    first: Ints
    spread: Ints  # (n,) nodes that it holds
    held: Ints
    level: Ints
    usable: Bools  # (n,) may still be requeued


@njit
def _place(s: _Shadow, row: int, out: Ints) -> int:
    """Nodes that the job would get now; see placement.find_nodes."""
    return find_nodes(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        s.member[s.partition[row]],
        s.nodes[row],
        s.gpus[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
        out,
    )


@njit
def _move(s: _Shadow, row: int, held: Ints, sign: int) -> None:
    """Take or give back what the job has on the nodes in `held`."""
    occupy(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        held,
        s.nodes[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
        sign,
    )


@njit
def _requeue(s: _Shadow, row: int, sign: int) -> None:
    """Requeue a running job (sign +1), or not after all (-1)."""
    s.usable[row] = sign < 0
    _move(s, row, s.held[s.first[row] : s.first[row] + s.spread[row]], sign)


@njit
def _node_victims(s: _Shadow, row: int, v: int, running: Ints, price: Floats, out: Ints) -> int:
    """Write the cheapest victims that make room for the row's share on node v to `out`.

    `running`: the jobs on v. Returns the number of victims, or -1 if there is no way.
    """
    gpus = (s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row]) - s.free_gpus[v]
    cpus = s.node_cpus[row] - s.free_cpus[v]
    mem = s.node_mem[row] - s.free_mem[v]
    if gpus <= 0 and cpus <= 0 and mem <= 0:
        return 0
    found = 0
    for j in running:
        if s.usable[j] and s.level[j] > s.level[row]:
            at = found
            while at > 0 and price[out[at - 1]] > price[j]:
                out[at] = out[at - 1]
                at -= 1
            out[at] = j
            found += 1
    got = 0
    while got < found and (gpus > 0 or cpus > 0 or mem > 0):
        j = out[got]
        gpus -= s.total_gpus[v] if s.nodes[j] == 0 else s.node_gpus[j]
        cpus -= s.node_cpus[j]
        mem -= s.node_mem[j]
        got += 1
    if gpus > 0 or cpus > 0 or mem > 0:
        return -1
    # a later victim can make an earlier one needless: give back from the costliest down
    kept = got
    for i in range(got - 1, -1, -1):
        j = out[i]
        freed = s.total_gpus[v] if s.nodes[j] == 0 else s.node_gpus[j]
        if gpus + freed <= 0 and cpus + s.node_cpus[j] <= 0 and mem + s.node_mem[j] <= 0:
            gpus += freed
            cpus += s.node_cpus[j]
            mem += s.node_mem[j]
            for k in range(i, kept - 1):
                out[k] = out[k + 1]
            kept -= 1
    return kept


@njit
def _give_back(s: _Shadow, row: int, loss: Floats, mine: Ints, scratch: Ints) -> int:
    """Of the victims `mine` keep those without whom the row would not fit; their number.

    A victim on several nodes frees more than the one node that it was chosen for.
    """
    order = np.argsort(-loss[mine], kind="mergesort")
    keep = np.ones(len(mine), dtype=np.bool_)
    for i in order:
        _requeue(s, mine[i], -1)
        if _place(s, row, scratch) > 0:
            keep[i] = False
        else:
            _requeue(s, mine[i], 1)
    kept = 0
    for i in range(len(mine)):
        if keep[i]:
            mine[kept] = mine[i]
            kept += 1
    return kept


@njit
def _make_room(
    s: _Shadow,
    row: int,
    loss: Floats,
    share: Floats,
    start: Ints,
    on_node: Ints,
    victims: Ints,
    scratch: Ints,
    chosen: Ints,
) -> int:
    """Requeue in the shadow what lets the row fit, write them to `victims`; their number, 0 if it cannot."""
    size = len(s.free_gpus)
    allowed = s.member[s.partition[row]]
    # on one node a victim costs all of its loss; in a gang a victim may make room on several
    price = loss if s.nodes[row] == 1 else share
    cost = np.full(size, np.inf)
    for v in range(size):
        want = s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row]
        if not allowed[v] or s.total_gpus[v] < want or s.total_gpus[v] == 0:
            continue
        k = _node_victims(s, row, v, on_node[start[v] : start[v + 1]], price, scratch)
        if k >= 0:
            cost[v] = 0.0
            for i in range(k):
                cost[v] += price[scratch[i]]
    ranked = np.argsort(cost, kind="mergesort")
    have, taken = 0, 0
    for used in range(size):
        v = ranked[used]
        if cost[v] == np.inf or (have >= s.gpus[row] if s.nodes[row] == 0 else used == s.nodes[row]):
            break
        have += s.total_gpus[v]
        k = _node_victims(s, row, v, on_node[start[v] : start[v + 1]], price, scratch)
        for i in range(k):
            victims[taken] = scratch[i]
            taken += 1
            _requeue(s, scratch[i], 1)
    if _place(s, row, chosen) == 0:
        for i in range(taken):
            _requeue(s, victims[i], -1)
        return 0
    if taken > 1:
        taken = _give_back(s, row, loss, victims[:taken], chosen)
    return taken


@njit
def _failed_before(s: _Shadow, row: int, failed: Ints) -> bool:
    """Whether a job of the same shape that stood no lower found no room."""
    for f in failed:
        if (
            s.partition[f] == s.partition[row]
            and s.nodes[f] == s.nodes[row]
            and s.gpus[f] == s.gpus[row]
            and s.node_cpus[f] == s.node_cpus[row]
            and s.node_mem[f] == s.node_mem[row]
            and s.level[f] <= s.level[row]
        ):
            return True
    return False


@njit
def _select(s: _Shadow, order: Ints, loss: Floats, limit: int) -> tuple[Ints, Ints]:
    n, size = len(s.level), len(s.free_gpus)
    # the running jobs on each node: on_node[start[v]:start[v + 1]]
    start = np.zeros(size + 1, dtype=np.int64)
    for j in range(n):
        for k in range(s.first[j], s.first[j] + s.spread[j]):
            start[s.held[k] + 1] += 1
    for v in range(size):
        start[v + 1] += start[v]
    filled = start[:-1].copy()
    on_node = np.empty(start[size], dtype=np.int64)
    for j in range(n):
        for k in range(s.first[j], s.first[j] + s.spread[j]):
            on_node[filled[s.held[k]]] = j
            filled[s.held[k]] += 1
    share = loss / np.maximum(s.spread, 1)
    chosen = np.empty(size, dtype=np.int64)
    scratch = np.empty(n, dtype=np.int64)
    mine = np.empty(n, dtype=np.int64)
    victims = np.empty(n, dtype=np.int64)
    wanted_by = np.empty(n, dtype=np.int64)
    total, preemptors = 0, 0
    failed = np.empty(64, dtype=np.int64)
    failures = 0
    for row in order:
        if _failed_before(s, row, failed[:failures]):
            continue
        got = _place(s, row, chosen)
        if got == 0 and preemptors < limit and s.gpus[row] > 0:
            taken = _make_room(s, row, loss, share, start, on_node, mine, scratch, chosen)
            if taken > 0:
                got = _place(s, row, chosen)
                preemptors += 1
                failures = 0
                victims[total : total + taken] = mine[:taken]
                wanted_by[total : total + taken] = row
                total += taken
        if got > 0:
            _move(s, row, chosen[:got], -1)
        elif failures < len(failed):
            failed[failures] = row
            failures += 1
    return victims[:total], wanted_by[:total]
