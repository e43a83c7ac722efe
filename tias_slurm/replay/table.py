"""The dry run on a terminal: what was read, one table, what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tias_slurm.replay.results import DryRun, PolicyResult
from tias_slurm.replay.wording import (
    amount,
    assumed_line,
    base,
    cluster_line,
    count,
    deadlines_line,
    duration,
    fidelity_line,
    findings,
    percent,
    read_line,
    refused_line,
    unfinished_line,
    unique,
)

MARK = "†"
FOOTNOTE = f"{MARK} knows the future (each job's run time): a bound, no scheduler can do this."
FULL_WIDTH = 120  # used where the output is no terminal


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    head: str
    cell: Callable[[PolicyResult], str]
    left_out: int = 0  # on a narrow terminal the largest goes first; 0: never


def _missed(p: PolicyResult) -> str:
    m = p.metrics
    return f"{count(m['missed'])}/{count(m['deadline_jobs'])}" if m["deadline_jobs"] else "–"


COLUMNS = (
    Column("missed", _missed, 1),
    Column("miss\nrate", lambda p: percent(p.metrics["deadline_miss_rate"])),
    Column("miss by\nGPU-h", lambda p: percent(p.metrics["deadline_miss_rate_gpu_weighted"]), 2),
    Column("JCT\nmean", lambda p: duration(p.metrics["jct_mean_s"])),
    Column("JCT\nmedian", lambda p: duration(p.metrics["jct_median_s"]), 5),
    Column("JCT\np95", lambda p: duration(p.metrics["jct_p95_s"]), 3),
    Column("wait\nmean", lambda p: duration(p.metrics["wait_mean_s"]), 4),
    Column("GPU\nuse", lambda p: percent(p.metrics["gpu_utilisation"]), 6),
    Column("re-\nqueues", lambda p: count(p.metrics["requeues"]), 7),
    Column("GPU-h\nlost", lambda p: amount(p.metrics["gpu_hours_lost"]), 8),
    Column("writes", lambda p: count(p.writes), 9),
)


def policy_table(run: DryRun, columns: tuple[Column, ...] = COLUMNS) -> Table:
    """The policies side by side, one row each, in the run's order."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("policy", no_wrap=True)
    for c in columns:
        table.add_column(c.head, justify="right", no_wrap=True)
    for name, p in run.policies.items():
        style = "bold" if base(name) == "tias" else "" if p.realisable else "dim"
        shown = Text(name if p.realisable else f"{name} {MARK}")
        table.add_row(shown, *(Text(c.cell(p)) for c in columns), style=style)
    return table


def _fitting(run: DryRun, console: Console) -> tuple[Table, list[Column]]:
    """The table with as many columns as the console has room for, and the columns left out."""
    kept, gone = list(COLUMNS), []
    table = policy_table(run)
    # Measured without the console's own bound, which a measure never exceeds.
    unbound = console.options.update(width=1000)
    while Measurement.get(console, unbound, table).maximum > console.width:
        optional = [c for c in kept if c.left_out]
        if not optional:
            break
        drop = max(optional, key=lambda c: c.left_out)
        kept.remove(drop)
        gone.append(drop)
        table = policy_table(run, tuple(kept))
    return table, gone


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    # Text, never markup: file names and reasons hold user input.
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=10, no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text, style=style))
    console.print(grid)


def print_tables(run: DryRun, console: Console) -> None:
    """Print what was read, the policies side by side, and what follows from the numbers.

    Colours only where the console is a terminal (rich sees to it). Output that goes to a file is laid out
    for FULL_WIDTH columns; a terminal too narrow for the table gets fewer columns, and a line that says so.
    """
    before = console.width
    if not console.is_terminal:
        console.width = max(before, FULL_WIDTH)
    try:
        _print(run, console)
    finally:
        console.width = before


def _print(run: DryRun, console: Console) -> None:
    _line(console, "Read", read_line(run))
    _line(console, "Refused", refused_line(run), "yellow" if run.input["refused"] else "")
    _line(console, "Deadlines", deadlines_line(run))
    if warning := assumed_line(run):
        _line(console, "", warning, "bold yellow")
    _line(console, "Cluster", cluster_line(run))
    _line(console, "Trust", fidelity_line(run)[0].upper() + fidelity_line(run)[1:] + ".")
    for note in unique(run.notes):
        _line(console, "Note", note)
    table, gone = _fitting(run, console)
    console.print(table)
    footnotes = ["JCT and wait: of jobs without a deadline."]
    if not all(p.realisable for p in run.policies.values()):
        footnotes.append(FOOTNOTE)
    if stuck := unfinished_line(run):
        footnotes.append(stuck)
    if gone:
        names = ", ".join(c.head.replace("-\n", "").replace("\n", " ") for c in gone)
        footnotes.append(f"No room for: {names} (a wider terminal or --json shows them).")
    for text in footnotes:
        console.print(Text(text, style="dim"))
    console.print()
    for text in findings(run):
        console.print(Text(text))
