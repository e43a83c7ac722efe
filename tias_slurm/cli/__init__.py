"""The command `tias-slurm`: one module a command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import tias_slurm
from tias_slurm.cli.config_commands import check_config, show_config
from tias_slurm.cli.dry_run import dry_run
from tias_slurm.replay.workload import InputError

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
app.command("check-config")(check_config)
app.command("show-config")(show_config)


def main() -> None:
    """Run the command; errors of the input end as one line on standard error and exit code 2."""
    try:
        app()
    except InputError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        # the reader of our output is gone (head, less): nothing is left to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail("out of memory; give fewer files or a machine with more of it", 1)
    except Exception as error:
        # a fault of ours: one line for the user, the whole story for whoever mends it
        if os.environ.get("TIAS_SLURM_DEBUG"):
            raise
        what = str(error).splitlines()[0] if str(error) else ""
        _fail(f"internal error: {type(error).__name__}: {what} (TIAS_SLURM_DEBUG=1 shows where)", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    console = Console(stderr=True, soft_wrap=True)
    for line in message.splitlines():
        console.print(Text("tias-slurm: error: ", style="bold red") + Text(line))
    sys.exit(code)
