"""The process around the cycles: schedule, signals, what systemd is told."""

from __future__ import annotations

import signal
import threading
from typing import Any

from tias_slurm.config import Config
from tias_slurm.cycle import Cycle
from tias_slurm.errors import InputError
from tias_slurm.ledger.store import LedgerError
from tias_slurm.observe.show import Show
from tias_slurm.observe.systemd import Notifier, Pulse, Watchdog
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.schedule import Schedule

# the longest call of an adapter is so many of Slurm's own, and a cycle computes for no longer than that, s
CALLS_IN_ONE, SLACK_S = 4, 60.0


class Process:
    """Calls `cycle` until it is told to end. What a cycle is, is a daemon's."""

    config: Config

    def __init__(self, log: Any) -> None:
        self._log = log
        self._reload = self._stop = False
        self._schedule = Schedule(self._guarded)
        self._busy = threading.Lock()
        self._notifier = Notifier()
        self._pulse = Pulse()
        self.show = Show(log, self._notifier, self._pulse)
        self._watchdog = Watchdog(self._notifier, self._pulse, self._stuck)
        self._keeper: Keeper | None = None  # None: this daemon is the only one

    def cycle(self) -> Cycle:
        """One pass. Raises LedgerError, InputError."""
        raise NotImplementedError

    def _stop_writing(self) -> None:
        """The cycle at work sends no more. Called by a signal's handler."""

    def run(self) -> None:
        """Cycle until SIGTERM or SIGINT; SIGHUP reads the settings again."""
        c = self.config
        self._schedule.set_up(c)
        for number, handler in (
            (signal.SIGTERM, self._on_stop),
            (signal.SIGINT, self._on_stop),
            (signal.SIGHUP, self._on_reload),
        ):
            signal.signal(number, handler)
        self._log.info("started", mode=c.daemon.mode, interval_s=c.cycle.interval_s, lever=c.lever.kind)
        self._watchdog.start()
        if self._keeper is not None:
            self._keeper.look()
            self._keeper.start()
        self._notifier.send("READY=1")
        self._guarded()
        self._schedule.run()
        with self._busy:  # a cycle that is still at work ends first
            self._log.info("stopped")
        self._watchdog.stop()

    def _guarded(self) -> None:
        message = ""
        try:
            if not self._stop:
                self.cycle()
            else:
                self._schedule.end()  # the signal came just before it ran
        except LedgerError as error:
            message = str(error)
            self._log.error("ledger", message=message)
        except InputError as error:
            message = str(error)
            self._log.error("nothing was done", message=message)
        except Exception as error:
            # a fault of ours in one cycle must not end the daemon: the next one starts from a fresh look
            message = f"internal error: {type(error).__name__}"
            self._log.exception("cycle failed")
        if message:
            self.show.failed(self.config, message)

    def _stuck(self) -> None:
        self._log.error(
            "the cycle is stuck; systemd is no longer told that all is well, and ends this process"
        )

    def _on_stop(self, *_: object) -> None:
        self._stop = True
        self._stop_writing()
        self._notifier.stopping(CALLS_IN_ONE * self.config.daemon.rpc_timeout_s + SLACK_S)
        self._schedule.end()

    def _on_reload(self, *_: object) -> None:
        self._notifier.reloading()
        self._reload = True
        self._schedule.wake()
