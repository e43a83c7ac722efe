"""`run`, `once`, `plan`, `restore`: the commands that speak to a running Slurm."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tias_slurm import hands, logs
from tias_slurm.cli.config_commands import JsonOption, PathOption
from tias_slurm.cli.in_use import load_in_use
from tias_slurm.cli.look import Look, adapter_of, look, need_ledger
from tias_slurm.config import Config, load_config
from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import PENDING, Bools
from tias_slurm.ledger.audit import actions, reason
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.levers import shown
from tias_slurm.replay.wording import plural
from tias_slurm.restore import restore as undo
from tias_slurm.restore import summary
from tias_slurm.service.daemon import Daemon
from tias_slurm.service.start import alone, ledger_path
from tias_slurm.slurm.live_cluster import job_names
from tias_slurm.slurm.observer import in_scope
from tias_slurm.slurm.scope import given, names, splits, unknown, words
from tias_slurm.status import written

ModeOption = Annotated[
    str | None, typer.Option("--mode", metavar="MODE", help="dry-run or enforce, instead of the settings'.")
]


def run(config: PathOption = None, mode: ModeOption = None) -> None:
    """Run the daemon: one cycle every interval until SIGTERM; SIGHUP reads the settings again.

    In mode dry-run (the default) it only logs what it would write.

    Example: tias-slurm run --config /etc/tias-slurm/config.toml
    """
    daemon = _daemon(config, mode)
    try:
        daemon.open()
        daemon.run()
    finally:
        daemon.close()


def once(config: PathOption = None, mode: ModeOption = None, as_json: JsonOption = False) -> None:
    """Do one cycle, as the daemon would, and exit. Exit code 1: the controller gave no usable answer.

    Example: tias-slurm once --mode enforce
    """
    daemon = _daemon(config, mode)
    try:
        daemon.open()
        daemon.lead()
        seen = daemon.cycle()
    finally:
        daemon.close()
    if as_json:
        typer.echo(json.dumps(vars(seen)))
    else:
        said = written(seen.writes, daemon.config.daemon.mode)
        typer.echo(
            f"{seen.result}: {plural(seen.jobs, 'job')}, {seen.waiting} waiting, {said}"
            f"{f', {seen.failed} failed' if seen.failed else ''}"
        )
    if seen.result != "ok":
        raise typer.Exit(1)


def plan(config: PathOption = None, as_json: JsonOption = False) -> None:
    """Show what one cycle would write and requeue now, and why. Changes nothing, in Slurm or in the ledger.

    Example: tias-slurm plan
    """
    settings = load_config(config)
    need_ledger(settings)
    seen = look(settings, around=True)
    snapshot, ranking, made = seen.seen.snapshot, seen.seen.ranking, seen.seen.plan
    rows: list[dict[str, Any]] = []
    at = seen.observed.rows[made.write].tolist()
    for name, where, r, old, new in zip(
        job_names(seen.raw, at), at, made.write.tolist(), made.old, made.new, strict=True
    ):
        rows.append(
            {
                "job": name,
                "user": printable(seen.raw.user[where], 32),
                "gpus": int(snapshot.jobs.gpus[r]),
                "field": settings.lever.kind,
                "old": shown(old),
                "new": shown(new),
                "level": int(ranking.level[r]),
                "reason": reason(seen.cycle.policy, ranking, r, new),
            }
        )
    rows.sort(key=lambda row: (row["level"], row["job"]))
    barred, unsure = dict(seen.observed.barred), dict(seen.observed.unsure)
    warning, at_raw = seen.cycle.cluster.claims.warning, seen.observed.rows
    todo = actions(settings, seen.cycle.policy, seen.raw, at_raw, snapshot, ranking, made, warning)
    requeues = [action.said for action in todo if action.event == "requeue"]
    inside = in_scope(seen.raw, at_raw, settings.scope)
    notes = _scope_notes(settings, seen)
    if as_json:
        said = {
            "writes": rows,
            "requeues": requeues,
            "not_writable": barred,
            "no_requeue_for": unsure,
            "in_scope": int(inside.sum()),
            "scope": notes,
        }
        typer.echo(json.dumps(said))
        return
    table = Table("job", "user", "GPUs", "field", "now", "planned", "reason", title=None)
    for row in rows:
        cells = (row["job"], row["user"], row["gpus"], row["field"], row["old"], row["new"], row["reason"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    console = Console()
    console.print(table if rows else Text(_nothing(settings, seen, inside)))
    for said in requeues:
        console.print(Text(f"requeue {said['job']}, which has run for {said['run_s']} s: {said['reason']}"))
    for why, n in barred.items():
        console.print(Text(f"{plural(n, 'waiting job is', 'waiting jobs are')} left alone: {why}"))
    for why, n in unsure.items():
        console.print(
            Text(f"{plural(n, 'waiting job has', 'waiting jobs have')} nobody requeued for them: {why}")
        )
    for note in notes:
        console.print(Text(printable(note, 600)))


def _nothing(settings: Config, seen: Look, inside: Bools) -> str:
    """Why there is nothing to write. `inside` (n,): jobs of the snapshot in scope."""
    jobs = seen.seen.snapshot.jobs
    why = "every job stands where it should"
    if not len(jobs):
        why = "no job that asks for GPUs waits or runs"
    elif not inside.any():
        scope = printable(words(given(settings.scope)), 300)
        why = f"none of the {len(jobs)} jobs that ask for GPUs is in scope ([scope] {scope})"
    elif not (inside & (jobs.state == PENDING)).any():
        why = "no job in scope waits"
    elif not jobs.writable.any():
        why = "no waiting job may be written"
    return f"Nothing to write: {why}."


def _scope_notes(settings: Config, seen: Look) -> list[str]:
    """What to know of the scope: names that are wrong, jobs outside that compete with those inside."""
    parts = seen.node_partitions
    wrong = unknown(settings.scope, frozenset().union(*parts)) if parts else []
    notes = [f"[scope] names partitions that no node is in: {names(wrong)}"] if wrong else []
    return notes + [str(split) for split in splits(settings.scope, seen.cycle.lever, parts)]


def restore(config: PathOption = None, as_json: JsonOption = False) -> None:
    """Put back every value that we changed and that is still ours, also after a crash of the daemon.

    The daemon must not run. Exit code 1: something could not be put back.

    Example: tias-slurm restore
    """
    settings = load_in_use(config, {"daemon.mode": "enforce"})
    path = ledger_path(settings)
    if not hands.is_there(path):
        raise InputError(f"{path}: no ledger, so nothing of ours to restore; check [daemon] state_dir")
    with alone(settings, logs.setup(settings.daemon.log_format, "error")):
        store = SqliteStore(path)
        try:
            adapter = adapter_of(settings)
            try:
                field = store.get("lever") or settings.lever.kind
                if field not in ("nice", "site_factor", "priority"):
                    raise InputError(f"{path}: unknown lever '{printable(field)}'; is this ledger ours?")
                results = undo(adapter, store, field)  # type: ignore[arg-type]
            finally:
                adapter.close()
        finally:
            store.close()
    counts = summary(results)
    if as_json:
        jobs = [
            {"job": r.job_id, "old": shown(r.old), "new": r.new, "outcome": r.outcome, "message": r.message}
            for r in results
        ]
        typer.echo(json.dumps({"outcomes": dict(counts), "jobs": jobs}))
    else:
        for outcome, n in counts.most_common():
            typer.echo(f"{plural(n, 'job')} {outcome}")
        for r in results:
            if r.outcome != "restored":
                typer.echo(f"job {r.job_id}: {r.outcome}{f' ({r.message})' if r.message else ''}")
        if not results:
            typer.echo("nothing to restore")
    if not all(r.done for r in results):
        raise typer.Exit(1)


def _daemon(config: str | None, mode: str | None) -> Daemon:
    overrides = {"daemon.mode": mode}
    settings = load_config(config, overrides)
    return Daemon(config, overrides, logs.setup(settings.daemon.log_format, settings.daemon.log_level))
