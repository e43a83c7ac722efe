"""What systemd does for a service of Type=notify, for tests: the socket, the watchdog, reload and stop.

It speaks sd_notify(3) as a supervisor: it starts a process with $NOTIFY_SOCKET and $WATCHDOG_USEC, hears its
words, and ends it with SIGABRT when the watchdog runs out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Socket:
    """A notification socket; `heard` has every message as (monotonic s, assignments)."""

    def __init__(self, path: str) -> None:
        """`path`: of the socket; "@name": abstract."""
        self.path = path
        self.heard: list[tuple[float, dict[str, str]]] = []
        self._in = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._in.bind("\0" + path[1:] if path.startswith("@") else path)
        self._in.settimeout(0.1)
        self._end = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._end:
            with contextlib.suppress(TimeoutError):
                text = self._in.recv(65536).decode()
                pairs = (line.split("=", 1) for line in text.splitlines())
                self.heard.append((time.monotonic(), dict(pairs)))

    def values(self, name: str) -> list[str]:
        """All that was said under a name."""
        return [said[name] for _, said in list(self.heard) if name in said]

    def when(self, name: str) -> list[float]:
        """When something was said under a name."""
        return [at for at, said in list(self.heard) if name in said]

    def wait(self, what: Callable[[], bool], seconds: float = 30.0) -> None:
        """Until it is so."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.heard
            time.sleep(0.02)

    def close(self) -> None:
        self._end = True
        self._thread.join()
        self._in.close()


class Supervisor(Socket):
    """Runs a process as systemd would."""

    def __init__(
        self, argv: Sequence[str], where: Path, watchdog_s: float = 0.0, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(str(where / "notify"))
        (where / "notify").chmod(0o666)
        given = {**os.environ, **(env or {}), "NOTIFY_SOCKET": self.path}
        if watchdog_s:
            given["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self.log = where / "service.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, cwd="/tmp", env=given)
        self.watchdog_s, self.barked = watchdog_s, False
        self._guard = threading.Thread(target=self._watch, daemon=True)
        self._guard.start()

    def _watch(self) -> None:
        while self.watchdog_s and self.process.poll() is None:
            # systemd.service(5): it counts from the end of the start
            last = max([*self.when("READY")[:1], *self.when("WATCHDOG")], default=time.monotonic())
            if self.values("READY") and time.monotonic() - last > self.watchdog_s:
                self.barked = True
                self.process.send_signal(signal.SIGABRT)
                return
            time.sleep(0.05)

    def started(self, seconds: float = 60.0) -> None:
        """Wait for READY=1, as `systemctl start` does."""
        self.wait(lambda: bool(self.values("READY")) or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.log.read_text()

    def reload(self, seconds: float = 60.0) -> float:
        """SIGHUP, and wait as `systemctl reload` does; how long it took, s."""
        began, known = time.monotonic(), len(self.values("READY"))
        self.process.send_signal(signal.SIGHUP)
        self.wait(lambda: len(self.values("READY")) > known, seconds)
        return time.monotonic() - began

    def stop(self, number: int = signal.SIGTERM, seconds: float = 90.0) -> int:
        """End it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._guard.join(5)
        super().close()
