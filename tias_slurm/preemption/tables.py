"""What walk.py and shadow.py work on: the queue, who may be requeued, and the cluster as it would be."""

from __future__ import annotations

from typing import NamedTuple

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Ints


class Budget(NamedTuple):
    """How many jobs may still be requeued: of all, of each user (users,); and whose each job is (n,)."""

    left: int
    left_of: Ints
    user: Ints


class Queue(NamedTuple):
    """The waiting rows, best first, and what each asks for. Shapes (m,)."""

    row: Ints
    eff: Ints  # the level beyond which it may have jobs requeued; the last level: it may not
    partition: Ints
    nodes: Ints
    gpus: Ints
    node_gpus: Ints
    node_cpus: Ints
    node_mem: Ints
    front: Bools


class Entries(NamedTuple):
    """Who may be requeued where, and what that frees there. Shapes (e,), by row."""

    job: Ints
    node: Ints
    gpus: Ints
    cpus: Ints
    mem: Ints


class Shadow(NamedTuple):
    """What the cluster would look like. N nodes, n jobs; see jobs.Occupancy."""

    free_gpus: Ints
    free_cpus: Ints
    free_mem: Ints
    total_gpus: Ints
    total_cpus: Ints
    total_mem: Ints
    member: Bools
    nodes: Ints
    gpus: Ints
    node_gpus: Ints
    node_cpus: Ints
    node_mem: Ints
    partition: Ints
    first: Ints
    spread: Ints  # (n,) nodes that it holds
    held: Ints
    level: Ints
    usable: Bools  # (n,) may still be requeued
    gain: Ints  # (3, levels, N) GPUs, CPUs, memory that jobs beyond a level may still be made to free


@njit
def copy(s: Shadow, total_cpus: Ints, total_mem: Ints, gain: Ints) -> Shadow:
    """A shadow that may be changed."""
    return Shadow(
        s.free_gpus.copy(),
        s.free_cpus.copy(),
        s.free_mem.copy(),
        s.total_gpus,
        total_cpus,
        total_mem,
        s.member.copy(),
        s.nodes,
        s.gpus,
        s.node_gpus,
        s.node_cpus,
        s.node_mem,
        s.partition,
        s.first,
        s.spread,
        s.held,
        s.level,
        s.usable.copy(),
        gain,
    )


class Slots(NamedTuple):
    """The jobs on each node by ascending price: slot k of all nodes in row k. Shapes (K, N)."""

    job: Ints  # -1: none
    gpus: Ints
    cpus: Ints
    mem: Ints
