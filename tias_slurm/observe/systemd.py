"""Words to systemd: sd_notify(3), and the watchdog of a daemon whose cycle may get stuck."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from tias_slurm.errors import printable

# a word that cannot be sent within this is dropped, s: nothing waits for systemd
_SEND_S = 0.2


class Notifier:
    """The socket of sd_notify(3); without $NOTIFY_SOCKET every word goes nowhere. Thread-safe."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """`environ`: None is the process's own. $WATCHDOG_USEC counts only for the process it names."""
        env = os.environ if environ is None else environ
        name = env.get("NOTIFY_SOCKET", "")
        # "@": the abstract namespace of unix(7)
        self._address = "\0" + name[1:] if name.startswith("@") else name
        usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        # systemd ends a process that is silent for so long, s; 0: it does not watch
        self.watchdog_s = int(usec) / 1e6 if usec.isdecimal() and mine and self._address else 0.0

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    def send(self, *assignments: str) -> bool:
        """Send assignments such as "READY=1"; whether they went out. Never raises, never waits."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(_SEND_S)
                out.sendto("\n".join(assignments).encode(), self._address)
        except (OSError, ValueError):
            return False
        return True

    def status(self, words: str) -> None:
        """What `systemctl status` shows; one line."""
        self.send(f"STATUS={printable(words, 200)}")

    def reloading(self) -> None:
        """A reload begins, which READY=1 will end."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, allowed_s: float) -> None:
        """The end begins, and may take so long."""
        self.send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(allowed_s * 1e6)}")


class Pulse:
    """Until when the cycle may be silent. It says so itself before each thing that may take its time."""

    def __init__(self, allowed_s: float = 600.0) -> None:
        self._until = time.monotonic() + allowed_s

    def beat(self, allowed_s: float) -> None:
        """A sign of life: the next one comes within so many seconds."""
        self._until = time.monotonic() + allowed_s

    @property
    def alive(self) -> bool:
        """Whether the next sign of life is not overdue."""
        return time.monotonic() < self._until


class Watchdog:
    """A thread that tells systemd every third of its patience that the cycle lives, for as long as it does.

    It touches memory and one datagram socket, never a file and never Slurm, so that nothing can hold it up
    but the interpreter itself.
    """

    def __init__(self, notifier: Notifier, pulse: Pulse, stuck: Callable[[], None]) -> None:
        """`stuck` is called, once each time, when the cycle is silent for longer than it said."""
        self._notifier, self._pulse, self._stuck = notifier, pulse, stuck
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin, if systemd watches."""
        if self._notifier.watchdog_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        with contextlib.suppress(RuntimeError):  # never started
            self._thread.join(2)

    def _run(self) -> None:
        told = False
        while True:
            if self._pulse.alive:
                self._notifier.send("WATCHDOG=1")
                told = False
            elif not told:
                told = True
                self._stuck()
            if self._end.wait(self._notifier.watchdog_s / 3):
                return
