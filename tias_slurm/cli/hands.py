"""`pause`, `resume`, `ignore`, `unignore`: the hands on the wheel. They work with the daemon dead."""

from __future__ import annotations

import getpass
import json
import os
from typing import Annotated

import typer

from tias_slurm.cli.config_commands import JsonOption, PathOption
from tias_slurm.cli.explain import JobArgument

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for those who ask later.")]


def pause(reason: ReasonOption = "", config: PathOption = None, as_json: JsonOption = False) -> None:
    """Write and requeue nothing from the next write on. Jobs keep the values that they have.

    Example: tias-slurm pause --reason "downtime of the file system"
    """
    from tias_slurm import hands

    state_dir = _state_dir(config)
    hands.pause(state_dir, _who(), reason)
    _say(as_json, {"paused": True}, "paused: nothing is written until tias-slurm resume")


def resume(config: PathOption = None, as_json: JsonOption = False) -> None:
    """Go on after a pause.

    Example: tias-slurm resume
    """
    from tias_slurm import hands

    was = hands.resume(_state_dir(config))
    _say(as_json, {"paused": False, "was_paused": was}, "resumed" if was else "it was not paused")


def ignore(
    job: JobArgument, reason: ReasonOption = "", config: PathOption = None, as_json: JsonOption = False
) -> None:
    """Leave a job alone from the next cycle on: not written, not requeued, nobody requeued for it.

    It keeps the value that it has. The number of an array or a het job means all of it.

    Example: tias-slurm ignore 4711
    """
    from tias_slurm import hands

    name, state_dir = hands.job_name(job), _state_dir(config)
    hands.ignore(state_dir, name, _who(), reason)
    names = list(hands.ignored(state_dir))
    _say(as_json, {"job": name, "ignored": True, "all": names}, f"{name} is ignored from now on")


def unignore(job: JobArgument, config: PathOption = None, as_json: JsonOption = False) -> None:
    """Take care of an ignored job again. A value that somebody gave it meanwhile stays.

    Example: tias-slurm unignore 4711
    """
    from tias_slurm import hands

    name, state_dir = hands.job_name(job), _state_dir(config)
    was = hands.unignore(state_dir, name)
    names = list(hands.ignored(state_dir))
    words = f"{name} is taken care of again" if was else f"{name} was not ignored"
    if not was and names:
        words += f"; ignored are {', '.join(names[:20])}"
    _say(as_json, {"job": name, "ignored": False, "was_ignored": was, "all": names}, words)


def _state_dir(config: str | None) -> str:
    from tias_slurm.config import load_config

    return load_config(config).daemon.state_dir


def _who() -> str:
    """The account that gives the order; by sudo, who called it."""
    if user := os.environ.get("SUDO_USER"):
        return user
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _say(as_json: bool, document: dict[str, object], words: str) -> None:
    typer.echo(json.dumps(document) if as_json else words)
