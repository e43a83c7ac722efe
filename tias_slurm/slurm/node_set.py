"""What the cluster is made of, as far as placing jobs needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.gpu_weights import by_type, kinds
from tias_slurm.jobs import Bools, Floats, Ints

# A node whose CPUs or memory are not known limits nobody by them.
UNKNOWN_CPUS: Final = 1_000_000_000
UNKNOWN_MEM_MB: Final = 1e15
MAX_GPUS: Final = 10_000_000  # of a node or a cluster; more is a typing error


@dataclass(frozen=True, eq=False)
class NodeSet:
    """The nodes that jobs may run on. One entry a node in every field of shape (n,)."""

    names: tuple[str, ...]
    gpus: Ints  # (n,) whole GPUs of all types; 0: a node for CPU jobs
    cpus: Ints  # (n,) UNKNOWN_CPUS where unknown
    mem_mb: Floats  # (n,) UNKNOWN_MEM_MB where unknown
    partitions: tuple[frozenset[str], ...]  # (n,) empty: in every partition
    gpu_types: tuple[str, ...]  # (n,) see gpu_weights.kinds; '' untyped or unknown
    shards: Ints  # (n,) pieces that its GPUs may be had in; 0: none, or not known
    source: str  # one phrase for people: how this is known
    inferred: bool = False
    notes: tuple[str, ...] = ()  # what was assumed or left out, for people
    left_out: NodeSet | None = None  # nodes of the file that took no jobs when it was written

    def __len__(self) -> int:
        return len(self.names)

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return int(self.gpus.sum())

    def take(self, rows: Bools) -> Self:
        """The nodes of the given mask, shape (n,)."""
        which = np.flatnonzero(rows).tolist()
        return replace(
            self,
            names=tuple(self.names[i] for i in which),
            gpus=self.gpus[rows],
            cpus=self.cpus[rows],
            mem_mb=self.mem_mb[rows],
            partitions=tuple(self.partitions[i] for i in which),
            gpu_types=tuple(self.gpu_types[i] for i in which),
            shards=self.shards[rows],
        )

    def join(self, more: NodeSet) -> Self:
        """These nodes and after them the others."""
        return replace(
            self,
            names=self.names + more.names,
            gpus=np.concatenate([self.gpus, more.gpus]),
            cpus=np.concatenate([self.cpus, more.cpus]),
            mem_mb=np.concatenate([self.mem_mb, more.mem_mb]),
            partitions=self.partitions + more.partitions,
            gpu_types=self.gpu_types + more.gpu_types,
            shards=np.concatenate([self.shards, more.shards]),
        )


def some(names: Sequence[str]) -> str:
    """Names for people: how many, and the first of them."""
    shown = ", ".join(printable(n, 40) for n in names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} node{'s' * (len(names) != 1)} ({shown})"


def left_out_note(names: Sequence[str]) -> str:
    """Which nodes of a file are not part of the cluster."""
    return f"{some(names)} down or drained when the file was written, left out"


def make(
    names: Sequence[str],
    gpus: Sequence[int],
    *,
    cpus: Sequence[int] | None = None,
    mem_mb: Sequence[float] | None = None,
    partitions: Sequence[frozenset[str]] | None = None,
    gpu_types: Sequence[str] | None = None,
    shards: Sequence[int] | None = None,
    source: str,
    inferred: bool = False,
    notes: Sequence[str] = (),
) -> NodeSet:
    """A NodeSet from plain lists. CPUs and memory of 0 (or None for all) mean unknown."""
    n = len(names)
    cpu = np.asarray(cpus if cpus is not None else [0] * n, dtype=np.int64)
    mem = np.asarray(mem_mb if mem_mb is not None else [0.0] * n, dtype=np.float64)
    return NodeSet(
        names=tuple(names),
        gpus=np.asarray(gpus, dtype=np.int64),
        cpus=np.where(cpu > 0, cpu, UNKNOWN_CPUS),
        mem_mb=np.where(mem > 0, mem, UNKNOWN_MEM_MB),
        partitions=tuple(partitions) if partitions is not None else (frozenset(),) * n,
        gpu_types=tuple(gpu_types) if gpu_types is not None else ("",) * n,
        shards=np.asarray(shards if shards is not None else [0] * n, dtype=np.int64),
        source=source,
        inferred=inferred,
        notes=tuple(notes),
    )


def pool(gpus: int, of: NodeSet | None = None) -> NodeSet:
    """All GPUs as one pool: one node of `gpus` GPUs. `of`: the nodes that they are of."""
    _positive(gpus, "--gpus")
    shards = 0 if of is None else int(of.shards.sum())
    types = "" if of is None else kinds(_by_type(of), gpus)
    return make(["pool"], [gpus], gpu_types=[types], shards=[shards], source=f"one pool of {gpu_count(gpus)}")


def _by_type(nodes: NodeSet) -> dict[str, float]:
    found: Counter[str] = Counter()
    for gpus, kind in zip(nodes.gpus.tolist(), nodes.gpu_types, strict=True):
        found.update(by_type(gpus, kind))
    return dict(found)


def uniform(gpus: int, per_node: int) -> NodeSet:
    """`gpus` GPUs on nodes of `per_node`; a rest makes a smaller last node."""
    _positive(gpus, "--gpus")
    _positive(per_node, "GPUs per node")
    full, rest = divmod(gpus, per_node)
    sizes = [per_node] * full + [rest] * (rest > 0)
    if len(sizes) > 100_000:
        raise InputError(f"{len(sizes)} nodes are more than any cluster has; check the numbers of GPUs")
    parts = [f"{full} node{'s' * (full != 1)} of {gpu_count(per_node)}"] * (full > 0)
    parts += [f"1 node of {gpu_count(rest)}"] * (rest > 0)
    return make([f"n{i + 1}" for i in range(len(sizes))], sizes, source=" and ".join(parts))


def gpu_count(number: int) -> str:
    """'1 GPU', '2 GPUs'."""
    return f"{number} GPU{'s' * (number != 1)}"


def _positive(value: int, what: str) -> None:
    if not 1 <= value <= MAX_GPUS:
        raise InputError(f"{what}: {value} is no number of GPUs; write one from 1 to {MAX_GPUS}")
