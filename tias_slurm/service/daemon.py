"""The daemon: cycles on a schedule, signals, the lock, reload, pause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tias_slurm import hands, in_use, logs
from tias_slurm.config import Config, load_config
from tias_slurm.controller import Controller
from tias_slurm.cycle import Cycle, refused_claims, tell
from tias_slurm.errors import InputError
from tias_slurm.jobs import Snapshot
from tias_slurm.ledger import refusals, tally
from tias_slurm.ledger.earlier_runs import EarlierRuns
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.ledger.upkeep import Upkeep
from tias_slurm.notify.messenger import Messenger
from tias_slurm.observe.steps import StepClock
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.tias import Tias
from tias_slurm.service import reload, start
from tias_slurm.service.deeds import Deeds
from tias_slurm.service.keeper import Guarded, Keeper
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.service.parts import Parts
from tias_slurm.service.process import CALLS_IN_ONE, SLACK_S, Process
from tias_slurm.service.slurm_guards import Guards
from tias_slurm.service.start import ledger_path
from tias_slurm.service.state_lock import StateLock
from tias_slurm.slurm.choose import choose
from tias_slurm.slurm.live import Adapter, AdapterError, SiteFacts, WriteResult
from tias_slurm.slurm.live_cluster import LiveCluster, StaleSnapshotError


class Daemon(Process):
    """Everything between the settings and a running cycle. `open` before `cycle`, `close` at the end."""

    def __init__(self, config_path: str | None, overrides: Mapping[str, object], log: Any) -> None:
        super().__init__(log)
        self._path, self._overrides = config_path, overrides
        self.config = load_config(config_path, overrides)
        self._lock: StateLock | None = None
        self.adapter: Adapter
        self.facts: SiteFacts
        self.store: SqliteStore
        self.cluster: LiveCluster
        self.controller: Controller
        self.policy: Tias
        self._upkeep = Upkeep(log)
        self._messenger = Messenger(log, self.show.notice, self._may_tell)
        self._clock = StepClock()
        self._term = 0  # in which the ledger is open; 0: it is not
        self._standby_said = ""
        self._hold_fire = False
        self._guards, self._deeds = Guards(log), Deeds(log, self.show)
        self._made: LiveCycle | None = None
        self._lost_track = False
        self._said = refusals.Refusals()

    # -- set-up

    def open(self) -> None:
        """Take the lock, open the ledger, choose the adapter. Raises InputError, AdapterError."""
        c = self.config.daemon
        self._lock = start.hold(self.config)
        if not c.lease_path:
            self._open_ledger()
        self.adapter, why = self.choose(self.config)
        self.facts = self.adapter.facts()
        self._log.info("backend", backend=self.adapter.name, why=why, slurm=self.facts.version)
        if c.lease_path:
            self._keeper = self.keeper(self.config, self.facts)
        else:
            self._take_over()
        self.show.open(self.config, self.adapter.name, self.facts, self._keeper)
        self._settled()

    def _settled(self) -> None:
        """These settings are in use: leave them for commands, and tell what is to be known of them."""
        try:
            in_use.leave(self._path, self.config)
        except InputError as error:
            self._log.warning("settings in use are not left", message=str(error))
        for note in self.config.notes:
            self._log.warning("settings", message=note)
        if root := start.root_needless(self.config, self.facts):
            self._log.warning("runs as root", message=root)

    def close(self) -> None:
        """Let go of everything; the lease last, when nothing of ours can be under way."""
        self.show.close()
        # a single cycle waits for its messages, up to a limit; the daemon's own wait for the next one
        self._messenger.close(0.0 if self._schedule.began else SLACK_S)
        for part in ("adapter", "store"):
            if hasattr(self, part):
                getattr(self, part).close()
        if self._keeper is not None:
            self._keeper.stop()
        if self._lock is not None:
            self._lock.close()

    def lead(self) -> None:
        """For a single cycle: have the lease, where there is one. Raises InputError if another has it."""
        if self._keeper is not None:
            self._keeper.insist()

    def _open_ledger(self) -> None:
        start.seed(self.config)
        self.store = SqliteStore(ledger_path(self.config), shared=bool(self.config.daemon.lease_path))
        self._said = refusals.counted(self.store)

    def _take_over(self, term: int = 0) -> None:
        """Read the ledger as it is now and put the cycle together."""
        if term:
            self._open_ledger()
            self._term = term
            self.store.lead(term)
        for event, fields in start.carry_over(self.config, self.store):
            self._log.warning(event, **fields)
        for event, fields in start.said(start.check(self.config, self.facts, self.store)):
            self._log.warning(event, **fields)
        self._earlier = EarlierRuns(self.config.daemon.rpc_timeout_s, self._log)
        self._read_ledger(None)

    def _read_ledger(self, before: LiveCycle | None) -> None:
        """Put the cycle together anew, by what is in the ledger."""
        start.own(self.config, self.store)
        self._use(self.make(self.config, self.adapter, self.facts, self.store, before))
        self._lost_track = False

    def _leads(self) -> bool:
        """Whether this daemon acts; it then knows the ledger as the one before left it. Raises InputError."""
        keeper = self._keeper
        if keeper is None:
            return True
        term = keeper.lease.term if keeper.leads else 0
        if self._term not in (0, term):
            self.store.close()
            self._term = 0
        if term and not self._term:
            try:
                self._take_over(term)
            except InputError as error:
                keeper.resign(str(error))
                raise
        return bool(term)

    # -- what a reload needs, see parts.Host

    def choose(self, config: Config) -> tuple[Adapter, str]:
        """See parts.Host, likewise below."""
        c = config.daemon
        return choose(
            c.backend, allow_version_mismatch=c.allow_version_mismatch, call_limit_s=c.rpc_timeout_s
        )

    def make(
        self, config: Config, adapter: Adapter, facts: SiteFacts, store: SqliteStore, before: LiveCycle | None
    ) -> LiveCycle:
        """The cycle of these settings, not yet in use."""
        made = LiveCycle(
            config,
            Guarded(adapter, self.may_ask, self._may_send),
            facts,
            store,
            enforce=config.daemon.mode == "enforce",
            told=self._told,
            record=self._record,
            past=lambda _: self._earlier.fill(made),
        )
        if before is not None:
            made.go_on_from(before)
        made.controller.step = self._clock.step
        return made

    def keeper(self, config: Config, facts: SiteFacts) -> Keeper:
        """The keeper of the lease of these settings, which seeks it by `start`."""
        state_save, wake = facts.state_save_location, self._schedule.wake
        return start.keeper(config, state_save, self._pulse, self._busy, self._log, wake)

    def parts(self) -> Parts:
        """What the daemon is made of now."""
        keeper, lock = self._keeper, self._lock
        assert lock is not None, "not open"
        acts = keeper is None or (keeper.leads and self._term == keeper.lease.term)
        store, made = (self.store, self._made) if acts else (None, None)
        return Parts(self.config, self.adapter, self.facts, store, made, lock, keeper)

    def may_ask(self) -> str:
        """Why Slurm is not asked; "": it is. A sign of life, too: a call is at most a few of Slurm's own."""
        c = self.config.daemon
        self._pulse.beat(CALLS_IN_ONE * c.rpc_timeout_s + 1.0 / c.writes_per_second + SLACK_S)
        return "the daemon ends" if self._stop else ""

    def why_silent(self) -> str:
        """Why nothing may be written; "": it may."""
        if self._stop:
            return "the daemon ends"
        return "the daemon is paused" if self.paused() else self._may_send()

    def takes_its_time(self) -> None:
        """A reload goes on for a minute more."""
        self._notifier.send("EXTEND_TIMEOUT_USEC=60000000")

    def lost_track(self) -> None:
        """The ledger was changed behind the cycle's back: the next one begins by reading it."""
        self._lost_track = True

    def _use(self, made: LiveCycle) -> None:
        c = made.cluster.config
        if not made.lever.strict:
            self._log.warning("levels are not strict", lever=c.lever.kind, span=c.lever.span)
        self.policy, self.cluster, self.controller = made.policy, made.cluster, made.controller
        self._made = made
        self._messenger.settle(c, self.store, enforce=self.cluster.enforce)

    def _may_send(self) -> str:
        return "" if self._keeper is None or self._keeper.leads else "this daemon no longer leads"

    def _may_tell(self) -> str:
        """Why owners of jobs are told nothing now. Called in another thread."""
        if self.config.daemon.mode != "enforce":
            return "this is a dry run by now"
        return "the daemon is paused" if self.paused() else self._may_send()

    # -- one cycle

    def cycle(self) -> Cycle:
        """One pass. Never raises for what Slurm does or says. LedgerError if the ledger cannot be kept:
        nothing more is sent then."""
        with self._busy:
            self._schedule.begins()
            if self._reload:
                self._apply_reload()
            seen = self._one_cycle() if self._leads() else self._stand_by()
        c = self.config
        self._pulse.beat(
            c.cycle.interval_s + c.daemon.jitter_s + CALLS_IN_ONE * c.daemon.rpc_timeout_s + SLACK_S
        )
        return seen

    def _stand_by(self) -> Cycle:
        """Another daemon acts: show that we are there."""
        why = self._keeper.why if self._keeper is not None else ""
        if why != self._standby_said:
            self._log.info("stands by", why=why)
        self._standby_said = why
        self.show.standby(self.config, why)
        return Cycle("standby", message=why)

    def _one_cycle(self) -> Cycle:
        began, self._standby_said = time.monotonic(), ""
        if self._lost_track:
            self._read_ledger(self._made)
        made = self._made
        assert made is not None, "not open"
        self._deeds.rights_again(made)
        paused = self.paused()
        self.cluster.stop = self._stop
        silent = paused or self.cluster.no_rights
        limits = self.controller.planner.limits
        allowed = 0 if silent else self.config.planner.max_writes_per_cycle
        requeue = self.config.requeue.mode == "on" and not silent
        self.controller.planner.limits = replace(limits, max_writes=allowed, requeue=requeue)
        self._deeds.begin()
        self._hold_fire = False
        self._clock.begin()
        try:
            made.be_calm(not self._guards.look(self.config, made.cluster.adapter))
            self.controller.cycle()
            seen = Cycle("ok")
        except AdapterError as error:
            seen = Cycle("no answer", message=str(error))
        except StaleSnapshotError as error:
            seen = Cycle("stale", message=str(error))
        finally:
            self._deeds.settle(self.store)
        seen.paused = paused
        seen.seconds = round(time.monotonic() - began, 4)
        if seen.result != "ok":
            self._log.warning("cycle", result=seen.result, message=seen.message, seconds=seen.seconds)
            self._tally(seen, {})
            self.show.cycle(self.config, made, seen, self._clock.seconds, self._guards.problem)
            return seen
        seen.fill(made, self._deeds.outcomes, self._deeds.actions, self._deeds.requeued)
        self.show.refused_claims(tell(self._log, made, self._said))
        # of another ledger than the one that the daemon began with, it is not what was said
        self._tally(seen, refusals.count(self.store, *refused_claims(made)))
        self.show.notices_wait(self._messenger.cycle(made, paused=paused))
        self.show.ledger(self._upkeep.after_cycle(self.config, self.store, self.cluster.raw))
        self.show.cycle(self.config, made, seen, self._clock.seconds, self._guards.problem)
        self._log.info("cycle", **{k: v for k, v in vars(seen).items() if v or k in ("jobs", "writes")})
        return seen

    def paused(self) -> bool:
        """Whether the pause file is there: nothing is written then."""
        return hands.paused(self.config.daemon.state_dir)

    def _tally(self, seen: Cycle, claims: Mapping[str, int]) -> None:
        """Count the cycle in the ledger, by the controller's clock where it answered."""
        raw = self.cluster.raw if seen.result == "ok" else None
        jobs = {
            "overridden": seen.overridden,
            "refused": seen.refused,
            "ignored": seen.barred.get("ignored", 0),
        }
        now = time.time() if raw is None else raw.time
        tally.note(self.store, now, seen.result, paused=seen.paused, claims=claims, jobs=jobs)

    def _record(self, snapshot: Snapshot, ranking: Ranking, plan: Plan) -> None:
        """The audit trail, before anything is sent."""
        assert self._made is not None, "not open"
        if not self._deeds.record(self._made, self.store, snapshot, ranking, plan):
            return
        if self.cluster.enforce:
            known = self.store.begin_burst()
            if self._keeper is not None and not self._keeper.about_to_send(known):
                self._hold_fire = self.cluster.stop = True
        self._deeds.announce(enforce=self.cluster.enforce)

    def _told(self, number: int, result: WriteResult) -> None:
        # at once, not at the end of a long cycle
        self.cluster.stop = self._stop or self._hold_fire or self.paused()
        assert self._made is not None, "not open"
        self._deeds.told(self._made, number, result)

    def _stop_writing(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.stop = True

    # -- a reload

    def _apply_reload(self) -> None:
        """All or nothing: what cannot be used leaves all as it was."""
        self._reload = False
        new, problem = reload.attempt(self, self._path, self._overrides, self._log)
        try:
            if new is not None:
                self._take(new)
        finally:
            self.show.reloaded(problem)

    def _take(self, new: Parts) -> None:
        """Go on with what was made for other settings. Nothing in here can be refused any more."""
        old, self.config, self.facts = new.before or new, new.config, new.facts
        c, was = new.config.daemon, old.config.daemon
        if (c.log_format, c.log_level) != (was.log_format, was.log_level):
            logs.setup(c.log_format, c.log_level)
        for event, fields in new.notes:
            self._log.warning(event, **fields)
        self.adapter, self._lock, self._keeper = new.adapter, new.lock, new.keeper
        if new.store is not None and new.made is not None:
            self.store = new.store
            self._term = new.keeper.lease.term if new.keeper is not None else 0
            self._earlier.settle(c.rpc_timeout_s)
            self._use(new.made)
        elif self._term:
            # open still, of a lease that was lost
            self.store.close()
            self._term = 0
        reload.let_go(old, new)
        self.show.open(new.config, self.adapter.name, self.facts, self._keeper)
        self.show.withdraw(old.config, new.config, users=new.store is not None)
        self._schedule.change(new.config)
        self._settled()
