"""What is mounted where, and removing trees without ever deleting through a mount."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from bed.errors import TestbedError


def parse_mountinfo(text: str) -> list[str]:
    """The mount points in the text of /proc/PID/mountinfo (proc(5)), with its octal escapes undone."""
    points = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            points.append(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4]))
    return points


def mounts_under(path: Path, points: Iterable[str] | None = None) -> list[str]:
    """Mount points at or below `path`; of this process's mount namespace unless `points` are given."""
    if points is None:
        # undecodable bytes stay comparable with what os.fspath gives
        points = parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    top = os.path.realpath(path)
    return [point for point in points if point == top or point.startswith(top.rstrip("/") + "/")]


def remove_tree(path: Path) -> None:
    """Remove a directory tree; refuses (TestbedError) while anything is mounted at or below it."""
    if not os.path.lexists(path):
        return
    busy = mounts_under(path)
    if busy:
        raise TestbedError(f"{path}: not removed, since {busy[0]} is mounted below it; unmount it first")
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(_function: object, _path: str, info: tuple[object, BaseException, object]) -> None:
    # another testbed may be removing the same tree
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
