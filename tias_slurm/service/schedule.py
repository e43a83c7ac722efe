"""When the daemon's cycles begin: every interval, or at once for who asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.schedulers.blocking import BlockingScheduler

from tias_slurm.config import Config

# how soon a cycle that could not begin at once is asked for again, s
WAKE_S = 0.25


class Schedule:
    """Calls `cycle` in a thread of its own, never two at once."""

    def __init__(self, cycle: Callable[[], None]) -> None:
        self._cycle = cycle
        self._scheduler: BlockingScheduler | None = None
        self._wanted = self._ended = False  # somebody asks for a cycle now; no more of them begin

    @property
    def began(self) -> bool:
        """Whether there is one: a single cycle has none."""
        return self._scheduler is not None

    @property
    def running(self) -> bool:
        """Whether cycles begin by themselves now."""
        return self._scheduler is not None and bool(self._scheduler.running)

    def set_up(self, config: Config) -> None:
        """Before `run`."""
        self._scheduler = BlockingScheduler(timezone="UTC")
        self._scheduler.add_job(
            self._cycle,
            "interval",
            id="cycle",
            seconds=config.cycle.interval_s,
            jitter=config.daemon.jitter_s or None,
            # cycles never overlap, and missed ones are joined into one
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
        )

    def run(self) -> None:
        """Until `end`."""
        if self._scheduler is not None and not self._ended:
            self._scheduler.start()

    def end(self) -> None:
        """Begin no more cycles. For a signal's handler as well."""
        self._ended = True
        if self._scheduler is not None and self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def change(self, config: Config) -> None:
        """Go on with another interval."""
        if self._scheduler is not None:
            self._scheduler.reschedule_job(
                "cycle",
                trigger="interval",
                seconds=config.cycle.interval_s,
                jitter=config.daemon.jitter_s or None,
            )

    def begins(self) -> None:
        """A cycle begins: who asked for one has it."""
        self._wanted = False

    def wake(self) -> None:
        """Have the next cycle at once, or as soon as the one at work has ended."""
        self._wanted = True
        # not in here: a signal may find the scheduler in the midst of what it would have to be told, and the
        # keeper's thread has a lease to renew
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        """The scheduler passes over what is asked of it while a cycle is at work: ask until one begins."""
        while self._wanted and not self._ended:
            if self._scheduler is not None and self._scheduler.running:
                with contextlib.suppress(LookupError):
                    self._scheduler.modify_job("cycle", next_run_time=datetime.now(UTC))
            time.sleep(WAKE_S)
