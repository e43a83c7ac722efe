"""The commands of `tias-slurm` with their options, as --help has them: for man pages and completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from tias_slurm.cli.app import app

PROGRAM = "tias-slurm"
# what a shell can offer as a value, by option; "FILE" and "DIR": names of the file system
VALUES: dict[str, tuple[str, ...]] = {
    "--config": ("FILE",),
    "--nodes": ("FILE",),
    "--out": ("DIR",),
    "--mode": ("dry-run", "enforce"),
    "--placement": ("nodes", "count"),
    "--preemption": ("on", "off"),
    "--time-unit": ("s", "min", "h"),
}


@dataclass(frozen=True)
class Parameter:
    """An option (`names` begin with --), or an argument, whose one name is shown in capitals."""

    names: tuple[str, ...]
    value: str  # what stands for its value; "": a switch
    help: str
    default: str = ""
    optional: bool = True

    @property
    def offers(self) -> tuple[str, ...]:
        """What a shell can offer as its value."""
        return VALUES.get(self.names[0], ())


@dataclass(frozen=True)
class Command:
    """A command; `name` is empty for the program itself. `text`: paragraphs, indented where code."""

    name: str
    text: tuple[str, ...]
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]

    @property
    def summary(self) -> str:
        """The first sentence of what it does."""
        first = " ".join(self.text[0].split())
        return first.partition(". ")[0].rstrip(".")


def commands() -> list[Command]:
    """The program itself, then each command in the order of --help."""
    root: Any = typer.main.get_command(app)
    return [
        _command("", root),
        *(_command(name, one) for name, one in root.commands.items() if not one.hidden),
    ]


def _command(name: str, one: Any) -> Command:
    shown = [_parameter(p) for p in one.params if not p.hidden]
    options = [p for p in shown if p.names[0].startswith("-")]
    options.append(Parameter(("--help",), "", "Show this message and exit."))
    text = tuple(part.rstrip() for part in (one.help or "").split("\n\n") if part.strip())
    return Command(name, text, tuple(p for p in shown if not p.names[0].startswith("-")), tuple(options))


def _parameter(p: Any) -> Parameter:
    is_option = p.opts[0].startswith("-")
    switch = is_option and bool(p.is_flag)
    value = "" if switch else (p.metavar or p.name.strip("_").upper()).strip("{}[]")
    names = (*p.opts, *p.secondary_opts) if is_option else (value,)
    default = "" if switch or p.default in (None, "", ()) else str(p.default)
    return Parameter(names, value, p.help or "", default, not p.required)
