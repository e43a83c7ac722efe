"""What the daemon did in some time, out of its ledger: writes, requeues and for whom, refusals. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from tias_slurm.ledger import gains
from tias_slurm.ledger.remembered import Memory
from tias_slurm.ledger.reruns import PREEMPTED
from tias_slurm.ledger.store import Entry
from tias_slurm.ledger.tally import HOUR_S, MOST, Tally
from tias_slurm.replay.workload import weight_of
from tias_slurm.slurm.live import DRY_RUN

# the actions of audit records: the fields of the levers, and these
LEVERS: Final = ("nice", "priority", "site_factor")
ACTIONS: Final = (*LEVERS, "warn", "requeue", PREEMPTED)
NOT_KNOWN: Final = "not known"  # the daemon ended before it heard
DRY: Final = DRY_RUN


class Jobs:
    """The jobs of a history by the numbers that audit records use."""

    def __init__(self, jobs: pd.DataFrame, memory: Memory) -> None:
        self.jobs, self.memory = jobs, memory
        self._row = {int(raw): row for row, raw in enumerate(jobs["raw_id"].tolist())}
        self._gpus, self._weight = jobs["gpus"].to_numpy(np.int64), weight_of(jobs)
        self._deadline = jobs["deadline"].to_numpy(np.float64)

    def who(self, job_id: int) -> dict[str, Any]:
        """Job and user, as far as the history tells."""
        row = self._row.get(job_id)
        if row is None:
            return {"job": str(job_id), "user": None, "gpus": None, "deadline": None}
        name, user = (str(self.jobs[c].iat[row]) for c in ("job_id", "user"))
        return {
            "job": name,
            "user": user or None,
            "gpus": int(self._gpus[row]),
            "deadline": bool(np.isfinite(self._deadline[row])),
        }

    def gpu_s(self, job_id: int, seconds: float) -> float | None:
        """GPU-seconds of so many seconds of a job; None: not known."""
        row = self._row.get(job_id)
        return None if row is None else float(seconds * self._weight[row])

    def lost_gpu_s(self, job_id: int) -> float | None:
        """GPU-seconds that our requeues have cost a job in all; None: not known."""
        row = self._row.get(job_id)
        if row is None or not self.memory.known[row]:
            return None
        return float(self.memory.redone[row] * self._weight[row])


def covered(tally: Tally, since: float, until: float) -> dict[str, Any]:
    """How much of the time the ledger tells of."""
    hours = -(-until // HOUR_S) - since // HOUR_S
    return {
        "hours": int(hours),
        "hours_with_cycles": len(tally.hours),
        "cycles": dict(tally.cycles),
        "paused_cycles": tally.paused,
    }


def doings(
    entries: Sequence[Entry],
    tally: Tally,
    jobs: Jobs,
    *,
    dry: bool,
    gained: Sequence[dict[str, Any] | None] = (),
) -> dict[str, Any]:
    """The account as a document. `dry`: the ledger is one of a dry run, in which nothing was sent. `gained`:
    what each record bought, see gains.bought."""
    writes: dict[str, Counter[str]] = {}
    for e in entries:
        if e.action in LEVERS:
            writes.setdefault(e.action, Counter())[_result(e, dry)] += 1
    requeues = [e for e in entries if e.action == "requeue"]
    sent = [
        (e, what)
        for e, what in zip(entries, gained or [None] * len(entries), strict=True)
        if e.action == "requeue" and (dry or e.result in ("ok", None))
    ]
    return {
        "records": len(entries),
        "writes": {lever: dict(found) for lever, found in writes.items()},
        "written_jobs": len({e.job_id for e in entries if e.action in LEVERS and e.result == "ok"}),
        "warnings": dict(Counter(_result(e, dry) for e in entries if e.action == "warn")),
        "requeues": dict(Counter(_result(e, dry) for e in requeues)),
        **_requeued([e for e, _ in sent], [what for _, what in sent], jobs, dry),
        "bought": gains.summary([what for _, what in sent]),
        "by_slurm": _by_slurm([e for e in entries if e.action == PREEMPTED], jobs),
        "claims_not_taken": dict(tally.claims),
        "most_at_once": {name: tally.most[name] for name in MOST},
    }


def _by_slurm(entries: Sequence[Entry], jobs: Jobs) -> dict[str, Any]:
    """Requeues by Slurm's own preemption."""
    lost = [jobs.gpu_s(e.job_id, e.new or 0.0) for e in entries]
    known = [value for value in lost if value is not None]
    return {
        "requeues": len(entries),
        "jobs": len({e.job_id for e in entries}),
        "lost_gpu_hours": sum(known) / 3600.0 if known or not lost else None,
        "lost_not_known": len(lost) - len(known),
    }


def _result(entry: Entry, dry: bool) -> str:
    return DRY if dry else entry.result or NOT_KNOWN


def _requeued(
    entries: Sequence[Entry], gained: Sequence[dict[str, Any] | None], jobs: Jobs, dry: bool
) -> dict[str, Any]:
    """Who was stopped, for whom, what that cost and what it bought."""
    lost = {} if dry else {job: jobs.lost_gpu_s(job) for job in {e.job_id for e in entries}}
    known = [value for value in lost.values() if value is not None]
    made = [
        {
            "time": e.time,
            "result": _result(e, dry),
            "job_id": e.job_id,
            **jobs.who(e.job_id),
            "for": {"job_id": int(e.new), **jobs.who(int(e.new))} if e.new is not None else None,
            "job_lost_gpu_hours": _hours(lost.get(e.job_id)),
            "bought": what and {k: what[k] for k in ("became", "after_s", "ran_as", "met")},
            "reason": e.reason,
        }
        for e, what in zip(entries, gained, strict=True)
    ]
    others = [m["for"] for m in made if m["for"] is not None]
    kinds = {True: "deadline", False: "no_deadline", None: "not_known"}
    return {
        "requeued_jobs": len({e.job_id for e in entries}),
        "lost_gpu_hours": sum(known) / 3600.0 if known or not entries else None,
        "lost_not_known_jobs": len(lost) - len(known),
        "for_whom": {
            "jobs": len({o["job_id"] for o in others}),
            **_counted((kinds[o["deadline"]] for o in others), kinds.values()),
            "users": dict(Counter(o["user"] for o in others if o["user"]).most_common()),
        },
        "of_users": dict(Counter(m["user"] for m in made if m["user"]).most_common()),
        "requeue_list": made,
    }


def _counted(found: Iterable[str], names: Iterable[str]) -> dict[str, int]:
    counts = Counter(found)
    return {name: counts[name] for name in names}


def _hours(gpu_s: float | None) -> float | None:
    return None if gpu_s is None else gpu_s / 3600.0
