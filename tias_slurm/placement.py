"""Which nodes a job would get: gang allocation of GPUs, CPUs and memory. Pure loops over arrays.

A request is (nodes, gpus, node_gpus, node_cpus, node_mem): `nodes` >= 1 takes that many nodes and node_gpus
of each; `nodes` = 0 takes whole nodes, lowest number first, until their GPUs reach `gpus`.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Ints


@njit
def find_nodes(
    free_gpus: Ints,
    free_cpus: Ints,
    free_mem: Ints,
    total_gpus: Ints,
    member: Bools,
    nodes: int,
    gpus: int,
    node_gpus: int,
    node_cpus: int,
    node_mem: int,
    out: Ints,
) -> int:
    """Write the chosen nodes to `out`; the number of them, 0 if the job does not fit now.

    One node: best fit, the least GPUs left over, then the least CPUs. Several: those with least left over.
    """
    chosen = 0
    if nodes == 0:
        found = 0
        for v in range(len(free_gpus)):
            if (
                member[v]
                and total_gpus[v] > 0
                and free_gpus[v] == total_gpus[v]
                and free_cpus[v] >= node_cpus
                and free_mem[v] >= node_mem
            ):
                out[chosen] = v
                chosen += 1
                found += total_gpus[v]
                if found >= gpus:
                    return chosen
        return 0
    if nodes == 1:
        best, best_gpus, best_cpus = -1, 0, 0
        for v in range(len(free_gpus)):
            over = free_gpus[v] - node_gpus
            if over < 0 or not member[v] or free_cpus[v] < node_cpus or free_mem[v] < node_mem:
                continue
            if best < 0 or over < best_gpus or (over == best_gpus and free_cpus[v] < best_cpus):
                best, best_gpus, best_cpus = v, over, free_cpus[v]
        if best < 0:
            return 0
        out[0] = best
        return 1
    fitting = np.empty(len(free_gpus), dtype=np.int64)
    over_all = np.empty(len(free_gpus), dtype=np.int64)
    for v in range(len(free_gpus)):
        over = free_gpus[v] - node_gpus
        if over >= 0 and member[v] and free_cpus[v] >= node_cpus and free_mem[v] >= node_mem:
            fitting[chosen] = v
            over_all[chosen] = over
            chosen += 1
    if chosen < nodes:
        return 0
    ranked = np.argsort(over_all[:chosen], kind="mergesort")
    for i in range(nodes):
        out[i] = fitting[ranked[i]]
    return nodes


@njit
def occupy(
    free_gpus: Ints,
    free_cpus: Ints,
    free_mem: Ints,
    total_gpus: Ints,
    held: Ints,
    nodes: int,
    node_gpus: int,
    node_cpus: int,
    node_mem: int,
    sign: int,
) -> None:
    """Take (sign -1) or give back (sign +1) a job's share of the nodes in `held`."""
    for v in held:
        free_gpus[v] += sign * (total_gpus[v] if nodes == 0 else node_gpus)
        free_cpus[v] += sign * node_cpus
        free_mem[v] += sign * node_mem


@njit
def set_aside(
    free_gpus: Ints, total_gpus: Ints, member: Bools, nodes: int, gpus: int, node_gpus: int, out: Ints
) -> int:
    """Write to `out` the nodes to keep for a job that goes before all and does not fit yet; their number.

    Of the allowed nodes those with most free GPUs, then with the lowest number, until the job would fit once
    they are empty. 0 if it would not even then: nothing is kept for it. Whoever calls takes the nodes out of
    `member` for the jobs behind it. Slurm's backfill keeps nodes likewise, by when they fall free, which
    nobody knows who does not believe in time limits.
    """
    ranked = np.argsort(-free_gpus, kind="mergesort")
    chosen, have = 0, 0
    for v in ranked:
        if not member[v] or total_gpus[v] < node_gpus or (nodes == 0 and total_gpus[v] == 0):
            continue
        out[chosen] = v
        chosen += 1
        have += total_gpus[v]
        if (have >= gpus) if nodes == 0 else (chosen == nodes):
            return chosen
    return 0
