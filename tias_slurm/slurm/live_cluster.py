"""The `Cluster` port over a running slurmctld, through either adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.assemble import consents
from tias_slurm.config import Config
from tias_slurm.jobs import ACTIVE_STATES, Bools, Ended, Floats, Ints, Snapshot
from tias_slurm.levers import PRIORITY_BASE
from tias_slurm.planner import Applied, Plan
from tias_slurm.slurm.live import (
    DRY_RUN,
    HELD_ALREADY,
    NOT_HELD_BY_US,
    Adapter,
    AdapterError,
    Field,
    RawTable,
    WriteResult,
)
from tias_slurm.slurm.live_claims import ClaimReader
from tias_slurm.slurm.live_look import NodeLook
from tias_slurm.slurm.live_requeue import (
    ENDED,
    Look,
    Watch,
    Watched,
    beneficiary_ready,
    groups,
    outcome,
    victim_ready,
)
from tias_slurm.slurm.live_values import explicit, write
from tias_slurm.slurm.live_writes import Order
from tias_slurm.slurm.observer import Observed, observe

# told of each action: its number, what became of it; numbers count the plan's writes, then its warnings, then
# its victims
Told = Callable[[int, WriteResult], None]
# what is remembered of jobs by id, and what to take for those that are not known
Remembered = Callable[[Ints, Floats], Floats]


class StaleSnapshotError(Exception):
    """The queue that the controller shows cannot be the truth: nothing is done on it."""


class LiveCluster:
    """`observe` asks the controller once; `apply` writes, or in a dry run only remembers."""

    def __init__(
        self,
        adapter: Adapter,
        config: Config,
        zone: ZoneInfo,
        *,
        enforce: bool,
        field: Field,
        first_submit: Remembered,
        standing: Remembered | None = None,
        multifactor: bool = True,
        told: Told | None = None,
        ignored: Callable[[RawTable], Bools | None] | None = None,
        holds: Callable[[Ints], Bools] | None = None,
    ) -> None:
        """`first_submit`, `standing`, `holds`: of the ledger, see there. `told` is called after each write.
        `multifactor`: PriorityType is priority/multifactor, so that explicit priorities can be told.
        `ignored`: which records an administrator has taken out of our hands, see hands.py.
        """
        self.adapter = adapter
        self.config = config
        self.enforce = enforce
        self.field: Field = field
        self.raw: RawTable | None = None
        self.observed: Observed | None = None
        self.no_rights = ""  # the controller's words, once it said that we may not write
        self.stop = False  # the daemon ends: what is not sent yet stays so
        self.claims = ClaimReader(config, zone, first_submit)
        self._first_submit = first_submit
        self._standing = standing
        self._multifactor = multifactor
        self._told = told
        self._ignored, self._holds = ignored, holds
        self._would_be: dict[int, tuple[float, float]] = {}  # job -> value, and what really stood there
        self._sent: dict[int, tuple[float, int]] = {}  # job -> value not seen in place yet, times sent
        self._seen_ended: frozenset[int] | None = None
        self.watch = Watch(config.requeue.cooldown_s, config.requeue.max_in_vain)
        self.watched: list[Watched] = []  # of the last look
        self._nodes = NodeLook(adapter, config.requeue)

    def go_on_from(self, before: LiveCluster) -> None:
        """Take over what another one, of other settings, saw and counted; what it sent or would have sent if
        that is in the same field and as earnest."""
        self.raw, self._seen_ended = before.raw, before._seen_ended
        self.watch.cases, self.watch.vain = before.watch.cases, before.watch.vain
        if (self.field, self.enforce) == (before.field, before.enforce):
            self._would_be, self._sent = before._would_be, before._sent

    # -- the port

    def observe(self) -> Snapshot:
        """See controller.Cluster. Raises AdapterError, StaleSnapshotError."""
        raw = self.adapter.jobs()
        self._refuse_stale(raw)
        lever = self._lever(raw)
        hidden = None
        if lever is not None and np.isnan(lever).any():
            hidden = np.isnan(lever)
            none = np.zeros(len(raw))
            believed = none if self._standing is None else self._standing(raw.job_id, none)
            lever = np.where(hidden, believed, lever)
        ignored = None if self._ignored is None else self._ignored(raw)
        held = None if self._holds is None else self._holds(raw.job_id)
        observed = observe(raw, self.claims.read(raw), self.config, lever, hidden, ignored, held)
        snapshot = observed.snapshot
        e, news = snapshot.ended, self._news(snapshot.ended)
        ended = e.take(news)
        self._forget_sent(snapshot)
        self.raw, self.observed = raw, observed
        vain = self.watch.hopeless(snapshot.jobs.job_id)
        placed = self._nodes.look(raw, observed.rows, snapshot.jobs, vain, observed.doubtful)
        observed.unsure, observed.unsure_why = placed.unsure, placed.why
        snapshot = self._nodes.settle(raw, observed.rows, snapshot, placed, self.config.gpus.weights)
        weighted = self._nodes.weighted(placed, self.config.gpus.weights)
        snapshot = replace(snapshot, ended=ended, occupancy=placed.occupancy, weighted=weighted)
        if self.config.planner.long_share is not None:
            snapshot = replace(snapshot, pools=self._nodes.pools(raw, observed.rows, snapshot.node_weights))
        observed.snapshot = snapshot
        self.watched = self.watch.look(observed.snapshot, raw)
        return observed.snapshot

    def pinned(self, snapshot: Snapshot, found: Floats) -> Bools:
        """See controller.Cluster. Raises AdapterError."""
        ids = snapshot.jobs.job_id
        theirs = np.zeros(len(ids), dtype=np.bool_)
        if self._multifactor and self.field == "priority":
            theirs = found != 0
        elif self._multifactor:
            shown = self.adapter.pinned()
            theirs = np.array([shown.get(j, False) for j in ids.tolist()], dtype=np.bool_)
        theirs &= snapshot.jobs.writable
        if self.observed is not None and theirs.any():
            self.observed.barred["pinned by somebody"] = int(theirs.sum())
        return theirs

    def apply(self, snapshot: Snapshot, plan: Plan) -> Applied:
        """See controller.Cluster."""
        refused: list[int] = []
        failed: set[int] = set()
        ids = snapshot.jobs.job_id
        order = Order(self.adapter, snapshot, plan)
        for number, (row, value) in enumerate(zip(plan.write.tolist(), plan.new.tolist(), strict=True)):
            job = int(ids[row])
            if not self.enforce:
                old = float(plan.old[number])
                self._would_be[job] = (value, self._would_be.get(job, (value, old))[1])
                result = WriteResult("ok", DRY_RUN)
            elif (silent := self._silent()) is not None:
                result = silent
            elif why := order.unsafe(number):
                result = WriteResult("retry", why)
            elif self._times(job, value) >= 2:
                result = WriteResult("refused", "accepted without effect: has somebody set its priority?")
            else:
                old = float(plan.old[number])
                result = self._paced(partial(write, self.adapter, job, self.field, old, value))
                if result.result == "ok":
                    self._sent[job] = (value, self._times(job, value) + 1)
                elif result.result == "refused" and _held_meanwhile(result.message):
                    # that ends with the hold
                    result = replace(result, result="retry")
            if result.result == "refused":
                refused.append(row)
            if result.result != "ok":
                failed.add(row)
            order.done(number, result)
            self._tell(number, result)
        self._warn(snapshot, plan, len(plan.write))
        spared = self._requeue(snapshot, plan, failed, len(plan.write) + len(plan.warn))
        return Applied(np.array(refused, dtype=np.int64), np.array(spared, dtype=np.int64))

    def _warn(self, snapshot: Snapshot, plan: Plan, first: int) -> None:
        """Send the signal; `first`: the number of the first warning, see Told."""
        for number, row in enumerate(plan.warn.tolist(), first):
            job = int(snapshot.jobs.job_id[row])
            result = WriteResult("ok", DRY_RUN) if not self.enforce else self._silent()
            if result is None:
                result = self._paced(partial(self.adapter.signal, job, self.claims.warning(job)[0]))
            self._tell(number, result)

    def _requeue(self, snapshot: Snapshot, plan: Plan, failed: set[int], first: int) -> list[int]:
        """Requeue the plan's victims; the rows of those that were not. `failed`: rows whose write was not ok;
        `first`: the number of the first victim, see Told."""
        ids, spared, look = snapshot.jobs.job_id, list[int](), None
        want = dict(zip(plan.write.tolist(), plan.new.tolist(), strict=True))
        for row, places in groups(plan):
            job, why, done = int(ids[row]), "", 0
            victims = [int(ids[plan.victims[place]]) for place in places]
            silent = WriteResult("refused", DRY_RUN) if not self.enforce else self._silent()
            states = dict.fromkeys(victims, "")
            if silent is None and row in failed:
                why = "the write of the job that it was for failed"
            elif silent is None:
                try:
                    look = look or self._look_again()
                except AdapterError as error:
                    silent = WriteResult("refused", f"not sent: {error}")
            if silent is None and look is not None and not why:
                why = beneficiary_ready(look, job, want.get(row, float(snapshot.jobs.lever[row])))
                why = why or self._request_changed(job)
                states = {v: victim_ready(self.raw or look.raw, look, v) for v in victims}
                bad = {v: state for v, state in states.items() if state not in ("", ENDED)}
                why = why or next((f"job {v} {state}" for v, state in bad.items()), "")
            for place, victim in zip(places, victims, strict=True):
                if silent is not None:
                    result = silent
                elif why:
                    result = WriteResult("refused", why)
                elif states[victim] == ENDED:
                    result = WriteResult("gone", "it has ended by itself")
                else:
                    result = self._paced(partial(self._requeue_one, victim))
                    if outcome(result) in ("unknown", "not done"):
                        why = f"job {victim} was not requeued"  # the others would be for nothing
                if silent is None and outcome(result) in ("done", "unknown"):
                    done += 1
                else:
                    spared.append(int(plan.victims[place]))
                self._tell(first + place, result)
            if done:
                self.watch.begin(job, snapshot.now, done)
        return spared

    def _request_changed(self, job: int) -> str:
        try:
            return "" if self._nodes.same_request(job) else "asks for something else by now"
        except AdapterError as error:
            return f"what it asks for is not known: {error}"

    def _requeue_one(self, job: int) -> WriteResult:
        try:
            return self.adapter.requeue(job)
        except AdapterError as error:
            # the ledger has to hear of those that were requeued before it
            return WriteResult("refused", f"not sent: {error}")

    def _look_again(self) -> Look:
        raw = self.adapter.jobs()
        lever = self._lever(raw)
        claims = self.claims.read(raw)
        values = raw.nice.astype(np.float64) if lever is None else lever
        return Look(raw, values, consents(self.config, claims.consent))

    def _silent(self) -> WriteResult | None:
        """Why nothing may be sent; None: it may."""
        if self.no_rights:
            return WriteResult("no rights", self.no_rights)
        return WriteResult("retry", "the daemon ends or is paused") if self.stop else None

    def _paced(self, send: Callable[[], WriteResult]) -> WriteResult:
        """Send one thing, and not the next one too soon."""
        began = time.monotonic()
        result = send()
        if result.result == "no rights":
            self.no_rights = result.message
        time.sleep(max(0.0, 1.0 / self.config.daemon.writes_per_second - (time.monotonic() - began)))
        return result

    def _tell(self, number: int, result: WriteResult) -> None:
        if self._told is not None:
            self._told(number, result)

    # -- what it is made of

    def _times(self, job: int, value: float) -> int:
        """How often this very value was accepted and then not seen in its place.

        Slurm ignores the nice of a job with an explicit priority, and says that all is well.
        """
        sent, times = self._sent.get(job, (value, 0))
        return times if sent == value else 0

    def _forget_sent(self, snapshot: Snapshot) -> None:
        """What is in its place by now, and jobs that left, need not be remembered."""
        if not self._sent:
            return
        jobs = np.fromiter(self._sent, dtype=np.int64, count=len(self._sent))
        sent = np.array([value for value, _ in self._sent.values()])
        at = np.searchsorted(snapshot.jobs.job_id, jobs)
        here = at < len(snapshot.jobs)
        here[here] = snapshot.jobs.job_id[at[here]] == jobs[here]
        here[here] = snapshot.jobs.lever[at[here]] != sent[here]
        self._sent = {job: self._sent[job] for job in jobs[here].tolist()}

    def _news(self, ended: Ended) -> Bools:
        """Which of the ended jobs were not shown as ended before. At the first look: those that the ledger
        has as not ended yet."""
        ids = ended.job_id
        if self._seen_ended is None:
            known = self._first_submit(ids, np.full(len(ids), np.nan))
            news = np.isfinite(known)
        else:
            news = np.array([j not in self._seen_ended for j in ids.tolist()], dtype=np.bool_)
        self._seen_ended = frozenset(ids.tolist())
        return np.asarray(news, dtype=np.bool_)

    def _refuse_stale(self, raw: RawTable) -> None:
        """An empty or much shorter queue right after a full one: its state may not be read yet.

        Of jobs that wait or run, for those that have ended leave by their age, many at once; who is shown as
        ended by now has not gone astray.
        """
        last = self.raw
        # once: if the next look shows the same, it is the truth
        self.raw = raw
        if last is None:
            return
        before = active(last)
        shown = np.union1d(active(raw), np.intersect1d(before, raw.job_id))
        if len(before) >= 20 and len(shown) < len(before) // 2:
            raise StaleSnapshotError(
                f"the queue fell from {len(before)} to {len(shown)} jobs at once, and those that are gone "
                "are not shown as ended"
            )
        if raw.time < last.time:
            raise StaleSnapshotError("the controller's clock went back")

    def _lever(self, raw: RawTable) -> Floats | None:
        """The field that is written, for all rows: NaN where it is not shown now, 0 for a job without an
        explicit priority. None: nice."""
        lever: Floats | None = None
        if self.field == "site_factor":
            factors = self.adapter.site_factors()
            lever = np.array([factors.get(j, np.nan) for j in raw.job_id.tolist()], dtype=np.float64)
        elif self.field == "priority":
            lever = explicit(raw, self.adapter.pinned() if self._multifactor else None, np.nan)
            if self.config.requeue.mode == "slurm":
                # sprio does not show running jobs; so high a priority can only be explicit
                runs = np.array([state in ("RUNNING", "SUSPENDED") for state in raw.state], dtype=np.bool_)
                lever[runs] = np.where(raw.priority >= PRIORITY_BASE, raw.priority, 0.0)[runs]
        if not self.enforce and self._would_be:
            lever = raw.nice.astype(np.float64) if lever is None else lever
            now = dict(zip(raw.job_id.tolist(), range(len(raw)), strict=True))
            # a value that somebody changed meanwhile is theirs, in a dry run as well
            self._would_be = {
                job: would for job, would in self._would_be.items()
                if job in now and not abs(lever[now[job]] - would[1]) > 0
            }  # fmt: skip
            for job, (value, _) in self._would_be.items():
                lever[now[job]] = value
        return lever


def _held_meanwhile(message: str) -> bool:
    """Whether a write was refused since somebody has held or released the job after we looked."""
    return message in (HELD_ALREADY, NOT_HELD_BY_US) or "job is in held state" in message.lower()


def active(raw: RawTable) -> Ints:
    """Ids of the jobs that wait or run. Shape (n,)."""
    kept = [state in ACTIVE_STATES for state in raw.state]
    return np.asarray(raw.job_id[np.array(kept, dtype=np.bool_)], dtype=np.int64)


def job_names(raw: RawTable, rows: Sequence[int]) -> list[str]:
    """What users call the jobs: 4711, or 4711_3 for a task of an array."""
    names = []
    for r in rows:
        array = int(raw.array_id[r])
        names.append(f"{array}_{raw.array_task[r]}" if array else str(int(raw.job_id[r])))
    return names
