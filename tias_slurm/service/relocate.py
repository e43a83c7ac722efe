"""Another state directory, another lease: a daemon that works goes there without a gap, or stays.

It writes under the lease that its settings name, before and after: the old one is let go once the new one is
held, and sends whoever waits for it there too. See docs/operate.md, "Move its files".
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from tias_slurm import status
from tias_slurm.errors import InputError, printable
from tias_slurm.ledger.store import SqliteStore, known_to
from tias_slurm.own_files import same_place
from tias_slurm.service import start, state_lock
from tias_slurm.service.leadership import Knowledge, Lease, same
from tias_slurm.service.parts import Host, Parts
from tias_slurm.service.state_move import StateMove, marks, others

# how often systemd is told that a reload goes on, s
TELL_S = 10.0


def changes(now: Parts, new: Parts) -> bool:
    """Whether there is anything to do here."""
    return _moves(now, new) or _other_lease(now, new)


def relocate(host: Host, now: Parts, new: Parts, undo: ExitStack, log: Any) -> None:
    """Have `new`, which is ready but for that, in the place that its settings name; `undo` and `new.commit`
    get what is to be done after. Raises InputError, AdapterError."""
    c, used = new.config.daemon, new.store
    if now.store is None and now.keeper is not None and not c.lease_path:
        raise InputError(
            'lease_path = "": this daemon stands by, and only the one that leads can go on without a lease; '
            "end this one"
        )
    moves, leads = _moves(now, new), now.store is not None
    move = _directory(host, now, new, undo, log) if moves else None
    if not moves:
        new.lock = state_lock.retake(now.lock, start.host_of(new.config), undo)
    if _other_lease(now, new):
        leads = _lease(host, now, new, undo)
    if used is None or not leads:
        if used is not None and used is not now.store:
            new.finish.append(used.close)
        new.store = new.made = None
    else:
        new.store = _ledger(now, new, used, moves, undo)
        new.made = host.make(new.config, new.adapter, new.facts, new.store, now.made)
    if move is not None:
        in_use = [s for s in (used, now.store) if s is not None]
        new.commit.insert(0, partial(move.commit, in_use, undo))
        new.notes.append(
            ("the state directory moved", {"from": move.old, "to": move.new, **_rest(c.lease_path)})
        )


def _rest(lease_path: str) -> dict[str, object]:
    return {"do": "reload the daemons of the other controllers too"} if lease_path else {}


def _moves(now: Parts, new: Parts) -> bool:
    return not same_place(now.config.daemon.state_dir, new.config.daemon.state_dir)


def _other_lease(now: Parts, new: Parts) -> bool:
    one, other = now.config.daemon.lease_path, new.config.daemon.lease_path
    return bool(one) != bool(other) or (bool(one) and not same(one, other))


# -- the directory


def _directory(host: Host, now: Parts, new: Parts, undo: ExitStack, log: Any) -> StateMove:
    old, c = now.config.daemon.state_dir, new.config.daemon
    undo.callback(_remove, c.state_dir, _missing(c.state_dir))
    new.lock = state_lock.take(c.state_dir, start.host_of(new.config))
    undo.callback(new.lock.close)
    move = StateMove(old, c.state_dir)
    if now.store is None and (move.ledgers or marks(old)) and (there := others(old, now.lock.host)):
        raise InputError(
            f"[daemon] state_dir: the daemon of {printable(', '.join(there), 100)} uses {old} too; reload "
            "the one that leads first: it takes the ledger along"
        )
    move.copy(_going_on(host), undo)
    new.finish.append(partial(move.finish, now.lock.host, log))
    return move


def _going_on(host: Host) -> Callable[[], None]:
    told = time.monotonic()

    def tell() -> None:
        nonlocal told
        if why := host.may_ask():
            raise InputError(f"[daemon] state_dir: {why}")
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            host.takes_its_time()

    return tell


def _missing(path: str) -> list[str]:
    """The directories that are to be made, innermost first."""
    path, found = os.path.abspath(path), []
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _remove(state_dir: str, made: list[str]) -> None:
    """What was made in vain."""
    if not made:
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(state_dir):
            path = os.path.join(state_dir, name)
            if name.startswith(os.path.basename(status.lock_path(""))):
                os.unlink(path)
            elif os.path.isdir(path):
                os.rmdir(path)
        for directory in made:
            os.rmdir(directory)


# -- the lease


def _lease(host: Host, now: Parts, new: Parts, undo: ExitStack) -> bool:
    """Whether this daemon leads by what the settings say now."""
    old, path = now.keeper, new.config.daemon.lease_path
    acts = now.store is not None
    if not path:
        assert old is not None
        new.keeper = None
        new.commit.append(partial(old.forward, ""))
        new.notes.append(("without a lease from now on", {"do": "end the daemons of other hosts"}))
        new.finish.append(old.stop)
        return True
    new.keeper = host.keeper(new.config, new.facts)
    lease = new.keeper.lease
    former = lease.inherit(_known(now), old.lease.path if old is not None else "")
    undo.callback(lease.put_back, former)
    undo.callback(new.keeper.stop)
    if acts:
        acts = new.keeper.seek()
        if not acts:
            _check_leader(now, new)
    if old is not None:
        new.commit.append(partial(old.forward, path))
        new.finish.append(old.stop)
    new.finish.append(new.keeper.start)
    new.notes.append(("another lease from now on", {"lease_path": path, **_rest(path)}))
    return acts


def _known(now: Parts) -> Lease:
    """What the lease so far, and the ledger, know of what was written."""
    known: Lease | Knowledge | None = now.keeper.lease.look() if now.keeper is not None else None
    known = known or known_to(start.ledger_path(now.config, "enforce")) or Lease()
    return Lease(ledger=known.ledger, sent=known.sent, term=known.term)


def _check_leader(now: Parts, new: Parts) -> None:
    """This daemon is to stand by from now on: whoever leads has to know what it wrote."""
    assert new.keeper is not None
    seen, known = new.keeper.lease.seen, _known(now)
    if seen.holder and known.sent and (seen.ledger != known.ledger or seen.sent < known.sent):
        raise InputError(
            f"[daemon] lease_path: {printable(seen.host, 64)} leads by the new one, and may not know what "
            "this daemon wrote; end the daemon there, reload this one, and start it again"
        )


# -- the ledger


def _ledger(now: Parts, new: Parts, used: SqliteStore, moves: bool, undo: ExitStack) -> SqliteStore:
    """As it is kept from now on, open. `used`: as it was kept until now, for the mode of the settings."""
    shared, store = bool(new.config.daemon.lease_path), used
    if moves:
        store = SqliteStore(start.ledger_path(new.config), shared=shared)
        undo.callback(store.close)
        if used is not now.store:
            new.finish.append(used.close)
    elif shared != bool(now.config.daemon.lease_path):
        undo.callback(_share, used, not shared)
        used.share(shared)
    if new.keeper is not None:
        store.lead(new.keeper.lease.term)
    return store


def _share(store: SqliteStore, shared: bool) -> None:
    with contextlib.suppress(InputError):
        store.share(shared)
