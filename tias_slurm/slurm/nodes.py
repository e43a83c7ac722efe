"""The nodes of the cluster: out of a file, as a number of GPUs, or inferred from the history."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from tias_slurm.jobs import Floats, Ints
from tias_slurm.replay.workload import InputError
from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.node_files import read_nodes
from tias_slurm.slurm.node_set import UNKNOWN_CPUS, UNKNOWN_MEM_MB, NodeSet, make, pool, uniform

__all__ = ["UNKNOWN_CPUS", "UNKNOWN_MEM_MB", "NodeSet", "infer", "pool", "read_nodes", "uniform"]

USUAL_SIZES: Final = (1, 2, 4, 8, 16)  # GPUs per node that are sold
NAMED_SHARE: Final = 0.95  # with names for fewer GPU jobs than this, names are not used

_UNLIMITED = "CPUs and memory of the nodes are not known from the history and limit nobody"
_GIVE = "give --nodes FILE for the real cluster"


def infer(jobs: pd.DataFrame) -> NodeSet:
    """Nodes that could have run the history: what it shows at least, never what stood idle.

    `jobs`: the table of a Workload. With a column `node_list` (host names of each job) for nearly all
    GPU jobs, one node for each name, its GPUs the most that were in use at once, rounded up to a usual
    size. Else uniform nodes: GPUs per node from the largest GPUs / nodes of a job, as many nodes as the
    peak of concurrently used GPUs needs. Raises InputError if no GPU job has a recorded start.
    """
    start = jobs["start"].to_numpy(np.float64)
    end = jobs["end"].to_numpy(np.float64)
    end = np.where(np.isnan(end), start + jobs["work"].to_numpy(np.float64), end)
    gpus = jobs["gpus"].to_numpy(np.int64)
    nodes = jobs["nodes"].to_numpy(np.int64)
    ran = (gpus > 0) & np.isfinite(start) & np.isfinite(end) & (end >= start)
    if not ran.any():
        why = (
            "no job with GPUs has a recorded start" if (gpus > 0).any() else "no job of the history has GPUs"
        )
        raise InputError(f"the cluster cannot be inferred: {why}; give --nodes FILE or --gpus N")
    if "node_list" in jobs.columns:
        named = _by_name(jobs, ran, start, end)
        if named is not None:
            return named
    return _uniform(gpus, nodes, ran, start, end)


def _uniform(gpus: Ints, nodes: Ints, ran: npt.NDArray[np.bool_], start: Floats, end: Floats) -> NodeSet:
    told = ran & (nodes > 0)
    if told.any():
        ratio = int(np.ceil(gpus[told] / nodes[told]).max())
        how = "the most GPUs per node that a job had"
    else:
        ratio = int(min(gpus[ran].max(), 8))
        how = "a guess, no job names its nodes"
    size = _usual(ratio)
    peak = int(_peak(np.zeros(int(ran.sum()), np.int64), start[ran], end[ran], gpus[ran].astype(float))[0])
    widest = int(max(nodes[ran].max(), -(-int(gpus[ran].max()) // size)))
    count = max(-(-peak // size), widest)
    if count > 100_000:
        raise InputError(f"the history would need {count} nodes, which cannot be; {_GIVE}")
    names = [f"n{i + 1}" for i in range(count)]
    sizes = [size] * count
    notes = [
        f"the cluster is inferred: {peak} GPUs were in use at once at the peak; {size} per node ({how}); "
        f"GPUs that stood idle throughout are not seen; {_GIVE}",
        "which partition has which nodes cannot be told from the history: every partition has all nodes",
        _UNLIMITED,
    ]
    without = int(nodes[gpus == 0].max(initial=0)) - count
    if without > 0:
        names += [f"cpu{i + 1}" for i in range(min(without, 100_000 - count))]
        sizes += [0] * (len(names) - count)
        notes.append(f"{len(names) - count} nodes without GPUs added for the widest CPU job")
    source = f"inferred from the history: {count} node{'s' * (count != 1)} of {size} GPUs"
    return make(names, sizes, source=source, inferred=True, notes=notes)


def _by_name(jobs: pd.DataFrame, ran: npt.NDArray[np.bool_], start: Floats, end: Floats) -> NodeSet | None:
    """One node for each name in `node_list`; None where too few jobs have names that can be read."""
    codes, lists = pd.factorize(jobs["node_list"].fillna("").astype(str), sort=False)
    names: dict[str, int] = {}
    members: list[list[int]] = []
    for text in lists:
        try:
            hosts = [] if not text or text == "None assigned" else expand(text)
        except ValueError:
            hosts = []
        members.append([names.setdefault(host, len(names)) for host in hosts])
    width = np.array([len(m) for m in members], dtype=np.int64)[codes]
    known = ran & (width > 0)
    if known.sum() < NAMED_SHARE * ran.sum() or len(names) > 100_000:
        return None
    used = (width > 0) & np.isfinite(start) & np.isfinite(end) & (end >= start)
    rows = np.repeat(np.flatnonzero(used), width[used])
    node = np.concatenate([np.asarray(members[c], dtype=np.int64) for c in codes[used]])
    share = jobs["gpus"].to_numpy(np.float64)[rows] / width[rows]
    peaks = _peak(node, start[rows], end[rows], share, len(names))
    sizes = [0 if p < 1e-6 else _usual(int(np.ceil(p - 1e-6))) for p in peaks]
    partitions: list[set[str]] = [set() for _ in names]
    seen = pd.DataFrame({"node": node, "partition": jobs["partition"].to_numpy()[rows]}).drop_duplicates()
    for at, partition in zip(seen["node"], seen["partition"], strict=True):
        partitions[at].update(p for p in str(partition).split(",") if p)
    gpu_nodes = sum(size > 0 for size in sizes)
    return make(
        list(names),
        sizes,
        partitions=[frozenset(p) for p in partitions],
        source=f"inferred from the node names of the history: {gpu_nodes} nodes with GPUs",
        inferred=True,
        notes=[
            f"the cluster is inferred: {len(names)} node names; GPUs of each are the most in use there at "
            f"once, rounded up to {', '.join(map(str, USUAL_SIZES))}; nodes that never ran a job are not "
            f"seen; {_GIVE}",
            "a node is taken to be in the partitions whose jobs it ran",
            _UNLIMITED,
        ],
    )


def _usual(gpus: int) -> int:
    return next((size for size in USUAL_SIZES if size >= gpus), gpus)


def _peak(group: Ints, start: Floats, end: Floats, amount: Floats, groups: int = 1) -> Floats:
    """The largest sum of `amount` at any instant, by group. An end comes before a start at the same time."""
    times = np.concatenate([end, start])
    change = np.concatenate([-amount, amount])
    of = np.concatenate([group, group])
    is_start = np.concatenate([np.zeros(len(end), np.int8), np.ones(len(start), np.int8)])
    order = np.lexsort((is_start, times, of))
    running = np.cumsum(change[order])  # every group sums to nothing, so the next one starts from zero
    peaks: npt.NDArray[Any] = np.zeros(groups, dtype=np.float64)
    np.maximum.at(peaks, of[order], running)
    return peaks
