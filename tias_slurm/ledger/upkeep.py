"""After each cycle: the ledger is kept within its bounds, a little at a time."""

from __future__ import annotations

import os
import time
from typing import Any

from tias_slurm import hands
from tias_slurm.config import Config
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.ledger.trim import Bounds, Trimmed
from tias_slurm.slurm.live import RawTable

# how often is looked for what is older than keep_days, s
AGE_S = 86_400.0
# so long may one cycle drop things, s
TRIM_S = 0.5
MB = 1e6


class Upkeep:
    """Drops what is beyond `keep_days` and `max_ledger_mb`, and says once that it has to."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._looked = -AGE_S  # when the last look for what is too old was done, monotonic
        self._said = ""

    def after_cycle(self, config: Config, store: SqliteStore, raw: RawTable | None) -> Trimmed:
        """Do a part of what there is to do. Raises LedgerError."""
        c, now = config.daemon, time.time()
        before, most = now - 86_400.0 * c.keep_days, MB * c.max_ledger_mb
        age = time.monotonic() - self._looked >= AGE_S
        trimmed = store.trim(Bounds(before, most, now), TRIM_S, age=age)
        if age and trimmed.finished:
            self._looked = time.monotonic()
            if raw is not None:
                hands.forget_ignored(c.state_dir, raw, before)
        self._tell(config, store, trimmed)
        return trimmed

    def _tell(self, config: Config, store: SqliteStore, trimmed: Trimmed) -> None:
        what = ""
        if not trimmed.within:
            what = "the ledger cannot be kept below its bound: what is left is needed or is of today"
        elif trimmed.jobs or trimmed.audit:
            what = "the ledger is at its bound: what ended longest ago is dropped before its time"
        if what and what != self._said:
            self._said = what
            self._log.warning(
                what,
                file=os.path.basename(store.path),
                mb=round(trimmed.bytes / MB, 1),
                max_ledger_mb=config.daemon.max_ledger_mb,
            )
