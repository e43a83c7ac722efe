"""Which nodes a job would get: gang allocation of GPUs, CPUs and memory. Pure loops over arrays.

A request is (nodes, gpus, node_gpus, node_cpus, node_mem): `nodes` >= 1 takes that many nodes and node_gpus
of each; `nodes` = 0 takes whole nodes, lowest number first, until their GPUs reach `gpus`.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Ints


@njit
def could_hold(
    free_gpus: Ints,
    free_cpus: Ints,
    free_mem: Ints,
    total_gpus: Ints,
    member: Bools,
    nodes: int,
    node_gpus: int,
    node_cpus: int,
    node_mem: int,
) -> Bools:
    """Which nodes have room for the job's share of a node. Shape (N,)."""
    if nodes == 0:
        whole = (total_gpus > 0) & (free_gpus >= total_gpus)
        return member & whole & (free_cpus >= node_cpus) & (free_mem >= node_mem)
    return member & (free_gpus >= node_gpus) & (free_cpus >= node_cpus) & (free_mem >= node_mem)


@njit
def enough(total_gpus: Ints, able: Bools, nodes: int, gpus: int) -> bool:
    """Whether the job fits on the nodes in `able`, shape (N,)."""
    return bool(total_gpus[able].sum() >= gpus if nodes == 0 else able.sum() >= nodes)


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
    able = np.flatnonzero(
        could_hold(free_gpus, free_cpus, free_mem, total_gpus, member, nodes, node_gpus, node_cpus, node_mem)
    )
    if len(able) == 0 or len(able) < nodes:
        return 0
    if nodes == 0:
        need = np.searchsorted(np.cumsum(total_gpus[able]), gpus) + 1
        if need > len(able):
            return 0
        out[:need] = able[:need]
        return int(need)
    left = free_gpus[able]
    if nodes == 1:
        best = able[left == left.min()]
        out[0] = best[np.argmin(free_cpus[best])]
        return 1
    out[:nodes] = able[np.argsort(left, kind="mergesort")[:nodes]]
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
