"""What a snapshot lacks and the daemon must remember: first submits, service over all runs, values found."""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import RUNNING, Floats, Ints, RankInput, Snapshot
from tias_slurm.policy.learning import Learner


class Ledger:
    """In memory, as columns in the order of the last snapshot; jobs that left are forgotten."""

    def __init__(self) -> None:
        self.learner = Learner()
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._first_submit: Floats = np.empty(0)
        self._kept: Floats = np.empty(0)  # useful seconds of earlier runs
        self._attained: Floats = np.empty(0)  # GPU-seconds of earlier runs
        self._run_time: Floats = np.empty(0)  # of the current run, when last seen
        self._restarts: Ints = np.empty(0, dtype=np.int64)
        self.found: Floats = np.empty(0)  # the users' own lever values
        self.requeues: Ints = np.empty(0, dtype=np.int64)  # by us

    def remember(self, snapshot: Snapshot) -> RankInput:
        """Take in a snapshot; return its jobs joined with what is known of them."""
        self._learn(snapshot)
        jobs = snapshot.jobs
        if not np.array_equal(jobs.job_id, self._ids):
            self._realign(snapshot)
        restarted = jobs.restarts > self._restarts
        if restarted.any():
            self._close_runs(snapshot, np.flatnonzero(restarted))
        self._run_time = jobs.run_time
        age = snapshot.now - self._first_submit
        executed = np.maximum(np.minimum(self._kept + jobs.run_time, age), 0.0)
        return RankInput(
            jobs.job_id,
            jobs.state == RUNNING,
            self._first_submit,
            jobs.deadline,
            jobs.gpus.astype(np.float64),
            executed,
            self._attained + jobs.run_time * jobs.gpus,
            np.zeros(len(jobs), dtype=np.bool_),
        )

    def requeued(self, rows: Ints) -> None:
        """Note our own requeues, rows of the last snapshot, before they are carried out."""
        self.requeues[rows] += 1

    def _realign(self, snapshot: Snapshot) -> None:
        jobs = snapshot.jobs
        at, known = self._find(jobs.job_id)

        def carry(old: Floats, fresh: Floats) -> Floats:
            # always an array of its own: the columns are added to in place
            return np.where(known, old[at], fresh) if len(old) else fresh.copy()

        zeros = np.zeros(len(jobs))
        none = np.zeros(len(jobs), dtype=np.int64)
        self._first_submit = carry(self._first_submit, jobs.submit)
        self._kept = carry(self._kept, zeros)
        self._attained = carry(self._attained, zeros)
        self._run_time = carry(self._run_time, zeros)
        self.found = carry(self.found, jobs.lever)
        self._restarts = (
            np.where(known, self._restarts[at], jobs.restarts) if len(self._ids) else jobs.restarts
        )
        self.requeues = np.where(known, self.requeues[at], none) if len(self._ids) else none
        self._ids = jobs.job_id

    def _close_runs(self, snapshot: Snapshot, rows: Ints) -> None:
        """Runs ended by a requeue: all of their service was received, what was saved is still useful."""
        jobs = snapshot.jobs
        ran, saves = self._run_time[rows], jobs.checkpoint[rows]
        self._attained[rows] += ran * jobs.gpus[rows]
        saved = np.floor(ran / np.maximum(saves, 1.0)) * saves
        self._kept[rows] = np.where(saves > 0, self._kept[rows] + saved, 0.0)
        self._restarts = jobs.restarts

    def _find(self, ids: Ints) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Rows of `ids` in the last snapshot, and which of them were there."""
        if not len(self._ids):
            return np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return at, self._ids[at] == ids

    def _learn(self, snapshot: Snapshot) -> None:
        ended = snapshot.ended
        if not len(ended.job_id):
            return
        rows = np.flatnonzero(ended.completed & np.isfinite(ended.deadline))
        if not len(rows):
            return
        at, known = self._find(ended.job_id[rows])
        kept, first = np.zeros(len(rows)), ended.submit[rows]
        if len(self._ids):
            kept = np.where(known, self._kept[at], 0.0)
            first = np.where(known, self._first_submit[at], first)
        window = ended.deadline[rows] - first
        fine = window > 0
        self.learner.learn(window[fine], (kept + ended.run_time[rows])[fine])
