"""`tias-slurm report`: what the daemon did in some time, how deadlines came out, and what it was worth."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tias_slurm.cli.config_commands import AnonymiseOption, JsonOption, PathOption
from tias_slurm.errors import InputError, printable

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from tias_slurm.anonymise import Names
    from tias_slurm.cli.dry_run import Show
    from tias_slurm.config import Config
    from tias_slurm.ledger.store import Entry
    from tias_slurm.ledger.tally import Tally
    from tias_slurm.replay.claims import ClaimReport
    from tias_slurm.replay.workload import Workload
    from tias_slurm.slurm.node_set import NodeSet

NO_RECORD = 3
_SPAN = re.compile(r"(\d{1,6})(w|d|h|m)", re.ASCII)
_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0}
_INSTEAD = "--export FILE reads an export instead"
_WRITE = "write 7d, 36h, 2w, or a time as 2026-11-23 or 2026-11-23T08:00"


@dataclass(frozen=True)
class Ask:
    """What the command line asks for. Times in epoch s."""

    since: float
    until: float
    export: str | None = None
    nodes: str | None = None
    cluster: str | None = None
    out_dir: Path | None = None


def report(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From when on: 7d, 36h back from --until, or an ISO time.")
    ] = "7d",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until when: as --since. Default: now.")
    ] = None,
    config: PathOption = None,
    export: Annotated[
        str | None, typer.Option(metavar="FILE", help="An export of sacct, instead of running sacct.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="'scontrol show node' as text or JSON, or TOML. Default: asks; with --export, inferred.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of an export of several clusters, this one.")
    ] = None,
    as_json: JsonOption = False,
    anonymise: AnonymiseOption = False,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Also write the replays' report.html and its files there; needs tias-slurm[replay].",
        ),
    ] = None,
) -> None:
    """Report what the daemon did, how deadlines came out, and what that was worth beside a replay without it.

    Reads the ledger and the site's sacct; changes nothing. Exit codes: 1 sacct or scontrol gave no answer,
    3 the ledger has no record of that time.

    Example: tias-slurm report --since 7d
    """
    from tias_slurm.cli.dry_run import bar, need_extras, out_dir_of
    from tias_slurm.config import load_config

    settings = load_config(config)
    now = time.time()
    end = now if until is None else moment("--until", until, settings.zone(), now)
    begin = moment("--since", since, settings.zone(), end)
    if not 0 < begin < end:
        raise InputError(f"--since {printable(since)} is not before --until; {_WRITE}")
    if begin >= now:
        raise InputError(f"--since {printable(since)} lies in the future; {_WRITE}")
    out_dir = out_dir_of(out)
    if out_dir is not None:
        need_extras()
    from tias_slurm.anonymise import Names

    with bar() as show:
        asked = Ask(begin, end, export, nodes, cluster, out_dir)
        document = gather(settings, asked, Names() if anonymise else None, show)
    if as_json:
        from tias_slurm.replay.document import dumps

        sys.stdout.write(dumps(document))
    else:
        from tias_slurm.cli.report_page import page

        page(document, settings.zone())
        if out_dir is not None and document["worth"] is not None:
            typer.echo(f"Report: {out_dir / 'report.html'}" if not anonymise else "Report: in report.html")
    if not document["done"]["on_record"]:
        raise typer.Exit(NO_RECORD)


def moment(option: str, text: str, zone: ZoneInfo, origin: float) -> float:
    """A point in time, epoch s: a span back from `origin`, or an ISO time (of the site's zone if it names
    none). Raises InputError."""
    span = _SPAN.fullmatch(text.strip().lower())
    if span:
        return origin - int(span[1]) * _UNITS[span[2]]
    try:
        given = datetime.fromisoformat(text.strip())
        return (given if given.tzinfo else given.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{option} {printable(text)!r}: no time; {_WRITE}") from None


def gather(settings: Config, ask: Ask, names: Names | None, show: Show) -> dict[str, Any]:
    """The whole report as a document, times in epoch s. Raises InputError, AdapterError."""
    from tias_slurm.doings import Jobs, covered, doings
    from tias_slurm.ledger import gains, remembered
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.ledger.trim import DROPPED, dropped
    from tias_slurm.replay.claims import find_deadlines
    from tias_slurm.replay.workload import weigh_jobs

    since, until = ask.since, ask.until
    path, dry = _ledger(settings, since, until)
    work, problem = _history(settings, ask, show)
    work.jobs["weight"] = weigh_jobs(work.jobs, settings.gpus.weights)
    with ExitStack() as stack:
        store = SqliteStore(path, older="refuse")
        stack.callback(store.close)
        entries, tally = _records(store, since, until)
        lacks = _lacks(settings, since, dropped(store.get(DROPPED)))
        memory = remembered.recall(store, work.jobs)
        gained = None if dry else gains.bought(store, entries, time.time())
    learned = remembered.take_times(work.jobs, memory)
    found = find_deadlines(work, settings, settings.zone())
    learned = remembered.take_claims(work.jobs, memory, learned)
    if names is not None:
        names.workload(work, found)
        entries = names.entries(entries)
    on_record = bool(entries or tally.hours)
    document: dict[str, Any] = {
        "since": since,
        "until": until,
        "dry_run": dry,
        "done": {
            "on_record": on_record,
            "lacks": lacks,
            **covered(tally, since, until),
            **doings(entries, tally, Jobs(work.jobs, memory), dry=dry, gained=gained or ()),
        },
        "history": {
            "jobs": len(work.jobs),
            "rows": work.rows,
            "refused": work.refused.total,
            "left_out": dict(work.left_out),
            "deadlines_refused": dict(found.refused.by_reason),
            "from_ledger": vars(learned),
        },
        "outcome": None,
        "worth": None,
        "notes": [*work.notes, *found.notes],
        "problem": problem,
    }
    if not problem:
        _judge(document, settings, ask, work, found, names, show)
    return document


def _judge(
    document: dict[str, Any],
    settings: Config,
    ask: Ask,
    work: Workload,
    found: ClaimReport,
    names: Names | None,
    show: Show,
) -> None:
    """Add how it came out and what it was worth. Raises InputError, AdapterError."""
    from tias_slurm.replay.dry_run import Options, dry_run
    from tias_slurm.replay.policies import parse
    from tias_slurm.worth import LIFE, WITHOUT, as_they_stood, compared, lived

    since, until = ask.since, ask.until
    outcome = lived(work.jobs, since, until)
    if not outcome["deadline_jobs"] + outcome["non_deadline_jobs"]:
        document["problem"] = "no job with GPUs came to its end in that time"
        return
    document["outcome"] = outcome
    node_set = _nodes(settings, ask, work)
    if names is not None:
        node_set = names.nodes(node_set)
    ours = "tias@on" if settings.requeue.mode != "off" else "tias@off"
    stood = as_they_stood(work, since)
    run = dry_run(
        stood,
        node_set,
        parse(f"{LIFE},{WITHOUT},{ours}", is_trace=False, preemption=None),
        settings,
        Options(),
        ask.out_dir,
        show,
        found=found,
    )
    document["worth"] = {
        **compared(run, work, stood, ours, since, until),
        "cluster": run.cluster,
        "elapsed_s": run.elapsed_s,
    }
    document["notes"] = list(dict.fromkeys(run.notes))
    if ask.out_dir is not None:
        from tias_slurm.replay.report import write_report

        write_report(run, stood, ask.out_dir)


def _ledger(settings: Config, since: float, until: float) -> tuple[str, bool]:
    """The ledger that tells of that time, the real one first, and whether it is one of a dry run."""
    from tias_slurm import hands
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.service.start import ledger_path

    paths = [(ledger_path(settings, mode), mode == "dry-run") for mode in ("enforce", "dry-run")]
    there = [(path, dry) for path, dry in paths if hands.is_there(path)]
    if not there:
        raise InputError(
            f"{settings.daemon.state_dir}: no ledger; has the daemon run? check [daemon] state_dir "
            "(tias-slurm dry-run replays an export without one)"
        )
    for path, dry in there:
        store = SqliteStore(path, older="refuse")
        try:
            entries, tally = _records(store, since, until)
        finally:
            store.close()
        if entries or tally.hours:
            return path, dry
    return there[0]


def _lacks(settings: Config, since: float, dropped: dict[str, Any]) -> str:
    """What the ledger no longer has of that time, as far as that is known; "": nothing."""
    days = settings.daemon.keep_days
    if since < time.time() - 86_400.0 * days:
        return f"what is older than keep_days = {days:g} is dropped"
    if dropped["last"] is not None and dropped["last"] > since:
        return f"{dropped['audit']:,} records were dropped for max_ledger_mb, some of them maybe of that time"
    return ""


def _records(store: Any, since: float, until: float) -> tuple[list[Entry], Tally]:
    """What the ledger noted in that time."""
    from tias_slurm.doings import ACTIONS
    from tias_slurm.ledger import tally

    found = [e for action in ACTIONS for e in store.actions(action, since) if e.time <= until]
    return sorted(found, key=lambda e: (e.time, e.job_id)), tally.read(store, since, until)


def _history(settings: Config, ask: Ask, show: Show) -> tuple[Workload, str]:
    """The jobs that were there in that time, and why there is nothing to judge ("": there is)."""
    from tias_slurm.slurm.accounting import exported
    from tias_slurm.slurm.files import label
    from tias_slurm.slurm.history import NoJobsError
    from tias_slurm.slurm.live import AdapterError

    path = ask.export or ""
    try:
        if ask.export is not None:
            return _read(path, settings, ask, show), ""
        show("sacct", 0.0)
        with exported(ask.since, ask.until) as path:
            with open(path, "rb") as file:
                if sum(1 for _, _ in zip(range(2), file, strict=False)) < 2:
                    return _nobody(), "sacct knows of no job in that time"
            work = _read(path, settings, ask, show)
        work.refused.examples[:] = [replace(r, file="sacct") for r in work.refused.examples]
        return work, ""
    except NoJobsError as error:
        # in a queue where nothing has started yet, for one
        return _nobody(), str(error).removeprefix(f"{label(path)}: ")
    except AdapterError as error:
        raise AdapterError(f"{error}; {_INSTEAD}", retry=error.retry) from None


def _read(path: str, settings: Config, ask: Ask, show: Show) -> Workload:
    from tias_slurm.cli.dry_run import Reading
    from tias_slurm.slurm.history import read_history

    return read_history(
        [path],
        zone=settings.zone(),
        cluster=ask.cluster,
        keep_nodes=True,
        keep_ids=True,
        between=(ask.since, ask.until),
        progress=Reading([path], show),
    )


def _nobody() -> Workload:
    """A history without a job."""
    import pandas as pd

    from tias_slurm.replay.workload import COLUMNS, ID_COLUMNS, Refusals, Workload

    kinds = {name: kind for name, (kind, _) in {**COLUMNS, **ID_COLUMNS}.items()}
    table = pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in kinds.items()})
    return Workload(table, False, 1, 0, Refusals())


def _nodes(settings: Config, ask: Ask, work: Workload) -> NodeSet:
    from tias_slurm.slurm import nodes
    from tias_slurm.slurm.accounting import live_nodes

    if ask.nodes is not None:
        return nodes.read_nodes(ask.nodes, work.jobs)
    if ask.export is not None:
        return nodes.infer(work.jobs, settings.gpus.weights)
    return live_nodes(settings.daemon.rpc_timeout_s, work.jobs)
