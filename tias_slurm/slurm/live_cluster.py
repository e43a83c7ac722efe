"""The `Cluster` port over a running slurmctld, through either adapter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.config import Config
from tias_slurm.deadlines import admit, own_keys, read_comment
from tias_slurm.jobs import Ended, Floats, Ints, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.replay.claims import limits_of
from tias_slurm.slurm.live import Adapter, Field, RawTable, WriteResult
from tias_slurm.slurm.observer import Claims, Observed, observe

# told of each write: the plan's write number, what became of it
Told = Callable[[int, WriteResult], None]
FirstSubmit = Callable[[Ints, Floats], Floats]


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
        first_submit: FirstSubmit,
        told: Told | None = None,
    ) -> None:
        self.adapter = adapter
        self.config = config
        self.enforce = enforce
        self.field: Field = field
        self.raw: RawTable | None = None
        self.observed: Observed | None = None
        self.refused_claims: Counter[str] = Counter()
        self.no_rights = ""  # the controller's words, once it said that we may not write
        self.stop = False  # the daemon ends: what is not sent yet stays so
        self._zone = zone
        self._limits = limits_of(config)
        self._keys = own_keys(config.deadlines.key)
        self._first_submit = first_submit
        self._told = told
        self._claims: dict[int, tuple[str, float, float, int, float]] = {}
        self._would_be: dict[int, float] = {}
        self._sent: dict[int, tuple[float, int]] = {}
        self._seen_ended: frozenset[int] = frozenset()

    # -- the port

    def observe(self) -> Snapshot:
        """See controller.Cluster. Raises AdapterError, StaleSnapshotError."""
        raw = self.adapter.jobs()
        self._refuse_stale(raw)
        lever, pinned = self._lever(raw)
        observed = observe(raw, self._read_claims(raw), self.config, lever, pinned)
        snapshot = observed.snapshot
        news = np.array([j not in self._seen_ended for j in snapshot.ended.job_id.tolist()], dtype=np.bool_)
        self._seen_ended = frozenset(snapshot.ended.job_id.tolist())
        e = snapshot.ended
        ended = Ended(e.job_id[news], e.submit[news], e.deadline[news], e.run_time[news], e.completed[news])
        self.raw, self.observed = raw, observed
        if len(self._sent) > 2 * len(raw) + 1000:
            here = set(raw.job_id.tolist())
            self._sent = {job: sent for job, sent in self._sent.items() if job in here}
        observed.snapshot = Snapshot(
            snapshot.now, snapshot.jobs, snapshot.order, snapshot.tie, ended, snapshot.occupancy
        )
        return observed.snapshot

    def apply(self, snapshot: Snapshot, plan: Plan) -> Ints:
        """See controller.Cluster."""
        refused: list[int] = []
        ids = snapshot.jobs.job_id
        pause = 1.0 / self.config.daemon.writes_per_second
        for number, (row, value) in enumerate(zip(plan.write.tolist(), plan.new.tolist(), strict=True)):
            job = int(ids[row])
            if not self.enforce:
                self._would_be[job] = value
                result = WriteResult("ok", "dry run")
            elif self.no_rights:
                result = WriteResult("no rights", self.no_rights)
            elif self.stop:
                result = WriteResult("retry", "the daemon ends")
            elif self._in_vain(job, value):
                result = WriteResult("refused", "accepted without effect: has somebody set its priority?")
            else:
                began = time.monotonic()
                result = self.adapter.write(job, self.field, int(value))
                if result.result == "no rights":
                    self.no_rights = result.message
                time.sleep(max(0.0, pause - (time.monotonic() - began)))
            if result.result == "refused":
                refused.append(row)
            if self._told is not None:
                self._told(number, result)
        return np.array(refused, dtype=np.int64)

    # -- what it is made of

    def _in_vain(self, job: int, value: float) -> bool:
        """Whether this very value was sent twice and still is not there.

        Slurm ignores the nice of a job with an explicit priority, and says that all is well.
        """
        sent, times = self._sent.get(job, (value, 0))
        times = times + 1 if sent == value else 1
        self._sent[job] = (value, times)
        return times > 2

    def _refuse_stale(self, raw: RawTable) -> None:
        """An empty or much shorter queue right after a full one: its state may not be read yet."""
        before = len(self.raw) if self.raw is not None else 0
        if before >= 20 and len(raw) < before // 2:
            # once: if the next look shows the same, it is the truth
            self.raw = raw
            raise StaleSnapshotError(f"the queue fell from {before} to {len(raw)} records at once")
        if self.raw is not None and raw.time < self.raw.time:
            raise StaleSnapshotError("the controller's clock went back")

    def _lever(self, raw: RawTable) -> tuple[Floats | None, frozenset[int]]:
        """The field that is written, for all rows, and the jobs that somebody else has pinned."""
        lever: Floats | None = None
        pinned: frozenset[int] = frozenset()
        if self.field == "site_factor":
            factors = self.adapter.site_factors()
            lever = np.array([factors.get(j, 0) for j in raw.job_id.tolist()], dtype=np.float64)
        elif self.field == "priority":
            lever = raw.priority.astype(np.float64)
        if not self.enforce and self._would_be:
            lever = raw.nice.astype(np.float64) if lever is None else lever
            for i, job in enumerate(raw.job_id.tolist()):
                lever[i] = self._would_be.get(job, lever[i])
        return lever, pinned

    def _read_claims(self, raw: RawTable) -> Claims:
        """Deadline, consent and checkpoint of every job; a comment is read again only when it has changed."""
        n = len(raw)
        deadline, checkpoint = np.full(n, np.nan), np.full(n, np.nan)
        consent = np.full(n, -1, dtype=np.int64)
        search = self._keys.search
        talking = [i for i, text in enumerate(raw.comment) if text and search(text)]
        firsts = self._first_submit(raw.job_id, raw.submit) if talking else raw.submit
        known: dict[int, tuple[str, float, float, int, float]] = {}
        for i in talking:
            job, text, first = int(raw.job_id[i]), raw.comment[i], float(firsts[i])
            old = self._claims.get(job)
            if old is None or old[0] != text or old[1] != first:
                old = (text, first, *self._read(raw, i, first))
            known[job] = old
            deadline[i], consent[i], checkpoint[i] = old[2:]
        self._claims = known
        return Claims(deadline, consent, checkpoint)

    def _read(self, raw: RawTable, i: int, first: float) -> tuple[float, int, float]:
        claim = read_comment(
            raw.comment[i], key=self.config.deadlines.key, first_submit=first, zone=self._zone
        )
        for refusal in claim.refusals:
            self.refused_claims[refusal.code] += 1
        due = np.nan
        if claim.deadline is not None:
            no = admit(
                claim.deadline,
                first_submit=first,
                limits=self._limits,
                account=raw.account[i],
                qos=raw.qos[i],
                partition=raw.partition[i],
                user=raw.user[i],
            )
            if no is None:
                due = claim.deadline
            else:
                self.refused_claims[no.code] += 1
        consent = -1 if claim.requeue is None else int(claim.requeue)
        return due, consent, np.nan if claim.checkpoint_s is None else claim.checkpoint_s


def job_names(raw: RawTable, rows: Sequence[int]) -> list[str]:
    """What users call the jobs: 4711, or 4711_3 for a task of an array."""
    names = []
    for r in rows:
        array = int(raw.array_id[r])
        names.append(f"{array}_{raw.array_task[r]}" if array else str(int(raw.job_id[r])))
    return names
