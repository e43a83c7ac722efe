"""Asks sacct for the runs that the ledger did not see, and tells the log what came of it."""

from __future__ import annotations

from typing import Any

from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.slurm.backfill import Backfill, Filled


def fill(backfill: Backfill, made: LiveCycle) -> Filled | None:
    """Ask for the jobs of the last look. None: there was none."""
    raw, observed = made.cluster.raw, made.cluster.observed
    if raw is None or observed is None:
        return None
    return backfill.fill(made.ledger, raw, observed, made.cluster.config.gpus.weights)


class EarlierRuns:
    """See slurm.backfill; a failure is said once."""

    def __init__(self, timeout_s: float, log: Any) -> None:
        self._backfill, self._log, self._problem = Backfill(timeout_s), log, ""

    def settle(self, timeout_s: float) -> None:
        """Go on with another limit for each question, s."""
        self._backfill.timeout_s = timeout_s

    def fill(self, made: LiveCycle) -> bool:
        """For the jobs of the last look; whether anything was found."""
        filled = fill(self._backfill, made)
        if filled is None:
            return False
        if filled.problem and not self._problem:
            self._log.warning("earlier runs are not known", jobs=filled.asked, message=filled.problem)
        elif filled.learned:
            self._log.info("earlier runs", jobs=filled.learned)
        for x in filled.preempted:
            self._log.info(
                "requeued by Slurm", job=x.job_id, time=x.end, ran_s=round(x.ran_s), lost_s=round(x.lost_s)
            )
        if filled.asked:
            self._problem = filled.problem
        return filled.learned > 0
