"""Requeues on a running Slurm: a second look before the first is sent, and whether that helped.

A requeue of a job that has just ended would run it again, and one for a job that then does not start is work
lost for nothing. So all jobs that a plan has to do with are looked at once more after the writes, and those
of one beneficiary are requeued together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tias_slurm.jobs import ACTIVE_STATES, Bools, Floats, Ints, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.slurm.live import RawTable, WriteResult
from tias_slurm.slurm.observer import STARTABLE, nodes_in_doubt

ENDED = "ended"  # what makes room as a requeue does


@dataclass(frozen=True)
class Look:
    """The queue once more. Shapes (n,), rows as in the raw table."""

    raw: RawTable
    lever: Floats  # NaN where it is not shown
    consent: Bools


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a job that others were requeued for."""

    job_id: int
    result: Literal["started", "still waits", "left"]
    seconds: float  # since the requeue
    requeued: int  # jobs
    since: float  # when they were requeued, epoch s
    ran_as: int  # the id that started: of an array that of a task


def groups(plan: Plan) -> Iterator[tuple[int, list[int]]]:
    """Each beneficiary with the places of its victims in the plan."""
    for row in dict.fromkeys(plan.beneficiaries.tolist()):
        yield row, np.flatnonzero(plan.beneficiaries == row).tolist()


def beneficiary_ready(look: Look, job: int, value: float) -> str:
    """Why a waiting job has nobody requeued for it after all; "": its value is in place, and it waits."""
    at = _row(look.raw, job)
    if at is None or look.raw.state[at] != "PENDING":
        return "does not wait any more"
    reason = look.raw.reason[at]
    if look.raw.priority[at] <= 0 or not (reason in STARTABLE or nodes_in_doubt(reason)):
        return f"waits for another reason: {reason}"
    if look.lever[at] != value:
        return "its value is not in place"
    return ""


def victim_ready(before: RawTable, look: Look, job: int) -> str:
    """Whether a running job may be requeued: "" if it may, ENDED if its end has made room, else why not."""
    old, at, raw = _row(before, job), _row(look.raw, job), look.raw
    if at is None or raw.state[at] not in ACTIVE_STATES:
        return ENDED
    if old is None or raw.state[at] != "RUNNING" or raw.flags[at] or raw.start[at] != before.start[old]:
        return "is not in the same run any more"
    if not raw.requeue[at] or not raw.batch[at] or not look.consent[at]:
        return "may not be requeued any more"
    if raw.node_list[at] != before.node_list[old]:
        return "has other nodes now"
    return ""


def _row(raw: RawTable, job: int) -> int | None:
    at = int(np.searchsorted(raw.job_id, job))
    return at if at < len(raw) and raw.job_id[at] == job else None


def _has_run(raw: RawTable, at: int, since: float) -> bool:
    """Whether a job that has ended ran since then; one cancelled while it waited ended as it started."""
    return bool(raw.state[at] != "PENDING" and since <= raw.start[at] < raw.end[at])


@dataclass
class _Case:
    since: float
    requeued: int
    told: bool = False


@dataclass
class Watch:
    """Whether the jobs for which others were requeued start."""

    patience_s: float  # after which a job that still waits is said to
    max_in_vain: int = 3  # a job that others were requeued for so often, and that never started, has no more
    cases: dict[int, _Case] = field(default_factory=dict)
    vain: dict[int, int] = field(default_factory=dict)
    # takes what is new, before it is done with; what it raises leaves all as it was
    keep: Callable[[list[Watched]], None] = lambda _: None

    def resume(self, cases: Iterable[tuple[int, float, int, bool]]) -> None:
        """Go on with what was kept, oldest first, see gains.watched."""
        for job, since, requeued, told in cases:
            self.begin(job, since, requeued)
            self.cases[job].told = told

    def begin(self, job: int, now: float, requeued: int) -> None:
        """Others were requeued for a job; if it is watched already, the last time was in vain."""
        self.vain[job] = self.vain.get(job, 0) + (job in self.cases)
        self.cases[job] = _Case(now, requeued)

    def look(self, snapshot: Snapshot, raw: RawTable) -> list[Watched]:
        """What is new of the jobs that are watched."""
        news = []
        for job, case in self.cases.items():
            at = _row(raw, job)
            state = "" if at is None else raw.state[at]
            # of an array a task starts under an id of its own
            tasks = (raw.array_id == job) & (raw.start >= case.since) & (raw.start <= snapshot.now)
            ran = [i for i in np.flatnonzero(tasks).tolist() if raw.state[i] != "PENDING"]
            if at is not None and (state in ("RUNNING", "SUSPENDED") or _has_run(raw, at, case.since)):
                ran = [at]
            waited, row = snapshot.now - case.since, ran[0] if ran else at
            if ran and raw.start[row] >= case.since:
                waited = float(raw.start[row]) - case.since
            ran_as = job if row is None else int(raw.job_id[row])
            what = Watched(job, "left", waited, case.requeued, case.since, ran_as)
            if ran:
                news.append(replace(what, result="started"))
            elif state != "PENDING":
                news.append(what)
            elif waited >= self.patience_s and not case.told:
                news.append(replace(what, result="still waits"))
        if news:
            self.keep(news)
        for x in news:
            if x.result == "still waits":
                self.cases[x.job_id].told = True
            else:
                self.vain.pop(x.job_id, None)
                del self.cases[x.job_id]
        return news

    def hopeless(self, ids: Ints) -> Bools:
        """Jobs for which others were requeued in vain too often. Shape (n,)."""
        jobs = [j for j, n in self.vain.items() if n >= self.max_in_vain - 1]
        return np.isin(ids, jobs) if jobs else np.zeros(len(ids), dtype=np.bool_)


def outcome(result: WriteResult) -> Literal["done", "ended", "unknown", "not done"]:
    """What became of a requeue. "unknown": the controller did not answer in time, so it may have done it."""
    if result.result == "ok":
        return "done"
    if result.result == "gone":
        return "ended"
    return "unknown" if result.result == "retry" else "not done"
