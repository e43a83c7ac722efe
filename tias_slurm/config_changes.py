"""Settings renamed or removed: the file of an older version is understood, or told what to write instead."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """A setting that has another name now, in the same or another section."""

    old: str  # section.name, likewise below
    new: str
    since: str  # the version


class Removed(NamedTuple):
    """A setting that is no more."""

    key: str
    since: str
    instead: str  # what to write or do instead, as a whole sentence
    harmless: bool  # nothing becomes different without it: it is passed over, else the file is refused


# none so far; newest last. A name that stands here is never given to another setting.
RENAMED: tuple[Renamed, ...] = ()
REMOVED: tuple[Removed, ...] = ()


class Changes(NamedTuple):
    """What an older file needs: lines to be said, each of which names the key and what to write."""

    notes: list[str]  # understood all the same
    problems: list[str]  # not


def bring_up(data: dict[str, Any], text: str) -> Changes:
    """Put what an older file says under today's names, in `data` itself; `text`: the file."""
    found = Changes([], [])
    for change in RENAMED:
        if not _has(data, change.old):
            continue
        at = _where(text, change.old)
        if _has(data, change.new):
            what = f"is the old name of {change.new}, which is set too; remove one of the two"
            found.problems.append(f"{at}{change.old}: {what}")
            continue
        value = _take(data, change.old)
        section, _, name = change.new.partition(".")
        part = data.setdefault(section, {})
        if isinstance(part, dict):
            part[name] = value
        found.notes.append(f"{at}{change.old}: is called {change.new} since {change.since}; write that")
    for gone in REMOVED:
        if not _has(data, gone.key):
            continue
        said = (
            f"{_where(text, gone.key)}{gone.key}: is no setting any more since {gone.since}; {gone.instead}"
        )
        _take(data, gone.key)
        (found.notes if gone.harmless else found.problems).append(said)
    return found


def _has(data: dict[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    part = data.get(section)
    return isinstance(part, dict) and name in part


def _take(data: dict[str, Any], key: str) -> Any:
    """The value, which is then there no more, nor is a section that it leaves empty."""
    section, _, name = key.partition(".")
    value = data[section].pop(name)
    if not data[section]:
        del data[section]
    return value


def _where(text: str, key: str) -> str:
    """ "line N: " of a key that stands on a line of its own, as nearly all do; else ""."""
    section, _, name = key.partition(".")
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            here = head[1]
        elif word := re.match(r"""\s*["']?([\w-]+)["']?\s*=""", line):
            if (here, word[1]) == (section, name):
                return f"line {number}: "
        elif re.match(rf"\s*{re.escape(section)}\s*\.\s*{re.escape(name)}\s*=", line) and not here:
            return f"line {number}: "
    return ""
