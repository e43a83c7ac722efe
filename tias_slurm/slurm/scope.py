"""What [scope] lets in, beside what it leaves out on the same nodes. Pure.

Slurm compares the priorities of all jobs that want a node (slurm.conf(5), PriorityTier: within one tier), in
scope or not: a lever moves the jobs in scope among those that stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tias_slurm.levers import PRIORITY_BASE, Lever
from tias_slurm.settings import Scope

_PARTS = ("partitions", "accounts", "users", "qos")
_MOST = 10  # names that are told


@dataclass(frozen=True)
class Split:
    """Jobs in scope and jobs out of scope that compete for the same nodes."""

    kind: str  # "nodes": partitions share them; "jobs": accounts, users, QOS split the jobs of a partition
    what: str
    why: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


def given(scope: Scope) -> dict[str, list[str]]:
    """What the settings name, by key; {}: every job is in scope."""
    keys = (f"{way}_{part}" for part in _PARTS for way in ("only", "not"))
    return {key: list(getattr(scope, key)) for key in keys if getattr(scope, key)}


def words(named: dict[str, list[str]]) -> str:
    """The scope in one line. `named`: see `given`."""
    return "; ".join(f"{key} = {names(v)}" for key, v in named.items()) or "every job"


def names(some: Sequence[str]) -> str:
    """Names as a list, of many the first ones."""
    more = f" and {len(some) - _MOST} more" if len(some) > _MOST else ""
    return ", ".join(some[:_MOST]) + more


def lets_in(scope: Scope, partition: str) -> bool:
    """Whether jobs of a partition, and of no other, may be in scope."""
    only = scope.only_partitions
    return partition not in scope.not_partitions and (not only or partition in only)


def unknown(scope: Scope, partitions: Iterable[str]) -> list[str]:
    """Partitions that the settings name and that are not among these."""
    there = frozenset(partitions)
    return [n for n in (*scope.only_partitions, *scope.not_partitions) if n not in there]


def splits(scope: Scope, lever: Lever, nodes: Sequence[frozenset[str]]) -> list[Split]:
    """Where jobs in scope compete with jobs that are not. `nodes`: the partitions of each node."""
    found = []
    why = f"jobs out of scope keep their places; {_moves(lever)}"
    shared = [parts for parts in nodes if len({lets_in(scope, p) for p in parts}) == 2]
    if shared:
        there = sorted(frozenset().union(*shared))
        inside, outside = ([p for p in there if lets_in(scope, p) is way] for way in (True, False))
        n = "1 node is" if len(shared) == 1 else f"{len(shared)} nodes are"
        what = f"{n} in partitions in scope ({names(inside)}) and in others out of scope ({names(outside)})"
        do = "choose partitions whose nodes are their own, or have all that share nodes in [scope]"
        found.append(Split("nodes", what, why, do))
    by = [key for key in given(scope) if not key.endswith("_partitions")]
    if by:
        what = f"[scope] {names(by)}: some of the jobs that compete for the same nodes are out of scope"
        do = (
            "partitions whose nodes are their own divide a cluster better; a [lever] span moves jobs less far"
        )
        found.append(Split("jobs", what, why, do))
    return found


def _moves(lever: Lever) -> str:
    if lever.kind == "priority":
        return f"jobs in scope have explicit priorities from {PRIORITY_BASE} up, in front of all of them"
    return f"jobs in scope move up by up to {lever.reach:.0f} of priority around them"
