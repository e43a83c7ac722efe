"""Times, durations and service for people, and tables that hold users' text safely."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tias_slurm.errors import printable

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(seconds: float, units: int = 2) -> str:
    """A duration in its two (or so many) largest units: 3 h 20 min, 45 s."""
    rest = round(abs(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == units:
            break
    sign = "-" if round(seconds) < 0 else ""
    return sign + (" ".join(filter(None, parts)) or "0 s")


def service(gpu_s: float) -> str:
    """GPU-seconds as GPU-hours."""
    return f"{gpu_s / 3600:,.1f} GPU-h" if gpu_s < 360_000 else f"{gpu_s / 3600:,.0f} GPU-h"


def moment(epoch: float, zone: ZoneInfo) -> str:
    """A point in time in the site's zone."""
    return datetime.fromtimestamp(epoch, zone).strftime("%Y-%m-%d %H:%M:%S")


def ago(epoch: float) -> str:
    """How long ago a point in time was by this machine's clock."""
    return f"{span(max(0.0, time.time() - epoch))} ago"


def console() -> Console:
    """For tables: not narrower than 120 columns where nobody's terminal says so."""
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = max(made.width, 120)
    return made


def cell(value: object, width: int = 300) -> Text:
    """A cell of a table: text of users, made safe."""
    return Text(printable(str(value), width))


def grid(rows: list[tuple[str, str]]) -> Table:
    """Names and what there is to say of them, without lines."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in rows:
        table.add_row(Text(name), cell(words))
    return table
