"""The commands of `tias-slurm`, put together."""

from __future__ import annotations

from typing import Annotated

import typer

import tias_slurm
from tias_slurm.cli.config_commands import check_config, show_config
from tias_slurm.cli.dry_run import dry_run
from tias_slurm.cli.explain import explain
from tias_slurm.cli.hands import ignore, pause, resume, unignore
from tias_slurm.cli.history import history
from tias_slurm.cli.live import once, plan, restore
from tias_slurm.cli.live import run as run_daemon
from tias_slurm.cli.report import report
from tias_slurm.cli.status import status

app = typer.Typer(
    name="tias-slurm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Deadlines and short completion times side by side on a Slurm GPU cluster.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tias-slurm {tias_slurm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exit codes: 0 done, 1 something inside failed, 2 the input or the command line cannot be used."""


app.command("dry-run")(dry_run)
app.command("run")(run_daemon)
app.command("once")(once)
app.command("plan")(plan)
app.command("status")(status)
app.command("explain")(explain)
app.command("history")(history)
app.command("report")(report)
app.command("pause")(pause)
app.command("resume")(resume)
app.command("ignore")(ignore)
app.command("unignore")(unignore)
app.command("restore")(restore)
app.command("check-config")(check_config)
app.command("show-config")(show_config)


def run() -> int:
    """Run the command that sys.argv names and return its exit code; errors are raised, not printed."""
    code = app(prog_name="tias-slurm", standalone_mode=False)
    return code if isinstance(code, int) else 0
