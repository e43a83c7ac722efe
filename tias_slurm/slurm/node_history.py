"""What the history itself says of the nodes: which ones ran jobs, and how much was in use on each at once."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from tias_slurm.gpu_weights import by_type, kinds
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.node_set import NodeSet, left_out_note, make, some
from tias_slurm.slurm.records import Texts

NAMED_SHARE: Final = 0.95  # with names for fewer GPU jobs than this, names are not used
MOST_NAMES: Final = 20_000_000  # host names in the different lists of a history, or held by its jobs
UNREAD: Final = "{} jobs have a NodeList that is no list of host names"
FULL_AFTER: Final = 20  # jobs per node after which the same peak on several nodes counts as their size


@dataclass(frozen=True)
class Held:
    """Which nodes each job held, one entry a job and node in `row` and `node`."""

    names: list[str]  # (N,) of all nodes, in order of appearance
    width: Ints  # (n,) nodes of each job; 0 where unknown
    row: Ints  # (m,) row of the job
    node: Ints  # (m,) place in names
    unread: int  # jobs whose list is no host list


def held(jobs: pd.DataFrame) -> Held | None:
    """The nodes of all jobs by their column `node_list`; None without one, or where it names too many."""
    if "node_list" not in jobs.columns:
        return None
    codes, lists = pd.factorize(jobs["node_list"].fillna("").astype(str), sort=False)
    names: dict[str, int] = {}
    members: list[list[int]] = []
    unread: list[bool] = []
    total = 0
    for text in lists:
        try:
            hosts = expand(text) if text and text != "None assigned" else []
            unread.append(False)
        except ValueError:
            hosts = []
            unread.append(True)
        total += len(hosts)
        if total > MOST_NAMES:
            return None
        members.append([names.setdefault(host, len(names)) for host in hosts])
    width = np.array([len(m) for m in members], dtype=np.int64)[codes]
    if not names or width.sum() > MOST_NAMES:
        return None
    first = np.concatenate([[0], np.cumsum([len(m) for m in members])]).astype(np.int64)
    flat = np.concatenate([np.asarray(m, dtype=np.int64) for m in members])
    row = np.repeat(np.arange(len(jobs)), width)
    within = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width)
    node = flat[np.repeat(first[codes], width) + within]
    return Held(list(names), width, row, node, int(np.array(unread, np.bool_)[codes].sum()))


def with_history(nodes: NodeSet, jobs: pd.DataFrame) -> NodeSet:
    """The nodes of a file as the history saw them.

    A node that was down or drained when the file was written, and that ran jobs of the history, is part of
    the cluster: it was, at the time. Nodes of the history that the file does not have are counted in a note,
    as are the jobs that ran on them. Without a `node_list` in `jobs` nothing changes.
    """
    found = held(jobs)
    if found is None:
        return nodes
    out = nodes.left_out
    back = np.isin(out.names, found.names) if out is not None else np.zeros(0, np.bool_)
    notes = list(nodes.notes)
    if out is not None and back.any():
        notes = [note for note in notes if note != left_out_note(out.names)]
        taken, rest = out.take(back), out.take(~back)
        nodes = replace(nodes.join(taken), left_out=rest if len(rest) else None)
        notes.append(
            f"{some(taken.names)} down or drained when the file was written, but ran jobs of the history: "
            f"taken as part of the cluster throughout"
        )
        if len(rest):
            notes.append(left_out_note(rest.names))
    known = {*nodes.names, *(out.names if out is not None else ())}
    strange = np.array([name not in known for name in found.names], dtype=np.bool_)
    if strange.any():
        names = sorted((n for n, odd in zip(found.names, strange, strict=True) if odd), key=natural)
        there = len(np.unique(found.row[strange[found.node]]))
        notes.append(
            f"none of the nodes of the history, {some(names)}, is in the file: is it of this cluster?"
            if strange.all()
            else f"{some(names)} ran {there} jobs of the history but are not in the file, nor in the replay"
        )
    if found.unread:
        notes.append(UNREAD.format(found.unread))
    return replace(nodes, notes=tuple(notes))


def by_name(
    jobs: pd.DataFrame, ran: Bools, start: Floats, end: Floats, *, how_else: str
) -> tuple[NodeSet | None, str]:
    """One node for each name in `node_list`, with a reason instead where too few jobs name theirs.

    ran: (n,) the GPU jobs with a start and an end. GPUs of a node: the most in use at once on it or on one of
    its siblings (same name but for the digits, same partitions, same GPU types), of several types the sum of
    the most of each. CPUs and memory likewise,
    where several siblings (of any partition) came to the same amount; elsewhere unknown. Every job that ran
    and names its nodes fits them.
    """
    found = held(jobs)
    if found is None:
        return None, "the history does not say on which nodes jobs ran (NodeList)"
    share = float((ran & (found.width > 0)).sum() / ran.sum())
    if share < NAMED_SHARE:
        return None, f"only {100 * share:.0f} % of the GPU jobs say on which nodes they ran (NodeList)"
    used = np.isfinite(start) & np.isfinite(end) & (end >= start)
    row, node = found.row[used[found.row]], found.node[used[found.row]]
    seen, node = np.unique(node, return_inverse=True)  # of a job without times nothing is known
    names, n = [found.names[i] for i in seen.tolist()], len(seen)
    width = found.width[row].astype(np.float64)
    amounts = [jobs[x].to_numpy(np.float64)[row] for x in ("gpus", "cpus", "mem_mb")]
    peaks = peak(node, start[row], end[row], [a / width for a in amounts], n)
    gpus, cpus, mem = (np.ceil(p - 1e-6).astype(np.int64) for p in peaks)
    # a job is replayed on as many nodes as its record counts, with whole GPUs, CPUs and MB on each
    asked = jobs["nodes"].to_numpy(np.float64)[row]
    spread = np.where(asked > 0, np.minimum(asked, width), width)
    for most, amount in zip((gpus, cpus, mem), amounts, strict=True):
        np.maximum.at(most, node, np.ceil(amount / spread - 1e-6).astype(np.int64))

    partitions = _sets(node, jobs["partition"].to_numpy()[row], n, split=True)
    said = np.where(amounts[0] > 0, jobs["gpu_type"].to_numpy()[row], "")
    of_types = _of_types(node, said, start[row], end[row], amounts[0] / width, width, n)
    types = [frozenset(found) for found in of_types]
    like = [(re.sub(r"\d+", "#", name), p) for name, p in zip(names, partitions, strict=True)]
    for siblings in _groups([(*x, t, g > 0) for x, t, g in zip(like, types, gpus.tolist(), strict=True)]):
        each: Counter[str] = Counter()
        for i in siblings:
            each |= of_types[i]
        # what is of one type is not of another
        gpus[siblings] = max(gpus[siblings].max(), each.total() if len(each) > 1 else 0)
        for i in siblings:
            of_types[i] = each
    guessed = _gpus_of_siblings(gpus, types, of_types, like)
    jobs_on = np.bincount(node, minlength=n)
    for siblings in _groups([(x, t, g) for (x, _), t, g in zip(like, types, gpus.tolist(), strict=True)]):
        for most in (cpus, mem):
            most[siblings] = _size(most[siblings], jobs_on[siblings])

    with_gpus = int((gpus > 0).sum())
    notes = [
        f"the cluster is inferred from the nodes on which the jobs ran: {n} nodes, {with_gpus} of them with "
        f"{int(gpus.sum())} GPUs; GPUs of a node are the most in use at once on it or on one alike (same "
        "name but for digits, same partitions, same type of GPU), jobs of several nodes taken as spread "
        f"evenly; nodes that never ran a job are not seen; {how_else}",
        "a node is taken to be in the partitions whose jobs it ran",
        "CPUs and memory of a node are the most in use at once where several nodes alike came to the same "
        f"amount (CPUs of {int((cpus > 0).sum())}, memory of {int((mem > 0).sum())} of {n} nodes); elsewhere "
        "they are not known and limit nobody",
    ]
    if guessed:
        some_names = some([names[i] for i in guessed])
        notes.append(f"{some_names} ran jobs without GPUs only, and are taken to have those of nodes alike")
    if found.unread:
        notes.append(UNREAD.format(found.unread))
    order = sorted(range(n), key=lambda i: natural(names[i]))
    text = [next(iter(t)) if len(t) == 1 else kinds(of_types[i], int(gpus[i])) for i, t in enumerate(types)]
    inferred = make(
        [names[i] for i in order],
        [int(gpus[i]) for i in order],
        cpus=[int(cpus[i]) for i in order],
        mem_mb=[float(mem[i]) for i in order],
        partitions=[partitions[i] for i in order],
        gpu_types=[text[i] for i in order],
        source=f"inferred from the node names of the history: {with_gpus} nodes with GPUs",
        inferred=True,
        notes=notes,
    )
    return inferred, ""


def _of_types(
    node: Ints, said: Texts, start: Floats, end: Floats, gpus: Floats, width: Floats, n: int
) -> list[Counter[str]]:
    """The most GPUs of each type in use at once on each node. `gpus`: of each entry, on its node."""
    codes, words = pd.factorize(said)
    names: dict[str, int] = {}
    entries: list[Ints] = []
    places: list[Ints] = []
    amounts: list[Floats] = []
    for code, word in enumerate(words.tolist()):
        rows = np.flatnonzero(codes == code)
        several = "=" in word
        for name, count in by_type(0, word).items():
            if name:
                entries.append(rows)
                places.append(np.full(len(rows), names.setdefault(name, len(names))))
                amounts.append(count / width[rows] if several else gpus[rows])
    found: list[Counter[str]] = [Counter() for _ in range(n)]
    if not entries:
        return found
    at = np.concatenate(entries)
    groups, group = np.unique(node[at] * len(names) + np.concatenate(places), return_inverse=True)
    (most,) = peak(group, start[at], end[at], [np.concatenate(amounts)], len(groups))
    listed = list(names)
    for where, count in zip(groups.tolist(), np.ceil(most - 1e-6).astype(np.int64).tolist(), strict=True):
        found[where // len(names)][listed[where % len(names)]] = count
    return found


def peak(group: Ints, start: Floats, end: Floats, amounts: Sequence[Floats], groups: int = 1) -> list[Floats]:
    """The largest sum of each of the amounts at any instant, by group. Shape (groups,) each.

    An end comes before a start at the same time.
    """
    of = np.concatenate([group, group])
    is_start = np.repeat(np.array([0, 1], np.int8), len(group))
    order = np.lexsort((is_start, np.concatenate([end, start]), of))
    of = of[order]
    peaks = []
    for amount in amounts:
        # every group sums to nothing, so the next one starts from zero
        running = np.cumsum(np.concatenate([-amount, amount])[order])
        most = np.zeros(groups)
        np.maximum.at(most, of, running)
        peaks.append(most)
    return peaks


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key in which n2 comes before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _sets(node: Ints, said: Texts, n: int, *, split: bool = False) -> list[frozenset[str]]:
    """The different texts said of each node, '' left out; at commas, if asked for, cut."""
    sets: list[set[str]] = [set() for _ in range(n)]
    codes, words = pd.factorize(said)
    for pair in np.unique(node * max(len(words), 1) + codes).tolist():
        at, code = divmod(pair, len(words))
        text = str(words[code])
        sets[at].update(p for p in (text.split(",") if split else [text]) if p)
    return [frozenset(s) for s in sets]


def _groups(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of equal keys, by first appearance."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[key].append(i)
    return list(groups.values())


def _gpus_of_siblings(
    gpus: Ints, types: list[frozenset[str]], of_types: list[Counter[str]], like: Sequence[Hashable]
) -> list[int]:
    """Give nodes on which no GPU was in use those of their siblings, if most siblings have some and all of
    these the same; in place. Returns which nodes.
    """
    given = []
    for siblings in _groups(like):
        have = [i for i in siblings if gpus[i] > 0]
        sizes = {(int(gpus[i]), types[i]) for i in have}
        if len(sizes) == 1 and 2 * len(have) > len(siblings):
            for i in siblings:
                if not gpus[i]:
                    gpus[i], types[i] = next(iter(sizes))
                    of_types[i] = of_types[have[0]]
                    given.append(i)
    return sorted(given)


def _size(most: Ints, jobs_on: Ints) -> int:
    """What siblings have, by the most in use on each; 0: cannot be told.

    Nodes that ran many jobs of many sizes do not come to the same peak by chance.
    """
    top, times = int(most.max()), Counter(most.tolist())
    reached = times[top]
    enough = jobs_on.mean() >= FULL_AFTER and reached >= 2 and 2 * reached >= len(most)
    return top if enough else 0
