"""What a daemon is made of by its settings, and what making others needs of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tias_slurm.config import Config
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.observe.show import Show
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.service.state_lock import StateLock
from tias_slurm.slurm.live import Adapter, SiteFacts


@dataclass
class Parts:
    """What a daemon is made of, by its settings."""

    config: Config
    adapter: Adapter
    facts: SiteFacts
    store: SqliteStore | None  # None: the ledger is not open, another daemon leads; likewise `made`
    made: LiveCycle | None
    lock: StateLock
    keeper: Keeper | None  # None: this daemon is the only one
    before: Parts | None = None  # what these take the place of
    notes: list[tuple[str, dict[str, object]]] = field(default_factory=list)  # warnings for the log
    # what is done when nothing else can be refused any more, and raises InputError if it can; then what
    # tidies up when all is in use, and raises nothing
    commit: list[Callable[[], None]] = field(default_factory=list)
    finish: list[Callable[[], None]] = field(default_factory=list)


class Host(Protocol):
    """What a reload needs of the daemon that it is done in."""

    show: Show

    def parts(self) -> Parts:
        """As they are now."""

    def choose(self, config: Config) -> tuple[Adapter, str]:
        """The way to Slurm that settings want. Raises InputError, AdapterError."""

    def make(
        self, config: Config, adapter: Adapter, facts: SiteFacts, store: SqliteStore, before: LiveCycle | None
    ) -> LiveCycle:
        """The cycle that settings want; `before`: whose memory it goes on with."""

    def keeper(self, config: Config, facts: SiteFacts) -> Keeper:
        """Of the lease that settings name; it does not seek it yet. Raises AdapterError."""

    def may_ask(self) -> str:
        """Why Slurm is not asked; "": it is. A sign of life."""

    def why_silent(self) -> str:
        """Why nothing may be written; "": it may."""

    def takes_its_time(self) -> None:
        """Tell systemd that the reload goes on."""

    def lost_track(self) -> None:
        """The ledger was changed behind the cycle's back: it has to be read anew."""
