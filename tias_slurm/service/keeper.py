"""Seeking and keeping the lease, in a thread beside the cycle; and what goes to Slurm passes here."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tias_slurm.errors import InputError
from tias_slurm.observe.systemd import Pulse
from tias_slurm.service.leadership import Knowledge, LeaseFile, Timing, clock, unknown, went
from tias_slurm.slurm.live import (
    Adapter,
    AdapterError,
    Field,
    Partition,
    RawNodes,
    RawRequests,
    RawTable,
    Reservation,
    Share,
    SiteFacts,
    WriteResult,
)


class Keeper:
    """Leads while the lease is held. A host whose controller is not in charge does not lead."""

    def __init__(
        self,
        lease: LeaseFile,
        in_charge: Callable[[], bool | None],
        knowledge: Callable[[], Knowledge | None],
        pulse: Pulse,
        busy: threading.Lock,
        log: Any,
        gained: Callable[[], None] = lambda: None,
    ) -> None:
        """`in_charge`: see slurm.in_charge. `knowledge`: of the ledger here; None: there is none. `busy` is
        held by a cycle at work, under which the lease is not given back. `gained` is called, in the keeper's
        thread, when the lease was taken."""
        self.lease = lease
        self.why = "starting"  # why we do not lead
        self._in_charge, self._knowledge, self._pulse = in_charge, knowledge, pulse
        self._busy, self._log, self._gained = busy, log, gained
        self._mutex = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._said = ""
        self._led = False
        self._not_before = -math.inf  # we do not seek the lease, by leadership.clock

    @property
    def leads(self) -> bool:
        """Whether we may write now."""
        return self.lease.held

    @property
    def leader(self) -> str:
        """The host that leads, as far as we saw; "": nobody."""
        return self.lease.seen.host if self.lease.seen.holder else ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and give the lease back. No cycle may be at work."""
        self._end.set()
        with contextlib.suppress(RuntimeError):  # never started
            self._thread.join(5)
        with self._mutex:
            self.lease.give_back()

    def resign(self, why: str) -> None:
        """Lead no more, and leave it to another for as long as a lease lasts."""
        with self._mutex:
            self._lose(why)
            self._say(why)
            self._not_before = clock() + self.lease.timing.lasts_s

    def insist(self) -> None:
        """Lead, and go on renewing: for a command that an administrator starts while no daemon acts. It may
        have to wait until the lease of one that died runs out. Raises InputError if another leads."""
        first = None
        while True:
            self.look()
            if self.leads:
                break
            seen = self.lease.seen
            first = first or seen
            if seen.moved:
                raise InputError(self.why)
            if self.lease.free or seen != first:
                raise InputError(f"{self.why}; this command needs the lease: stop the daemon that leads")
            time.sleep(self.lease.timing.poll_s / 2)
        self.start()

    def settle(
        self,
        timing: Timing,
        in_charge: Callable[[], bool | None],
        knowledge: Callable[[], Knowledge | None],
        *,
        enforce: bool,
    ) -> None:
        """Go on with other settings, see LeaseFile and above; whoever leads goes on to lead."""
        with self._mutex:
            self.lease.timing, self.lease.enforce = timing, enforce
            self._in_charge, self._knowledge = in_charge, knowledge

    def seek(self) -> bool:
        """Take the lease if it can be had; whether we lead. Before `start`. Raises InputError."""
        charge = self._in_charge()
        with self._mutex:
            self._look(charge)
        return self.leads

    def forward(self, to: str) -> None:
        """Lead no more by this lease, which sends others to another one ("": to none). Raises InputError, and
        then goes on."""
        with self._mutex:
            self.lease.forward(to)
            self._end.set()

    def check_knowledge(self, knowledge: Knowledge) -> None:
        """Raises InputError if a leader with such a ledger must not write, see leadership.unknown."""
        with self._mutex:
            problem = unknown(self.lease.look(), knowledge)
        if problem:
            raise InputError(problem)

    def about_to_send(self, knowledge: Knowledge) -> bool:
        """Note in the lease what our ledger knows, before anything is sent; whether we still lead."""
        with self._mutex:
            try:
                return self.leads and self.lease.renew(knowledge)
            except InputError as error:
                self._say(str(error))
                return False

    def look(self) -> None:
        """Renew the lease, seek it, or let it go. Never raises."""
        charge = self._in_charge()
        with self._mutex:
            if self._end.is_set():
                return
            try:
                self._look(charge)
            except InputError as error:
                self.why = str(error)
                self._say(str(error))
        if self.leads and not self._led:
            self._led, self._said, self.why = True, "", ""
            self._log.info("leads", term=self.lease.term)
            self._gained()

    def _look(self, charge: bool | None) -> None:
        if clock() < self._not_before:
            self.lease.look()
            self._let_go()
            return
        if self.lease.term:
            if charge is False:
                self._lose("the controller of this host is not in charge")
            elif not self._pulse.alive:
                self._lose("the cycle is stuck")
            elif not self.lease.renew():
                self._lose(f"{self.leader or 'somebody'} has taken the lease")
                self.lease.term = 0
            if not self.lease.held and self.lease.term:
                self._let_go()
            return
        if self.lease.look().moved and not self.lease.free:
            self.why = went(self.lease.path, self.lease.seen)
        elif charge is False:
            self.why = "the controller of this host is not in charge"
        elif not (self.lease.free and self.lease.take(self._knowledge())):
            self.why = f"{self.leader} leads" if self.leader else "nobody leads yet"

    def _lose(self, why: str) -> None:
        held = self._led
        self.lease.drop()
        self._led, self.why = False, why
        if held:
            self._log.warning("leads no more", why=why)

    def _let_go(self) -> None:
        """Give the lease back once no write of ours can be under way; else it runs out."""
        if self._busy.acquire(blocking=False):
            try:
                self.lease.give_back()
            finally:
                self._busy.release()

    def _say(self, message: str) -> None:
        if message != self._said:
            self._log.error("lease", message=message)
        self._said = message

    def _run(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(self.lease.timing.poll_s)


class Guarded:
    """An adapter of which every call is a sign of life, and that sends nothing without leave."""

    def __init__(self, inner: Adapter, may_ask: Callable[[], str], may_send: Callable[[], str]) -> None:
        """Both are called before each call and say why not; "": go on. `may_ask` gives the sign of life."""
        self.inner, self._may_ask, self._may_send = inner, may_ask, may_send
        self.name = inner.name

    def _ask(self) -> Adapter:
        why = self._may_ask()
        if why:
            raise AdapterError(why, retry=True)
        return self.inner

    def _send(self, send: Callable[[], WriteResult]) -> WriteResult:
        self._may_ask()
        why = self._may_send()
        return WriteResult("retry", why) if why else send()

    def jobs(self) -> RawTable:
        """See Adapter, likewise below."""
        return self._ask().jobs()

    def nodes(self) -> RawNodes:
        """See Adapter."""
        return self._ask().nodes()

    def facts(self) -> SiteFacts:
        """See Adapter."""
        return self._ask().facts()

    def site_factors(self) -> dict[int, int]:
        """See Adapter."""
        return self._ask().site_factors()

    def pinned(self) -> dict[int, bool]:
        """See Adapter."""
        return self._ask().pinned()

    def requests(self, jobs: Sequence[int] | None = None) -> RawRequests:
        """See Adapter."""
        return self._ask().requests(jobs)

    def shares(self) -> dict[int, Share]:
        """See Adapter."""
        return self._ask().shares()

    def reservations(self) -> list[Reservation]:
        """See Adapter."""
        return self._ask().reservations()

    def partitions(self) -> dict[str, Partition]:
        """See Adapter."""
        return self._ask().partitions()

    def write(self, job_id: int, field: Field, value: int) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.write(job_id, field, value))

    def unpin(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.unpin(job_id))

    def hold(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.hold(job_id))

    def release(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.release(job_id))

    def requeue(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.requeue(job_id))

    def signal(self, job_id: int, name: str) -> WriteResult:
        """See Adapter."""
        return self._send(lambda: self.inner.signal(job_id, name))

    def close(self) -> None:
        """See Adapter."""
        self.inner.close()
