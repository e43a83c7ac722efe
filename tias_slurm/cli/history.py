"""`tias-slurm history`: what was done to one job, out of the ledger; works without Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from tias_slurm.cli.config_commands import AnonymiseOption, JsonOption, PathOption
from tias_slurm.cli.explain import JobArgument

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from tias_slurm.config import Config
    from tias_slurm.store import Entry


def history(
    job: JobArgument,
    config: PathOption = None,
    as_json: JsonOption = False,
    anonymise: AnonymiseOption = False,
) -> None:
    """Show what was done to one job, and why, oldest first. Asks the ledger alone, also about ended jobs.

    A task of an array is asked for by its own JobID (squeue -o %A), unless Slurm answers and knows it.
    Exit code 3: the ledger knows nothing of it.

    Example: tias-slurm history 4711
    """
    from tias_slurm import hands
    from tias_slurm.anonymise import Names
    from tias_slurm.cli.explain import NO_SUCH_JOB
    from tias_slurm.cli.messages import told
    from tias_slurm.config import load_config

    name = hands.job_name(job)
    settings = load_config(config)
    number = int(name) if name.isdecimal() else _number(settings, name)
    memory, entries = recall(settings, number)
    messages = told(settings, number, words=not anonymise)
    if anonymise:
        entries = Names().entries(entries)
    if as_json:
        typer.echo(json.dumps({"job_id": number, "remembered": memory, "actions": [
            {k: getattr(e, k) for k in ("time", "action", "old", "new", "reason", "result", "message")}
            for e in entries
        ], "messages": messages}))  # fmt: skip
    else:
        _show(number, memory, entries, messages, settings.zone())
    if memory is None and not entries and not messages:
        raise typer.Exit(NO_SUCH_JOB)


def recall(config: Config, number: int) -> tuple[dict[str, float | None] | None, list[Entry]]:
    """What the ledger in use keeps of a job by its number (None: nothing), and what was done to it."""
    from tias_slurm.cli.look import ledger_in_use, need_ledger
    from tias_slurm.store import SqliteStore

    need_ledger(config)
    path = ledger_in_use(config)
    if path is None:
        return None, []
    store = SqliteStore(path, older="refuse")
    try:
        return store.memory(number), store.history(number)
    finally:
        store.close()


def recollection(memory: dict[str, Any], zone: ZoneInfo) -> str:
    """What is remembered of a job, in one line."""
    from tias_slurm.cli.words import moment, service

    parts = [f"first submitted {moment(memory['first_submit'], zone)}"]
    parts.append(f"{service(memory['attained'])} in earlier runs")
    if memory["claim"] is not None:
        parts.append(f"deadline {moment(memory['claim'], zone)}")
    if memory["requeues"]:
        parts.append(f"requeued by us {int(memory['requeues'])} times")
    gone = memory["gone"]
    parts.append("still in the queue when last seen" if gone is None else f"gone since {moment(gone, zone)}")
    return ", ".join(parts)


def _number(config: Config, name: str) -> int:
    from tias_slurm.cli.look import adapter_of
    from tias_slurm.cli.lookup import find
    from tias_slurm.errors import InputError

    adapter = adapter_of(config)
    try:
        raw = adapter.jobs()
    finally:
        adapter.close()
    at, why = find(raw, name)
    if at is None:
        raise InputError(f"{why}; give the JobID that squeue -o %A or sacct -o JobIDRaw shows")
    return int(raw.job_id[at])


def _show(
    number: int,
    memory: dict[str, Any] | None,
    entries: list[Entry],
    messages: list[dict[str, Any]],
    zone: ZoneInfo,
) -> None:
    from rich.table import Table
    from rich.text import Text

    from tias_slurm.cli.messages import line
    from tias_slurm.cli.words import cell, console, moment
    from tias_slurm.levers import shown

    out = console()
    if memory is None:
        out.print(
            Text(f"The ledger knows nothing of job {number}" + (" but this:" if entries or messages else "."))
        )
    else:
        out.print(Text(f"Job {number}: {recollection(memory, zone)}."))
    if not entries and not messages:
        out.print("Nothing was done to it." if memory is not None else "")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("time", "action", "from", "to", "result"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason, and what Slurm said", overflow="fold")
    for e in entries:
        values = ("", "") if e.action in ("requeue", "warn") else (e.old, e.new)
        old, new = ("" if v in (None, "") else str(shown(float(v))) for v in values)
        words = f"{e.reason}: {e.message}" if e.message else e.reason
        table.add_row(*map(cell, (moment(e.time, zone), e.action, old, new, e.result or "not known", words)))
    for m in messages:
        became, text = line(m)
        table.add_row(
            *map(cell, (moment(m["taken_up"] or m["time"], zone), "notify", "", "", became)), cell(text, 1000)
        )
    out.print(table)
