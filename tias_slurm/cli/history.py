"""`tias-slurm history`: what was done to one job, out of the ledger; works without Slurm."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import typer

from tias_slurm.cli.config_commands import AnonymiseOption, JsonOption, PathOption
from tias_slurm.cli.explain import JobArgument
from tias_slurm.cli.in_use import load_in_use

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from tias_slurm.config import Config
    from tias_slurm.ledger.store import Entry


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

    name = hands.job_name(job)
    settings = load_in_use(config)
    number = int(name) if name.isdecimal() else _number(settings, name)
    known = recall(settings, number)
    messages = told(settings, number, words=not anonymise)
    if anonymise:
        known = replace(known, entries=Names().entries(known.entries))
    if as_json:
        typer.echo(json.dumps({"job_id": number, "remembered": known.memory, "actions": [
            {k: getattr(e, k) for k in ("time", "action", "old", "new", "reason", "result", "message")}
            | ({"bought": what} if what else {})
            for e, what in zip(known.entries, known.bought, strict=True)
        ], "made_room": known.made_room, "messages": messages}))  # fmt: skip
    else:
        _show(number, known, messages, settings.zone())
    if known.memory is None and not known.done and not messages:
        raise typer.Exit(NO_SUCH_JOB)


@dataclass(frozen=True)
class Recalled:
    """What the ledger tells of one job."""

    memory: dict[str, float | None] | None = None  # what is kept of it; None: nothing
    entries: list[Entry] = field(default_factory=list)  # what was done to it
    bought: list[dict[str, Any] | None] = field(default_factory=list)  # by each of these, see gains.bought
    made_room: list[dict[str, Any]] = field(default_factory=list)  # the same of jobs requeued for it

    @property
    def done(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.entries or self.made_room)


def recall(config: Config, number: int) -> Recalled:
    """What the ledger in use keeps of a job by its number. Raises InputError if it may not be read."""
    from tias_slurm.cli.look import ledger_in_use, need_ledger
    from tias_slurm.ledger import gains
    from tias_slurm.ledger.store import SqliteStore

    need_ledger(config)
    path = ledger_in_use(config)
    if path is None:
        return Recalled()
    store, now = SqliteStore(path, older="refuse"), time.time()
    try:
        entries, others = store.history(number), gains.for_job(store, number)
        made_room = [
            {"requeued": e.job_id, **what}
            for e, what in zip(others, gains.bought(store, others, now), strict=True)
            if what is not None
        ]
        return Recalled(store.memory(number), entries, gains.bought(store, entries, now), made_room)
    finally:
        store.close()


def recollection(memory: dict[str, Any], zone: ZoneInfo) -> str:
    """What is remembered of a job, in one line."""
    from tias_slurm.cli.words import moment, service
    from tias_slurm.replay.wording import plural

    parts = [f"first submitted {moment(memory['first_submit'], zone)}"]
    parts.append(f"{service(memory['attained'])} in earlier runs")
    if memory["claim"] is not None:
        parts.append(f"deadline {moment(memory['claim'], zone)}")
    if memory["requeues"]:
        parts.append(f"requeued by us {plural(int(memory['requeues']), 'time')}")
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


def _show(number: int, known: Recalled, messages: list[dict[str, Any]], zone: ZoneInfo) -> None:
    from rich.table import Table
    from rich.text import Text

    from tias_slurm.cli.messages import line
    from tias_slurm.cli.words import cell, console, moment

    out, memory = console(), known.memory
    if memory is None:
        more = " but this:" if known.done or messages else "."
        out.print(Text(f"The ledger knows nothing of job {number}{more}"))
    else:
        out.print(Text(f"Job {number}: {recollection(memory, zone)}."))
    if not known.done and not messages:
        out.print("Nothing was done to it." if memory is not None else "")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("time", "action", "from", "to", "result"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason, and what Slurm said", overflow="fold")
    rows = _rows(known)
    for at, *words in rows:
        table.add_row(*map(cell, (moment(at, zone), *words)))
    for m in messages:
        became, text = line(m)
        table.add_row(
            *map(cell, (moment(m["taken_up"] or m["time"], zone), "notify", "", "", became)), cell(text, 1000)
        )
    out.print(table)


def _rows(known: Recalled) -> list[tuple[Any, ...]]:
    """Time, action, from, to, result and words of all that was done to the job, and for it."""
    from tias_slurm.cli.words import span
    from tias_slurm.ledger import gains, reruns
    from tias_slurm.ledger.reruns import PREEMPTED
    from tias_slurm.levers import shown
    from tias_slurm.slurm.live import DRY_RUN

    rows: list[tuple[Any, ...]] = []
    for e, what in zip(known.entries, known.bought, strict=True):
        values = ("", "") if e.action in ("requeue", "warn", PREEMPTED) else (e.old, e.new)
        old, new = ("" if v in (None, "") else str(shown(float(v))) for v in values)
        dry = e.message == DRY_RUN  # nothing was sent, whatever came of it
        words = f"{e.reason}: {e.message}" if e.message and not dry else e.reason
        if what is not None and e.result in (None, "ok"):
            words += f"; {gains.words(what, span)}"
        if e.action == PREEMPTED:
            words += f"; it had run {reruns.words(e.old, e.new, span)}"
        rows.append((e.time, e.action, old, new, DRY_RUN if dry else e.result or "not known", words))
    for what in known.made_room:
        words = f"job {what['requeued']} was requeued for it: {gains.words(what, span)}"
        rows.append((what["time"], "made room", "", "", what["became"] or "not known", words))
    return sorted(rows, key=lambda row: row[0])
