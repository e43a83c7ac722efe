"""One look at a running Slurm, as a cycle takes it, that changes nothing: for `plan` and `explain`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from tias_slurm import hands
from tias_slurm.config import Config
from tias_slurm.controller import Seen
from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Bools, Snapshot
from tias_slurm.ledger import earlier_runs, gains
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.planner import Plan
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.backfill import Backfill
from tias_slurm.slurm.choose import choose
from tias_slurm.slurm.live import Adapter, RawTable
from tias_slurm.slurm.observer import Observed
from tias_slurm.slurm.scope import given
from tias_slurm.user_export import UserStore


@dataclass(frozen=True)
class Look:
    """What was seen, and what a cycle would make of it."""

    cycle: LiveCycle
    raw: RawTable
    observed: Observed
    seen: Seen
    pinned: Bools  # (n,) jobs with an explicit priority of a person's; asked for only if wanted
    dry: bool  # what it knows of values is what a dry run would have set
    unread: str  # why the ledger could not be read; "": it was, or there is none
    node_partitions: tuple[frozenset[str], ...]  # of each node; only asked for if wanted
    exported: (
        frozenset[int] | None
    )  # jobs that are known all the same, from [daemon] user_export; None: no file


class Frozen:
    """A ledger as it stands: what is remembered from now on is not kept."""

    def __init__(self, path: str) -> None:
        self._store = SqliteStore(path, older="refuse")
        self.load, self.recall, self.get = self._store.load, self._store.recall, self._store.get
        self.ask = self._store.ask

    def save(self, *_: object) -> None:
        """Keep nothing."""

    def put(self, name: str, value: str) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()


def ledger_in_use(config: Config) -> str | None:
    """The ledger that tells how things are: what was really written counts, also when the settings say
    dry-run. None: there is none yet. Raises InputError where this account may not know."""
    paths = (ledger_path(config, "enforce"), ledger_path(config))
    return next((path for path in paths if hands.is_there(path)), None)


def unreadable(config: Config) -> str:
    """Why this account cannot read the ledger, in one line; "": it can, or there is none."""
    directory = config.daemon.state_dir
    try:
        os.stat(directory)
        closed = not os.access(directory, os.R_OK | os.X_OK)
    except PermissionError:
        closed = True
    except OSError:
        return ""
    if not closed:
        path = ledger_in_use(config)
        # as the store opens it
        if path is None or os.access(path, os.R_OK | os.W_OK):
            return ""
        directory = path
    return f"this account may not read the ledger ({printable(directory, 300)})"


def need_ledger(config: Config) -> None:
    """Raises InputError where the ledger cannot be read, and nothing true could be said without it."""
    if why := unreadable(config):
        raise InputError(
            f"{why}, without which nothing can be said here; use sudo or the daemon's account (for users "
            "there is `tias-slurm explain`, with [daemon] user_export set by the site)"
        )


def adapter_of(config: Config, at_most_s: float = np.inf) -> Adapter:
    """The way to Slurm that the settings want, with their limit of a call or a shorter one. Raises
    InputError, AdapterError."""
    d = config.daemon
    limit = min(d.rpc_timeout_s, at_most_s)
    adapter, _ = choose(d.backend, allow_version_mismatch=d.allow_version_mismatch, call_limit_s=limit)
    return adapter


def look(config: Config, *, pins: bool = False, around: bool = False) -> Look:
    """Do one cycle that sends nothing and keeps nothing. `pins`: ask for explicit priorities in any case;
    `around`: ask for the nodes' partitions where [scope] names something.

    Raises InputError, AdapterError.
    """
    unread = unreadable(config)
    adapter = adapter_of(config)
    path = None if unread else ledger_in_use(config)
    frozen: Frozen | UserStore | None = Frozen(path) if path is not None else None
    exported = None
    dry = config.daemon.mode == "dry-run" if path is None else path != ledger_path(config, "enforce")
    if frozen is None and config.daemon.user_export:
        frozen = UserStore(config.daemon.user_export)
        exported = frozen.jobs
        if exported is None and os.path.isdir(config.daemon.user_export):
            exported = frozenset()
    backfill = Backfill(config.daemon.rpc_timeout_s)

    def past(_: Snapshot) -> bool:
        filled = earlier_runs.fill(backfill, cycle)
        return filled is not None and filled.learned > 0

    try:
        cycle = LiveCycle(config, adapter, adapter.facts(), frozen, enforce=False, past=past)
        cycle.controller.only_looks = True
        if isinstance(frozen, Frozen):
            cycle.cluster.watch.resume(gains.watched(frozen, time.time()))
        cycle.controller.cycle()
        raw, observed = cycle.cluster.raw, cycle.cluster.observed
        assert raw is not None
        assert observed is not None
        snapshot, known, ranking = cycle.controller.standing()
        nobody = np.zeros(len(known), dtype=np.bool_)
        parts = tuple(adapter.nodes().partitions) if around and given(config.scope) else ()
        pinned = cycle.cluster.pinned(snapshot, cycle.ledger.found) if pins else nobody
    finally:
        adapter.close()
        if frozen is not None:
            frozen.close()
    none = np.empty(0, dtype=np.int64)
    nothing = Plan(none, np.empty(0), np.empty(0), none, none, 0)
    seen = cycle.controller.seen or Seen(snapshot, known, ranking, nobody, nothing)
    return Look(cycle, raw, observed, seen, pinned, dry, unread, parts, exported)
