"""Requeues by Slurm's own preemption, in requeue mode "slurm": found out, and kept.

The queue shows that a job was requeued, not by whom. Accounting does (sacct -D): slurmctld gives a run that
preemption ends the state PREEMPTED, one that anybody requeues REQUEUED, one whose node failed NODE_FAIL. So
the ended runs of each job that comes back with more restarts than the ledger knew are asked for; until that
is answered nothing is known. What is found is an audit record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tias_slurm.jobs import ACTIVE_STATES, Bools, Floats, Ints, unsaved
from tias_slurm.ledger.store import Entry, SqliteStore

# the action of its audit records: `old`, how long the run was, `new`, how much of that it had not saved, s
PREEMPTED: Final = "preempted"
WHY: Final = "Slurm requeued it in favour of jobs with higher priority"
# slurmdbd may learn of the end later than we do: what it knows by then is taken, s
WHOLE_S: Final = 3600.0
# it may be away for long: then nothing is ever said, s
GIVE_UP_S: Final = 86_400.0
# from one question to the next: twice the pause before, s
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0
_NAME = "reruns"


class Run(NamedTuple):
    """A run of a job that is not its current one, as accounting has it."""

    state: str
    end: float  # epoch s; NaN: accounting does not know of it yet
    ran_s: float


class Answer(NamedTuple):
    """What accounting tells of a job."""

    job_id: int
    restarts: int  # as the queue shows them
    runs: Sequence[Run]  # all but the current one, the last first
    checkpoint_s: float  # 0: the job never saves itself


class Preempted(NamedTuple):
    """A run that Slurm's preemption ended."""

    job_id: int
    end: float  # epoch s
    ran_s: float
    lost_s: float  # of that, what the job had not saved


class _Question(NamedTuple):
    before: int  # restarts up to here are explained
    since: float  # epoch s
    pause_s: float = 0.0
    again: float = 0.0  # not to be asked before, epoch s


def summary(entries: Sequence[Entry]) -> dict[str, Any]:
    """What audit records of such requeues come to, ready for JSON; the last 20 one by one."""
    return {
        "requeues": len(entries),
        "jobs": len({e.job_id for e in entries}),
        "lost_s": sum(e.new or 0.0 for e in entries),
        "last": [
            {"time": e.time, "job_id": e.job_id, "ran_s": e.old, "lost_s": e.new} for e in entries[-20:]
        ],
    }


def words(ran_s: float | None, lost_s: float | None, span: Callable[[float], str]) -> str:
    """How long a run that was preempted was, and what was lost of it. `span`: durations for people."""
    return f"{span(ran_s or 0.0)}, {span(lost_s or 0.0)} of that not saved"


class Reruns:
    """Which jobs are to be asked for, and which of those that are here Slurm's preemption has requeued.

    Raises LedgerError from what keeps something.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._open: dict[int, _Question] = {}
        self._done: dict[int, float] = {}  # job -> end of the run that was preempted last
        self._news = 0
        try:
            said = json.loads(store.get(_NAME) or "{}")
            self._open = {int(job): _Question(int(n), float(t)) for job, n, t in said["open"]}
            self._done = {int(job): float(t) for job, t in said["done"]}
        except (ValueError, TypeError, KeyError):
            pass

    def began_again(self, ids: Ints, before: Floats, now: float) -> None:
        """Jobs came back with more restarts than `before`, shapes (n,). To be kept before these are."""
        for job, n in zip(ids.tolist(), before.tolist(), strict=True):
            known = self._open.get(job)
            self._open[job] = _Question(int(n) if known is None else min(known.before, int(n)), now)
        self._keep()

    def due(self, ids: Ints, now: float) -> Bools:
        """Which of all jobs that are here are to be asked for now. Shape (n,)."""
        if not self._open and not self._done:
            return np.zeros(len(ids), dtype=np.bool_)
        here = set(ids.tolist())
        stays = {job: q for job, q in self._open.items() if job in here and now - q.since < GIVE_UP_S}
        done = {job: end for job, end in self._done.items() if job in here}
        if len(stays) != len(self._open) or len(done) != len(self._done):
            self._open, self._done = stays, done
            self._keep()
        return np.isin(ids, [job for job, q in self._open.items() if q.again <= now])

    def answered(self, answers: Iterable[Answer], now: float) -> list[Preempted]:
        """Take in what accounting tells; the requeues by Slurm's preemption among it, which are kept."""
        found: list[Preempted] = []
        closed = False
        for a in answers:
            q = self._open.get(a.job_id)
            if q is None:
                continue
            ended = a.runs[: max(0, a.restarts - q.before)]
            told = [run for run in ended if run.state not in ACTIVE_STATES and run.end == run.end]
            if len(told) < a.restarts - q.before and now - q.since < WHOLE_S:
                pause = min(max(_FIRST_PAUSE_S, 2.0 * q.pause_s), _LONGEST_PAUSE_S)
                self._open[a.job_id] = q._replace(pause_s=pause, again=now + pause)
                continue
            del self._open[a.job_id]
            closed = True
            for run in reversed(told):
                if run.state == "PREEMPTED":
                    lost = float(unsaved(np.array([run.ran_s]), np.array([a.checkpoint_s]))[0])
                    found.append(Preempted(a.job_id, run.end, run.ran_s, lost))
        new = [x for x in found if not self._kept(x)]
        if new:
            self._store.record([Entry(x.end, x.job_id, PREEMPTED, x.ran_s, x.lost_s, WHY, "ok") for x in new])
        self._news += len(new)
        self._done |= {x.job_id: x.end for x in found}
        if closed:
            self._keep()
        return new

    def preempted(self, ids: Ints, first_submit: Floats) -> Bools:
        """Which jobs were requeued by Slurm's preemption, as far as accounting has told. Shapes (n,);
        `first_submit`: epoch s, a job that had the id before is another one."""
        if not self._done:
            return np.zeros(len(ids), dtype=np.bool_)
        ends = [self._done.get(job, -np.inf) for job in ids.tolist()]
        return np.asarray(np.array(ends) >= first_submit, dtype=np.bool_)

    def news(self) -> int:
        """How many requeues were found since this was called last."""
        found, self._news = self._news, 0
        return found

    def _kept(self, x: Preempted) -> bool:
        """Whether there is a record of it, by a daemon that ended before it noted that it had asked."""
        found = self._store.ask(
            "SELECT 1 FROM audit WHERE job_id = ? AND action = ? AND time = ?", (x.job_id, PREEMPTED, x.end)
        )
        return bool(found)

    def _keep(self) -> None:
        text = {
            "open": [[job, q.before, q.since] for job, q in self._open.items()],
            "done": list(self._done.items()),
        }
        self._store.put(_NAME, json.dumps(text))
