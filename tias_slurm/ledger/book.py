"""What a snapshot lacks and the daemon must remember: first submits, service, values found and set."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import PENDING, RUNNING, Bools, Floats, History, Ints, RankInput, Snapshot
from tias_slurm.ledger.claim_life import TAKEN, Claim, follow
from tias_slurm.ledger.quota import Buckets, Settings, covered
from tias_slurm.ledger.requeue_log import RequeueLog
from tias_slurm.ledger.reruns import Reruns
from tias_slurm.ledger.rows import find, rows_of
from tias_slurm.ledger.runs import close_runs, lessons
from tias_slurm.ledger.table import (
    ACCEPTED,
    ATTAINED,
    BEFORE,
    BLOCKED_AT,
    CLAIM,
    COLUMNS,
    COUNTS,
    FALLEN,
    FIRST,
    FOUND,
    FRONT,
    HELD_BY_US,
    HOLD,
    KEPT,
    LATE,
    LOST,
    NICE,
    PREEMPTED_AT,
    REFUSED,
    RELEASED,
    REQUEUED_AT,
    REQUEUES,
    RESTARTS,
    RUN_TIME,
    SET,
    SINCE,
    SLOT,
    SUBMIT,
    UNSEEN,
    WARNED_AT,
    WARNED_FOR,
    WITHHELD,
)  # fmt: skip
from tias_slurm.ledger.table import Store as Store
from tias_slurm.ledger.waits import follow_holds, follow_waits
from tias_slurm.levers import HELD
from tias_slurm.planner import Applied, Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.learning import Learner, LearnSettings

# after so long without a look, seconds, what a requeued job did meanwhile is not known well enough
GAP_S = 600.0
# under which the store keeps the rules of the last look
_RULES = "claim_rules"


class Intended(NamedTuple):
    """The requeues that were intended last, and what was known before. Shapes (v,)."""

    victims: Ints
    beneficiaries: Ints
    requeued_at: Floats
    preempted_at: Floats
    users: list[str]


class Ledger:
    """A table in the order of the last snapshot, one row a job; only the store keeps jobs that left."""

    def __init__(
        self,
        store: Store | None = None,
        max_changes: int = 3,
        *,
        quota: Settings | None = None,
        learn: LearnSettings | None = None,
        told_at_submit: bool = False,
        claim_rules: str = "",
    ) -> None:
        """`max_changes`: how often a job may change its deadline. `quota`: of GPU time under deadlines, by
        account; None: none. `learn`: how, if not by default. `told_at_submit`: claims were there when the
        jobs were submitted, however late we look, as in a history. `claim_rules`: the
        settings that decide which deadlines are read out of comments and admitted, as any text; "": they
        never change."""
        self._max_changes, self._told_at_submit = max_changes, told_at_submit
        # whether claims are taken, codes of claim_life.REASONS, rows of the last snapshot
        self.unaccepted: Ints = np.zeros(0, dtype=np.int64)
        self._new: Bools = np.zeros(0, dtype=np.bool_)  # jobs that the last snapshot showed first
        self._able: Bools = np.zeros(0, dtype=np.bool_)  # see RankInput
        self.buckets = None if quota is None else Buckets(quota)
        self.learner = Learner(learn or LearnSettings())
        self._requeues = RequeueLog()
        self.reruns: Reruns | None = None  # told of each restart; None: nobody asks why
        self._intended: Intended | None = None
        self._store = store
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._table: Floats = np.empty((0, len(COLUMNS)))
        self._learned = False
        self._last_look = -np.inf
        self._ran = np.empty(0, dtype=np.int64), np.empty(0)  # who ran at the last look, and its weight
        # the rules are others than those of the last look that was kept
        self._claim_rules, self._new_rules, self._rules_kept = claim_rules, False, False
        if store is not None:
            self._ids, table, counts = store.load()
            self._table = np.asfortranarray(table)
            if counts.shape == self.learner.counts.shape:
                self.learner.counts[:] = counts
            self.learner.loads(store.get("learned") or "")
            self._requeues.loads(store.get("requeues") or "")
            if self.buckets is not None:
                self.buckets.loads(store.get("quota") or "")
            self._new_rules = bool(claim_rules) and store.get(_RULES) not in (None, claim_rules)
        self._saved_ids, self._saved = self._ids, self._table.copy(order="F")

    def go_on_from(self, before: Ledger) -> None:
        """Take over what another one, of other settings, has in memory alone."""
        self._last_look, self._ran = before._last_look, before._ran

    @property
    def found(self) -> Floats:
        """The users' own lever values. Shape (n,), rows of the last snapshot, likewise below."""
        return self._table[:, FOUND]

    def history(self) -> History:
        """What the planner must know. A view: it changes with the ledger."""
        t = self._table
        return History(
            t[:, FOUND],
            t[:, REQUEUES].astype(np.int64),
            t[:, REQUEUED_AT],
            t[:, PREEMPTED_AT],
            t[:, WARNED_AT],
            t[:, WARNED_FOR],
            # a lost claim says nothing of how long a job will run any more
            np.where((t[:, COUNTS] > 0) & (t[:, FALLEN] == 0), t[:, CLAIM] - t[:, FIRST], np.nan),
            self._requeues.last_hour(self._last_look),
            t[:, HOLD] == RELEASED,
        )

    @property
    def refused(self) -> Bools:
        """Jobs of which Slurm refused a write."""
        return np.isfinite(self._table[:, REFUSED])

    @property
    def uncounted(self) -> Floats:
        """Deadlines of jobs whose account is over its quota, NaN: none. Shape (n,)."""
        t = self._table
        return np.where(t[:, COUNTS] > 0, np.nan, t[:, CLAIM])

    @property
    def unseen(self) -> Bools:
        """Jobs with runs that we did not see: from before the daemon, or while it was away."""
        return np.asarray(self._table[:, UNSEEN] > 0, dtype=np.bool_)

    def overridden(self, snapshot: Snapshot) -> Bools:
        """Jobs whose value is neither what we found nor what we set: a person's decision."""
        lever, t = snapshot.jobs.lever, self._table
        ours = (lever == t[:, SET]) | (lever == t[:, BEFORE]) | (lever == t[:, FOUND])
        return np.asarray(~ours & np.isfinite(t[:, SET]), dtype=np.bool_)

    def remember(self, snapshot: Snapshot) -> RankInput:
        """Take in a snapshot; return its jobs joined with what is known of them."""
        self._learn(snapshot)
        jobs = snapshot.jobs
        if not np.array_equal(jobs.job_id, self._ids) or (jobs.submit != self._table[:, SUBMIT]).any():
            self._realign(snapshot)
        else:
            self._new = np.zeros(len(jobs), dtype=np.bool_)
        t = self._table
        restarted = jobs.restarts > t[:, RESTARTS]
        if restarted.any():
            away = snapshot.now - self._last_look > GAP_S
            t[restarted & (away | (jobs.restarts > t[:, RESTARTS] + 1)), UNSEEN] = 1.0
            rows = np.flatnonzero(restarted)
            if self.reruns is not None:
                self.reruns.began_again(jobs.job_id[rows], t[rows, RESTARTS], snapshot.now)
            close_runs(
                t, rows, jobs, self._weight_of_run(jobs.job_id[rows], jobs.weight[rows]), self._last_look
            )
            t[restarted, SINCE] = t[restarted, BLOCKED_AT] = np.nan
            t[restarted, HOLD] = 0.0
        self._last_look = snapshot.now
        runs = jobs.state == RUNNING
        self._ran = jobs.job_id[runs], jobs.weight[runs]
        t[:, RUN_TIME] = jobs.run_time
        follow_holds(t, jobs.lever)
        untouched = np.isnan(t[:, SET])
        t[:, NICE] = np.where(np.isnan(t[:, NICE]), jobs.nice, t[:, NICE])  # see ledger.sight
        if not np.array_equal(jobs.lever, t[:, FOUND]):
            # until we write, the value is the user's own, whatever it becomes
            t[untouched, FOUND] = jobs.lever[untouched]
        self._able = follow_waits(t, snapshot, ~self.overridden(snapshot) & ~self.refused)
        self._follow_claims(snapshot)
        self._count_claims(snapshot)
        # where nobody waits nobody is ranked
        t[t[:, CLAIM] <= snapshot.now, FALLEN] = 1.0
        self._keep()
        if self._claim_rules and self._store is not None and (self._new_rules or not self._rules_kept):
            self._store.put(_RULES, self._claim_rules)
            self._new_rules, self._rules_kept = False, True
        return self.view(snapshot)

    def view(self, snapshot: Snapshot) -> RankInput:
        """The jobs of the snapshot that was taken in last, joined with what is known of them."""
        jobs, t = snapshot.jobs, self._table
        age = snapshot.now - t[:, FIRST]
        executed = np.maximum(np.minimum(t[:, KEPT] + jobs.run_time, age), 0.0)
        return RankInput(
            jobs.job_id,
            jobs.state == RUNNING,
            t[:, FIRST].copy(),
            np.where(t[:, COUNTS] > 0, t[:, CLAIM], np.nan),
            jobs.weight,
            executed,
            t[:, ATTAINED] + jobs.run_time * jobs.weight,
            (t[:, LOST] > 0) & np.isnan(t[:, CLAIM]),
            np.where(np.isnan(t[:, BLOCKED_AT]), t[:, SINCE], t[:, SINCE] + snapshot.now - t[:, BLOCKED_AT]),
            jobs.time_limit,
            t[:, SLOT] > 0,
            t[:, FRONT] > 0,
            self._able,
            t[:, LATE] > 0,
            snapshot.capacity,
        )

    def note(self, ranking: Ranking) -> None:
        """Keep what the next ranking has to know of this one (rows of the last snapshot)."""
        t = self._table
        # a claim over its quota was not ranked: what was known of it stands, and its time goes on
        unranked = (t[:, COUNTS] == 0) & ((t[:, FALLEN] > 0) | (t[:, CLAIM] <= self._last_look))
        t[:, FALLEN], t[:, SLOT], t[:, FRONT] = ranking.fallen | unranked, ranking.slot, ranking.front
        self._keep()

    @property
    def table(self) -> tuple[Ints, Floats]:
        """Ids (n,) and COLUMNS (n, columns) of the jobs of the last snapshot. Views."""
        return self._ids, self._table

    def row(self, row: int) -> dict[str, float]:
        """All that is kept of the job of that row of the last snapshot, by COLUMNS."""
        return dict(zip(COLUMNS, self._table[row].tolist(), strict=True))

    def first_submit(self, ids: Ints, submit: Floats) -> Floats:
        """First submits of jobs by id, before they are remembered: `submit` if not known. Shape (n,)."""
        at, known = self._find(ids)
        return np.where(known, self._table[at, FIRST], submit) if len(self._ids) else submit

    def standing(self, ids: Ints, otherwise: Floats) -> Floats:
        """Lever values by job id as we believe they stand: what we set, else what we found. Shape (n,)."""
        at, known = self._find(ids)
        if not len(self._ids):
            return otherwise
        t = self._table[at]
        return np.where(known, np.where(np.isnan(t[:, SET]), t[:, FOUND], t[:, SET]), otherwise)

    def holds(self, ids: Ints) -> Bools:
        """Which jobs, by id, are held by us as far as we know. Shape (n,)."""
        at, known = self._find(ids)
        if not len(self._ids):
            return known
        t = self._table[at]
        return np.asarray(known & ((t[:, HOLD] == HELD_BY_US) | (t[:, SET] == HELD)), dtype=np.bool_)

    def learn_past(self, ids: Ints, first_submit: Floats, attained: Floats, kept: Floats) -> None:
        """Take in what is known elsewhere of runs that we did not see; those jobs are not unseen any more.

        Shapes (n,): job ids; first submit, epoch s (NaN: not known); GPU-seconds and useful seconds of all
        runs but the current one. Only what is earlier or more than we know counts, and only for unseen jobs.
        """
        at, known = self._find(ids)
        take = known & (self._table[at, UNSEEN] > 0) if len(self._ids) else known
        rows, t = at[take], self._table
        t[rows, FIRST] = np.fmin(t[rows, FIRST], first_submit[take])
        t[rows, ATTAINED] = np.fmax(t[rows, ATTAINED], attained[take])
        t[rows, KEPT] = np.fmax(t[rows, KEPT], kept[take])
        t[rows, UNSEEN] = 0.0
        self._keep()

    def intend(self, snapshot: Snapshot, plan: Plan) -> None:
        """Note what is about to be sent (rows of the last snapshot): no crash may leave a value unknown.

        If the store cannot keep it nothing is noted, and nothing may be sent.
        """
        before, users = self._table.copy(order="F"), self._users(snapshot, plan)
        try:
            self._intend(snapshot, plan, users)
        except Exception:
            self._table[:] = before
            if users:
                self._requeues.take_back(users)
            raise

    @staticmethod
    def _users(snapshot: Snapshot, plan: Plan) -> list[str]:
        return [snapshot.users[u] for u in snapshot.jobs.user[plan.victims].tolist()]

    def _intend(self, snapshot: Snapshot, plan: Plan, users: list[str]) -> None:
        t = self._table
        t[plan.write, BEFORE] = snapshot.jobs.lever[plan.write]
        t[plan.write, SET] = plan.new
        if len(plan.victims):
            rows, others = plan.victims, plan.beneficiaries
            self._intended = Intended(rows, others, t[rows, REQUEUED_AT], t[others, PREEMPTED_AT], users)
            self._log_requeues(self._requeues.add, snapshot.now, users)
        t[plan.victims, REQUEUES] += 1.0
        t[plan.victims, REQUEUED_AT] = t[plan.beneficiaries, PREEMPTED_AT] = snapshot.now
        t[plan.warn, WARNED_AT] = t[plan.warned_for, WARNED_FOR] = snapshot.now
        self._keep()

    def applied(self, applied: Applied, now: float) -> None:
        """Note what Slurm refused and who was not requeued (rows of the last snapshot)."""
        if not len(applied.refused) and not len(applied.spared):
            return
        t, was = self._table, self._intended
        t[applied.refused, REFUSED] = now
        if len(applied.spared) and was is not None:
            spared = np.isin(was.victims, applied.spared)
            t[applied.spared, REQUEUES] -= 1.0
            t[was.victims[spared], REQUEUED_AT] = was.requeued_at[spared]
            # who had nobody requeued after all need not cool down
            vain = ~np.isin(was.beneficiaries, was.beneficiaries[~spared])
            t[was.beneficiaries[vain], PREEMPTED_AT] = was.preempted_at[vain]
            self._log_requeues(
                self._requeues.take_back, [u for u, s in zip(was.users, spared, strict=True) if s]
            )
        self._keep()

    def _log_requeues(self, change: Callable[..., None], *what: object) -> None:
        change(*what)
        if self._store is not None:
            self._store.put("requeues", self._requeues.dumps())

    def _follow_claims(self, snapshot: Snapshot) -> None:
        t, said = self._table, snapshot.jobs.deadline
        # NaN: none on both sides
        if np.array_equal(said, t[:, CLAIM], equal_nan=True):
            self.unaccepted = np.zeros(len(t), dtype=np.int64)
            return
        seen = t[:, FIRST]
        if not self._told_at_submit:
            seen = np.maximum(seen, snapshot.now - snapshot.jobs.run_time)
        old = Claim(t[:, CLAIM], t[:, ACCEPTED], t[:, LOST] > 0, np.full(len(t), TAKEN), t[:, WITHHELD])
        claim = follow(said, seen, old, t[:, FALLEN] > 0, self._max_changes, by_settings=self._new_rules)
        # what a job comes to say while it runs must not keep others from its nodes; what it said before we
        # first saw it was there when it started
        t[(claim.accepted > t[:, ACCEPTED]) & ~self._new & (snapshot.jobs.state == RUNNING), LATE] = 1.0
        t[:, CLAIM], t[:, ACCEPTED], t[:, LOST] = claim.deadline, claim.accepted, claim.lost
        t[:, WITHHELD] = claim.withheld
        self.unaccepted = claim.refused

    def _count_claims(self, snapshot: Snapshot) -> None:
        """Charge the accounts, and decide which claims count: of running jobs, that was decided before."""
        t, jobs = self._table, snapshot.jobs
        if self.buckets is None:
            t[:, COUNTS] = 1.0
            return
        claims = np.isfinite(t[:, CLAIM])
        pays = claims & (jobs.state == RUNNING) & (t[:, COUNTS] > 0) & (t[:, FALLEN] == 0)
        left = self.buckets.look(
            snapshot.now, snapshot.accounts, snapshot.capacity, jobs.account, jobs.weight, jobs.run_time, pays
        )
        open_ = (jobs.state == PENDING) | self._new
        # a lost claim will not use what it would set apart
        takes = np.where(claims & ((open_ & (t[:, FALLEN] == 0)) | pays), jobs.weight, 0.0)
        # who runs comes before who waits
        order = np.lexsort((jobs.job_id, t[:, FIRST], ~pays))
        t[open_, COUNTS] = covered(left, jobs.account, takes, order, self.buckets.settings.reserve_s)[open_]
        if self._store is not None:
            # also while none is in use: what is charged after a restart hangs on when we last looked
            self._store.put("quota", self.buckets.dumps())

    def _realign(self, snapshot: Snapshot) -> None:
        recall = None if self._store is None else self._store.recall
        self._table = rows_of(snapshot, self._ids, self._table, recall)
        self._ids = snapshot.jobs.job_id
        self._new = np.isnan(self._table[:, SINCE])

    def _weight_of_run(self, ids: Ints, otherwise: Floats) -> Floats:
        """What the GPUs of a run counted for: they may count for more than what the job asks for again."""
        running, weight = self._ran
        if not len(running):
            return otherwise
        at, known = find(running, ids)
        return np.where(known, weight[at], otherwise)

    def _find(self, ids: Ints) -> tuple[Ints, Bools]:
        """Rows of `ids` in the last snapshot, and which of them were there."""
        return find(self._ids, ids)

    def _learn(self, snapshot: Snapshot) -> None:
        ended = snapshot.ended
        self._learned |= self.learner.fade(snapshot.now)
        if not len(ended.job_id):
            return
        rows = np.flatnonzero(ended.completed & np.isfinite(ended.deadline))
        if not len(rows):
            return
        learned = lessons(self._table, ended, rows, *self._find(ended.job_id[rows]))
        users = [snapshot.users[u] for u in ended.user[learned.rows].tolist()]
        self.learner.learn(learned.window, learned.used, users)
        self._learned = True

    def _keep(self) -> None:
        """Bring the store up to date: the rows that changed, and nothing else."""
        if self._store is None:
            return
        changed = np.ones(len(self._ids), dtype=np.bool_)
        gone = self._saved_ids
        if len(self._saved_ids):
            at = np.minimum(np.searchsorted(self._saved_ids, self._ids), len(self._saved_ids) - 1)
            was = self._saved_ids[at] == self._ids
            same = (self._saved[at] == self._table) | (np.isnan(self._saved[at]) & np.isnan(self._table))
            changed = ~(was & same.all(axis=1))
            gone = np.setdiff1d(self._saved_ids, self._ids, assume_unique=True)
        if changed.any() or len(gone) or self._learned:
            learned = self.learner.counts if self._learned else None
            self._store.save(self._ids[changed], self._table[changed], gone, learned)
            if self._learned:
                self._store.put("learned", self.learner.dumps())
            self._saved_ids, self._saved, self._learned = self._ids, self._table.copy(order="F"), False
