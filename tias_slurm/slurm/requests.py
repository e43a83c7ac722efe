"""What a waiting job asks of nodes, out of what squeue(1) says of it: enough to be sure, or not sure. Pure.

The request that is made here may be more than Slurm needs, never less: a job starts where it fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tias_slurm.slurm.live import RawRequests, RawTable
from tias_slurm.slurm.values import parse_tres

# squeue(1) "--Format"; each of them is a text without what users write freely
REQUEST_FIELDS: Final = (
    "JobID", "NumNodes", "NumTasks", "NumCPUs", "cpus-per-task", "MinCPUs", "NTPerNode",
    "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "cpus-per-tres", "mem-per-tres",
    "MinMemory", "tres-alloc", "ReqNodes", "ExcNodes", "Feature", "OverSubscribe", "Exclusive", "Contiguous",
    "SCT", "NTPerCore", "NTPerSocket", "NTPerBoard", "CoreSpec", "MinTmpDisk", "ReqSwitch", "Licenses",
    "Reservation", "BurstBuffer", "Network",
)  # fmt: skip
_NOTHING: Final = frozenset({"", "N/A", "(null)", "None", "none", "*", "0", "*:*:*"})
_SHARES: Final = frozenset({"OK", "YES", "NO", "NODE", "0"})
_FEATURE: Final = re.compile(r"[\w.:-]+", re.ASCII)


class UnsureError(Exception):
    """Whether a waiting job would start on nodes that fit it cannot be told. The reason, in a few words."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for nodes; 0 and "": not asked for."""

    min_nodes: int
    total_gpus: int
    tasks: int
    cpus: int  # of the whole job
    cpus_per_task: int
    min_cpus: int  # on each node
    tasks_per_node: int
    gpus_per_node: int
    gpus_per_task: int
    cpus_per_gpu: int
    mem_mb: float  # for what `mem_per` says; 0: all of a node
    mem_per: str  # "node", "cpu", "gpu", or "?" for node or CPU
    gpu_type: str
    required: str
    excluded: str
    features: frozenset[str]
    exclusive: bool
    one_thread: bool  # may use one thread of each core only

    def on_nodes(self, most_gpus: int, most_cpus: int) -> tuple[int, int, int]:
        """Nodes, and GPUs and CPUs on each, that are enough, with nodes of at most so many."""
        count = max(1, self.min_nodes)
        if self.gpus_per_node:
            gpus = self.gpus_per_node
            count = max(count, -(-self.total_gpus // gpus))
        elif self.gpus_per_task:
            fit = most_gpus // self.gpus_per_task
            if fit < 1:
                return count, self.gpus_per_task, 1
            count = max(count, -(-self.tasks // fit))
            gpus = -(-self.tasks // count) * self.gpus_per_task
        else:
            count = max(count, -(-self.total_gpus // max(1, most_gpus)))
            gpus = -(-self.total_gpus // count)
        tasks = max(-(-self.tasks // count), self.tasks_per_node)
        cpus = max(
            tasks * max(1, self.cpus_per_task),
            -(-self.cpus // count),
            self.min_cpus,
            self.cpus_per_gpu * gpus,
        )
        return count, gpus, cpus

    def memory(self, gpus: int, cpus: int, most: float) -> float:
        """MB on each node that are enough; `most`: of the largest node."""
        if self.mem_per == "gpu":
            return self.mem_mb * gpus
        if self.mem_mb == 0:
            return most
        return self.mem_mb * (1 if self.mem_per == "node" else max(1, cpus))


def read_request(raw: RawTable, row: int, requests: RawRequests) -> Wish:
    """What the waiting job of that row asks for. Raises UnsureError."""
    if raw.het_id[row]:
        raise UnsureError("het job")
    said = requests.get(int(raw.job_id[row]))
    if said is None:
        raise UnsureError("its request was not seen")
    return _read(said, int(raw.gpus[row]))


@lru_cache(maxsize=16384)
def _parsed(said: tuple[str, ...], gpus: int) -> Wish | str:
    try:
        return _wish(dict(zip(REQUEST_FIELDS[1:], said, strict=True)), gpus)
    except UnsureError as unclear:
        return str(unclear)


def _read(said: tuple[str, ...], gpus: int) -> Wish:
    made = _parsed(said, gpus)
    if isinstance(made, str):
        raise UnsureError(made)
    return made


def _wish(said: Mapping[str, str], total: int) -> Wish:
    for name, why in (
        ("Licenses", "asks for licences"),
        ("Reservation", "asks for a reservation"),
        ("BurstBuffer", "asks for a burst buffer"),
        ("Network", "asks for a network"),
        ("ReqSwitch", "asks for switches"),
        ("CoreSpec", "asks for specialised cores"),
        ("MinTmpDisk", "asks for temporary disk"),
        ("tres-per-socket", "asks for GPUs by socket"),
        ("NTPerSocket", "asks for tasks by socket"),
        ("NTPerBoard", "asks for tasks by board"),
    ):
        if said[name] not in _NOTHING:
            raise UnsureError(why)
    sockets, cores, threads = (said["SCT"].split(":") + ["*"] * 3)[:3]
    if sockets != "*" or cores != "*":
        raise UnsureError("asks for sockets or cores")
    kinds, per = set(), {}
    for name in ("tres-per-job", "tres-per-node", "tres-per-task"):
        per[name], kind = _gpus(said[name])
        kinds |= {kind} - {""}
    if len(kinds) > 1:
        raise UnsureError("asks for GPUs of several types")
    least = _count(said["NumNodes"])
    if said["Contiguous"] not in _NOTHING and max(least, total) > 1:
        raise UnsureError("asks for nodes side by side")
    if (said["OverSubscribe"] if said["Exclusive"] == "N/A" else said["Exclusive"]) not in _SHARES:
        raise UnsureError("shares nodes with its user's jobs only")
    exclusive = whole_nodes(said["OverSubscribe"], said["Exclusive"])
    memory, mem_per = _memory(said)
    if said["ExcNodes"] == "?":
        raise UnsureError("which nodes it excludes is not shown")
    return Wish(
        min_nodes=least,
        total_gpus=total,
        tasks=_count(said["NumTasks"]),
        cpus=_count(said["NumCPUs"]),
        cpus_per_task=_count(said["cpus-per-task"]),
        min_cpus=_count(said["MinCPUs"]),
        tasks_per_node=_count(said["NTPerNode"]),
        gpus_per_node=per["tres-per-node"],
        gpus_per_task=per["tres-per-task"],
        cpus_per_gpu=_gpus(said["cpus-per-tres"])[0],
        mem_mb=memory,
        mem_per=mem_per,
        gpu_type=next(iter(kinds), ""),
        required=_text(said["ReqNodes"]),
        excluded=_text(said["ExcNodes"]),
        features=features_of(_text(said["Feature"])),
        exclusive=exclusive,
        one_thread=threads != "*" or said["NTPerCore"] not in _NOTHING,
    )


def whole_nodes(oversubscribe: str, exclusive: str) -> bool:
    """Whether a job gets whole nodes, by what squeue says of it.

    Releases before 25.05, where `exclusive` is "N/A", say so by OverSubscribe; then that word changed.
    """
    return oversubscribe == "NO" if exclusive == "N/A" else exclusive == "NODE"


def features_of(text: str) -> frozenset[str]:
    """The features that all nodes of a job must have: `a&b`. Raises UnsureError for other expressions."""
    if not text:
        return frozenset()
    parts = text.split("&")
    if not all(_FEATURE.fullmatch(part) for part in parts):
        raise UnsureError("asks for features in a way that is not understood")
    return frozenset(parts)


def _gpus(text: str) -> tuple[int, str]:
    """GPUs and their type of `gres/gpu:a100:2`, `gres:gpu:2`, `cpu=2,gres/gpu=1`. Raises UnsureError."""
    total, kind = 0, ""
    for item in _text(text).split(","):
        if not item or item.startswith(("cpu=", "cpu:", "mem=", "mem:")):
            continue
        name, *rest = re.split(r"[:=]", re.sub(r"^gres[/:]", "", item))
        if name != "gpu":
            raise UnsureError("asks for generic resources other than GPUs")
        number = rest.pop() if rest and rest[-1].isdecimal() else "1"
        if total and rest != ([kind] if kind else []):
            raise UnsureError("asks for GPUs of several types")
        total, kind = total + int(number), ":".join(rest)
    return total, kind


def _memory(said: Mapping[str, str]) -> tuple[float, str]:
    """MB and what for. squeue shows one number for --mem and --mem-per-cpu; the sum tells them apart."""
    if said["mem-per-tres"] not in _NOTHING:
        return float(_gpus(said["mem-per-tres"])[0]), "gpu"
    match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([KMGT]?)", said["MinMemory"], re.ASCII)
    if match is None:
        raise UnsureError("asks for memory in a way that is not understood")
    each = float(match[1]) * {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[match[2]]
    if each == 0:
        return 0.0, "node"
    try:
        tres = parse_tres(said["tres-alloc"])
    except ValueError:
        return each, "?"
    nodes = _count(said["NumNodes"])
    known = [x for x in (tres.nodes, float(nodes)) if x > 0]
    alone = math.isclose(tres.mem_mb, each * tres.cpus, rel_tol=0.01) if tres.cpus > 0 else False
    if not alone and any(math.isclose(tres.mem_mb, each * x, rel_tol=0.01) for x in known):
        return each, "node"
    return each, "cpu" if alone else "?"


def _count(text: str) -> int:
    """A count; of a range (`2-4`) the least, 0 where there is none."""
    text = text.partition("-")[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _text(text: str) -> str:
    return "" if text in ("N/A", "(null)", "None") else text
