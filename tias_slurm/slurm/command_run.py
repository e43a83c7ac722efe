"""Running one of Slurm's commands: found once, its own environment, a time limit that really ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from tias_slurm.errors import printable
from tias_slurm.slurm.live import AdapterError

NEEDED: Final = ("squeue", "scontrol", "sprio")
# What a command inherits. Anything else of SLURM_*, SQUEUE_*, SPRIO_* would change what it prints.
_KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "LD_LIBRARY_PATH", "LD_PRELOAD")
_KEPT_PREFIX: Final = "FAKETIME"  # libfaketime(1): commands live on the clock of the cluster
_SET: Final = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "SLURM_TIME_FORMAT": "%s",  # squeue(1): times by strftime(3), here as epoch seconds
    "SLURM_BITSTR_LEN": "0",  # squeue(1): lists of array tasks are not cut at 64 bytes
}


def environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command, out of the daemon's own."""
    kept = {k: v for k, v in outer.items() if k in _KEPT or k.startswith(_KEPT_PREFIX)}
    return {"PATH": os.defpath, **kept, **_SET}


class Runner:
    """Runs Slurm's commands. One at a time, each for at most `timeout_s` seconds."""

    def __init__(
        self, timeout_s: float, slurm_bin: str | None = None, *, commands: Sequence[str] = NEEDED
    ) -> None:
        """Find the commands in `slurm_bin`, else in PATH. Raises AdapterError if one is missing."""
        self.timeout_s = timeout_s
        where = f"in {printable(slurm_bin)}" if slurm_bin else "in PATH"
        self._path: dict[str, str] = {}
        for name in commands:
            found = shutil.which(name, path=slurm_bin)
            if found is None:
                raise AdapterError(
                    f"{name}: not found {where}; install Slurm's client commands or name their directory",
                    retry=False,
                )
            self._path[name] = os.path.abspath(found)

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> tuple[int, bytes, str]:
        """Exit status, standard output and the text on standard error of one command.

        Raises AdapterError(retry=True) when time is up, AdapterError(retry=False) when it cannot be started.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            process = subprocess.Popen(  # noqa: S603  an absolute path and a list, no shell
                [self._path[argv[0]], *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(os.environ),
                start_new_session=True,  # a group of its own, so that all of it can be ended
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise AdapterError(f"{argv[0]}: cannot be started: {reason}", retry=False) from None
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise AdapterError(f"{argv[0]}: no answer within {limit:g} s", retry=True) from None
        finally:
            if process.poll() is None:
                end_group(process)
        return process.returncode, out, err.decode("utf-8", "replace").strip()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group of its own, and all of that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)  # a process stuck in the kernel is left to init
