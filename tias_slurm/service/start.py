"""What has to be so before a daemon starts: a directory of its own, settings that fit Slurm and ledger."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tias_slurm.config import Config
from tias_slurm.errors import InputError, printable
from tias_slurm.hands import is_there
from tias_slurm.ledger.schema import moved
from tias_slurm.ledger.sight import looked_at
from tias_slurm.ledger.store import SqliteStore, gone_to, known_to
from tias_slurm.observe.systemd import Pulse
from tias_slurm.service import state_move
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.leadership import Knowledge, LeaseFile, Timing, this_host, timing
from tias_slurm.service.state_lock import StateLock, take
from tias_slurm.slurm.checks_conf import no_site_factor
from tias_slurm.slurm.checks_preempt import Qos, problems
from tias_slurm.slurm.in_charge import InCharge
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.probes import look_at_qos, mode_in_file


def check(
    config: Config, facts: SiteFacts, store: SqliteStore, *, lever: bool = True
) -> list[tuple[str, str]]:
    """What would be refused in enforcement, and what to do; the rest of it raises InputError. Changes
    nothing. `lever`: the values of another lever are refused as well."""
    found = preemption(config, facts)
    _lever(config, facts, store, other=lever)
    return found


def said(found: list[tuple[str, str]]) -> list[tuple[str, dict[str, object]]]:
    """What `check` found, for the log."""
    return [('requeue mode "slurm" would be refused', {"what": what, "do": do}) for what, do in found]


def preemption(config: Config, facts: SiteFacts) -> list[tuple[str, str]]:
    """Slurm's own preemption cancels whom it cannot requeue: not without all that guards against it."""
    found = preemption_problems(config, facts)
    if found and config.daemon.mode == "enforce":
        said = "; ".join(f"{what}: needs {do}" for what, do in found)
        raise InputError(f'[requeue] mode = "slurm" cannot be used here: {said}')
    return found


def preemption_problems(
    config: Config, facts: SiteFacts, qos: Sequence[Qos] | None = None
) -> list[tuple[str, str]]:
    """Which guards fail, and what to do. `qos`: as they are known; None: they are asked for."""
    if config.requeue.mode != "slurm":
        return []
    limit = config.daemon.rpc_timeout_s
    return list(problems(config, facts, qos or look_at_qos(limit), mode_in_file(limit)))


def _lever(config: Config, facts: SiteFacts, store: SqliteStore, *, other: bool) -> None:
    """A ledger knows the values of one lever; another one needs the first to be undone."""
    kind, known = config.lever.kind, store.get("lever")
    # what a dry run would have written was never sent
    if other and known not in (None, kind) and config.daemon.mode != "dry-run":
        raise InputError(
            f'the ledger holds values of the lever "{known}"; run tias-slurm restore with that lever '
            f'before setting [lever] kind = "{kind}"'
        )
    if kind == "site_factor" and no_site_factor(facts):
        raise InputError(
            'lever "site_factor" needs PriorityType=priority/multifactor and no '
            'PrioritySiteFactorPlugin; set [lever] kind = "nice"'
        )


def root_needless(config: Config, facts: SiteFacts) -> str:
    """What to tell of a daemon that writes as root; "": it does not, or root is SlurmUser here."""
    if os.geteuid() != 0 or config.daemon.mode != "enforce" or facts.slurm_user == "root":
        return ""
    return (
        "this is root, and the daemon needs none of root's rights: run it as an account of its own with "
        f"AdminLevel=Operator, or as SlurmUser ({printable(facts.slurm_user, 40)})"
    )


def own(config: Config, store: SqliteStore) -> None:
    """Have the ledger know the values of this lever, after `check`. Raises LedgerError."""
    kind, known = config.lever.kind, store.get("lever")
    if known not in (None, kind):
        store.disown()
    if known != kind:
        store.put("lever", kind)  # not where it is: a disk that is full must not keep a daemon from starting


def ledger_path(config: Config, mode: str | None = None) -> str:
    """The ledger of a mode (None: the configured one): would-be values are kept apart from real ones."""
    enforce = (mode or config.daemon.mode) == "enforce"
    name = "ledger.sqlite" if enforce else "ledger-dry-run.sqlite"
    return os.path.join(config.daemon.state_dir, name)


def seed(config: Config) -> None:
    """A dry run after an enforcing daemon begins with what that one knew. Raises InputError.

    Else the values that were set would pass for the users' own.
    """
    mine, real = ledger_path(config), ledger_path(config, "enforce")
    if mine == real or not is_there(real):
        return
    if where := gone_to(real):
        raise InputError(moved(printable(real, 300), where))
    if not is_there(mine) or _changed(mine) < _changed(real):
        source = SqliteStore(real, older="leave")
        try:
            source.copy_to(mine)
        finally:
            source.close()


def carry_over(config: Config, store: SqliteStore) -> list[tuple[str, dict[str, object]]]:
    """A daemon that goes over to enforcement knows what the dry run before it saw; what to log. Not what it
    would have done: that never was. `store`: the ledger that it works with. Raises nothing."""
    dry = ledger_path(config, "dry-run")
    try:
        if config.daemon.mode != "enforce" or not is_there(dry) or looked_at(dry) <= looked_at(store.path):
            return []
        return [("goes on from what the dry run saw", {"jobs": store.see_as(dry)})]
    except InputError as error:
        then = "claims whose deadlines have passed meanwhile are not taken"
        return [("what the dry run saw is not known", {"message": str(error), "so": then})]


def _changed(path: str) -> float:
    """When a ledger was changed last; of one that was left by a crash that may be in its log alone. An empty
    log is what somebody leaves who has only read."""
    log = f"{path}-wal"
    full = os.path.exists(log) and os.path.getsize(log) > 0
    return max(os.path.getmtime(p) for p in (path, log) if p == path or full)


def keeper(
    config: Config, state_save: str, pulse: Pulse, busy: threading.Lock, log: Any, gained: Callable[[], None]
) -> Keeper:
    """The keeper of the lease of these settings, see there. `state_save`: StateSaveLocation."""
    lease = _lease(config)
    asks = _asks(lease.host, lease.timing, state_save)
    return Keeper(lease, asks, _knows(config), pulse, busy, log, gained)


def settled(keeper: Keeper, config: Config, state_save: str) -> Callable[[], None]:
    """What lets it go on with these settings; the lease stays where it is. Raises AdapterError without
    scontrol."""
    holds = timing(config.cycle.interval_s, config.daemon.rpc_timeout_s)
    asks = _asks(keeper.lease.host, holds, state_save)
    enforce = config.daemon.mode == "enforce"
    return partial(keeper.settle, holds, asks, _knows(config), enforce=enforce)


def _asks(host: str, holds: Timing, state_save: str) -> InCharge:
    return InCharge(host, state_save, max(1.0, holds.hold_s / 6))


def _knows(config: Config) -> Callable[[], Knowledge | None]:
    return partial(known_to, ledger_path(config))


def _lease(config: Config) -> LeaseFile:
    c = config.daemon
    return LeaseFile(
        c.lease_path, timing(config.cycle.interval_s, c.rpc_timeout_s), enforce=c.mode == "enforce"
    )


def host_of(config: Config) -> str:
    """The host that a daemon of these settings is one of several by; "": it is the only one."""
    return this_host() if config.daemon.lease_path else ""


def hold(config: Config) -> StateLock:
    """Have the state directory of these settings, with a ledger that arrived whole. Raises InputError."""
    lock = take(config.daemon.state_dir, host_of(config))
    try:
        state_move.arrived(config.daemon.state_dir)
    except BaseException:
        lock.close()
        raise
    return lock


@contextmanager
def alone(config: Config, log: Any) -> Iterator[None]:
    """No daemon works on this state directory meanwhile, on no host: for a command that writes. Raises
    InputError if one does."""
    c = config.daemon
    lock = hold(config)
    try:
        if not c.lease_path:
            yield
            return
        # it does not matter which controller is in charge: the command asks the one that answers
        holder = Keeper(_lease(config), lambda: None, _knows(config), Pulse(math.inf), threading.Lock(), log)
        try:
            holder.insist()
            yield
        finally:
            holder.stop()
    finally:
        lock.close()
