"""The state directory changes while the daemon runs: its ledgers and the marks of people go along.

All is copied first. The one step that counts is a transaction: the old ledger says where it went, and nobody
opens it any more. Until then a note in the new directory keeps a start from taking it for whole.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from tias_slurm import hands, in_use, status
from tias_slurm.errors import InputError, printable
from tias_slurm.ledger.schema import moved
from tias_slurm.ledger.store import SqliteStore, gone_to
from tias_slurm.own_files import open_own

NOTE = "arriving"
# the one that counts last: it is the one that is marked
LEDGERS = ("ledger-dry-run.sqlite", "ledger.sqlite")
_NEW = os.O_WRONLY | os.O_NOFOLLOW
_BESIDE = ("", "-wal", "-shm", "-journal")


class StateMove:
    """From one directory to another. `copy`, `commit`, `finish`."""

    def __init__(self, old: str, new: str) -> None:
        """Both are there; the new one is locked."""
        self.old, self.new = os.path.abspath(old), os.path.abspath(new)
        self._note = os.path.join(self.new, NOTE)
        here = [] if went_from(self.old) else LEDGERS
        self.ledgers = [name for name in here if hands.is_there(self._at(name))]
        self._opened: SqliteStore | None = None

    def __str__(self) -> str:
        return f"{printable(self.old, 300)} to {printable(self.new, 300)}"

    def copy(self, tell: Callable[[], None], undo: ExitStack) -> None:
        """Have all in the new directory; `undo` gets what takes it away again. `tell` is called every few MB.

        Raises InputError."""
        if self.ledgers:
            left = (hands.read_file(self._note) or {}).get("from") == self.old  # by one that was killed
            undo.callback(_unlink, self._note)
            hands.replace_file(self._note, json.dumps({"from": self.old}) + "\n")
            _settle(self._note)
            _settle(self.new)  # before there is a ledger beside it
            past = bool(went_from(self.new))
            for name in LEDGERS:
                self._make_room(os.path.join(self.new, name), left, past, undo)
        for name in self.ledgers:
            target = os.path.join(self.new, name)
            undo.callback(_unlink, *(f"{target}{more}" for more in _BESIDE))
            source = SqliteStore(self._at(name), older="leave")
            try:
                source.copy_to(target, tell)
            finally:
                source.close()
            for kept in glob.glob(glob.escape(self._at(name)) + ".schema*[0-9]"):
                self._copy_kept(kept, undo)
        made = hands.take_along(self.old, self.new)
        undo.callback(_quiet, partial(hands.drop, self.new, made))
        _settle(self.new)

    def commit(self, in_use: Iterable[SqliteStore], undo: ExitStack) -> None:
        """From here on the old ledger is of the past. `in_use`: that are open, and may be among them. Raises
        InputError."""
        if not self.ledgers:
            return
        path = self._at(self.ledgers[-1])
        store = next((s for s in in_use if os.path.abspath(s.path) == path), None)
        if store is None:
            store = self._opened = SqliteStore(path, older="leave")
            undo.callback(_quiet, store.close)
        undo.callback(_quiet, partial(store.went, ""))
        store.went(self.new)

    def finish(self, host: str, log: Any) -> None:
        """Tidy up, after the new one is in use. `host`: of the old status file. Never raises."""
        if self._opened is not None:
            _quiet(self._opened.close)
        _unlink(self._note, status.path(self.old, host), in_use.path(self.old, host))
        try:
            hands.take_along(self.old, self.new)  # what was ordered this moment
            hands.drop(self.old)
        except InputError as error:
            log.warning("marks of pause and ignore are left in the old directory", message=str(error))

    def _at(self, name: str) -> str:
        return os.path.join(self.old, name)

    def _make_room(self, path: str, left: bool, past: bool, undo: ExitStack) -> None:
        """No ledger that anybody could need may lie there. `left`: by a move that was broken off; `past`: it
        was moved on from there."""
        if not hands.is_there(path):
            return
        if left:
            _unlink(*(f"{path}{more}" for more in _BESIDE))
        elif past:
            aside = f"{path}.moved"
            _unlink(*(f"{aside}{more}" for more in _BESIDE))
            for more in _BESIDE:  # the log that a crash left would pass for that of the new one
                try:
                    os.replace(f"{path}{more}", f"{aside}{more}")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise InputError(f"{path}: cannot be set aside: {error.strerror}") from None
                undo.callback(_quiet, partial(os.replace, f"{aside}{more}", f"{path}{more}"))
        else:
            raise InputError(
                f"{path}: a ledger lies there already, which the one in use would take the place of; if "
                "nobody needs it, move it away and reload; to go on with it, end the daemon, run "
                "tias-slurm restore on the old settings, and start on the new ones"
            )

    def _copy_kept(self, kept: str, undo: ExitStack) -> None:
        """The ledger of an older version, for a way back."""
        target = os.path.join(self.new, os.path.basename(kept))
        if os.path.lexists(target):
            return
        undo.callback(_unlink, target)
        try:
            with open(kept, "rb") as source, os.fdopen(open_own(target, _NEW), "wb") as out:
                shutil.copyfileobj(source, out)
            at = os.stat(kept).st_mtime
            os.utime(target, (at, at))
        except OSError as error:
            raise InputError(f"{printable(target, 300)}: cannot be written: {error.strerror}") from None


def arrived(state_dir: str) -> None:
    """At a start: what is here is whole, and in use. Raises InputError."""
    if where := went_from(state_dir):
        raise InputError(moved(printable(state_dir, 300), where))
    note = os.path.join(state_dir, NOTE)
    document = hands.read_file(note)
    if document is None:
        return
    old = str(document.get("from", ""))
    here = os.path.abspath(state_dir)
    if old and went_from(old) == here:
        _unlink(note)  # all was done but this
        return
    where = printable(old, 300)
    # a power cut may leave the note empty
    whence, place = (f" from {where}", f'= "{where}"') if old else ("", "as it was before")
    raise InputError(
        f"{printable(note, 300)}: the ledger was on its way here{whence} when the daemon was killed, "
        f"and is still there: start with [daemon] state_dir {place}, then set this one and reload"
    )


def went_from(state_dir: str) -> str:
    """Where the ledgers of a directory went; "": they are in use, or none. One is marked for all."""
    return next(filter(None, (gone_to(os.path.join(state_dir, name)) for name in LEDGERS)), "")


def others(state_dir: str, host: str) -> list[str]:
    """The hosts whose daemons hold this directory too. Raises InputError."""
    prefix = f"{os.path.basename(status.lock_path(state_dir))}."
    names = [n.removeprefix(prefix) for n in _listed(state_dir) if n.startswith(prefix)]
    return [n for n in names if n != host and status.holder(state_dir, n).running]


def marks(state_dir: str) -> bool:
    """Whether people left any. Raises InputError."""
    return hands.paused(state_dir) or bool(hands.ignored(state_dir))


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise InputError(f"{printable(directory, 300)}: cannot be read: {error.strerror}") from None


def _settle(path: str) -> None:
    """Have what is in a file, or which files are in a directory, outlast a power cut. Raises InputError."""
    try:
        at = os.open(path, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)
    except OSError as error:
        raise InputError(f"{printable(path, 300)}: cannot be written: {error.strerror}") from None


def _unlink(*paths: str) -> None:
    for path in paths:
        _quiet(partial(os.unlink, path))


def _quiet(call: Callable[[], object]) -> None:
    with contextlib.suppress(InputError, OSError, sqlite3.Error):
        call()
