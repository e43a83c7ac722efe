"""Namespaces: start one, find it again, run commands in it, end it with all that is in it.

The truth about what runs is the kernel's: process 1 of a cluster is found by a mark in its environment
and by being process 1 of a pid namespace, so that no stale file can name a wrong process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bed.errors import TestbedError
from bed.proc import die_with_parent

MARK = "TIAS_TESTBED_CLUSTER"
PATH = "/opt/tias/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HERE = Path(__file__).parent


def start(
    spec: dict[str, Any], spec_file: Path, mark: str, log: Path, bound: bool = False
) -> subprocess.Popen[bytes]:
    """Start inside.py in namespaces of its own; returns when it has moved in, or raises TestbedError.

    `mark` names it for `find`; `bound`: end it when this process ends.
    """
    spec["env"] = {**spec["env"], MARK: mark}
    spec_file.write_text(json.dumps(spec))
    Path(spec["top"]).mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    argv = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--"]
    argv += [sys.executable, "-I", "-S", str(_HERE / "inside.py"), str(spec_file), str(write_end)]
    try:
        with log.open("ab") as out:
            started = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                env={**os.environ, MARK: mark},
                start_new_session=True,
                preexec_fn=die_with_parent if bound else None,
            )
    except FileNotFoundError:
        raise TestbedError("the command unshare is missing: apt install util-linux") from None
    finally:
        os.close(write_end)
    try:
        told = b""
        if select.select([read_end], [], [], 60)[0]:
            told = os.read(read_end, 4096)
    finally:
        os.close(read_end)
    if told != b"ok":
        end(mark)
        raise TestbedError(f"namespace: {told.decode(errors='replace') or 'it ended at once'}; log: {log}")
    return started


def marked(mark: str) -> list[int]:
    """Pids of all processes (unshare and process 1) that carry the mark; root's only."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (
                    wanted in Path(entry.path, "environ").read_bytes().split(b"\0")
                    and entry.stat().st_uid == 0
                ):
                    pids.append(int(entry.name))
            except OSError:
                continue  # ended meanwhile, or a kernel thread
    return pids


def find(mark: str, patience: float = 5) -> int | None:
    """The pid, as seen from here, of process 1 of the namespace with this mark; None if it does not run.

    While unshare runs it is looked for again, for `patience` seconds: the environment of a process cannot be
    read in the moment of its exec.
    """
    deadline = time.monotonic() + patience
    while pids := marked(mark):
        for pid in pids:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("NSpid:") and len(line.split()) > 2 and line.split()[-1] == "1":
                        return pid
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return None


def end(mark: str, timeout: float = 20) -> int:
    """Kill what carries the mark, and so all that lives in its pid namespace; how many were killed.

    Returns only when they are gone, so that no mount of theirs is left; TestbedError after `timeout` seconds.
    """
    killed = 0
    deadline = time.monotonic() + timeout
    while True:
        pids = [pid for pid in marked(mark) if not _is_zombie(pid)]
        if not pids:
            return killed
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if time.monotonic() > deadline:
            raise TestbedError(f"processes {pids} do not end after SIGKILL; see /proc/{pids[0]}/stack")
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def enter(
    pid: int, argv: Sequence[str], env: Mapping[str, str], user: str = "root", chdir: str = "/"
) -> list[str]:
    """The command line that runs `argv` in the namespaces of process `pid`, with exactly `env`."""
    words = ["nsenter", f"--target={pid}", "--mount", "--pid", "--uts", "--ipc", "--"]
    if user != "root":
        words += ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    words += ["/usr/bin/env", "-i", "-C", chdir, *(f"{name}={value}" for name, value in env.items())]
    return [*words, *argv]
