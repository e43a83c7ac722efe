"""From the raw queue to a Snapshot: which jobs count, which may be written, what each claims. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tias_slurm.assemble import consents
from tias_slurm.config import Config
from tias_slurm.gpu_weights import of_jobs
from tias_slurm.jobs import PENDING, RUNNING, Bools, Ended, Floats, Ints, JobTable, Snapshot
from tias_slurm.settings import Scope
from tias_slurm.slurm.live import HELD_BY_ADMIN, NICE_UNKNOWN, PRIORITY_UNKNOWN, RawTable, Texts
from tias_slurm.slurm.live_nodes import NO_NODES, of_nodes
from tias_slurm.slurm.scope import kept_out

# squeue(1) "JOB REASON CODES": a job that waits for one of these is helped by a better place; any other
# reason (a limit, a dependency, a reservation, a partition that is down) is not cured by priority
STARTABLE = frozenset({"None", "Resources", "Priority", ""})
HELPED = STARTABLE | {"BeginTime", "NodeDown", "Prolog", "Cleaning"}
# texts that slurmctld writes in place of a code: nodes are down, or planned for a job of higher priority, of
# which 22.05 says the same. A job in several partitions has them while all nodes are up and busy
HELPED_TEXTS = ("Nodes required for job are DOWN", "ReqNodeNotAvail")
MAINTENANCE = "Reserved for maintenance"
# flags of a job that somebody or something else is busy with
BUSY = frozenset(
    {
        "COMPLETING",
        "EXPEDITING",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "REVOKED",
        "SPECIAL_EXIT",
        "STOPPED",
    }
)

# why a job may not be requeued; the first that is true is told
SPARED = (
    "not running", "ignored", "out of scope", "without consent", "Requeue=0", "no batch job",
    "part of a het job", "scrontab job", "with a deadline of Slurm's own", "busy",
)  # fmt: skip


@dataclass(frozen=True)
class Claims:
    """What the jobs say of themselves, rows as in the raw table. Shapes (n,)."""

    deadline: Floats  # NaN: none admitted
    consent: Ints  # 1 yes, 0 no, -1 unsaid
    checkpoint: Floats  # seconds; NaN: unsaid
    warning: Floats | None = None  # seconds before a requeue; NaN: unsaid; None: nobody says so


@dataclass
class Observed:
    """A snapshot, and what was left out of our hands."""

    snapshot: Snapshot
    rows: Ints  # row in the raw table of each job of the snapshot
    barred: Counter[str] = field(default_factory=Counter)  # why waiting jobs may not be written
    barred_by: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of each job; -1: may be
    unsure: Counter[str] = field(default_factory=Counter)  # why jobs have nobody requeued for them
    unsure_why: dict[int, str] = field(default_factory=dict)  # the same by row of the snapshot
    # (n,) why jobs may not be requeued, rows of SPARED; -1: they may be
    spared_by: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # (n,) in scope and not ignored, and no further component of a het job: whose owner may be told something
    ours: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    # (n,) writable, and may be able to start: whether its nodes are there only a look at them tells
    doubtful: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    def why(self, row: int) -> str:
        """Why the waiting job of that row of the snapshot may not be written; "": it may."""
        by = int(self.barred_by[row])
        return list(self.barred)[by] if by >= 0 else ""

    def may_not(self, row: int) -> str:
        """Why the job of that row of the snapshot may not be requeued; "": it may."""
        by = int(self.spared_by[row])
        return SPARED[by] if by >= 0 else ""


def observe(
    raw: RawTable,
    claims: Claims,
    config: Config,
    lever: Floats | None = None,
    hidden: Bools | None = None,
    ignored: Bools | None = None,
    held: Bools | None = None,
) -> Observed:
    """The snapshot of the jobs that wait or run and ask for GPUs, or for shards where these have a weight; in
    requeue mode "slurm" of all that run.

    A job that may not be written (held, special, out of scope, blocked by what priority does not cure) takes
    part in the order, but is not `writable`. `lever`: the field that is written, rows as in the raw table;
    None: nice. `hidden`: rows of the raw table whose field is not shown now, so that a write could not be
    checked. `ignored`: rows of the raw table that an administrator has taken out of our hands. `held`: rows
    that we hold, as far as the ledger knows; a hold by their user ends that. Jobs without a submit time are
    left out: nothing could be remembered of them.
    """
    state = np.array(raw.state)
    pending = state == "PENDING"
    running = (state == "RUNNING") | (state == "SUSPENDED")
    weight = of_jobs(raw.gpus, raw.gpu_type, raw.shards, config.gpus.weights)
    gpu_jobs = weight > 0.0
    ours = gpu_jobs.copy()
    if config.requeue.mode == "slurm":
        ours |= running  # Slurm may preempt any of them
    rows = np.flatnonzero((pending | running) & ours & np.isfinite(raw.submit))
    waits = pending[rows]
    barred: Counter[str] = Counter()
    writable = waits.copy()
    barred_by = np.full(len(rows), -1, dtype=np.int64)

    def bar(why: str, which: Bools) -> None:
        hit = writable & which
        if hit.any():
            barred_by[hit] = len(barred)
            barred[why] += int(hit.sum())
            writable[hit] = False

    priority = raw.priority[rows]
    free = np.ones(len(rows), dtype=np.bool_) if ignored is None else ~ignored[rows]
    bar("ignored", ~free)
    by_us = priority == 0
    if held is not None and by_us.any():
        by_us &= held[rows] & _which(raw.reason, rows, HELD_BY_ADMIN.__eq__)
    else:
        by_us[:] = False
    bar("held", (priority == 0) & ~by_us)
    bar("priority unknown", priority == PRIORITY_UNKNOWN)
    bar("nice unknown", raw.nice[rows] == NICE_UNKNOWN)
    bar("cron job", raw.cron[rows])
    bar("component of a het job", raw.het_offset[rows] > 0)
    bar("busy", _which(raw.flags, rows, lambda text: bool(text) and not BUSY.isdisjoint(text.split(","))))
    inside = in_scope(raw, rows, config.scope)
    bar("out of scope", ~inside)
    bar("waits for what priority cannot give", ~by_us & ~_which(raw.reason, rows, helped))
    # a new job shows a reason that slurmctld has not looked into: with a dependency it is never eligible, and
    # no held one is
    bar("not eligible yet", ~by_us & np.isnan(raw.eligible[rows]))
    if hidden is not None:
        bar("value not shown now", hidden[rows])
    run_time = np.where(waits, 0.0, raw.time - raw.start[rows] - np.nan_to_num(raw.suspended_s[rows]))
    consent = consents(config, claims.consent[rows])
    nice = np.where(raw.nice[rows] == NICE_UNKNOWN, 0, raw.nice[rows]).astype(np.float64)
    value = nice if lever is None else lever[rows]
    usual = config.requeue.grace_s
    users: dict[str, int] = {}
    accounts: dict[str, int] = {}
    user, account = _codes(raw.user, rows, users), _codes(raw.account, rows, accounts)
    ended = _ended(raw, claims, state, ~(pending | running) & gpu_jobs, users)
    since = np.where(np.isfinite(raw.eligible[rows]), raw.eligible[rows], raw.submit[rows])
    spared_by = _spared_by(raw, rows, state, ~free, ~inside, ~consent)
    jobs = JobTable(
        job_id=raw.job_id[rows],
        state=np.where(waits, PENDING, RUNNING).astype(np.int64),
        submit=raw.submit[rows],
        gpus=raw.gpus[rows],
        deadline=claims.deadline[rows],
        run_time=np.maximum(np.nan_to_num(run_time), 0.0),
        restarts=raw.restarts[rows],
        requeueable=spared_by < 0,
        checkpoint=np.nan_to_num(claims.checkpoint[rows], nan=config.requeue.checkpoint_s),
        lever=value,
        can_start=writable & _which(raw.reason, rows, STARTABLE.__contains__),
        writable=writable,
        nice=nice,
        array_id=raw.array_id[rows],
        weight=weight[rows],
        time_limit=np.nan_to_num(raw.time_limit_s[rows], nan=np.inf),
        since=np.maximum(since, raw.submit[rows]),
        user=user,
        account=account,
    )
    return Observed(
        Snapshot(
            now=raw.time,
            jobs=jobs,
            order=np.maximum(priority, 0).astype(np.float64) + nice,
            tie=raw.job_id[rows],
            ended=ended,
            occupancy=of_nodes(NO_NODES, len(rows)),
            users=tuple(users),
            accounts=tuple(accounts),
            grace=None if claims.warning is None else np.nan_to_num(claims.warning[rows], nan=usual),
        ),
        rows,
        barred,
        barred_by,
        spared_by=spared_by,
        ours=free & inside & (raw.het_offset[rows] == 0),
        doubtful=writable & _which(raw.reason, rows, nodes_in_doubt),
    )


def _spared_by(
    raw: RawTable,
    rows: Ints,
    state: np.ndarray[tuple[int], np.dtype[np.str_]],
    ignored: Bools,
    outside: Bools,
    unwilling: Bools,
) -> Ints:
    """Why jobs may not be requeued, see SPARED; -1: they may: running batch jobs with Requeue=1 that
    nobody is busy with, of one component. Shapes (n,).

    One with a native deadline would be tested against it again, and be cancelled.
    """
    reasons = (
        state[rows] != "RUNNING",
        ignored,
        outside,
        unwilling,
        ~raw.requeue[rows],
        ~raw.batch[rows],
        raw.het_id[rows] != 0,
        raw.cron[rows],
        ~np.isnan(raw.native_deadline[rows]),
        _which(raw.flags, rows, bool),
    )
    codes = range(len(SPARED))
    return np.select(list(reasons), [np.int64(code) for code in codes], np.int64(-1)).astype(np.int64)


def helped(reason: str) -> bool:
    """Whether a job that waits for this reason would gain by a better place."""
    if reason in HELPED:
        return True
    return nodes_in_doubt(reason)


def nodes_in_doubt(reason: str) -> bool:
    """Whether Slurm says of a job's nodes that they are down or kept for others, which they may not be."""
    text = reason.replace("_", " ")
    return text.startswith(HELPED_TEXTS) and MAINTENANCE not in text


def _codes(texts: Texts, rows: Ints, known: dict[str, int]) -> Ints:
    """Texts as numbers; what they stand for is added to `known`, in the order of the numbers."""
    codes = [known.setdefault(texts[r], len(known)) for r in rows.tolist()]
    return np.array(codes, dtype=np.int64)


def _which(texts: Texts, rows: Ints, holds: object) -> Bools:
    test = holds if callable(holds) else bool
    return np.fromiter((test(texts[r]) for r in rows.tolist()), dtype=np.bool_, count=len(rows))


def in_scope(raw: RawTable, rows: Ints, scope: Scope) -> Bools:
    """Which jobs in `rows` no rule leaves out, see scope.kept_out. Shapes (n,)."""
    inside = np.ones(len(rows), dtype=np.bool_)
    for texts, only, out in (
        (raw.partition, scope.only_partitions, scope.not_partitions),
        (raw.account, scope.only_accounts, scope.not_accounts),
        (raw.user, scope.only_users, scope.not_users),
        (raw.qos, scope.only_qos, scope.not_qos),
    ):
        if not only and not out:
            continue
        known: dict[str, bool] = {}
        for i, r in enumerate(rows.tolist()):
            text = texts[r]
            if text not in known:
                known[text] = not kept_out(text, only, out)[0]
            inside[i] &= known[text]
    return inside


def _ended(
    raw: RawTable,
    claims: Claims,
    state: np.ndarray[tuple[int], np.dtype[np.str_]],
    over: Bools,
    users: dict[str, int],
) -> Ended:
    """Jobs that ended and are still known; the caller tells which of them are news.

    While a job is COMPLETING its exit code may not be known yet: a cancelled one looks COMPLETED.
    """
    rows = np.flatnonzero(over & np.isfinite(raw.end - raw.start + raw.submit))
    rows = np.array([r for r in rows.tolist() if "COMPLETING" not in raw.flags[r]], dtype=np.int64)
    ran = raw.end[rows] - raw.start[rows] - np.nan_to_num(raw.suspended_s[rows])
    return Ended(
        job_id=raw.job_id[rows],
        submit=raw.submit[rows],
        deadline=claims.deadline[rows],
        run_time=np.maximum(ran, 0.0),
        completed=state[rows] == "COMPLETED",
        user=_codes(raw.user, rows, users),
    )
