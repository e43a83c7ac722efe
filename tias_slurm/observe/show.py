"""What a daemon shows after each cycle: the status file, users' files, metrics, a line for systemd."""

from __future__ import annotations

import os
import time
from typing import Any

from tias_slurm import status, user_export
from tias_slurm.config import Config
from tias_slurm.cycle import Cycle, refused_now
from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Snapshot
from tias_slurm.ledger.trim import Trimmed
from tias_slurm.observe.systemd import Notifier, Pulse
from tias_slurm.own_files import same_place
from tias_slurm.replay.wording import plural
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.scope import given

# a daemon whose last good cycle is older than so many intervals is not ready
LATE_INTERVALS = 3


class Show:
    """Keeps what is shown, and who shows it. `open`, then `cycle` after each, `close` at the end."""

    def __init__(self, log: Any, notifier: Notifier, pulse: Pulse) -> None:
        self._log, self._notifier, self._pulse = log, notifier, pulse
        self._left: dict[str, Any] = {
            "started": round(time.time(), 3),
            "queue": None,
            "last_ok": None,
            "user_export": "",
            "written": 0,
        }
        self._metrics: Any = None
        self._server: Any = None
        self._address: tuple[str, int] | None = None  # that it was asked to listen at
        self._next: tuple[Any] | None = None  # the server of settings that are not taken yet
        self._keeper: Keeper | None = None
        self._interval_s = 0.0
        self._trouble = ""  # why the last cycle came to nothing, by a fault of ours, the disk or the ledger
        self._problem = ""  # why the last reload was refused
        self._said: dict[str, str] = {}  # troubles that somebody was told of, by what they are about

    def listen(self, config: Config) -> None:
        """Have the listener of these settings, beside the one that is there; `open` lets that go.

        Raises InputError if the address cannot be had."""
        m = config.metrics
        if self._metrics is None and (m.listen or m.textfile):
            from tias_slurm.observe.metrics import Metrics

            self._metrics = Metrics()
        if m.address == self._address:
            return
        made: Any = None
        if m.address is not None:
            from tias_slurm.observe.http import Answers, Server

            made = Server(m.address, Answers(self._metrics.text, self.not_ready, self.not_healthy))
        self._next = (made,)

    def forget_listener(self) -> None:
        """The settings are not taken after all."""
        if self._next is not None and self._next[0] is not None:
            self._next[0].close()
        self._next = None

    def open(self, config: Config, backend: str, facts: SiteFacts, keeper: Keeper | None) -> None:
        """Begin to show, also after a reload. Raises InputError if the address cannot be had."""
        if self._next is None:
            self.listen(config)
        if self._next is not None:
            if self._server is not None:
                self._server.close()
            self._server, self._address, self._next = self._next[0], config.metrics.address, None
        self._keeper, self._interval_s = keeper, config.cycle.interval_s
        c = config
        if self._metrics is not None:
            self._metrics.settings(c.cycle.interval_s)
            self._metrics.build(
                slurm=facts.version,
                backend=backend,
                mode=c.daemon.mode,
                lever=c.lever.kind,
                preset=c.policy.preset,
            )
        self._left |= {
            "pid": os.getpid(),
            "scope": given(c.scope),
            "mode": c.daemon.mode,
            "interval_s": c.cycle.interval_s,
            "backend": backend,
            "slurm": facts.version,
            "preset": c.policy.preset,
            "lever": c.lever.kind,
            "max_writes": c.planner.max_writes_per_cycle,
        }

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    def withdraw(self, old: Config, new: Config, *, users: bool) -> None:
        """Remove the files that the new settings leave no longer, so that nobody takes them for news.

        `users`: those for users as well, which only the daemon that acts may remove."""
        was = old.metrics.textfile
        if was and not _same(was, new.metrics.textfile):
            try:
                os.unlink(was)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._tell("metrics", f"{was}: cannot be removed: {error.strerror}")
        left = old.daemon.user_export
        if users and left and not _same(left, new.daemon.user_export):
            try:
                user_export.withdraw(left)
            except InputError as error:
                self._tell("user export", str(error))

    @property
    def port(self) -> int:
        """Where /metrics is; 0: nowhere."""
        return self._server.port if self._server is not None else 0

    def not_ready(self) -> str:
        """Why this daemon does not do its work now; "": it does."""
        if self._keeper is not None and not self._keeper.leads:
            return f"stands by: {self._keeper.why}"
        if self._trouble:
            return self._trouble
        last = self._left["last_ok"]
        if last is None:
            return "no good cycle yet"
        age = time.time() - last
        return "" if age <= LATE_INTERVALS * self._interval_s else f"no good cycle for {age:.0f} s"

    def not_healthy(self) -> str:
        """Why this process should be ended; "": it is well."""
        return "" if self._pulse.alive else "the cycle is stuck"

    # -- what happens

    def sent(self, event: str, lever: str, result: str) -> None:
        """One action came to an end."""
        self._left["written"] += event == "write" and result == "ok"
        if self._metrics is not None:
            self._metrics.sent(event, lever, result)

    def notice(self, reason: str, how: str, result: str) -> None:
        """A message to a job's owner came to an end."""
        if self._metrics is not None:
            self._metrics.notice(reason, how, result)

    def notices_wait(self, messages: int) -> None:
        """How many messages wait to be sent."""
        if self._metrics is not None:
            self._metrics.notices_wait(messages)

    def refused_claims(self, reasons: dict[str, int]) -> None:
        """Claims that were not taken in this cycle, by reason."""
        if self._metrics is not None:
            self._metrics.refused_claims(reasons)

    def reloaded(self, problem: str = "") -> None:
        """The settings were read again; `problem`: why they were not taken, which stays to be seen until
        others are."""
        now = time.time()
        self._problem = problem
        self._left["reload"] = {"time": round(now, 3), "problem": problem}
        if self._metrics is not None:
            self._metrics.reloaded(not problem, now)
        self._notifier.send("READY=1")
        if problem:
            self._status("")

    def _status(self, words: str) -> None:
        """The line of systemd's status."""
        if self._problem:
            refused = f"reload refused, the old settings hold: {printable(self._problem, 120)}"
            words = f"{refused}; {words}" if words else refused
        self._notifier.status(words)

    def failed(self, config: Config, message: str) -> None:
        """A cycle came to nothing by a fault of ours, the disk or the ledger: not ready until one does."""
        if self._metrics is not None:
            self._metrics.cycle("failed", {}, 0.0, time.time())
        self._status(message)
        self._trouble = message
        self._left |= {"time": round(time.time(), 3), "trouble": message}
        self._leave(config)

    def ledger(self, trimmed: Trimmed) -> None:
        """What was dropped from the ledger for its size, and how large it is."""
        if self._metrics is not None:
            self._metrics.ledger(trimmed)

    def cycle(
        self, config: Config, made: LiveCycle, cycle: Cycle, steps: dict[str, float], no_raise: str = ""
    ) -> None:
        """A cycle ended. A full disk ends none. `no_raise`: why nobody is raised; "": they are."""
        now, self._trouble = round(time.time(), 3), ""
        snapshot = None
        if cycle.result == "ok":
            snapshot, known, ranking = made.controller.standing()
            ledger = made.ledger
            claims, survival = ledger.uncounted, ledger.learner.survival()
            queue = status.queue_summary(snapshot, known, ranking, made.policy, claims, survival)
            queue |= {
                "overridden": cycle.overridden,
                "refused_writes": cycle.refused,
                "left_alone": cycle.barred,
            }
            queue["refused_claims"] = refused_now(made)
            budgets = _left_of_budgets(config, made, cycle)
            self._left |= {"queue": queue, "last_ok": now, "writes_left": int(budgets["writes_per_cycle"])}
        self._left |= {
            "time": now,
            "strict": made.lever.strict,
            "no_rights": made.cluster.no_rights,
            "cycle": vars(cycle),
            "trouble": "",
            "no_raise": no_raise,
            "leadership": self._leadership(),
        }
        calm = "nobody is raised: see the log; " if no_raise else ""
        self._status(calm + _line(config, cycle, made.cluster.no_rights))
        if self._metrics is not None:
            self._metrics.cycle(cycle.result, steps, cycle.seconds, now)
            self._metrics.silenced(cycle.paused, bool(made.cluster.no_rights))
            if cycle.result == "ok":
                self._metrics.queue(self._left["queue"], cycle.overridden, cycle.held_back)
                self._metrics.budgets(budgets)
                if made.ledger.reruns is not None:
                    self._metrics.requeued_by_slurm(made.ledger.reruns.news())
        if snapshot is not None:
            self._left["user_export"] = self._export(config, made, snapshot)
        self._leave(config)

    def _export(self, config: Config, made: LiveCycle, snapshot: Snapshot) -> str:
        """The files for users; why they could not be left, "": they were, or none are wanted."""
        c, why = config.daemon, ""
        if c.user_export:
            ids, table = made.ledger.table
            users = snapshot.users, snapshot.jobs.user
            try:
                user_export.export(c.user_export, *users, ids, table, c.state_dir)
            except InputError as error:
                why = str(error)
                self._tell("user export", why)
        if not why:
            self._said.pop("user export", None)
        return why

    def standby(self, config: Config, why: str) -> None:
        """This daemon does not act."""
        self._trouble = ""
        self._left |= {"time": round(time.time(), 3), "queue": None, "cycle": None, "no_rights": ""}
        self._left["user_export"] = ""
        self._left["leadership"] = self._leadership()
        self._status(f"stands by: {why}")
        self._leave(config)

    def _leadership(self) -> dict[str, Any] | None:
        keeper = self._keeper
        if keeper is None:
            return None
        return {
            "host": keeper.lease.host,
            "leads": keeper.leads,
            "leader": keeper.leader,
            "term": keeper.lease.seen.term,
            "why": "" if keeper.leads else keeper.why,
        }

    def _leave(self, config: Config) -> None:
        """The files. Who shares a state directory leaves a status of its own."""
        host = self._keeper.lease.host if self._keeper is not None else ""
        try:
            status.leave(config.daemon.state_dir, self._left, host)
        except InputError as error:
            self._tell("status file", str(error))
        if self._metrics is None:
            return
        keeper = self._keeper
        self._metrics.leadership(keeper is None or keeper.leads, keeper.lease.term if keeper else 0)
        if config.metrics.textfile:
            try:
                self._metrics.leave(config.metrics.textfile)
            except InputError as error:
                self._tell("metrics", str(error))

    def _tell(self, about: str, message: str) -> None:
        """Say it, once as long as it stays so."""
        if self._said.get(about) != message:
            self._log.warning(about, message=message)
        self._said[about] = message


def _same(one: str, other: str) -> bool:
    return bool(other) and same_place(one, other)


def _line(config: Config, cycle: Cycle, no_rights: str) -> str:
    """One line of what the daemon does."""
    if cycle.result != "ok":
        return f"{cycle.result}: {cycle.message}"
    silent = "paused; " if cycle.paused else "no rights to write; " if no_rights else ""
    done = status.written(cycle.writes, config.daemon.mode)
    requeued = f", {cycle.requeues} requeued" if cycle.requeues else ""
    return (
        f"{silent}{config.daemon.mode}: {plural(cycle.jobs, 'job')}, {cycle.waiting} wait; last cycle "
        f"{time.strftime('%H:%M:%S')}, {cycle.seconds:.2f} s, {done}{requeued}"
    )


def _left_of_budgets(config: Config, made: LiveCycle, cycle: Cycle) -> dict[str, float]:
    left = {
        "writes_per_cycle": float(max(0, config.planner.max_writes_per_cycle - cycle.writes - cycle.failed))
    }
    most = config.requeue.max_per_hour
    if config.requeue.mode == "on" and most is not None:
        left["requeues_per_hour"] = float(max(0, most - sum(made.ledger.history().last_hour.values())))
    return left
