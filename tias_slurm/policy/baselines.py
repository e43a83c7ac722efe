"""What TIAS is compared with. Orders that sites or papers use, and two that know the future."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints, RankInput
from tias_slurm.policy.base import Ranking, queue_of

# "Tiresias tuned" of docs/policy.md: K = 4, no promotion
LAS_THRESHOLDS_GPU_S = np.array([18_000.0, 72_000.0, 300_000.0])
AEMON_BANDS = np.array([0.1, 1.0, 10.0])


def _fcfs(jobs: RankInput, level: Ints) -> Ranking:
    everyone = np.ones(len(jobs), dtype=np.bool_)
    return _ranking(level, np.ones(len(jobs)), everyone)


def _ranking(level: Ints, urgency: Floats, site_order: Bools) -> Ranking:
    nobody = np.zeros(len(level), dtype=np.bool_)
    return Ranking(level, urgency, site_order, {}, nobody, nobody, nobody)


class Baseline(ABC):
    """What the baselines share."""

    levels: int

    @abstractmethod
    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """See Policy. `now` may also be one time for each job, which ranks each when it is submitted."""

    def reason(self, ranking: Ranking, row: int) -> str:
        """See Policy."""
        return f"level {ranking.level[row]}"


class DeadlineFirst(Baseline):
    """Deadline jobs before all others, earliest deadline first; the others first come first served."""

    levels = 2

    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """Pure."""
        none = np.isnan(jobs.deadline)
        return _ranking(none.astype(np.int64), np.where(none, 1.0, jobs.deadline), none)


class Las(Baseline):
    """Discretized two-dimensional least attained service (Tiresias, NSDI 2019), blind to deadlines."""

    levels = len(LAS_THRESHOLDS_GPU_S) + 1

    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """Pure."""
        return _fcfs(jobs, queue_of(jobs.attained, LAS_THRESHOLDS_GPU_S))


class Aemon(Baseline):
    """Aemon (APNet 2017) with GPU service in place of bytes.

    Urgency u = elapsed / left raises a deadline job, attained service lowers the others, which go first
    inside a pair of levels.
    """

    levels = 2 * (len(AEMON_BANDS) + 1)

    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """Pure."""
        level = 2 * queue_of(jobs.attained, LAS_THRESHOLDS_GPU_S)
        left = jobs.deadline - now
        urgency = (now - jobs.first_submit) / np.where(left > 0.0, left, 1.0)
        band = self.levels - 1 - 2 * np.searchsorted(AEMON_BANDS, urgency, side="right")
        claimed = np.where(left > 0.0, band, self.levels - 1)
        return _fcfs(jobs, np.where(np.isnan(left), level, claimed))


class OracleSrtf(Baseline):
    """Shortest remaining time first, with the true run times. Levels are powers of two of the remaining time,
    so that a job is preempted only for one that is clearly shorter."""

    levels = 32

    def __init__(self, work_s: Floats) -> None:
        """`work_s`: true run times by job id; NaN for a job that never ran, which then goes last."""
        self._work_s = np.nan_to_num(work_s, nan=2.0**31)

    def remaining(self, jobs: RankInput) -> Floats:
        """True seconds of work left. Shape (n,)."""
        return np.maximum(self._work_s[jobs.job_id] - jobs.executed, 1.0)

    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """Pure."""
        remaining = self.remaining(jobs)
        level = np.minimum(np.log2(remaining).astype(np.int64), self.levels - 1)
        return _ranking(level, remaining, np.zeros(len(jobs), dtype=np.bool_))


class OracleLaxity(OracleSrtf):
    """Shortest remaining time first, but a deadline job goes before everyone when its true laxity runs out.

    Once it cannot be met any more it goes after everyone.
    """

    levels = OracleSrtf.levels + 2
    margin_s = 3_600.0
    margin_ratio = 0.05

    def rank(self, now: float | Floats, jobs: RankInput, survival: Floats) -> Ranking:
        """Pure."""
        remaining = self.remaining(jobs)
        others = 1 + np.minimum(np.log2(remaining).astype(np.int64), OracleSrtf.levels - 1)
        laxity = jobs.deadline - now - remaining
        lost = laxity < 0.0
        due = laxity < self.margin_s + self.margin_ratio * remaining
        claimed = np.where(lost, self.levels - 1, np.where(due, 0, others))
        level = np.where(np.isnan(laxity), others, claimed)
        # laxity falls by itself while a job waits: deadline minus remaining orders the same and stands still
        latest_start = np.maximum(jobs.deadline - remaining, 1.0)
        urgency = np.where(np.isnan(laxity), remaining, np.where(lost, 2 * jobs.deadline, latest_start))
        return _ranking(level, urgency, np.zeros(len(jobs), dtype=np.bool_))
