"""Who holds what on which node, and what the waiting jobs ask for, as far as it is certain. Pure.

Whatever is not understood counts against a requeue: a node that may not take a job takes none, a share that
is not known frees nothing, a job that might not start on nodes that fit it has nobody requeued for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, Ints, JobTable, Occupancy
from tias_slurm.levers import HELD
from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.live import Partition, RawNodes, RawRequests, RawTable, Reservation, Share
from tias_slurm.slurm.requests import UnsureError, Wish, read_request

# states in which a node takes jobs, and flags that do not matter for that. What a job held is free as soon
# as it is COMPLETING, and goes to nobody before the node is clean: whoever waits for it needs no other
_TAKES: Final = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS: Final = frozenset({"CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED"})
# a node in one of these states has no GPUs to give, now or soon
_AWAY: Final = frozenset({
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG",
    "MAINT", "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN",
})  # fmt: skip
_NONE: Final = np.zeros(0, dtype=np.int64)
NO_NODES: Final = RawNodes(
    [], [], _NONE, _NONE, _NONE, _NONE, np.zeros(0), np.zeros(0), [], [], [], [], _NONE
)
_WAITS_FOR_NODES: Final = frozenset({"Resources", "Priority"})


@dataclass
class Placed:
    """The nodes as a planner takes them, and why jobs that wait for nodes have nobody requeued for them."""

    occupancy: Occupancy
    unsure: Counter[str] = field(default_factory=Counter)
    why: dict[int, str] = field(default_factory=dict)  # the same by row
    # (n,) of the jobs whose nodes are in doubt, those whose nodes are there; None: none was looked at
    there: Bools | None = None


def usable(state: str) -> bool:
    """Whether a node in this state takes jobs: base state and flags, joined by +."""
    base, *flags = state.split("+")
    return base in _TAKES and _HARMLESS.issuperset(flags)


def of_nodes(nodes: RawNodes, jobs: int) -> Occupancy:
    """The nodes alone, with nobody on them."""
    zero = np.zeros(jobs, dtype=np.int64)
    away = np.array([not _AWAY.isdisjoint(s.split("+")) for s in nodes.state], dtype=np.bool_)
    takes = np.array([usable(s) for s in nodes.state], dtype=np.bool_)
    return Occupancy(
        free_gpus=np.where(takes, np.maximum(nodes.gpus - nodes.gpus_used, 0), 0),
        free_cpus=np.where(takes, np.maximum(nodes.cpus - nodes.cpus_used, 0), 0),
        free_mem_mb=np.where(takes, np.maximum(nodes.mem_mb - nodes.mem_used_mb, 0), 0).astype(np.int64),
        total_gpus=np.where(away, 0, nodes.gpus),
        member=np.zeros((1, len(nodes.name)), dtype=np.bool_),
        partition=zero,
        nodes=zero,
        node_gpus=zero,
        node_cpus=zero,
        node_mem_mb=zero,
        first=zero,
        count=zero,
        held=np.zeros(0, dtype=np.int64),
        certain=np.zeros(jobs, dtype=np.bool_),
    )


def occupancy(
    raw: RawTable,
    rows: Ints,
    jobs: JobTable,
    nodes: RawNodes,
    requests: RawRequests,
    shares: dict[int, Share],
    reservations: list[Reservation],
    partitions: Mapping[str, Partition] | None = None,
    doubtful: Bools | None = None,
) -> Placed:
    """All of it. `rows`: row in the raw table of each of the `jobs`.

    `requests`, `shares`, `partitions`: see live.Adapter. What is free is what the nodes say is not in use, by
    whomever. `doubtful`, (n,): jobs whose nodes Slurm says are down, or kept for others; None: none.
    """
    n = len(jobs)
    there = {name: v for v, name in enumerate(nodes.name)}
    count, first = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    held: list[int] = []
    amounts = np.zeros((4, n), dtype=np.int64)  # nodes, and GPUs, CPUs, MB on each
    in_use = np.zeros(len(nodes.name), dtype=np.int64)
    for i in np.flatnonzero(jobs.state != PENDING).tolist():
        r = int(rows[i])
        on = _numbers(raw.node_list[r], there)
        share = None if on is None else _share(raw, r, on, nodes, shares.get(int(raw.job_id[r])))
        if on is None or share is None:
            continue
        first[i], count[i] = len(held), len(on)
        held += on
        amounts[:, i] = len(on), share.gpus, share.cpus, int(share.mem_mb)
        in_use[on] += share.gpus
    # more in use than the node says: it was looked at later, and something has ended since
    steady = in_use <= nodes.gpus_used
    classes = _Classes(raw, nodes, reservations, steady, there)
    doubt = np.zeros(n, dtype=np.bool_) if doubtful is None else doubtful
    mine = jobs.can_start | doubt
    kept = _kept_for_higher(raw, rows[mine], classes, partitions or {}) if doubt.any() else {}
    found = np.zeros(n, dtype=np.bool_)
    partition = np.zeros(n, dtype=np.int64)
    certain = np.zeros(n, dtype=np.bool_)
    unsure: Counter[str] = Counter()
    whys: dict[int, str] = {}
    # what we hold may be let go in this very cycle, and takes its room then
    held_now = jobs.lever == HELD
    for i in np.flatnonzero((jobs.state == PENDING) & (mine | held_now)).tolist():
        r = int(rows[i])
        why = ""
        try:
            if raw.reason[r] not in _WAITS_FOR_NODES and not doubt[i]:
                raise UnsureError("Slurm has not looked at it yet")
            wish = read_request(raw, r, requests)
            partition[i], asked = classes.of(raw, r, wish)
        except UnsureError as unclear:
            why = str(unclear)
            partition[i], asked = classes.of_any(raw, r)
        amounts[:, i] = asked
        certain[i] = not why
        if doubt[i]:
            tier = _tier(raw.partition[r], partitions or {})
            found[i] = certain[i] = not why and classes.exist(int(partition[i]), asked, kept.get(tier))
            why = why if found[i] else ""
        if why and not held_now[i]:
            unsure[why] += 1
            whys[i] = why
    return Placed(
        replace(
            of_nodes(nodes, n),
            member=classes.members(),
            partition=partition,
            nodes=amounts[0],
            node_gpus=amounts[1],
            node_cpus=amounts[2],
            node_mem_mb=amounts[3],
            first=first,
            count=count,
            held=np.array(held, dtype=np.int64),
            certain=certain,
        ),
        unsure,
        whys,
        None if doubtful is None else found,
    )


def _tier(partition: str, partitions: Mapping[str, Partition]) -> int:
    return max((partitions[p].tier for p in partition.split(",") if p in partitions), default=1)


def _kept_for_higher(
    raw: RawTable, waits: Ints, classes: _Classes, partitions: Mapping[str, Partition]
) -> dict[int, Bools]:
    """By PriorityTier, the nodes on which jobs of higher ones wait: those go first. Shapes (N,)."""
    names = {p for r in waits.tolist() for p in raw.partition[r].split(",") if p in partitions}
    tiers = {partitions[p].tier for p in names}
    return {
        tier: np.logical_or.reduce([classes.nodes_of(p) for p in names if partitions[p].tier > tier])
        for tier in tiers
        if tier < max(tiers)
    }


@lru_cache(maxsize=16384)
def _names(hostlist: str) -> tuple[str, ...]:
    try:
        return tuple(expand(hostlist)) if hostlist else ()
    except ValueError:
        return ()


def _numbers(hostlist: str, there: dict[str, int]) -> list[int] | None:
    """The nodes of a list by number; None if not all of them are known."""
    names = _names(hostlist)
    if not names or any(name not in there for name in names):
        return None
    return [there[name] for name in names]


def _share(raw: RawTable, r: int, on: list[int], nodes: RawNodes, said: Share | None) -> Share | None:
    """What a running job holds on each of its nodes at the least; None if that cannot be told."""
    if raw.nodes[r] != len(on) or raw.gpus[r] > nodes.gpus[on].sum():
        return None
    gpus, cpus, mem = int(raw.gpus[r]), int(raw.cpus[r]), float(raw.mem_mb[r])
    if len(on) == 1:
        return Share(raw.node_list[r], gpus, gpus, cpus, mem)
    if said is not None and said.nodes == raw.node_list[r] and said.all_gpus == gpus:
        return said

    # what is left of it when it has all that there is on the others
    def least(total: float, size: Ints | Floats, floor: int) -> float:
        return max(floor, total - (float(size[on].sum()) - float(size[on].min())))

    return Share(
        raw.node_list[r],
        gpus,
        int(least(gpus, nodes.gpus, 0)),
        int(least(cpus, nodes.cpus, 1)),
        least(mem, nodes.mem_mb, 0),
    )


class _Classes:
    """Which nodes jobs may get: one row of nodes for all jobs that may get the same ones."""

    def __init__(
        self,
        raw: RawTable,
        nodes: RawNodes,
        reservations: list[Reservation],
        steady: Bools,
        there: dict[str, int],
    ) -> None:
        self._nodes, self._there, self._now = nodes, there, raw.time
        takes = np.array([usable(s) for s in nodes.state], dtype=np.bool_)
        # a GPU of which a shard is in use is taken, and no count says so
        whole = np.array([not o for o in nodes.other_gres], dtype=np.bool_)
        self._usable = takes & steady & whole
        self._partition = {
            p: np.array([p in listed for listed in nodes.partitions], dtype=np.bool_)
            for p in set().union(*nodes.partitions)
        }
        self._reserved = [(x.start, x.end, self._mask(x.nodes)) for x in reservations]
        # without memory in use anywhere Slurm does not allocate it here
        self._counts_memory = bool((nodes.mem_used_mb > 0).any())
        self._rows: list[Bools] = []
        self._known: dict[bytes, int] = {}
        self._made: dict[object, tuple[int, tuple[int, int, int, int]] | str] = {}

    def nodes_of(self, partition: str) -> Bools:
        """All nodes of a partition. Shape (N,)."""
        return self._partition.get(partition, np.zeros(len(self._nodes.name), dtype=np.bool_))

    def exist(self, row: int, asked: tuple[int, int, int, int], kept: Bools | None) -> bool:
        """Whether nodes for this are up, whoever holds them; none of those that are `kept` for others."""
        count, gpus, cpus, mem = asked
        n = self._nodes
        fit = self._rows[row] & (n.gpus >= gpus) & (n.cpus >= cpus) & (n.mem_mb >= mem)
        return int((fit if kept is None else fit & ~kept).sum()) >= max(1, count)

    def members(self) -> Bools:
        """The rows, (P, N)."""
        if not self._rows:
            return np.zeros((1, len(self._nodes.name)), dtype=np.bool_)
        return np.array(self._rows, dtype=np.bool_)

    def of(self, raw: RawTable, r: int, wish: Wish) -> tuple[int, tuple[int, int, int, int]]:
        """The row, and nodes, GPUs, CPUs and MB on each, of a waiting job. Raises UnsureError."""
        # it must end before a reservation begins
        limit = float(raw.time_limit_s[r])
        until = math.inf if math.isnan(limit) else self._now + limit
        blocked = tuple(start < until and end > self._now for start, end, _ in self._reserved)
        key = (raw.partition[r], wish, blocked)
        if key not in self._made:
            try:
                self._made[key] = self._find(raw.partition[r], wish, blocked)
            except UnsureError as unclear:
                self._made[key] = str(unclear)
        made = self._made[key]
        if isinstance(made, str):
            raise UnsureError(made)
        return made

    def of_any(self, raw: RawTable, r: int) -> tuple[int, tuple[int, int, int, int]]:
        """The same, near enough to tell what it might take: its constraints are not seen."""
        count = max(1, int(raw.nodes[r]))
        size = int(self._nodes.gpus.max(initial=1)) or 1
        count = max(count, -(-int(raw.gpus[r]) // size))
        each = (-(-int(raw.gpus[r]) // count), -(-int(raw.cpus[r]) // count), 0)
        return self._row(self._in(raw.partition[r])), (count, *each)

    def _find(
        self, partition: str, wish: Wish, blocked: tuple[bool, ...]
    ) -> tuple[int, tuple[int, int, int, int]]:
        nodes = self._nodes
        mask = self._in(partition)
        for (_, _, where), hit in zip(self._reserved, blocked, strict=True):
            if hit:
                mask &= ~where
        if wish.features:
            mask &= np.array([wish.features <= f for f in nodes.features], dtype=np.bool_)
        if wish.gpu_type:
            # of a node with several types nobody says how many of each are in use
            mask &= np.array([t == wish.gpu_type for t in nodes.gpu_types], dtype=np.bool_)
        if wish.excluded:
            mask &= ~self._mask(wish.excluded)
        if wish.required:
            asked = self._mask(wish.required)
            if not asked.any() or int(asked.sum()) < wish.min_nodes:
                raise UnsureError("asks for nodes by name, and for others")
            mask = mask & asked if (mask & asked).sum() == asked.sum() else np.zeros_like(mask)
        if wish.exclusive and mask.any():
            mask = self._alike(mask)
        if not mask.any():
            return self._row(mask), (max(1, wish.min_nodes), max(1, wish.total_gpus), 1, 0)
        count, gpus, cpus = wish.on_nodes(int(nodes.gpus[mask].max()), int(nodes.cpus[mask].max()))
        if wish.required and count > int(mask.sum()):
            raise UnsureError("asks for nodes by name, and for others")
        if wish.required:
            count = max(count, int(mask.sum()))
        threads = int(nodes.threads[mask].max(initial=1)) or 1
        if threads > 1 and wish.one_thread:
            raise UnsureError("asks for single threads of cores")
        cpus = -(-cpus // threads) * threads
        mem = wish.memory(gpus, cpus, float(nodes.mem_mb[mask].max())) if self._counts_memory else 0
        if wish.exclusive:
            at = int(np.argmax(mask))
            gpus, cpus = int(nodes.gpus[at]), int(nodes.cpus[at])
        return self._row(mask), (count, gpus, cpus, math.ceil(mem))

    def _alike(self, mask: Bools) -> Bools:
        """Of these nodes the largest group with the same GPUs and CPUs: a job that takes them whole."""
        sizes = list(zip(self._nodes.gpus.tolist(), self._nodes.cpus.tolist(), strict=True))
        usual, _ = Counter(s for s, m in zip(sizes, mask.tolist(), strict=True) if m).most_common(1)[0]
        return mask & np.array([s == usual for s in sizes], dtype=np.bool_)

    def _in(self, partition: str) -> Bools:
        """The usable nodes of a partition; of several, of the one with the most."""
        none = np.zeros(len(self._nodes.name), dtype=np.bool_)
        found = [self._partition.get(p, none) & self._usable for p in partition.split(",")]
        return max(found, key=lambda m: int(m.sum())).copy()

    def _mask(self, hostlist: str) -> Bools:
        mask = np.zeros(len(self._nodes.name), dtype=np.bool_)
        mask[[self._there[name] for name in _names(hostlist) if name in self._there]] = True
        return mask

    def _row(self, mask: Bools) -> int:
        key = mask.tobytes()
        if key not in self._known:
            self._known[key] = len(self._rows)
            self._rows.append(mask)
        return self._known[key]
