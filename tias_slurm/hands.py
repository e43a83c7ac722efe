"""What people tell the daemon, as files in its state directory: pause, ignored jobs. Works with it dead."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import Any

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Bools
from tias_slurm.slurm.live import RawTable

PAUSED = "paused"  # while this file is there nothing is written; `touch` will do
IGNORED = "ignored"  # a directory with one file for each ignored job
# a job, an array or one of its tasks, a component of a het job
_JOB = re.compile(r"[1-9]\d{0,9}(?:[_+]\d{1,9})?", re.ASCII)
_MOST = 10_000  # bytes that are read of such a file


def job_name(text: str) -> str:
    """The text, if it names a job as Slurm's commands do: 4711, 4711_3, 4711+1. Raises InputError."""
    if not _JOB.fullmatch(text):
        raise InputError(f"'{printable(text)}' is no job; write 4711, 4711_3 (a task) or 4711+1 (a het job)")
    return text


def replace_file(path: str, text: str, mode: int = 0o640) -> None:
    """Write a file of the state directory: a reader sees the old one or all of the new one.

    It belongs to the directory's owner, whoever writes it; what lies at `path` is never followed. Raises
    InputError.
    """
    temp = f"{path}.{os.getpid()}.tmp"
    try:
        owner = os.stat(os.path.dirname(path))
        file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        # not os.write: a disk that is nearly full takes a part of it, and says nothing
        with os.fdopen(file, "wb") as out:
            out.write(text.encode("utf-8", "backslashreplace"))
            if os.geteuid() == 0:
                os.fchown(file, owner.st_uid, owner.st_gid)
        os.replace(temp, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise _refusal(path, error) from None


def is_there(path: str) -> bool:
    """Whether a file or directory of the state directory is there. Raises InputError where this account may
    not know."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refusal(path, error) from None
    return True


def read_file(path: str) -> dict[str, Any] | None:
    """What is in a file of JSON; {} if nothing that can be read, None if there is no file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            document = json.loads(file.read(_MOST * 100))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


# ---- pause


def paused(state_dir: str) -> bool:
    """Whether the daemon of this directory is told to write nothing."""
    return os.path.lexists(os.path.join(state_dir, PAUSED))


def pause(state_dir: str, by: str, reason: str) -> None:
    """Tell the daemon to write nothing from now on. Raises InputError."""
    replace_file(os.path.join(state_dir, PAUSED), _note(by, reason))


def resume(state_dir: str) -> bool:
    """Let the daemon write again; whether it was paused. Raises InputError."""
    return _remove(os.path.join(state_dir, PAUSED))


def why_paused(state_dir: str) -> dict[str, Any] | None:
    """Who paused it, when and why, as far as that is known; None: it is not paused."""
    return read_file(os.path.join(state_dir, PAUSED))


# ---- ignored jobs


def ignore(state_dir: str, job: str, by: str, reason: str = "") -> None:
    """Tell the daemon to leave a job alone: a number with all tasks of an array. Raises InputError."""
    _make_ignored(state_dir)
    replace_file(os.path.join(state_dir, IGNORED, job_name(job)), _note(by, reason))


def _make_ignored(state_dir: str) -> None:
    where = os.path.join(state_dir, IGNORED)
    try:
        os.mkdir(where, 0o750)
        if os.geteuid() == 0:
            owner = os.stat(state_dir)
            os.chown(where, owner.st_uid, owner.st_gid, follow_symlinks=False)
    except FileExistsError:
        if os.path.islink(where):
            raise InputError(f"{where}: a link, where a directory should be; remove it") from None
    except OSError as error:
        raise _refusal(where, error) from None


def unignore(state_dir: str, job: str) -> bool:
    """Let the daemon have a job again; whether it was ignored. Raises InputError."""
    return _remove(os.path.join(state_dir, IGNORED, job_name(job)))


def ignored(state_dir: str) -> tuple[str, ...]:
    """The names of the ignored jobs, sorted; none for who may not look into the state directory, and so is
    not the daemon. Raises InputError if they are there but cannot be read: then nobody knows which jobs to
    leave alone."""
    where = os.path.join(state_dir, IGNORED)
    if os.path.isdir(state_dir) and not os.access(state_dir, os.X_OK):
        return ()
    try:
        return tuple(sorted(filter(_JOB.fullmatch, os.listdir(where))))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _refusal(where, error) from None


def named(names: tuple[str, ...], raw: RawTable) -> Bools:
    """Which records of a queue the names mean: 4711 is the job, all tasks of the array, all components.

    Shape (n,).
    """
    hit = np.zeros(len(raw), dtype=np.bool_)
    whole = np.array([int(name) for name in names if name.isdecimal()], dtype=np.int64)
    if len(whole):
        for ids in (raw.job_id, raw.array_id, raw.het_id):
            hit |= np.isin(ids, whole)
    for name in names:
        if "_" in name:
            array, task = name.split("_")
            rows = np.flatnonzero(raw.array_id == int(array)).tolist()
            hit[[r for r in rows if raw.array_task[r] == str(int(task))]] = True
        elif "+" in name:
            leader, offset = name.split("+")
            hit |= (raw.het_id == int(leader)) & (raw.het_offset == int(offset))
    return hit


def forget_ignored(state_dir: str, raw: RawTable, before: float) -> None:
    """Drop marks from before an epoch second whose jobs are gone: ids come again."""
    for name in ignored(state_dir):
        path = os.path.join(state_dir, IGNORED, name)
        with contextlib.suppress(OSError):
            if os.lstat(path).st_mtime < before and not named((name,), raw).any():
                os.unlink(path)


# ---- both, when the state directory changes


def take_along(old: str, new: str) -> list[str]:
    """Have in `new` the marks of pause and of ignored jobs that are in `old`; those that were not there
    yet. Their times stay. Raises InputError, and then takes none."""
    made: list[str] = []
    try:
        for mark in _marks(old):
            if not os.path.lexists(os.path.join(new, mark)) and _take_mark(mark, old, new):
                made.append(mark)
    except InputError:
        with contextlib.suppress(InputError):
            drop(new, made)
        raise
    return made


def _take_mark(mark: str, old: str, new: str) -> bool:
    source, target = os.path.join(old, mark), os.path.join(new, mark)
    try:
        at = os.lstat(source).st_mtime
        text = ""
        if os.path.exists(source):  # a link to nothing counts too
            with open(source, "rb") as file:
                text = file.read(_MOST * 100).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return False  # taken away this moment
    except OSError as error:
        raise _refusal(source, error) from None
    if os.path.dirname(mark):
        _make_ignored(new)
    replace_file(target, text)
    with contextlib.suppress(OSError):
        os.utime(target, (at, at))
    return True


def drop(state_dir: str, marks: list[str] | None = None) -> None:
    """Take marks away, of pause and of ignored jobs; None: all. Raises InputError."""
    for mark in _marks(state_dir) if marks is None else marks:
        _remove(os.path.join(state_dir, mark))


def _marks(state_dir: str) -> list[str]:
    paths = [os.path.join(IGNORED, name) for name in ignored(state_dir)]
    return [PAUSED, *paths] if paused(state_dir) else paths


def _note(by: str, reason: str) -> str:
    return json.dumps({"time": round(time.time(), 3), "by": by, "reason": reason}) + "\n"


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not is_there(os.path.dirname(path)) and os.path.basename(path) == PAUSED:
            raise InputError(
                f"{os.path.dirname(path)}: no such directory; check [daemon] state_dir"
            ) from None
        return False
    except OSError as error:
        raise _refusal(path, error) from None
    return True


def _refusal(path: str, error: OSError) -> InputError:
    where = printable(path, 300)
    if isinstance(error, FileNotFoundError):
        return InputError(f"{os.path.dirname(where)}: no such directory; check [daemon] state_dir")
    return InputError(f"{where}: {error.strerror or error}; run as the account that owns the directory")
