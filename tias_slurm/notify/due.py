"""Which jobs are to be told what: a refused claim, an impossible one, a requeue; once a job and reason. Pure.

What a comment says is told once for a whole array, a requeue to each task. A message for the output of a job
waits until the job runs; one that is no longer true is forgotten, one whose job ends before is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, Ints, JobTable

REQUEUE, REFUSED, IMPOSSIBLE = "requeue", "refused", "impossible"
REASONS = (REQUEUE, REFUSED, IMPOSSIBLE)  # in the order in which they are sent
# Slurm notes submits in whole seconds, s
_ROUNDING_S = 1.0

NOT_KNOWN = "not known"  # it may have gone: nobody is left who heard of it
Key = tuple[int, str]  # the job, or its array; one of REASONS


class Kept(NamedTuple):
    """What the ledger keeps of one message. Epoch s; NaN: none."""

    key: Key
    time: float  # when there was something to say
    about: float  # the deadline that it is about
    taken_up: float  # when it was handed over to be sent; NaN: it waits
    result: str = ""  # what became of it; "": it waits, or is not known

    @property
    def waits(self) -> bool:
        """Whether nobody has tried to send it."""
        return math.isnan(self.taken_up) and not self.result


class Standing(NamedTuple):
    """What there is to say to the jobs of a snapshot. Shapes (n,)."""

    jobs: JobTable
    first_submit: Floats
    claim: Floats  # the deadline that holds; NaN: none
    ours: Bools  # in scope, and not ignored
    refused: Bools  # something in the comment is not taken
    impossible: Bools  # waits, and can hardly meet its deadline any more, or is past it
    requeued: Bools  # was requeued by us, or by Slurm's preemption where that is left to it
    reachable: Bools  # can be told now


class Notice(NamedTuple):
    """A message: for which job (row of the snapshot), under which key, about which deadline (NaN: none)."""

    key: Key
    row: int
    about: float


class Step(NamedTuple):
    """What a cycle has to do about messages."""

    send: list[Notice]  # now
    wait: list[Notice]  # new ones that are to be kept until they can be sent
    drop: list[Key]  # their jobs have ended: never to be sent
    forget: list[Key]  # not true any more, or of another job with the same id
    held_back: int  # that could be sent now, but for want of room


def requeued(requeues: Floats, requeued_at: Floats, submit: Floats) -> Bools:
    """Which jobs were requeued by us, and not only meant to be: Slurm then sets their submit anew. Shapes
    (n,): how often, when last (epoch s, NaN: never), the submit as Slurm shows it."""
    return np.asarray((requeues > 0) & (submit >= np.floor(requeued_at) - _ROUNDING_S), dtype=np.bool_)


def due(standing: Standing, kept: Iterable[Kept], room: int) -> Step:
    """What is to be sent, and what becomes of what is kept. `room`: messages that may be sent now."""
    jobs = standing.jobs
    known = {k.key: k for k in kept}
    ids = jobs.job_id
    arrays = np.where(jobs.array_id > 0, jobs.array_id, ids)
    true = {REQUEUE: standing.requeued, REFUSED: standing.refused, IMPOSSIBLE: standing.impossible}
    owner = {REQUEUE: ids, REFUSED: arrays, IMPOSSIBLE: arrays}
    here = {
        reason: _by(owner[reason], [k.key[0] for k in known.values() if k.key[1] == reason], true[reason])
        for reason in REASONS
    }
    step = Step([], [], [], [], 0)
    for old in known.values():
        rows = here[old.key[1]].get(old.key[0], [])
        if rows and standing.first_submit[rows].min() > old.time:
            step.forget.append(old.key)  # a new job has the id
        elif old.waits and not rows:
            step.drop.append(old.key)
        elif old.waits and not _holds(standing, true[old.key[1]], old, rows):
            step.forget.append(old.key)
    gone = set(step.forget)
    held_back = 0
    for reason in REASONS:
        candidates = dict.fromkeys(owner[reason][true[reason] & standing.ours].tolist())
        carried = {k.key[0]: None for k in known.values() if k.key[1] == reason and k.waits}
        for job in sorted({**candidates, **carried}):
            key = (job, reason)
            old_one = None if key in gone else known.get(key)
            if old_one is not None and not old_one.waits:
                continue
            if old_one is None and job not in candidates:
                continue
            rows = [r for r in here[reason].get(job, []) if standing.ours[r]]
            says = [r for r in rows if true[reason][r]] or rows
            if not says:
                continue
            able = [r for r in says if standing.reachable[r]]
            notice = Notice(key, (able or says)[0], _about(standing, reason, says[0], old_one))
            if able and len(step.send) < room:
                step.send.append(notice)
            else:
                held_back += bool(able)
                if old_one is None:
                    step.wait.append(notice)
    return step._replace(held_back=held_back)


def _about(standing: Standing, reason: str, row: int, old: Kept | None) -> float:
    if reason != IMPOSSIBLE:
        return math.nan
    return float(standing.claim[row]) if old is None else old.about


def _holds(standing: Standing, true: Bools, old: Kept, rows: list[int]) -> bool:
    """Whether what waits to be said is still so."""
    if old.key[1] == REQUEUE or true[rows].any():
        return True
    if old.key[1] == REFUSED:
        return False
    # a running job is never hopeless; it was, as long as the deadline is the same
    runs = [r for r in rows if standing.jobs.state[r] != PENDING]
    return any(float(standing.claim[r]) == old.about for r in runs)


def _by(owners: Ints, known: list[int], true: Bools) -> dict[int, list[int]]:
    """Rows by owner, of those for whom something is true or known. Shapes (n,)."""
    rows = np.flatnonzero(np.isin(owners, np.concatenate((owners[true], np.array(known, dtype=np.int64)))))
    found: dict[int, list[int]] = {}
    for row, owner in zip(rows.tolist(), owners[rows].tolist(), strict=True):
        found.setdefault(owner, []).append(row)
    return found


def left_this_hour(kept: Iterable[Kept], now: float, most: int) -> int:
    """How many more messages may be sent in the hour before `now` (epoch s)."""
    return max(0, most - sum(k.taken_up > now - 3600.0 for k in kept))


def word(kept: Kept, works_since: float) -> str:
    """What became of a message. `works_since`: since when who hears of it has run, epoch s; inf: nobody."""
    if kept.waits:
        return "waits"
    return kept.result or ("under way" if kept.taken_up >= works_since else NOT_KNOWN)


def by_result(kept: Iterable[Kept], since: float, works_since: float) -> Mapping[str, int]:
    """How many came to what from an epoch second on; "waits" however old. `works_since`: see word."""
    found: dict[str, int] = {}
    for k in kept:
        became = word(k, works_since)
        if k.waits or max(k.time, k.taken_up if k.taken_up == k.taken_up else 0.0) >= since:
            found[became] = found.get(became, 0) + 1
    return found
