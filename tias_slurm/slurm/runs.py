"""From accounting records to jobs: records that tell the same left out, the runs of one job joined.

Which records are one job. Records of one (Cluster, JobIDRaw) are put in order of Submit. A requeue gives a
job a new record with a new Submit, and ids are used again after the highest, so the next record is
* the same record told again (other file, or before and after it ended) if Submit, Start and user agree;
* the next run of the job if user and JobID agree and it was submitted close to the end of the one before:
  within a day after a state that Slurm itself requeues from (REQUEUED, PREEMPTED, NODE_FAIL, ...), within
  an hour after any other (`scontrol requeue` of an ended job works while the controller still remembers it);
* another job that got the same id otherwise.

A job that was requeued and then left while it waited to run again counts as one that left while waiting: its
End is when it left, and no run of it came to a result. What its runs executed is lost work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.slurm.records import Records

REQUEUED_FROM = frozenset(
    {
        "REQUEUED",
        "PREEMPTED",
        "NODE_FAIL",
        "BOOT_FAIL",
        "RESIZING",
        "SPECIAL_EXIT",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
    }
    | {"RUNNING", "SUSPENDED"}  # as an older export saw it
)
SOON, SAME_DAY = 3600.0, 86400.0


def _groups(r: Records, *more: Floats) -> list[list[int]]:
    """The rows that share a cluster and key (and the values of more), where there are several: by submit
    and start.
    """
    code = r.key
    if (r.cluster != r.cluster[:1]).any():
        cluster = pd.factorize(r.cluster)[0].astype(np.int64)
        code = cluster * (int(r.key.max()) - int(r.key.min()) + 1) + r.key
    again = np.flatnonzero(pd.Series(code, copy=False).duplicated(keep=False))
    if not len(again):
        return []
    order = again[np.lexsort((np.nan_to_num(r.start[again], nan=-1.0), r.submit[again], code[again]))]
    new = np.ones(len(order), bool)
    new[1:] = np.diff(code[order]) != 0
    for column in more:
        new[1:] |= np.diff(column[order]) != 0
    return [group.tolist() for group in np.split(order, np.flatnonzero(new)[1:]) if len(group) > 1]


def _same_user(r: Records, a: int, b: int) -> bool:
    return not r.user[a] or not r.user[b] or bool(r.user[a] == r.user[b])


def _told_again(r: Records, a: int, b: int) -> bool:
    """Whether two records of one key and Submit tell of the same run."""
    if not _same_user(r, a, b):
        return False
    if r.state[a] == "PENDING" or r.state[b] == "PENDING":
        return True
    return bool(r.start[a] == r.start[b] or (np.isnan(r.start[a]) and np.isnan(r.start[b])))


def drop_repeats(r: Records, left_out: Counter[str]) -> Records:
    """Keep one record of those that tell of the same run: of equal ones the first, else what was known
    last.
    """
    equal = _equal_rows(r)
    if equal.any():
        left_out["duplicate rows"] += int(equal.sum())
        r = r.take(~equal)
    drop: set[int] = set()
    columns = [getattr(r, f.name) for f in fields(Records)]
    for group in _groups(r, r.submit):
        kept: list[int] = []
        for i in sorted(group):
            for place, k in enumerate(kept):
                if not _told_again(r, k, i):
                    continue
                if all(_equal(column[k], column[i]) for column in columns):
                    left_out["duplicate rows"] += 1
                    drop.add(i)
                else:
                    left_out["superseded rows"] += 1
                    better = _knowledge(r, i) >= _knowledge(r, k)
                    drop.add(k if better else i)
                    if better:
                        kept[place] = i
                break
            else:
                kept.append(i)
    if not drop:
        return r
    keep = np.ones(len(r), bool)
    keep[list(drop)] = False
    return r.take(keep)


def _equal_rows(r: Records) -> Bools:
    """Which rows say the same as another of their key, Submit and Start that stands before them, shape
    (n,).
    """
    equal = np.zeros(len(r), bool)
    groups = _groups(r, r.submit)
    if not groups:
        return equal
    order = np.array([i for group in groups for i in group])
    before, row = order[:-1], order[1:]
    same = r.key[before] == r.key[row]
    for f in fields(Records):
        column = getattr(r, f.name)
        a, b = column[before], column[row]
        same &= (a == b) | ((a != a) & (b != b))
    equal[row[same]] = True
    return equal


def _equal(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _knowledge(r: Records, i: int) -> tuple[int, float]:
    """Orders what is known of a run: waits < runs (the longer the later) < ended."""
    rank = {"PENDING": 0, "RUNNING": 1, "SUSPENDED": 1}.get(r.state[i], 2)
    return rank, float(r.work[i]) if rank == 1 else 0.0


def next_run(r: Records, a: int, b: int) -> bool:
    """Whether record b is the next run of the job whose earlier record is a; both of one cluster and key."""
    if not _same_user(r, a, b):
        return False
    if r.job_id[a] != r.job_id[b] and "[" not in r.job_id[a] + r.job_id[b]:
        return False
    end = r.end[a] if not np.isnan(r.end[a]) else r.start[a] + r.work[a]
    if r.submit[a] == r.submit[b]:
        return not r.start[b] < end
    gap = r.submit[b] - end
    known = bool(r.user[a])
    return bool(-SOON <= gap <= (SAME_DAY if r.state[a] in REQUEUED_FROM else SOON if known else -1.0))


@dataclass
class Jobs:
    """The jobs as rows of records: the last record of each, and what its earlier ones add. Shapes (n,)."""

    last: Ints  # index of the last record
    first: Ints  # of the first
    run: Ints  # of the last one that started; -1: none, or the job left while it waited to run again
    run_start: Floats  # start of that run; a run that was resized starts with its first record
    work: Floats
    lost_work: Floats
    runs: Ints  # 0 where run is -1
    started: Ints  # runs that started, whatever came after them
    reused: int = 0  # jobs whose id another job had before
    comment: dict[int, str] = field(default_factory=dict)  # job -> a comment that its last record lacks


def join(r: Records) -> Jobs:
    """Join the records of each job; jobs come in the order in which their first row was read."""
    n = len(r)
    started = ~np.isnan(r.start)
    work = r.work
    jobs = Jobs(
        last=np.arange(n), first=np.arange(n), run=np.where(started, np.arange(n), -1),
        run_start=r.start.copy(), work=work.copy(), lost_work=np.zeros(n),
        runs=started.astype(np.int64), started=started.astype(np.int64),
    )  # fmt: skip
    place = np.arange(n)  # where the job comes in the output; -1: joined to another
    for group in _groups(r):
        chain = [group[0]]
        for i in [*group[1:], -1]:
            if i >= 0 and next_run(r, chain[-1], i):
                chain.append(i)
                continue
            if len(chain) > 1:
                _fold(r, jobs, chain, work)
                place[chain] = -1
                place[chain[-1]] = min(chain)
            if i >= 0:
                jobs.reused += 1
                chain = [i]
    rows = np.flatnonzero(place >= 0)
    if len(rows) == n:
        return jobs
    rows = rows[np.argsort(place[rows], kind="stable")]
    jobs.comment = {new: jobs.comment[old] for new, old in enumerate(rows.tolist()) if old in jobs.comment}
    for x in ("last", "first", "run", "run_start", "work", "lost_work", "runs", "started"):
        setattr(jobs, x, getattr(jobs, x)[rows])
    return jobs


def _fold(r: Records, jobs: Jobs, chain: list[int], work: Floats) -> None:
    """Sum the records of one job up in the place of its last."""
    runs: list[tuple[int, float, float]] = []  # last record, start, work
    resized = False
    for i in chain:
        if np.isnan(r.start[i]):
            resized = False
            continue
        if resized:
            _, start, before = runs.pop()
            runs.append((i, start, before + work[i]))
        else:
            runs.append((i, float(r.start[i]), float(work[i])))
        resized = r.state[i] == "RESIZING"
    k = chain[-1]
    jobs.first[k] = chain[0]
    jobs.started[k] = len(runs)
    if np.isnan(r.start[k]):
        jobs.lost_work[k] = sum(w for _, _, w in runs)
    else:
        jobs.runs[k] = len(runs)
        jobs.run[k], jobs.run_start[k], jobs.work[k] = runs[-1]
        jobs.lost_work[k] = sum(w for _, _, w in runs[:-1])
    if not r.comment[k]:
        text = next((r.comment[i] for i in reversed(chain) if r.comment[i]), "")
        if text:
            jobs.comment[k] = text
