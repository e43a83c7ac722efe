"""The right to a state directory: for one daemon alone, or for one of each host where a lease decides."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from tias_slurm import status
from tias_slurm.errors import InputError
from tias_slurm.own_files import hint, open_own


@dataclass
class StateLock:
    """Holds it for as long as it is not closed. By `take`."""

    state_dir: str
    host: str  # "": alone
    # held alone by a daemon without a lease, by all together of those that have one
    common: IO[str]
    own: IO[str] | None = None  # of this host

    def close(self) -> None:
        """Let go of it."""
        for file in (self.own, self.common):
            if file is not None:
                file.close()


def take(state_dir: str, host: str = "") -> StateLock:
    """Have the directory, and make it if need be. `host`: beside the daemons of other hosts; "": alone.

    Raises InputError."""
    try:
        os.makedirs(state_dir, mode=0o750, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{state_dir}: cannot be made: {error.strerror}{hint(error)}; set [daemon] state_dir to a "
            "directory of ours"
        ) from None
    own = take_lock(status.lock_path(state_dir, host)) if host else None
    try:
        return StateLock(state_dir, host, take_lock(status.lock_path(state_dir), shared=bool(host)), own)
    except BaseException:
        if own is not None:
            own.close()
        raise


def retake(held: StateLock, host: str, undo: ExitStack) -> StateLock:
    """The same directory, held otherwise; what others could use is let go by `switch` only. Raises
    InputError."""
    if host == held.host:
        return held
    path = status.lock_path(held.state_dir)
    if host:
        own = take_lock(status.lock_path(held.state_dir, host))
        undo.callback(own.close)
        return StateLock(held.state_dir, host, held.common, own)
    try:
        _flock(held.common, shared=False)
    except OSError:
        _flock(held.common, shared=True)  # lost by the attempt, flock(2)
        raise InputError(
            f"{path}: the daemon of another host uses this directory too; end it before this one goes on "
            'with lease_path = ""'
        ) from None
    undo.callback(_flock, held.common, shared=True)
    return StateLock(held.state_dir, "", held.common)


def switch(old: StateLock, new: StateLock) -> None:
    """From now on the new one holds; the old is let go."""
    if new is old:
        return
    if new.common is not old.common:
        old.close()
        return
    if new.host:
        with contextlib.suppress(OSError):
            os.ftruncate(new.common.fileno(), 0)
            _flock(new.common, shared=True)
    else:
        _note(new.common)
        if old.own is not None:
            old.own.close()


def take_lock(path: str, *, shared: bool = False) -> IO[str]:
    """Hold a lock for as long as the file stays open. `shared`: with others. Raises InputError."""
    try:
        file = open(path, "a+", encoding="ascii", opener=_open_lock)  # noqa: SIM115
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{path}: a link, where a file should be; remove it") from None
        raise InputError(
            f"{path}: {error.strerror}{hint(error)}; run as the account that owns the directory"
        ) from None
    try:
        _flock(file, shared=shared)
    except OSError as error:
        holder = _noted(file)
        file.close()
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise InputError(
                f"{path}: cannot be locked: {error.strerror}; is this file system mounted without locks?"
            ) from None
        raise InputError(
            f"{path}: another tias-slurm (process {holder}) holds the lock; stop it first"
        ) from None
    if not shared:
        _note(file)
    return file


def _open_lock(path: str, flags: int) -> int:
    # root holds it too, for `restore`, in a directory of another account, and it is written over
    return open_own(path, flags | os.O_NOFOLLOW)


def _note(file: IO[str]) -> None:
    with contextlib.suppress(OSError):  # only for who looks, and the disk may be full
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{os.getpid()}\n".encode("ascii"))


def _noted(file: IO[str]) -> str:
    file.seek(0)
    return file.read(20).strip() or "unknown"


def _flock(file: IO[str], *, shared: bool) -> None:
    """Raises OSError."""
    for more in (True, True, False):
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if not more or error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        else:
            return
        time.sleep(0.05)  # `status` may be looking at it
