"""The nodes of the cluster: out of a file, as a number of GPUs, or inferred from the history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from tias_slurm.errors import InputError
from tias_slurm.gpu_weights import shards_of_gpu
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.replay.workload import shards_alone
from tias_slurm.slurm.node_files import read_nodes
from tias_slurm.slurm.node_history import by_name, peak, with_history
from tias_slurm.slurm.node_set import UNKNOWN_CPUS, UNKNOWN_MEM_MB, NodeSet, gpu_count, make, pool, uniform

__all__ = [
    "UNKNOWN_CPUS",
    "UNKNOWN_MEM_MB",
    "NodeSet",
    "infer",
    "pool",
    "read_nodes",
    "uniform",
    "with_history",
]

USUAL_SIZES: Final = (1, 2, 4, 8, 16)  # GPUs per node that are sold

_UNLIMITED = "CPUs and memory of the nodes are not known from the history and limit nobody"
_GIVE = "give --nodes FILE for the real cluster"


def infer(jobs: pd.DataFrame, weights: Mapping[str, float] | None = None) -> NodeSet:
    """Nodes that could have run the history: what it shows at least, never what stood idle.

    `jobs`: the table of a Workload. With a column `node_list` (host names of each job) for nearly all
    GPU jobs, one node for each name (see node_history.by_name). Else uniform nodes: GPUs per node from the
    largest GPUs / nodes of a job, rounded up to a usual size, as many nodes as the peak of concurrently
    used GPUs needs. `weights`: of `[gpus]`; where they name shards, jobs with shards alone held that share of
    a GPU. Raises InputError if no GPU job has a recorded start.
    """
    start = jobs["start"].to_numpy(np.float64)
    end = jobs["end"].to_numpy(np.float64)
    end = np.where(np.isnan(end), start + jobs["work"].to_numpy(np.float64), end)
    weights = weights or {}
    gpus = jobs["gpus"].to_numpy(np.float64)
    gpus = gpus + shards_alone(jobs, weights) / max(1, shards_of_gpu(weights))
    nodes = jobs["nodes"].to_numpy(np.int64)
    ran = (gpus > 0) & np.isfinite(start) & np.isfinite(end) & (end >= start)
    if not ran.any():
        why = (
            "no job with GPUs has a recorded start" if (gpus > 0).any() else "no job of the history has GPUs"
        )
        raise InputError(f"the cluster cannot be inferred: {why}; give --nodes FILE or --gpus N")
    named, why = by_name(jobs.assign(gpus=gpus), ran, start, end, how_else=_GIVE)
    return named or _uniform(gpus, nodes, ran, start, end, why)


def _uniform(gpus: Floats, nodes: Ints, ran: Bools, start: Floats, end: Floats, unnamed: str) -> NodeSet:
    told = ran & (nodes > 0)
    if told.any():
        ratio = int(np.ceil(gpus[told] / nodes[told]).max())
        how = "the most GPUs per node that a job had"
    else:
        ratio = int(np.ceil(min(gpus[ran].max(), 8)))
        how = "a guess, no job names its nodes"
    size = _usual(ratio)
    together = np.zeros(int(ran.sum()), np.int64)
    most = math.ceil(peak(together, start[ran], end[ran], [gpus[ran]])[0][0] - 1e-6)
    widest = int(max(nodes[ran].max(), -(-math.ceil(gpus[ran].max()) // size)))
    count = max(-(-most // size), widest)
    if count > 100_000:
        raise InputError(f"the history would need {count} nodes, which cannot be; {_GIVE}")
    names = [f"n{i + 1}" for i in range(count)]
    sizes = [size] * count
    notes = [
        f"the cluster is inferred: {gpu_count(most)} {'was' if most == 1 else 'were'} in use at once at the "
        f"peak; {size} per node ({how}), as "
        f"{unnamed}; GPUs that stood idle throughout are not seen; {_GIVE}",
        "which partition has which nodes cannot be told from the history: every partition has all nodes",
        _UNLIMITED,
    ]
    without = int(nodes[gpus == 0].max(initial=0)) - count
    if without > 0:
        names += [f"cpu{i + 1}" for i in range(min(without, 100_000 - count))]
        sizes += [0] * (len(names) - count)
        more = len(names) - count
        notes.append(f"{more} node{'s' * (more != 1)} without GPUs added for the widest CPU job")
    source = f"inferred from the history: {count} node{'s' * (count != 1)} of {gpu_count(size)}"
    return make(names, sizes, source=source, inferred=True, notes=notes)


def _usual(gpus: int) -> int:
    return next((size for size in USUAL_SIZES if size >= gpus), gpus)
