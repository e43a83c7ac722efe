"""Of the victims of a whole plan those without whom its beneficiaries start all the same. Pure.

Each victim is needed when it is chosen, but what is freed for a later job can make it needless, and jobs that
fit anyhow may go elsewhere once there is more room. Only the queue walked again without it tells.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.preemption.shadow import requeue
from tias_slurm.preemption.tables import Budget, Entries, Queue, Shadow, copy
from tias_slurm.preemption.walk import walk

# what may be spent on it in a cycle: looks at a waiting job, and kinds of requests that are summed up; who
# could not be tried within is a victim all the same
_LOOKS, _KINDS = 500, 50


@njit
def _room(total: Ints, whole: bool, gpus: Ints, cpus: Ints, mem: Ints, share: Ints) -> Ints:
    """Shares (GPUs, CPUs, memory) that fit by GPUs where one fits by the rest; of whole nodes GPUs. (N,)."""
    able = (cpus >= share[1]) & (mem >= share[2])
    if whole:
        able &= (total > 0) & (gpus >= total)
        return np.where(able, total, 0)
    return np.where(able & (gpus > 0), gpus // max(share[0], 1), 0)


@njit
def _surely_needed(s: Shadow, rows: Ints, victims: Ints) -> Bools:
    """Victims without whom there is less room than the waiting `rows` take, wherever they go. Shape (v,).

    GPUs are summed up for each kind of request over all that ask for no fewer of a node and use no other
    nodes; a node counts if it has the least CPUs and memory of these. Certain where it says so, and cheap.
    """
    count = s.spread[victims]
    of = np.repeat(np.arange(len(victims)), count)
    job = victims[of]
    node = s.held[np.arange(len(of)) + np.repeat(s.first[victims] - (np.cumsum(count) - count), count)]
    left_gpus = s.free_gpus[node] - np.where(s.nodes[job] == 0, s.total_gpus[node], s.node_gpus[job])
    left_cpus, left_mem = s.free_cpus[node] - s.node_cpus[job], s.free_mem[node] - s.node_mem[job]
    sure = np.zeros(len(victims), dtype=np.bool_)
    inside = np.zeros(len(s.member), dtype=np.bool_)
    for row in rows[:_KINDS]:
        whole = bool(s.nodes[row] == 0)
        member = s.member[s.partition[row]]
        for p in range(len(inside)):
            inside[p] = not (s.member[p] & ~member).any()
        alike = inside[s.partition[rows]] & ((s.nodes[rows] == 0) == whole)
        some = rows[alike & (whole | (s.node_gpus[rows] >= s.node_gpus[row]))]
        share = np.array([s.node_gpus[row], s.node_cpus[some].min(), s.node_mem[some].min()])
        if whole:
            asked = s.gpus[some].sum()
        else:
            asked = (s.nodes[some] * (s.node_gpus[some] // max(share[0], 1))).sum()
        room = _room(s.total_gpus, whole, s.free_gpus, s.free_cpus, s.free_mem, share) * member
        still = _room(s.total_gpus[node], whole, left_gpus, left_cpus, left_mem, share) * member[node]
        less = (room[node] - still).astype(np.float64)
        sure |= np.bincount(of, weights=less, minlength=len(victims)) > room.sum() - asked
        if sure.all():
            break
    return sure


@njit
def needed(
    freed: Shadow,
    q: Queue,
    entries: Entries,
    loss: Floats,
    budget: Budget,
    upto: int,
    victims: Ints,
    wanted_by: Ints,
    looks: int,
) -> tuple[Ints, Ints]:
    """The victims that stay, and for whom: each other one, costliest first, goes on if all start without it.

    `freed`: the cluster with the victims gone, in which all of `wanted_by` start when the first `upto` of the
    queue are placed without more requeues, which takes `looks`; it is changed. None that stays could be given
    back alone, as far as that could be tried. One of whom all victims are given back may start on what others
    leave: those that only he needs then are his, if they are of a worse level; else he is not waited for.
    """
    must = np.zeros(len(freed.level), dtype=np.bool_)
    nobody = np.zeros_like(must)
    left, rows, changed = _LOOKS, np.unique(wanted_by), True
    must[rows] = True
    while changed and looks <= left:
        changed = False
        keep = np.ones(len(victims), dtype=np.bool_)
        tried = ~_surely_needed(freed, rows, victims)
        for i in np.argsort(-loss[victims], kind="mergesort"):
            if not tried[i] or looks > left:
                continue
            started, took = _without(freed, q, entries, loss, budget, upto, victims[i], must)
            left -= took
            if started[rows].all():
                requeue(freed, victims[i], -1)
                keep[i], changed = False, True
        victims, wanted_by = victims[keep], wanted_by[keep]
        if len(np.unique(wanted_by)) == len(rows):
            continue
        for i in range(len(victims)):
            if looks > left:
                break
            started, took = _without(freed, q, entries, loss, budget, upto, victims[i], nobody)
            left -= took
            if started[wanted_by[i]]:
                for row in rows:
                    if not started[row] and freed.level[row] < freed.level[victims[i]]:
                        wanted_by[i] = row
                        break
        must[rows] = False
        rows = np.unique(wanted_by)
        must[rows] = True
    return victims, wanted_by


@njit
def _without(
    freed: Shadow,
    q: Queue,
    entries: Entries,
    loss: Floats,
    budget: Budget,
    upto: int,
    victim: int,
    must: Bools,
) -> tuple[Bools, int]:
    """Who starts if the victim goes on running, shape (n,), and how many looks that took."""
    trial = copy(freed, freed.total_cpus, freed.total_mem, freed.gain)
    requeue(trial, victim, -1)
    _, _, started, took = walk(trial, q, entries, loss, 0, budget, upto, must)
    requeue(trial, victim, 1)  # the account of what could be freed is shared
    return started, took
