"""Whom to requeue in the shadow so that one waiting job fits, at the least loss. Pure.

Vectors over nodes; numba compiles them for the replay, as in shadow.py.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.preemption.shadow import requeue, room_without
from tias_slurm.preemption.tables import Budget, Entries, Shadow, Slots


@njit
def sort_slots(e: Entries, price: Floats, size: int) -> Slots:
    """The entries by node, cheapest first; ties by row."""
    by_price = np.argsort(price[e.job], kind="mergesort")
    by = by_price[np.argsort(e.node[by_price], kind="mergesort")]
    node = e.node[by]
    rank = np.arange(len(by)) - np.searchsorted(node, node)
    depth = rank.max() + 1
    at = rank * size + node
    job = np.full(depth * size, -1, dtype=np.int64)
    gpus, cpus, mem = np.zeros_like(job), np.zeros_like(job), np.zeros_like(job)
    job[at], gpus[at], cpus[at], mem[at] = e.job[by], e.gpus[by], e.cpus[by], e.mem[by]
    shape = (depth, size)
    return Slots(job.reshape(shape), gpus.reshape(shape), cpus.reshape(shape), mem.reshape(shape))


@njit
def _choose(
    s: Shadow, row: int, nodes: Ints, slots: Slots, price: Floats, budget: Budget, spent_of: Ints
) -> tuple[Bools, Floats]:
    """Whom the job needs gone from each of the nodes, (K, m), and what that costs, (m,); inf: no way.

    The cheapest one after another until the share fits, of each user as many as his budget leaves; a later
    one can make an earlier one needless, so that they are given back from the costliest down.
    """
    limited = _limited(budget, len(s.level))
    want = s.total_gpus[nodes] if s.nodes[row] == 0 else np.full(len(nodes), s.node_gpus[row])
    gpus = want - s.free_gpus[nodes]
    cpus = s.node_cpus[row] - s.free_cpus[nodes]
    mem = s.node_mem[row] - s.free_mem[nodes]
    depth = len(slots.job)
    take = np.zeros((depth, len(nodes)), dtype=np.bool_)
    cost = np.zeros(len(nodes))
    for k in range(depth):
        short = (gpus > 0) | (cpus > 0) | (mem > 0)
        if not short.any():
            break
        job = slots.job[k][nodes]
        # -1 looks at the last job, which is of no account
        mine = short & (job >= 0) & s.usable[job] & (s.level[job] > s.level[row])
        if limited:
            user = budget.user[job]
            of_his = spent_of[user]
            for i in range(k):
                of_his = of_his + (take[i] & (budget.user[slots.job[i][nodes]] == user))
            mine = mine & (of_his < budget.left_of[user])
        take[k] = mine
        gpus = gpus - mine * slots.gpus[k][nodes]
        cpus = cpus - mine * slots.cpus[k][nodes]
        mem = mem - mine * slots.mem[k][nodes]
    short = (gpus > 0) | (cpus > 0) | (mem > 0)
    for k in range(depth - 1, -1, -1):
        if not take[k].any():
            continue
        g, c, m = slots.gpus[k][nodes], slots.cpus[k][nodes], slots.mem[k][nodes]
        back = take[k] & (gpus + g <= 0) & (cpus + c <= 0) & (mem + m <= 0)
        gpus, cpus, mem = gpus + back * g, cpus + back * c, mem + back * m
        take[k] = take[k] & ~back
    for k in range(depth):
        if take[k].any():
            cost = cost + np.where(take[k], price[slots.job[k][nodes]], 0.0)
    return take, np.where(short, np.inf, cost)


@njit
def _limited(budget: Budget, n: int) -> bool:
    """Whether the budgets of users can matter to n jobs."""
    return bool(budget.left_of.min() < n)


@njit
def _give_back(s: Shadow, row: int, loss: Floats, mine: Ints, budget: Budget, spent_of: Ints) -> int:
    """Of the victims `mine` keep those without whom the row would not fit; their number.

    A victim on several nodes frees more than the one node that it was chosen for.
    """
    keep = np.ones(len(mine), dtype=np.bool_)
    fits = room_without(s, row, len(s.gain[0]) - 1)  # nobody is beyond the last level
    whole = s.nodes[row] == 0
    spare = (s.total_gpus[fits].sum() - s.gpus[row]) if whole else (fits.sum() - s.nodes[row])
    for i in np.argsort(-loss[mine], kind="mergesort"):
        j = mine[i]
        cost = 0
        held = s.held[s.first[j] : s.first[j] + s.spread[j]]
        for v in held:
            if fits[v] and not _fits_beside(s, row, j, v):
                cost += s.total_gpus[v] if whole else 1
        if cost <= spare:
            for v in held:
                fits[v] = fits[v] and _fits_beside(s, row, j, v)
            requeue(s, j, -1)
            spent_of[budget.user[j]] -= 1
            spare -= cost
            keep[i] = False
    kept = mine[keep]
    mine[: len(kept)] = kept
    return len(kept)


@njit
def _fits_beside(s: Shadow, row: int, j: int, v: int) -> bool:
    """Whether the row's share still fits node v when job j is back there."""
    taken = s.total_gpus[v] if s.nodes[j] == 0 else s.node_gpus[j]
    want = s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row]
    return bool(
        s.free_gpus[v] - taken >= want
        and s.free_cpus[v] - s.node_cpus[j] >= s.node_cpus[row]
        and s.free_mem[v] - s.node_mem[j] >= s.node_mem[row]
    )


@njit
def make_room(
    s: Shadow,
    row: int,
    loss: Floats,
    slots: Slots,
    price: Floats,
    budget: Budget,
    spent_of: Ints,
    victims: Ints,
) -> int:
    """Requeue in the shadow what lets the row fit, and write them to `victims`; their number, 0: no way.

    Counts them in `spent_of`. That users' budgets leave a way is not certain before it is tried.
    """
    able = np.flatnonzero(room_without(s, row, s.level[row]))
    take, cost = _choose(s, row, able, slots, price, budget, spent_of)
    limited = _limited(budget, len(s.level))
    have, used, taken, moved, fits = 0, 0, 0, False, False
    for i in np.argsort(cost, kind="mergesort"):
        if cost[i] == np.inf:
            break
        v = able[i]
        column = take[:, i]
        if moved or (limited and taken > 0):
            # a victim on several nodes has freed part of this one, or his user's budget is used up
            now, costs = _choose(s, row, able[i : i + 1], slots, price, budget, spent_of)
            if costs[0] == np.inf:
                continue
            column = now[:, 0]
        have += s.total_gpus[v]
        used += 1
        for j in slots.job[:, v][column]:
            victims[taken] = j
            taken += 1
            spent_of[budget.user[j]] += 1
            moved = moved or s.spread[j] > 1
            requeue(s, j, 1)
        fits = (have >= s.gpus[row]) if s.nodes[row] == 0 else (used == s.nodes[row])
        if fits:
            break
    if not fits:
        undo(s, victims[:taken], budget, spent_of)
        return 0
    if taken > 1:
        taken = _give_back(s, row, loss, victims[:taken], budget, spent_of)
    return taken


@njit
def undo(s: Shadow, victims: Ints, budget: Budget, spent_of: Ints) -> None:
    """Nobody is requeued after all."""
    for j in victims:
        requeue(s, j, -1)
        spent_of[budget.user[j]] -= 1
