"""From accounting records to jobs: doubtful times settled, rows checked, the runs of one job joined.

Which records are one job. Records of one (Cluster, JobIDRaw) are put in order of Submit. A requeue gives a job a new
record with a new Submit, and ids are used again after the highest, so the next record is
* the same record told again (other file, or before and after it ended) if Submit, Start and user agree;
* the next run of the job if user and JobID agree and it was submitted close to the end of the one before: within a
  day after a state that Slurm itself requeues from (REQUEUED, PREEMPTED, NODE_FAIL, ...), within an hour after any
  other (`scontrol requeue` of an ended job works while the controller still remembers it);
* another job that got the same id otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import product

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm.records import Records, Texts

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
# A job that ended so has run; one in another state may have left while it waited.
HAS_RUN = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED")
SOON, SAME_DAY = 3600.0, 86400.0


def settle(r: Records) -> int:
    """Decide, in place, each time in an hour that happens twice; returns how many records had one.

    The reading in which End - Start is Elapsed (and what was suspended) and Submit <= Eligible <= Start <= End;
    where that leaves both, the earlier.
    """
    names = ("submit", "eligible", "start", "end")
    doubtful = np.zeros(len(r), bool)
    for x in names:
        doubtful |= getattr(r, x + "_late") > getattr(r, x)
    for i in np.flatnonzero(doubtful).tolist():
        best: tuple[tuple[float, float], tuple[float, ...]] | None = None
        run = r.elapsed[i] + np.nan_to_num(r.suspended[i])
        for at in product(*((getattr(r, x)[i], getattr(r, x + "_late")[i]) for x in names)):
            submit, eligible, start, end = at
            misfit = abs(end - start - run)
            order = sum(
                max(0.0, a - b)
                for a, b in ((submit, eligible), (submit, start), (eligible, start), (start, end))
            )
            score = (0.0 if math.isnan(misfit) else misfit, order)
            if best is None or score < best[0]:
                best = score, at
        assert best is not None
        for x, t in zip(names, best[1], strict=True):
            getattr(r, x)[i] = t
    return int(doubtful.sum())


def check(r: Records, refused: Refusals, files: Sequence[str]) -> Records:
    """Refuse records that contradict themselves; complete an End that follows from Start and Elapsed.

    A record that was cancelled while it waited has no Start afterwards, one that still runs no End.
    """
    code, words = pd.factorize(r.state)

    def among(*states: str) -> Bools:
        return np.isin(words.astype(object), states)[code] if len(words) else np.zeros(0, bool)

    pending, active, has_run = among("PENDING"), among("RUNNING", "SUSPENDED"), among(*HAS_RUN)
    ended = ~pending & ~active
    # Slurm gives what was cancelled while it waited None, Unknown or its End as the Start, by version.
    unstarted = ended & ~has_run & (r.start >= r.end) & ~(r.elapsed > 0) & ~r.allocated
    r.start[pending | unstarted] = math.nan
    r.end[pending | active] = math.nan
    started = ~np.isnan(r.start)
    derived = ended & started & np.isnan(r.end)
    r.end[derived] = (r.start + r.elapsed + np.nan_to_num(r.suspended))[derived]
    late_by_rounding = started & (r.start < r.submit) & (r.start >= r.submit - 1)
    r.start[late_by_rounding] = r.submit[late_by_rounding]
    run = r.end - r.start

    reasons: list[tuple[str, Bools, Floats]] = [
        ("no submit time", np.isnan(r.submit), r.submit),
        ("runs but has no start time", active & ~started, r.start),
        ("runs but has no Elapsed", active & np.isnan(r.elapsed), r.elapsed),
        ("ended but has no end time", ended & np.isnan(r.end), r.end),
        ("ran but has no start time", ended & ~started & has_run, r.start),
        ("starts before its submit", started & (r.start < r.submit), r.start - r.submit),
        ("ends before its start", run < 0, run),
        ("ends before its submit", ended & (r.end < r.submit), r.end - r.submit),
        ("Elapsed is longer than Start to End", r.elapsed > run + SOON + 60, r.elapsed - run),
    ]
    keep = np.ones(len(r), bool)
    for reason, hit, value in reasons:
        for i in np.flatnonzero(hit & keep & ~pending | hit & keep & (reason == "no submit time")).tolist():
            keep[i] = False
            detail = f"job {r.job_id[i]}, {r.state[i]}" + (
                "" if np.isnan(value[i]) else f", {value[i]:.0f} s"
            )
            refused.add(files[r.file[i]], int(r.line[i]), reason, detail)
    return r if keep.all() else r.take(keep)


def _groups(r: Records, *more: Texts | Floats) -> tuple[Ints, Ints]:
    """Rows in order of (cluster, key, submit, start), and where each group of one cluster, key (and more) begins."""
    cluster, key = pd.factorize(r.cluster)[0], pd.factorize(r.key)[0].astype(np.int64)
    code = cluster.astype(np.int64) * (int(key.max(initial=0)) + 1) + key
    order = np.lexsort((np.nan_to_num(r.start, nan=-1.0), r.submit, code))
    new = np.ones(len(r), bool)
    new[1:] = np.diff(code[order]) != 0
    for column in more:
        values = column[order]
        new[1:] |= values[1:] != values[:-1]
    return order.astype(np.int64), np.flatnonzero(new)


def _several(order: Ints, begins: Ints) -> list[list[int]]:
    """The groups of more than one row."""
    size = np.diff(np.r_[begins, len(order)])
    return [order[b : b + n].tolist() for b, n in zip(begins[size > 1], size[size > 1], strict=True)]


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
    """Keep one record of those that tell of the same run: of equal ones the first, else what was known last."""
    drop: set[int] = set()
    content = [f.name for f in fields(Records) if f.name not in ("file", "line")]
    for group in _several(*_groups(r, r.submit)):
        kept: list[int] = []
        for i in sorted(group):
            for place, k in enumerate(kept):
                if not _told_again(r, k, i):
                    continue
                if all(_equal(getattr(r, x)[k], getattr(r, x)[i]) for x in content):
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


def _equal(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _knowledge(r: Records, i: int) -> tuple[int, float]:
    """Orders what is known of a run: waits < runs (the longer the later) < ended."""
    rank = {"PENDING": 0, "RUNNING": 1, "SUSPENDED": 1}.get(r.state[i], 2)
    return rank, float(r.elapsed[i]) if rank == 1 else 0.0


def next_run(r: Records, a: int, b: int) -> bool:
    """Whether record b is the next run of the job whose earlier record is a; both of one cluster and key."""
    if not _same_user(r, a, b):
        return False
    if r.job_id[a] != r.job_id[b] and "[" not in r.job_id[a] + r.job_id[b]:
        return False
    end = r.end[a] if not np.isnan(r.end[a]) else r.start[a] + r.elapsed[a]
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
    run: Ints  # of the last one that started; -1: none
    run_start: Floats  # start of that run; a run that was resized starts with its first record
    work: Floats
    lost_work: Floats
    runs: Ints
    reused: int = 0  # jobs whose id another job had before
    comment: dict[int, str] = field(default_factory=dict)  # job -> a comment that its last record lacks


def executed(r: Records) -> Floats:
    """Seconds executed in the run of each record, shape (n,); 0 for one that did not start."""
    work = np.where(np.isnan(r.elapsed), r.end - r.start - np.nan_to_num(r.suspended), r.elapsed)
    return np.where(np.isnan(r.start), 0.0, np.maximum(work, 0.0))


def join(r: Records) -> Jobs:
    """Join the records of each job; jobs come in the order in which their first row was read."""
    n = len(r)
    started = ~np.isnan(r.start)
    work = executed(r)
    jobs = Jobs(
        last=np.arange(n), first=np.arange(n), run=np.where(started, np.arange(n), -1), run_start=r.start.copy(),
        work=work.copy(), lost_work=np.zeros(n), runs=started.astype(np.int64),
    )  # fmt: skip
    place = np.arange(n)  # where the job comes in the output; -1: joined to another
    for group in _several(*_groups(r)):
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
    rows = rows[np.argsort(place[rows], kind="stable")]
    jobs.comment = {new: jobs.comment[old] for new, old in enumerate(rows.tolist()) if old in jobs.comment}
    for x in ("last", "first", "run", "run_start", "work", "lost_work", "runs"):
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
    jobs.runs[k] = len(runs)
    if runs:
        jobs.run[k], jobs.run_start[k], jobs.work[k] = runs[-1]
        jobs.lost_work[k] = sum(w for _, _, w in runs[:-1])
    if not r.comment[k]:
        text = next((r.comment[i] for i in reversed(chain) if r.comment[i]), "")
        if text:
            jobs.comment[k] = text
