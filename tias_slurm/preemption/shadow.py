"""The cluster as it would be: who is placed, who is requeued, what could still be freed. Pure.

Vectors over nodes in place of loops over single ones: fast without numba, and numba compiles the same lines
for the replay.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Ints
from tias_slurm.placement import could_hold, enough, find_nodes, occupy, set_aside
from tias_slurm.preemption.tables import Entries, Shadow


@njit
def place(s: Shadow, row: int, out: Ints) -> int:
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
def move(s: Shadow, row: int, held: Ints, sign: int) -> None:
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
def requeue(s: Shadow, row: int, sign: int) -> None:
    """Requeue a running job (sign +1), or not after all (-1)."""
    s.usable[row] = sign < 0
    held = s.held[s.first[row] : s.first[row] + s.spread[row]]
    move(s, row, held, sign)
    for v in held:
        s.gain[0, : s.level[row], v] -= sign * (s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row])
        s.gain[1, : s.level[row], v] -= sign * s.node_cpus[row]
        s.gain[2, : s.level[row], v] -= sign * s.node_mem[row]


@njit
def room_without(s: Shadow, row: int, level: int) -> Bools:
    """Nodes with room for the job's share if every job beyond the level that may go were gone. Shape (N,)."""
    return could_hold(
        s.free_gpus + s.gain[0, level],
        s.free_cpus + s.gain[1, level],
        s.free_mem + s.gain[2, level],
        s.total_gpus,
        s.member[s.partition[row]],
        s.nodes[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
    )


@njit
def hopeless(s: Shadow, row: int, eff: int) -> bool:
    """Whether the job would not fit even if every job beyond the level were gone."""
    able = room_without(s, row, eff)
    return not enough(s.total_gpus, able, s.nodes[row], s.gpus[row])


@njit
def freeable(level: Ints, usable: Bools, e: Entries, levels: int, size: int) -> Ints:
    """What jobs beyond each level may be made to free on each node: GPUs, CPUs, memory. (3, levels, N)."""
    gain = np.zeros((3, levels, size), dtype=np.int64)
    where = level[e.job] * size + e.node
    for kind, amount in enumerate((e.gpus, e.cpus, e.mem)):
        mine = (amount * usable[e.job]).astype(np.float64)
        held = np.bincount(where, weights=mine, minlength=levels * size)
        by_level = held.astype(np.int64).reshape((levels, size))
        for beyond in range(levels - 2, -1, -1):
            gain[kind, beyond] = gain[kind, beyond + 1] + by_level[beyond + 1]
    return gain


@njit
def keep_for(s: Shadow, row: int, out: Ints) -> bool:
    """Set nodes aside for a job in front."""
    able = s.member[s.partition[row]] & (s.total_cpus >= s.node_cpus[row]) & (s.total_mem >= s.node_mem[row])
    got = set_aside(s.free_gpus, s.total_gpus, able, s.nodes[row], s.gpus[row], s.node_gpus[row], out)
    for v in out[:got]:
        s.member[:, v] = False
    return got > 0
