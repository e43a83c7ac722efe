"""The daemon: cycles on a schedule, signals, the lock, reload, pause."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any

from apscheduler.schedulers.blocking import BlockingScheduler

from tias_slurm import audit, hands, start, status, user_export
from tias_slurm.config import Config, load_config
from tias_slurm.controller import Controller
from tias_slurm.errors import InputError
from tias_slurm.jobs import PENDING, Snapshot
from tias_slurm.live_cycle import LiveCycle
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.tias import Tias
from tias_slurm.slurm.backfill import Backfill
from tias_slurm.slurm.choose import choose
from tias_slurm.slurm.live import Adapter, AdapterError, SiteFacts, WriteResult
from tias_slurm.slurm.live_cluster import LiveCluster, StaleSnapshotError
from tias_slurm.slurm.live_requeue import outcome
from tias_slurm.start import ledger_path, take_lock
from tias_slurm.store import LedgerError, SqliteStore

# after "no rights" nothing is written for so long, s
NO_RIGHTS_PAUSE_S = 600.0
# how often what is older than keep_days is dropped, s
TIDY_S = 86_400.0
# settings that are used up when the daemon starts
FIXED = (
    "daemon.mode", "daemon.backend", "daemon.allow_version_mismatch", "daemon.state_dir",
    "daemon.rpc_timeout_s", "daemon.log_format", "daemon.log_level", "lever.kind",
)  # fmt: skip


@dataclass
class Cycle:
    """What one cycle saw and did."""

    result: str  # "ok", "no answer", "stale"
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


class Daemon:
    """Everything between the settings and a running cycle. `open` before `cycle`, `close` at the end."""

    def __init__(self, config_path: str | None, overrides: Mapping[str, object], log: Any) -> None:
        self._path, self._overrides, self._log = config_path, overrides, log
        self.config: Config = load_config(config_path, overrides)
        self._reload = False
        self._stop = False
        self._scheduler: BlockingScheduler | None = None
        self._lock: IO[str] | None = None
        self.adapter: Adapter
        self.facts: SiteFacts
        self.store: SqliteStore
        self.cluster: LiveCluster
        self.controller: Controller
        self.policy: Tias
        self._numbers: list[int] = []
        self._actions: list[audit.Action] = []
        self._requeued = 0
        self._outcomes: list[tuple[int, str, str]] = []
        self._no_rights_until = 0.0
        self._tidied = -TIDY_S
        self._busy = threading.Lock()
        self._past_problem = ""
        self._standing: dict[str, Any] = {"started": round(time.time(), 3), "queue": None, "last_ok": None}

    # -- set-up

    def open(self) -> None:
        """Take the lock, open the ledger, choose the adapter. Raises InputError, AdapterError."""
        state = self.config.daemon.state_dir
        try:
            os.makedirs(state, mode=0o750, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{state}: cannot be made: {error.strerror}; set [daemon] state_dir to a directory of ours"
            ) from None
        self._lock = take_lock(os.path.join(state, "lock"))
        c = self.config.daemon
        self._seed()
        self.store = SqliteStore(ledger_path(self.config))
        self.adapter, why = choose(
            c.backend, allow_version_mismatch=c.allow_version_mismatch, call_limit_s=c.rpc_timeout_s
        )
        self.facts = self.adapter.facts()
        self._log.info("backend", backend=self.adapter.name, why=why, slurm=self.facts.version)
        for what, do in start.check(self.config, self.facts, self.store):
            self._log.warning('requeue mode "slurm" would be refused', what=what, do=do)
        self.backfill = Backfill(c.rpc_timeout_s)
        self._assemble()

    def close(self) -> None:
        """Let go of everything."""
        for part in ("adapter", "store"):
            if hasattr(self, part):
                getattr(self, part).close()
        if self._lock is not None:
            self._lock.close()

    def _seed(self) -> None:
        """A dry run after an enforcing daemon begins with what that one knew.

        Else the values that were set would pass for the users' own.
        """
        mine = ledger_path(self.config)
        real = ledger_path(self.config, "enforce")
        if mine == real or not os.path.exists(real):
            return
        if not os.path.exists(mine) or os.path.getmtime(mine) < os.path.getmtime(real):
            source = SqliteStore(real)
            try:
                source.copy_to(mine)
            finally:
                source.close()

    def _assemble(self) -> None:
        c = self.config
        made = LiveCycle(
            c,
            self.adapter,
            self.facts,
            self.store,
            enforce=c.daemon.mode == "enforce",
            told=self._told,
            record=self._record,
            past=self._past,
        )
        if not made.lever.strict:
            self._log.warning("levels are not strict", lever=c.lever.kind, span=c.lever.span)
        self.policy, self.cluster, self.controller = made.policy, made.cluster, made.controller

    # -- one cycle

    def cycle(self) -> Cycle:
        """One pass. Never raises for what Slurm does or says. LedgerError if the ledger cannot be kept:
        nothing more is sent then."""
        began = time.monotonic()
        if self._reload:
            self._apply_reload()
        if self._no_rights_until and time.monotonic() > self._no_rights_until:
            self.cluster.no_rights, self._no_rights_until = "", 0.0
        paused = self.paused()
        self.cluster.stop = self._stop
        silent = paused or self.cluster.no_rights
        limits = self.controller.planner.limits
        allowed = 0 if silent else self.config.planner.max_writes_per_cycle
        requeue = self.config.requeue.mode == "on" and not silent
        self.controller.planner.limits = replace(limits, max_writes=allowed, requeue=requeue)
        self._outcomes, self._actions, self._requeued = [], [], 0
        try:
            self.controller.cycle()
            seen = Cycle("ok")
        except AdapterError as error:
            seen = Cycle("no answer", message=str(error))
        except StaleSnapshotError as error:
            seen = Cycle("stale", message=str(error))
        finally:
            self._settle()
        seen.paused = paused
        seen.seconds = round(time.monotonic() - began, 4)
        if seen.result != "ok":
            self._log.warning("cycle", result=seen.result, message=seen.message, seconds=seen.seconds)
            self._leave(seen)
            return seen
        self._fill(seen)
        for job in self.cluster.watched:
            line = self._log.warning if job.result == "still waits" else self._log.info
            line(
                f"job that others were requeued for {job.result}", job=job.job_id, seconds=round(job.seconds)
            )
        for job_id, why in self.controller.ledger.newly_unaccepted():
            self.cluster.refused_claims[why] += 1
            self._log.info("claim not taken", job=job_id, reason=why)
        if self.cluster.refused_claims:
            self._log.info("claims refused", reasons=dict(self.cluster.refused_claims))
            self.cluster.refused_claims.clear()
        self._tidy()
        self._leave(seen)
        self._log.info("cycle", **{k: v for k, v in vars(seen).items() if v or k in ("jobs", "writes")})
        return seen

    def paused(self) -> bool:
        """Whether the pause file is there: nothing is written then."""
        return hands.paused(self.config.daemon.state_dir)

    def _tidy(self) -> None:
        """Once a day: drop what is older than keep_days."""
        if time.monotonic() - self._tidied >= TIDY_S:
            self._tidied = time.monotonic()
            before = time.time() - 86_400.0 * self.config.daemon.keep_days
            self.store.forget(before)
            if self.cluster.raw is not None:
                hands.forget_ignored(self.config.daemon.state_dir, self.cluster.raw, before)

    def _leave(self, cycle: Cycle) -> None:
        """Leave for `status` what it may ask for. A disk that is full ends no cycle."""
        now, c = round(time.time(), 3), self.config
        if cycle.result == "ok":
            snapshot, known, ranking = self.controller.standing()
            queue = status.queue_summary(snapshot, known, ranking, self.policy)
            queue |= {
                "overridden": cycle.overridden,
                "refused_writes": cycle.refused,
                "left_alone": cycle.barred,
            }
            queue["refused_claims"] = dict(self.cluster.refused_now())
            self._standing |= {"queue": queue, "last_ok": now}
        self._standing |= {
            "time": now,
            "pid": os.getpid(),
            "mode": c.daemon.mode,
            "interval_s": c.cycle.interval_s,
            "backend": self.adapter.name,
            "slurm": self.facts.version,
            "preset": c.policy.preset,
            "lever": c.lever.kind,
            "strict": self.controller.planner.lever.strict,
            "max_writes": c.planner.max_writes_per_cycle,
            "no_rights": self.cluster.no_rights,
            "cycle": vars(cycle),
        }
        try:
            status.leave(c.daemon.state_dir, self._standing)
            if c.daemon.user_export and cycle.result == "ok":
                ids, table = self.controller.ledger.table
                users = snapshot.jobs.user
                user_export.export(c.daemon.user_export, snapshot.users, users, ids, table)
        except InputError as error:
            self._log.warning("status file", message=str(error))

    def _fill(self, seen: Cycle) -> None:
        observed = self.cluster.observed
        if observed is None:
            return
        jobs = observed.snapshot.jobs
        seen.jobs, seen.waiting = len(jobs), int((jobs.state == PENDING).sum())
        ok = sum(result == "ok" for _, result, _ in self._outcomes)
        seen.requeues = self._requeued
        seen.writes = sum(
            result == "ok" and action.event == "write"
            for (_, result, _), action in zip(self._outcomes, self._actions, strict=False)
        )
        seen.failed = (
            len(self._outcomes)
            - ok
            - sum(a.event == "requeue" for a in self._actions) * (not self.cluster.enforce)
        )
        seen.no_requeue_for = dict(observed.unsure)
        seen.held_back = self.controller.held_back
        seen.refused = int(self.controller.ledger.refused.sum())
        seen.overridden = int(self.controller.ledger.overridden(observed.snapshot).sum())
        seen.barred = dict(observed.barred)

    def _past(self, _: Snapshot) -> bool:
        raw, observed = self.cluster.raw, self.cluster.observed
        if raw is None or observed is None:
            return False
        filled = self.backfill.fill(self.controller.ledger, raw, observed)
        if filled.problem and not self._past_problem:
            self._log.warning("earlier runs are not known", jobs=filled.asked, message=filled.problem)
        elif filled.learned:
            self._log.info("earlier runs", jobs=filled.learned)
        if filled.asked:
            self._past_problem = filled.problem
        return filled.learned > 0

    def _record(self, snapshot: Snapshot, ranking: Ranking, plan: Plan) -> None:
        """The audit trail, before anything is sent."""
        raw, observed = self.cluster.raw, self.cluster.observed
        if raw is None or observed is None:
            return
        self._actions = audit.actions(
            self.config, self.policy, raw, observed.rows, snapshot, ranking, plan, self.cluster.warning
        )
        self._numbers = self.store.record([action.entry for action in self._actions])
        for action in self._actions:
            self._log.info(action.event if self.cluster.enforce else f"would {action.event}", **action.said)

    def _told(self, number: int, result: WriteResult) -> None:
        self._outcomes.append((self._numbers[number], result.result, result.message))
        self.cluster.stop = self._stop or self.paused()  # at once, not at the end of a long cycle
        action = self._actions[number]
        if action.event == "requeue" and outcome(result) == "done":
            self._requeued += 1
        if result.result == "no rights" and self._no_rights_until:
            return  # said once
        if result.result == "no rights":
            self._no_rights_until = time.monotonic() + NO_RIGHTS_PAUSE_S
            self._log.error(
                "no rights: nothing is written for a while; the account needs AdminLevel=Operator",
                message=result.message,
                seconds=NO_RIGHTS_PAUSE_S,
            )
        elif result.result not in ("ok", "gone") and self.cluster.enforce:
            self._log.warning(
                f"{action.event} failed", job=action.said["job"], result=result.result, message=result.message
            )

    def _settle(self) -> None:
        if self._outcomes:
            self.store.settle(self._outcomes)

    # -- the schedule

    def run(self) -> None:
        """Cycle until SIGTERM or SIGINT; SIGHUP reads the settings again."""
        scheduler = BlockingScheduler(timezone="UTC")
        self._scheduler = scheduler
        c = self.config
        scheduler.add_job(
            self._guarded,
            "interval",
            id="cycle",
            seconds=c.cycle.interval_s,
            jitter=c.daemon.jitter_s or None,
            # cycles never overlap, and missed ones are joined into one
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
        )
        for number, handler in (
            (signal.SIGTERM, self._on_stop),
            (signal.SIGINT, self._on_stop),
            (signal.SIGHUP, self._on_reload),
        ):
            signal.signal(number, handler)
        self._log.info("started", mode=c.daemon.mode, interval_s=c.cycle.interval_s, lever=c.lever.kind)
        self._guarded()
        if not self._stop:
            scheduler.start()
        with self._busy:  # a cycle that is still at work ends first
            self._log.info("stopped")

    def _guarded(self) -> None:
        try:
            with self._busy:
                if not self._stop:
                    self.cycle()
        except LedgerError as error:
            self._log.error("ledger", message=str(error))
        except InputError as error:
            self._log.error("nothing was done", message=str(error))
        except Exception:
            # a fault of ours in one cycle must not end the daemon: the next one starts from a fresh look
            self._log.exception("cycle failed")

    def _on_stop(self, *_: object) -> None:
        self._stop = True
        self.cluster.stop = True
        if self._scheduler is not None and self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _on_reload(self, *_: object) -> None:
        self._reload = True

    def _apply_reload(self) -> None:
        """All or nothing: a file that cannot be used leaves the settings as they were."""
        self._reload = False
        try:
            fresh = load_config(self._path, self._overrides)
        except InputError as error:
            self._log.error("reload refused, the old settings hold", message=str(error))
            return
        fixed = [key for key in FIXED if _value(fresh, key) != _value(self.config, key)]
        modes = {fresh.requeue.mode, self.config.requeue.mode}
        if "slurm" in modes and len(modes) > 1:
            fixed.append("requeue.mode")
        if fixed:
            self._log.error("reload refused, the old settings hold: some need a restart", keys=fixed)
            return
        self.config = fresh
        with contextlib.suppress(AdapterError):  # else what was known of the site goes on to hold
            self.facts = self.adapter.facts()
        self._assemble()
        if self._scheduler is not None:
            self._scheduler.reschedule_job(
                "cycle",
                trigger="interval",
                seconds=fresh.cycle.interval_s,
                jitter=fresh.daemon.jitter_s or None,
            )
        self._log.info("reloaded")


def _value(config: Config, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)
