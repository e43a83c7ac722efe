"""Files of the daemon's own directories, which belong to its account also where root makes them."""

from __future__ import annotations

import contextlib
import errno
import os

_READ_ONLY = (
    "; under systemd the unit writes to its own directories only: name this one in ReadWritePaths= by "
    "`systemctl edit tias-slurm` and restart the daemon on the old settings first (docs/operate.md, Move its "
    "files)"
)


def open_own(path: str, flags: int) -> int:
    """Open a file, 0640 and of its directory's owner if it is new: a file descriptor. Raises OSError.

    What was there, or lies behind a link, is never given away.
    """
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o640)
    except FileExistsError:
        return os.open(path, flags | os.O_CREAT, 0o640)
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(path) or ".")
        # on a network file system root may be nobody, and need not be refused for that
        with contextlib.suppress(PermissionError):
            os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def same_place(one: str, other: str) -> bool:
    """Whether two paths, which may not be there, mean one place."""
    return os.path.realpath(one) == os.path.realpath(other)


def hint(error: OSError) -> str:
    """What to do about a place that may not be written to, after the error's own words; mostly nothing."""
    return _READ_ONLY if error.errno == errno.EROFS else ""
