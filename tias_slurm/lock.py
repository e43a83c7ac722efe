"""Which files a daemon works on, and the lock that keeps a second one away from them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from typing import IO

from tias_slurm.config import Config
from tias_slurm.errors import InputError


def ledger_path(config: Config, mode: str | None = None) -> str:
    """The ledger of a mode (None: the configured one): would-be values are kept apart from real ones."""
    enforce = (mode or config.daemon.mode) == "enforce"
    name = "ledger.sqlite" if enforce else "ledger-dry-run.sqlite"
    return os.path.join(config.daemon.state_dir, name)


def take_lock(path: str) -> IO[str]:
    """Hold the one lock of this state directory, for as long as the file stays open. Raises InputError."""
    try:
        file = open(path, "a+", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; run as the account that owns the directory") from None
    for _ in range(3):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                file.close()
                raise InputError(
                    f"{path}: cannot be locked: {error.strerror}; is this file system mounted without locks?"
                ) from None
            time.sleep(0.05)  # `status` may be looking at it
    else:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise InputError(f"{path}: another tias-slurm (process {holder}) holds the lock; stop it first")
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
