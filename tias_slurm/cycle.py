"""What one cycle of the daemon saw and did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tias_slurm.jobs import PENDING
from tias_slurm.ledger.audit import Action
from tias_slurm.ledger.claim_life import REASONS
from tias_slurm.ledger.refusals import Refusals, Refused
from tias_slurm.service.live_cycle import LiveCycle

Outcome = tuple[int, str, str]  # number of the audit record, result, the controller's words


@dataclass
class Cycle:
    """What one cycle saw and did."""

    result: str  # "ok", "no answer", "stale", "standby"
    jobs: int = 0
    waiting: int = 0
    writes: int = 0
    failed: int = 0
    held_back: int = 0  # writes that the budget, a pause or missing rights left for later
    refused: int = 0  # jobs of which Slurm refused a write
    overridden: int = 0  # jobs whose value a person has changed
    requeues: int = 0
    paused: bool = False
    no_requeue_for: dict[str, int] = field(default_factory=dict)  # waiting jobs, by why that is not certain
    barred: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    message: str = ""

    def fill(
        self, made: LiveCycle, outcomes: Sequence[Outcome], actions: Sequence[Action], requeued: int
    ) -> None:
        """Count what a good cycle saw and what became of its actions."""
        observed, ledger = made.cluster.observed, made.ledger
        if observed is None:
            return
        jobs = observed.snapshot.jobs
        self.jobs, self.waiting = len(jobs), int((jobs.state == PENDING).sum())
        ok = sum(result == "ok" for _, result, _ in outcomes)
        self.requeues = requeued
        self.writes = sum(
            result == "ok" and action.event == "write"
            for (_, result, _), action in zip(outcomes, actions, strict=False)
        )
        unsent = 0 if made.cluster.enforce else sum(a.event == "requeue" for a in actions)
        self.failed = len(outcomes) - ok - unsent
        self.no_requeue_for = dict(observed.unsure)
        self.held_back = made.controller.held_back
        if made.controller.seen is not None and (low := made.controller.seen.plan.kept_low):
            self.no_requeue_for["stands lower: a running job cannot be protected from it"] = low
        self.refused = int(ledger.refused.sum())
        self.overridden = int(ledger.overridden(observed.snapshot).sum())
        self.barred = dict(observed.barred)


def refused_claims(made: LiveCycle) -> tuple[list[Refused], frozenset[int]]:
    """What is not taken of the comments of jobs that wait or run, and the roots of all jobs shown, see
    Refusals; after a good cycle."""
    observed, raw = made.cluster.observed, made.cluster.raw
    if observed is None or raw is None:
        return [], frozenset()
    roots = np.where(raw.array_id > 0, raw.array_id, raw.job_id)
    why = made.cluster.claims.refused()
    found = []
    for row, (job, at) in enumerate(zip(observed.snapshot.jobs.job_id.tolist(), observed.rows, strict=True)):
        codes = why.get(job, ())
        if unaccepted := int(made.ledger.unaccepted[row]):
            codes = (*codes, REASONS[unaccepted])
        if codes:
            found.append(Refused(job, int(roots[at]), raw.comment[at], codes))
    return found, frozenset(roots.tolist())


def refused_now(made: LiveCycle) -> dict[str, int]:
    """How many of those jobs have something that is not taken, by reason."""
    return dict(Counter(code for refused in refused_claims(made)[0] for code in refused.codes))


def tell(log: Any, made: LiveCycle, said: Refusals) -> dict[str, int]:
    """Tell the log what jobs a good cycle noticed; what was not taken of comments and is not `said` yet, by
    reason."""
    for job in made.cluster.watched:
        line = log.warning if job.result == "still waits" else log.info
        line(f"job that others were requeued for {job.result}", job=job.job_id, seconds=round(job.seconds))
    news = said.news(*refused_claims(made))
    for job_id, why in news:
        if why in REASONS:
            log.info("claim not taken", job=job_id, reason=why)
    refused = dict(Counter(code for _, code in news))
    if refused:
        log.info("claims refused", reasons=refused)
    return refused
