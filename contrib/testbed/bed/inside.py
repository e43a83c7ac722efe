"""The first process of a pid and mount namespace: lays out the root, moves into it, runs a command.

Started as `unshare --mount --pid ... python3 inside.py SPEC.json READY_FD`; SPEC holds
root: the cached root; overlay: whether changes go to a tmpfs above it (else into it); top: an empty
directory to mount on; binds: [[source, target, read_only]]; gpus: emulated devices; hostname; argv; env.
Writes "ok" or one line of error to READY_FD. Every mount lives in this namespace and ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

_MNT_DETACH = 2
# name, major, minor; the kernel's own numbers (Documentation/admin-guide/devices.txt)
_DEVICES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)


def mount(*words: str) -> None:
    """mount(8) with the given words; its message as the error."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"mount {' '.join(words)}: {done.stderr.strip() or done.returncode}")


def device(path: Path, major: int, minor: int) -> None:
    """A character device that everyone may read and write."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)


def small_dev(dev: Path, gpus: int) -> None:
    """A /dev of our own: the host's is never bound, since a rm -r in here must not reach it."""
    mount("-t", "tmpfs", "-o", "mode=755,size=256m", "dev", str(dev))
    for name, major, minor in _DEVICES:
        device(dev / name, major, minor)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (dev / name).symlink_to(f"/proc/self/{target}")
    (dev / "shm").mkdir(mode=0o1777)
    (dev / "shm").chmod(0o1777)
    (dev / "pts").mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", str(dev / "pts"))
    (dev / "ptmx").symlink_to("pts/ptmx")
    if gpus:
        (dev / "tias").mkdir()
        for index in range(gpus):
            device(dev / "tias" / f"gpu{index}", 1, 3)


def lay_out(spec: dict[str, Any]) -> Path:
    """Mount the root and everything in it; the path of the new root."""
    top = Path(spec["top"])
    new = top / "root"
    mount("-t", "tmpfs", "-o", "mode=755", "testbed", str(top))
    for name in ("root", "upper", "work"):
        (top / name).mkdir()
    if spec["overlay"]:
        layers = f"lowerdir={spec['root']},upperdir={top}/upper,workdir={top}/work"
        mount("-t", "overlay", "-o", layers, "overlay", str(new))
    else:
        mount("--bind", spec["root"], str(new))
    mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", str(new / "proc"))
    with contextlib.suppress(OSError):  # refused in some containers; nothing here depends on it
        mount("-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", str(new / "sys"))
    small_dev(new / "dev", spec["gpus"])
    mount("-t", "tmpfs", "-o", "mode=755", "run", str(new / "run"))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", str(new / "tmp"))
    for source, target, read_only in spec["binds"]:
        point = new / target.lstrip("/")
        if Path(source).is_dir():
            point.mkdir(parents=True, exist_ok=True)
        elif not point.exists():
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()
        mount("--bind", source, str(point))
        if read_only:
            mount("-o", "remount,bind,ro", str(point))
    return new


def move_in(new: Path) -> None:
    """Make `new` the root of this namespace and let go of the host's tree."""
    old = new / "run" / "host"
    old.mkdir()
    os.chdir(new)
    done = subprocess.run(["pivot_root", ".", "run/host"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip())
    os.chdir("/")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(b"/run/host", _MNT_DETACH) != 0:
        raise OSError(f"unmounting the host's tree: {os.strerror(ctypes.get_errno())}")
    os.rmdir("/run/host")


def main() -> None:
    """Lay out, move in, tell, and become the command."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ready = int(sys.argv[2])
    os.umask(0o022)
    try:
        if spec["hostname"]:
            socket.sethostname(spec["hostname"])
        move_in(lay_out(spec))
        os.write(ready, b"ok")
        os.close(ready)
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        try:
            os.write(ready, str(error).replace("\n", " ").encode())
        except OSError:
            print(error, file=sys.stderr)  # told "ok" already: the command itself did not start
        os._exit(125)


if __name__ == "__main__":
    main()
