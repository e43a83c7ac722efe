"""What the daemon's cycles came to, hour by hour, kept in the ledger for `tias-slurm report`."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

HOUR_S = 3600.0
PREFIX = (
    "hour:"  # of the settings of the ledger that hold a tally, each with the number of its hour since 1970
)
# counts of jobs as a cycle sees them: of several cycles the most is kept, since their sum means nothing
MOST = ("overridden", "ignored", "refused")


class Values(Protocol):
    """Where single texts are kept. See store.SqliteStore."""

    def get(self, name: str) -> str | None:
        """A text kept under a name; None: none."""

    def put(self, name: str, value: str) -> None:
        """Keep a text under a name."""


@dataclass
class Tally:
    """What the cycles of some time came to."""

    cycles: Counter[str] = field(default_factory=Counter)  # by result
    paused: int = 0  # cycles in which nothing was written because the daemon was paused
    claims: Counter[str] = field(default_factory=Counter)  # not taken, by reason, once a comment
    most: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MOST, 0))  # jobs at once
    hours: list[int] = field(default_factory=list)  # since 1970, those with a cycle

    def add(self, kept: Mapping[str, Any], hour: int) -> None:
        """Take in what is kept of one hour."""
        self.hours.append(hour)
        self.cycles.update({str(k): int(v) for k, v in kept.get("cycles", {}).items()})
        self.claims.update({str(k): int(v) for k, v in kept.get("claims", {}).items()})
        self.paused += int(kept.get("paused", 0))
        for name in MOST:
            self.most[name] = max(self.most[name], int(kept.get(name, 0)))


def note(
    store: Values,
    now: float,
    result: str,
    *,
    paused: bool,
    claims: Mapping[str, int],
    jobs: Mapping[str, int],
) -> None:
    """Count one cycle into its hour. `now`: epoch s; `jobs`: by the names of MOST. Raises LedgerError."""
    name = f"{PREFIX}{int(now // HOUR_S)}"
    kept = _read(store.get(name))
    for key, more in (("cycles", {result: 1}), ("claims", claims)):
        kept[key] = dict(Counter(kept.get(key, {})) + Counter(more))
    kept["paused"] = kept.get("paused", 0) + paused
    if result == "ok":
        kept["looked"] = now
    for key in MOST:
        kept[key] = max(kept.get(key, 0), jobs.get(key, 0))
    store.put(name, json.dumps({k: v for k, v in kept.items() if v}))


def read(store: Values, since: float, until: float) -> Tally:
    """The hours that lie in [since, until) as a whole or in part (epoch s). Raises LedgerError."""
    tally = Tally()
    for hour in range(int(since // HOUR_S), int(-(-until // HOUR_S))):
        text = store.get(f"{PREFIX}{hour}")
        if text is not None:
            tally.add(_read(text), hour)
    return tally


def last_look(db: sqlite3.Connection) -> float:
    """When the last good cycle was noted in a ledger, epoch s; -inf: none was. Raises sqlite3.Error."""
    rows = db.execute("SELECT name, value FROM setting WHERE name LIKE ?", (f"{PREFIX}%",))
    looks = [-math.inf]
    for name, text in rows:
        kept, hour = _read(text), str(name).removeprefix(PREFIX)
        if hour.isdecimal() and kept.get("cycles", {}).get("ok"):
            # an older version kept the hour alone
            looks.append(float(kept.get("looked", int(hour) * HOUR_S)))
    return max(looks)


def _read(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
