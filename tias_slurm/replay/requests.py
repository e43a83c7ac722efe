"""What the jobs of a workload ask for on these nodes, as the model of Slurm takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tias_slurm.gpu_weights import shards_of_gpu, weigh
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.placement import find_nodes
from tias_slurm.replay.workload import shards_alone, weigh_jobs
from tias_slurm.slurm.nodes import NodeSet


@dataclass(frozen=True)
class Requests:
    """The jobs of a workload as the model sees them, in order of arrival; shared by all policies of a run."""

    row: Ints  # row in Workload.jobs of each job number
    number: Ints  # job number of each row
    first_submit: Floats
    eligible: Floats
    work: Floats
    leaves: Floats
    deadline: Floats
    completed: Bools  # whether it ended well; such jobs are learned from
    gpus: Ints
    partition: Ints
    nodes: Ints
    node_gpus: Ints
    node_cpus: Ints
    node_mem: Ints
    node_shards: Ints
    shape: Ints
    first: Ints
    room: int
    user: Ints
    account: Ints
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    time_limit: Floats
    weight: Floats  # what all of the job's GPUs or shards count for; 0: no GPU job
    weighted: Floats  # (N,) the same of the GPUs of each node
    tie: Ints
    fits: Bools
    member: Bools
    total_gpus: Ints
    total_cpus: Ints
    total_mem: Ints
    total_shards: Ints
    shards_of_gpu: Ints  # 0: the node's GPUs are not cut
    pieces: Bools  # (N,) nodes of which it is known that their GPUs may be had in pieces


def requests(jobs: pd.DataFrame, nodes: NodeSet, weights: Mapping[str, float] | None = None) -> Requests:
    """Number the jobs by arrival and resolve what each asks for on these nodes."""
    n = len(jobs)
    weights = weights or {}
    submit = jobs["first_submit"].to_numpy(np.float64)
    eligible = np.fmax(jobs["eligible"].to_numpy(np.float64), submit)
    row = np.argsort(eligible, kind="stable")
    number = np.empty(n, dtype=np.int64)
    number[row] = np.arange(n)
    tie = np.empty(n, dtype=np.int64)
    tie[np.argsort(submit, kind="stable")] = np.arange(n)
    never_ran = jobs["runs"].to_numpy() == 0
    gpus = jobs["gpus"].to_numpy(np.int64)
    shards = shards_alone(jobs, weights)
    total_shards, of_gpu = shards_of_nodes(nodes, weights)
    names, part_names = pd.factorize(jobs["partition"])
    member = np.array([_members(str(p), nodes) for p in part_names], dtype=np.bool_)
    member = member.reshape(-1, len(nodes.gpus))
    asked = np.column_stack(
        [
            names,
            jobs["nodes"].to_numpy(np.int64),
            gpus,
            jobs["cpus"].to_numpy(np.int64),
            np.ceil(jobs["mem_mb"].to_numpy(np.float64)).astype(np.int64),
            shards,
        ]
    )
    shapes, shape = np.unique(asked, axis=0, return_inverse=True)
    shape = shape.reshape(-1)
    resolved = np.array(
        [_resolve(s, member[s[0]], nodes, total_shards) for s in shapes], dtype=np.int64
    ).reshape(-1, 7)
    count, node_gpus, node_cpus, node_mem, node_shards, room, fits = resolved[shape].T
    first = np.concatenate([[0], np.cumsum(room[row])])
    user, users = pd.factorize(jobs["user"])
    named = jobs.get("account", jobs["user"])
    # without accounts a user stands for one
    account, accounts = pd.factorize(named.where(named != "", jobs["user"]))
    # without a column of states all jobs are taken to end well
    completed = np.broadcast_to(np.asarray(jobs.get("state", "COMPLETED") == "COMPLETED"), n)

    def arrived(column: Ints) -> Ints:
        return np.ascontiguousarray(column[row])

    return Requests(
        row=row,
        number=number,
        first_submit=submit[row],
        eligible=eligible[row],
        work=np.where(never_ran, np.nan, jobs["work"].to_numpy(np.float64))[row],
        leaves=np.where(never_ran, jobs["end"].to_numpy(np.float64), np.inf)[row],
        deadline=jobs["deadline"].to_numpy(np.float64)[row],
        completed=completed[row],
        gpus=arrived(gpus),
        partition=arrived(names.astype(np.int64)),
        nodes=arrived(count),
        node_gpus=arrived(node_gpus),
        node_cpus=arrived(node_cpus),
        node_mem=arrived(node_mem),
        node_shards=arrived(node_shards),
        shape=arrived(shape),
        first=first[:-1],
        room=int(first[-1]),
        user=arrived(user.astype(np.int64)),
        account=arrived(account.astype(np.int64)),
        users=tuple(str(u) for u in users),
        accounts=tuple(str(a) for a in accounts),
        time_limit=_time_limits(jobs)[row],
        weight=weigh_jobs(jobs, weights)[row],
        weighted=weigh(nodes.gpus, nodes.gpu_types, weights),
        tie=arrived(tie),
        fits=fits[row] > 0,
        member=member,
        total_gpus=nodes.gpus.astype(np.int64),
        total_cpus=nodes.cpus.astype(np.int64),
        total_mem=nodes.mem_mb.astype(np.int64),
        total_shards=total_shards,
        shards_of_gpu=of_gpu,
        pieces=nodes.shards > 0,
    )


def shards_of_nodes(nodes: NodeSet, weights: Mapping[str, float]) -> tuple[Ints, Ints]:
    """Shards of each node, and of one of its GPUs (0: not cut). Shapes (N,).

    Where no node says that its GPUs are cut, all are, into as many as weigh one GPU.
    """
    gpus = np.maximum(nodes.gpus.astype(np.int64), 1)
    if not shards_of_gpu(weights):
        return np.zeros(len(gpus), dtype=np.int64), np.zeros(len(gpus), dtype=np.int64)
    total = nodes.shards if nodes.shards.any() else nodes.gpus.astype(np.int64) * shards_of_gpu(weights)
    return total, -(-total // gpus)


def _time_limits(jobs: pd.DataFrame) -> Floats:
    """Seconds; inf: none, NaN: not known."""
    if "time_limit" not in jobs:
        return np.full(len(jobs), np.nan)
    return jobs["time_limit"].to_numpy(np.float64)


def _members(partition: str, nodes: NodeSet) -> list[bool]:
    wanted = {p.strip() for p in partition.split(",")}
    return [not partition or not here or bool(wanted & here) for here in nodes.partitions]


def _resolve(
    asked: Ints, member: Bools, nodes: NodeSet, total_shards: Ints
) -> tuple[int, int, int, int, int, int, int]:
    """One request on these nodes.

    A job that names no node count takes one node if its GPUs fit one, else whole nodes. Returns (node count
    or 0 for whole nodes, GPUs, CPUs, memory and shards on each, nodes that it may hold, whether it fits the
    empty cluster).
    """
    _, count, gpus, cpus, mem, shards = (int(x) for x in asked)
    here = nodes.gpus[member]
    largest = int(here.max()) if len(here) else 0
    whole = count == 0 and gpus > largest > 0
    if whole:
        spread = -(-gpus // largest)
        node_gpus, room = 0, min(len(here), -(-gpus // int(here[here > 0].min())))
    else:
        spread = max(count, 1)
        node_gpus, room = -(-gpus // spread), spread
    node_cpus, node_mem, node_shards = -(-cpus // spread), -(-mem // spread), -(-shards // spread)
    if room > len(here) or largest * len(here) < gpus:
        return max(count, 1), node_gpus, node_cpus, node_mem, node_shards, 0, 0
    if node_shards:
        member = member & (total_shards >= node_shards)
    total = nodes.gpus.astype(np.int64)
    cpu_total, mem_total = nodes.cpus.astype(np.int64), nodes.mem_mb.astype(np.int64)
    kind = 0 if whole else spread
    out = np.empty(len(total), dtype=np.int64)
    fits = find_nodes(
        total, cpu_total, mem_total, total, member, kind, gpus, node_gpus, node_cpus, node_mem, out
    )
    return kind, node_gpus, node_cpus, node_mem, node_shards, room, int(fits > 0)
