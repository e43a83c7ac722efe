"""The settings that the daemon has in use, left beside its state: for commands whose settings file is broken.

A settings file that somebody breaks does not stop a daemon, and must not take away the means to. Nothing is
guessed: what was left counts only if it names this settings file and the directory in which it lies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tias_slurm import hands, status
from tias_slurm.config import DEFAULT_PATH, MAX_FILE_BYTES, Config, ConfigError, load_config
from tias_slurm.config_changes import bring_up
from tias_slurm.errors import InputError, printable
from tias_slurm.own_files import same_place
from tias_slurm.service.leadership import this_host

VERSION = 1  # of the document
# made by the systemd unit, and there until the next boot; holds the path of the state directory
RUNTIME = "/run/tias-slurm"
_POINTER = "state_dir"
_NAMED = re.compile(r"""state_dir["']?\s*=\s*(?:"([^"\n]+)"|'([^'\n]+)')""")


def path(state_dir: str, host: str = "") -> str:
    """Where they are left; `host`: where several share the directory."""
    return os.path.join(state_dir, f"in-use.{host}.json" if host else "in-use.json")


def leave(config_path: str | None, config: Config) -> None:
    """Leave the settings of the daemon that runs from now on. Raises InputError."""
    c = config.daemon
    host = this_host() if c.lease_path else ""
    name = os.path.abspath(config_path or DEFAULT_PATH)
    document = {
        "version": VERSION,
        "time": round(time.time(), 3),
        "file": name,
        "settings": config.model_dump(mode="json"),
    }
    hands.replace_file(path(c.state_dir, host), json.dumps(document) + "\n")
    with contextlib.suppress(OSError):
        os.unlink(path(c.state_dir, "" if host else this_host()))  # of before it had a lease, or since
    _forget_usual(name, c.state_dir)
    if os.environ.get("RUNTIME_DIRECTORY") == RUNTIME:
        with contextlib.suppress(InputError):
            hands.replace_file(os.path.join(RUNTIME, _POINTER), os.path.abspath(c.state_dir))


def _forget_usual(name: str, state_dir: str) -> None:
    """What a daemon of this settings file left once where one is looked for when nothing else is known."""
    usual = _usual()
    if _same(usual, state_dir):
        return
    for host in ("", this_host()):
        with contextlib.suppress(InputError, OSError):
            if _left(usual, host, name, {}) is not None and not status.holder(usual, host).running:
                os.unlink(path(usual, host))


def settings(config_path: str | None, overrides: Mapping[str, object] | None = None) -> tuple[Config, str]:
    """The settings of the file, and ""; if that is broken, those in use, and a line that says so.

    Raises ConfigError where it is broken and it is not known what is in use.
    """
    try:
        return load_config(config_path, overrides), ""
    except ConfigError as error:
        broken = error
    name = os.path.abspath(config_path or DEFAULT_PATH)
    places = list(dict.fromkeys(_places(name)))
    found = [
        (left, path(state_dir, host), status.holder(state_dir, host).running)
        for state_dir in places
        for host in ("", this_host())
        if (left := _left(state_dir, host, name, overrides or {})) is not None
    ]
    # what lies where no daemon runs may be of the past
    for left, where, runs in sorted(found, key=lambda one: not one[2])[:1]:
        return left, _words(broken, name, where, runs=runs)
    raise ConfigError(f"{broken}\n{_unknown(name, places)}") from None


def _places(name: str) -> Iterator[str]:
    """State directories that the daemon of a settings file may have: each is looked at, none is believed."""
    with contextlib.suppress(OSError), open(os.path.join(RUNTIME, _POINTER), "rb") as file:
        yield file.read(4096).decode("utf-8", "replace")
    with contextlib.suppress(OSError), open(name, "rb") as file:
        for match in _NAMED.finditer(file.read(MAX_FILE_BYTES).decode("utf-8", "replace")):
            yield match[1] or match[2]
    yield _usual()


def _usual() -> str:
    return str(Config().daemon.state_dir)


def _left(state_dir: str, host: str, name: str, overrides: Mapping[str, object]) -> Config | None:
    """What the daemon of that settings file left there; None: nothing that can be used."""
    try:
        document: dict[str, Any] = hands.read_file(path(state_dir, host)) or {}
        if document.get("version") != VERSION or not _same(str(document["file"]), name):
            return None
        found = document["settings"]
        if not _same(str(found["daemon"]["state_dir"]), state_dir):
            return None
        if bring_up(found, "").problems:
            return None
        for key, value in overrides.items():
            section, _, field = key.partition(".")
            found[section][field] = value
        return Config.model_validate(found)
    except (KeyError, TypeError, ValueError, ValidationError):  # of another version, or spoiled
        return None


def _same(one: str, other: str) -> bool:
    try:
        return os.path.abspath(one) == os.path.abspath(other) or same_place(one, other)
    except (OSError, ValueError):
        return False


def _words(broken: ConfigError, name: str, left: str, *, runs: bool) -> str:
    first, *more = str(broken).splitlines()
    problem = first.removeprefix(f"{printable(name, 300)}: ") + (f" (and {len(more)} more)" if more else "")
    whose = "the daemon runs with" if runs else "the daemon, which does not run now, ran with last"
    return (
        f"{printable(name, 300)} is broken: {problem}; in its place what {whose} is used "
        f"({printable(left, 300)})"
    )


def _unknown(name: str, places: list[str]) -> str:
    where = ", ".join(printable(place, 200) for place in places[:5])
    if any(os.path.isdir(p) and not os.access(p, os.R_OK | os.X_OK) for p in places):
        return (
            f"{printable(name, 300)}: what the daemon goes on with is in {where}, which this account may not "
            "read: use sudo or the daemon's account, or tell an administrator"
        )
    return (
        f"{printable(name, 300)}: what the daemon goes on with is not known either: no daemon of this file "
        f"left it in {where}. To stop its writes at once: touch STATE_DIR/{hands.PAUSED}"
    )
