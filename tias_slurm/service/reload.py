"""A reload of the settings: all that they need is made and checked first, then taken at once, or not at all.

Whatever cannot be had (a bad file, an address in use, a guard of the start that fails, values that Slurm does
not give back) leaves the daemon as it was.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tias_slurm.config import Config, load_config
from tias_slurm.errors import InputError
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.restore import restore
from tias_slurm.service import relocate, start
from tias_slurm.service.keeper import Guarded, Keeper
from tias_slurm.service.parts import Host, Parts
from tias_slurm.service.relocate import TELL_S
from tias_slurm.service.state_lock import switch
from tias_slurm.slurm.checks_preempt import compares_priorities
from tias_slurm.slurm.live import AdapterError, Field


def attempt(
    host: Host, path: str | None, overrides: Mapping[str, object], log: Any
) -> tuple[Parts | None, str]:
    """What the settings file needs now, ready to be taken; or None, and why it is refused. Never raises."""
    try:
        with ExitStack() as undo:
            fresh = load_config(path, overrides)
            new = prepare(host, fresh, undo, log)
            keeper = new.keeper
            if keeper is not None and new.before is not None and keeper is new.before.keeper:
                settle = start.settled(keeper, fresh, new.facts.state_save_location)
                new.finish.insert(0, settle)
            for step in new.commit:
                step()
            undo.pop_all()
    except (InputError, AdapterError) as error:
        log.error("reload refused, the old settings hold", message=str(error))
        return None, str(error)
    except Exception as error:
        # a fault of ours must not leave a daemon half way
        problem = f"internal error: {type(error).__name__}"
        log.exception("reload refused, the old settings hold", message=problem)
        return None, problem
    log.info("reloaded", mode=fresh.daemon.mode, lever=fresh.lever.kind)
    return new, ""


def let_go(old: Parts, new: Parts) -> None:
    """Close what is not used any more, and let the rest begin."""
    if new.adapter is not old.adapter:
        _let_go(old.adapter.close)
    if old.store is not None and new.store is not old.store:
        _let_go(old.store.close)
    switch(old.lock, new.lock)
    for tidy in new.finish:
        tidy()


def prepare(host: Host, fresh: Config, undo: ExitStack, log: Any) -> Parts:
    """All that the settings `fresh` need, ready to be taken once `commit` is done.

    `undo` gets what is to be closed again if they are not. Raises InputError (LedgerError among them) and
    AdapterError, each of which is a refusal.
    """
    now = host.parts()
    new = replace(now, config=fresh, before=now, notes=[], commit=[], finish=[])
    if not relocate.changes(now, new):
        _stay(host, now, new, undo)
        return new
    # first all the rest, where it is; then with that to where it is to be
    c = now.config.daemon
    here = {"state_dir": c.state_dir, "lease_path": c.lease_path}
    new.config = fresh.model_copy(update={"daemon": fresh.daemon.model_copy(update=here)})
    _stay(host, now, new, undo)
    new.config = fresh
    relocate.relocate(host, now, new, undo, log)
    return new


def _stay(host: Host, now: Parts, new: Parts, undo: ExitStack) -> None:
    """What other settings need, but for the place of ledger and lease."""
    old, fresh = now.config, new.config
    if _way(old) != _way(fresh):
        new.adapter, why = host.choose(fresh)
        if new.adapter is not now.adapter:
            undo.callback(_let_go, new.adapter.close)
        new.facts = new.adapter.facts()  # one that does not answer is not taken
        new.notes.append(("backend", {"backend": new.adapter.name, "why": why}))
    else:
        with contextlib.suppress(AdapterError):  # else what was known of the site goes on to hold
            new.facts = now.adapter.facts()
    undo.callback(host.show.forget_listener)
    host.show.listen(fresh)
    if now.store is None or now.made is None:
        new.notes += start.said(start.preemption(fresh, new.facts))
        return
    new.store = now.store
    if old.daemon.mode != fresh.daemon.mode:
        new.store = _other_ledger(now.keeper, now.store, fresh)
        undo.callback(_let_go, new.store.close)
        new.notes += start.carry_over(fresh, new.store)
        if fresh.daemon.mode == "dry-run":
            new.notes.append(
                (
                    "dry-run from now on: the values that were set stay; to undo them end the daemon and run "
                    "tias-slurm restore",
                    {},
                )
            )
    putting_back = _putting_back(old, fresh, new)
    new.notes += start.said(start.check(fresh, new.facts, new.store, lever=not putting_back))
    new.made = host.make(fresh, new.adapter, new.facts, new.store, now.made)
    if putting_back or new.store.get("lever") != fresh.lever.kind:
        if new.store is now.store:
            undo.callback(host.lost_track)
        if putting_back:
            new.notes.append(putting_back(host, new))
        start.own(fresh, new.store)
        new.made = host.make(fresh, new.adapter, new.facts, new.store, now.made)


def _way(config: Config) -> tuple[object, ...]:
    c = config.daemon
    return c.backend, c.allow_version_mismatch, c.rpc_timeout_s


def _let_go(close: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # what is thrown away may fail as it likes
        close()


def _other_ledger(keeper: Keeper | None, real: SqliteStore, fresh: Config) -> SqliteStore:
    """The ledger of the other mode, as a daemon that takes over opens it."""
    if fresh.daemon.mode == "dry-run":
        # not by the files' times, as at a start: this one is in use, and what it set is to be known
        real.copy_to(start.ledger_path(fresh))
    store = SqliteStore(start.ledger_path(fresh), shared=bool(fresh.daemon.lease_path))
    try:
        if keeper is not None:
            if fresh.daemon.mode == "enforce":
                keeper.check_knowledge(store.knowledge())
            store.lead(keeper.lease.term)
    except BaseException:
        _let_go(store.close)
        raise
    return store


# -- values that have to go back first

PutBack = Callable[[Host, Parts], tuple[str, dict[str, object]]]


def _putting_back(old: Config, fresh: Config, new: Parts) -> PutBack | None:
    """How the values go back that the new settings would not know as ours; None: there are none."""
    store, kind = new.store, fresh.lever.kind
    assert store is not None
    known = store.get("lever")
    if fresh.daemon.mode != "enforce" or known is None:
        return None
    leaves = old.requeue.mode == "slurm" != fresh.requeue.mode
    if leaves and compares_priorities(new.facts):
        raise InputError(
            "[requeue] mode: Slurm goes on to preempt by priority, and would requeue or cancel the running "
            "jobs that lose their values; first take WITHIN and PRIORITY out of PreemptMode and "
            'start slurmctld anew, then reload (with mode "slurm" nobody is raised in between)'
        )
    if known != kind:
        return lambda host, parts: _put_back(host, parts, known, None)
    if leaves:
        return lambda host, parts: _put_back(host, parts, known, ("RUNNING", "SUSPENDED"))
    return None


def _put_back(
    host: Host, parts: Parts, known: Any, states: tuple[str, ...] | None
) -> tuple[str, dict[str, object]]:
    """As `restore` does, at the pace of writes. `states`: of the jobs that are meant; None: all."""
    assert parts.store is not None
    kind: Field = known
    pause_s = 1.0 / parts.config.daemon.writes_per_second
    told = time.monotonic()

    def may_send() -> str:
        nonlocal told
        time.sleep(pause_s)
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            host.takes_its_time()
        return host.why_silent()

    what = f'the values of the lever "{kind}" have to go back first'
    silent = host.why_silent()
    if silent:
        raise InputError(f"{what}, and nothing is written: {silent}")
    results = restore(Guarded(parts.adapter, host.may_ask, may_send), parts.store, kind, states)
    bad = [r for r in results if not r.done]
    if bad or (states is None and parts.store.get("lever") is not None):
        why = f"{len(bad)} of {len(results)} jobs keep theirs" if bad else "Slurm shows no jobs at all"
        words = next((f": {r.outcome}{f' ({r.message})' if r.message else ''}" for r in bad), "")
        raise InputError(
            f"{what}, and {why}{words}; mend that and reload again, or end the daemon, run tias-slurm "
            "restore and start it"
        )
    return "values put back", {"lever": kind, **Counter(r.outcome for r in results)}
