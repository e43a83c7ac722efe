"""Shards of GPUs in the model of Slurm. Pure loops over arrays.

Slurm cuts each GPU of a node into the same number of shards, and gives a GPU of which a shard is in use to
nobody as a whole. Here a node knows only how many shards are in use: they lie on as few GPUs as they can, and
move together when one ends. So what pieces leave over between them is not seen.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import Bools, Ints
from tias_slurm.replay.compiled import njit


@njit
def could_cut(used: Ints, total: Ints, of_gpu: Ints, free_gpus: Ints, pieces: int) -> Bools:
    """Which nodes have so many shards free, on GPUs that nobody holds as a whole. Shapes (N,).

    `used`, `total`: shards of each node; `of_gpu`: of one of its GPUs, 0: its GPUs are not cut.
    """
    able = np.zeros(len(used), dtype=np.bool_)
    for v in range(len(used)):
        if of_gpu[v] > 0 and used[v] + pieces <= total[v]:
            more = -(-(used[v] + pieces) // of_gpu[v]) - -(-used[v] // of_gpu[v])
            able[v] = more <= free_gpus[v]
    return able


@njit
def cut(used: Ints, of_gpu: Ints, free_gpus: Ints, held: Ints, pieces: int) -> None:
    """Take so many shards of each node in `held`, or give them back (`pieces` < 0); in place."""
    for v in held:
        before = -(-used[v] // of_gpu[v])
        used[v] += pieces
        free_gpus[v] -= -(-used[v] // of_gpu[v]) - before
