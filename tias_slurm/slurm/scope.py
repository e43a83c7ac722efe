"""What [scope] lets in, beside what it leaves out on the same nodes. Pure.

Slurm compares the priorities of all jobs that want a node (slurm.conf(5), PriorityTier: within one tier), in
scope or not: a lever moves the jobs in scope among those that stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tias_slurm.levers import PRIORITY_BASE, Lever
from tias_slurm.settings import Scope

_PARTS = ("partitions", "accounts", "users", "qos")
_ONE = {"partitions": "partition", "accounts": "account", "users": "user", "qos": "QOS"}
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
    return not kept_out(partition, scope.only_partitions, scope.not_partitions)[0]


def kept_out(text: str, only: Sequence[str], out: Sequence[str]) -> tuple[str, list[str]]:
    """By which kind of list a job is out of scope whose field is `text`, a comma list: "not" or "only", and
    the names in the field that are or are not in that list; "" and no names: by neither.

    What only_* names is in, what not_* names is out; out wins. A job in several partitions needs all.
    """
    there = text.split(",")
    if hit := [name for name in there if name in out]:
        return "not", hit
    if only and (hit := [name for name in there if name not in only]):
        return "only", hit
    return "", []


def why_out(scope: Scope, fields: Mapping[str, str], shown: Mapping[str, str]) -> list[str]:
    """The rules that leave a job out, in words; []: it is in scope. `fields`: its partitions, accounts, users
    and qos as Slurm has them; `shown`: names in place of these."""
    found = []
    for part in _PARTS:
        key, hit = kept_out(fields[part], getattr(scope, f"only_{part}"), getattr(scope, f"not_{part}"))
        if not key:
            continue
        those = hit if shown[part] == fields[part] else shown[part].split(",")
        what = (
            f"{_ONE[part]}{'s' * (len(those) > 1)} {names(those)}"
            if any(those)
            else f"it has no {_ONE[part]}, which"
        )
        verb = "are" if len(those) > 1 else "is"
        found.append(f"{what} {verb} {'not ' * (key == 'only')}in [scope] {key}_{part}")
    return found


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
