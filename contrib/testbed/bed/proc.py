"""Running commands with their output in a log, locks, and the lines that tell what is going on."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bed.errors import TestbedError

_PR_SET_PDEATHSIG = 1


def say(text: str) -> None:
    """One line on stderr: stdout belongs to the commands run inside."""
    print(f"testbed: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """One line per step, printed when it is done, with how long it took."""
    start = time.monotonic()
    yield
    say(f"{text} ({time.monotonic() - start:.1f} s)")


def die_with_parent() -> None:
    """In a child before exec: end it when the testbed command ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def last_line(log: Path) -> str:
    """The last line of a log that has text, for error messages; at most 200 characters."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""


def run(
    argv: Sequence[str | Path],
    log: Path,
    what: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> None:
    """Run a command with its output appended to `log`; TestbedError with the log's place if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [os.fspath(word) for word in argv]
    with log.open("ab") as out:
        out.write(f"\n$ {' '.join(words)}\n".encode(errors="surrogateescape"))
        out.flush()
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                timeout=timeout,
                preexec_fn=die_with_parent,
                check=False,
            )
        except FileNotFoundError:
            raise TestbedError(f"{what}: the command {words[0]} is missing on this machine") from None
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{what}: not done after {timeout:.0f} s; log: {log}") from None
    if done.returncode != 0:
        raise TestbedError(f"{what} failed: {last_line(log)}; log: {log}")


@contextlib.contextmanager
def locked(path: Path, waiting_for: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file, which names the holder; ends with the process. Says if it waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {waiting_for or path}")
            fcntl.flock(held, fcntl.LOCK_EX)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


@contextlib.contextmanager
def taken_over(path: Path, patience: float = 20) -> Iterator[None]:
    """Hold a lock, ending the process that holds it: asked first, killed after `patience` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    asked: set[int] = set()
    with path.open("a+") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                text = path.read_text()  # the holder's pid: it is alive, for it holds the lock
            if text.isdigit() and (int(text) not in asked or time.monotonic() - begin > patience):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(text), signal.SIGKILL if int(text) in asked else signal.SIGTERM)
                asked.add(int(text))
            time.sleep(0.1)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def debian_environment() -> dict[str, str]:
    """A plain environment for commands in a root, with what reaches the network from here."""
    kept = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    env = {name: value for name, value in os.environ.items() if name.lower() in kept or name in kept}
    return env | {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "TZ": "UTC",
    }
