"""What a check of the site found, and how checks read lists of slurm.conf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["ok", "warning", "error"]
# how Slurm prints that nothing is set
NONE: Final = frozenset({"", "(null)", "none", "preempt/none", "off", "n/a"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str  # a short name that stays the same over releases
    severity: Severity
    what: str  # what was seen
    why: str = ""  # what it means for the daemon
    do: str = ""  # what to do about it


def options(text: str) -> dict[str, str]:
    """`a,b=1` -> {"a": "", "b": "1"}, names in lower case. pyslurm prints lists in brackets."""
    found: dict[str, str] = {}
    for word in re.split(r"[,\s\[\]{}']+", text.lower()):
        name, _, value = word.partition("=")
        if name and name not in NONE:
            found[name] = value
    return found
