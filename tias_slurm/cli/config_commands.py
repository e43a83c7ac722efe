"""`check-config` and `show-config`: is the settings file good, and which values hold and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tias_slurm.config import DEFAULT_PATH, Config, Setting, load_config, machine_zone
from tias_slurm.errors import printable
from tias_slurm.lua_settings import lua_differs, lua_settings
from tias_slurm.policy.tias import preset
from tias_slurm.slurm.checks_live import judge
from tias_slurm.slurm.finding import Finding
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.probes import probe

PathOption = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PATH", help=f"The settings file; without it {DEFAULT_PATH}, if that is there."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ANONYMISE = "Stand-ins for users and accounts (user1, account1); what people wrote is left out."
AnonymiseOption = Annotated[bool, typer.Option("--anonymise", help=ANONYMISE)]

# what an unset value means, where no preset fills it in
_UNSET = {
    "deadlines.max_window_s": "no limit",
    "lever.span": "strict levels",
}


def check_config(
    config: PathOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also ask the running Slurm whether it lets the daemon work.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a settings file: every key known, every value of the right type and in range.

    Prints what the file sets, which lines of one for an older version to change, and whether the settings of
    the submit script tias.lua on this machine differ; ends with exit code 2
    and one line per problem if it is wrong. With --live, best as the account of the daemon: rights, lever,
    slurm.conf, versions, state directory; exit code 1 if something there keeps the daemon from working.
    Changes nothing.

    Example: tias-slurm check-config --live --config /etc/tias-slurm/config.toml
    """
    loaded = load_config(config)
    path = config if config is not None else DEFAULT_PATH
    absent = config is None and not os.path.exists(DEFAULT_PATH)
    given = [row.key for row in loaded.show() if row.origin != "default"]
    lua = lua_differs(loaded.deadlines, machine_zone().key)
    notes = [*loaded.notes, *([lua] if lua else [])]
    findings = _ask(loaded) if live else []
    if as_json:
        found = {"findings": [asdict(f) for f in findings]} if live else {}
        path_ = None if absent else path
        _print_json({"valid": True, "path": path_, "set": given, "notes": notes, **found})
    elif absent:
        typer.echo(f"{path} does not exist: the built-in defaults hold")
    else:
        typer.echo(f"{printable(path, 300)}: valid, {len(given)} setting{'s' * (len(given) != 1)}")
        for note in notes:
            typer.echo(f"to change: {note}")
    if live and not as_json:
        _print_findings(findings)
    if any(f.severity == "error" for f in findings):
        raise typer.Exit(1)


def _ask(config: Config) -> list[Finding]:
    try:
        facts, probes = probe(config)
    except AdapterError as error:
        how = "is slurmctld up, and are slurm.conf and munge in place here?"
        return [
            Finding("controller", "error", printable(str(error), 300), "nothing else can be checked", how)
        ]
    return judge(config, facts, probes)


def _print_findings(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "check"):
        table.add_column(heading, no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    colour = {"ok": "green", "warning": "yellow", "error": "red"}
    for f in findings:
        words = Text(printable(f.what, 300))
        if f.why:
            words.append(f"\n{printable(f.why, 300)}", style="dim")
        if f.do:
            words.append(f"\n-> {printable(f.do, 300)}")
        table.add_row(Text(f.severity, style=colour[f.severity]), Text(f.check), words)
    console.print(table)
    counts = Counter(f.severity for f in findings)
    console.print(f"errors: {counts['error']}, warnings: {counts['warning']}, ok: {counts['ok']}")


def show_config(
    config: PathOption = None,
    as_json: JsonOption = False,
    as_lua: Annotated[
        bool,
        typer.Option("--lua", help="Print [deadlines] as the settings of the job_submit script tias.lua."),
    ] = False,
) -> None:
    """Show every setting: the value that holds, where it comes from, what it means.

    The origin is the settings file, a preset, or "default" for what is built in.

    Example: tias-slurm show-config --json
    """
    if as_lua:
        if as_json:
            raise typer.BadParameter("one of --json and --lua, not both")
        typer.echo(lua_settings(load_config(config).deadlines, machine_zone().key), nl=False)
        return
    rows = effective(load_config(config))
    if as_json:
        _print_json({"settings": [row._asdict() for row in rows]})
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for heading in ("value", "from"):
        table.add_column(heading, overflow="fold")
    table.add_column("meaning", overflow="fold", style="dim")
    section = ""
    for row in rows:
        if section and row.key.split(".")[0] != section:
            table.add_row()
        section = row.key.split(".")[0]
        value = _UNSET.get(row.key, "") if row.value is None else _toml(row.value)
        table.add_row(*(Text(printable(cell, 300)) for cell in (row.key, value, row.origin, row.description)))
    console.print(table)


def effective(config: Config) -> list[Setting]:
    """The settings as they hold: what the file leaves to the preset has the preset's value and says so."""
    base = preset(config.policy.preset)
    rows = []
    for row in config.show():
        section, name = row.key.split(".")
        if section == "policy" and row.value is None:
            value = getattr(base, name)
            origin = f"preset {config.policy.preset}"
            row = row._replace(value=list(value) if isinstance(value, tuple) else value, origin=origin)
        rows.append(row)
    return rows


def _toml(value: Any) -> str:
    """A value as one would write it in the file."""
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
