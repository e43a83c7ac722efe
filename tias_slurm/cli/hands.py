"""`pause`, `resume`, `ignore`, `unignore`: the hands on the wheel. They work with the daemon dead."""

from __future__ import annotations

import getpass
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from tias_slurm.cli.config_commands import JsonOption, PathOption
from tias_slurm.cli.explain import JobArgument
from tias_slurm.cli.in_use import load_in_use

if TYPE_CHECKING:
    from tias_slurm.config import Config

ASK_S = 5.0  # for how long Slurm is asked about a job once the order is given
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for those who ask later.")]


def pause(reason: ReasonOption = "", config: PathOption = None, as_json: JsonOption = False) -> None:
    """Write and requeue nothing from the next write on. Jobs keep the values that they have.

    Jobs that are submitted meanwhile wait behind them. For hours, end the daemon and run restore instead.

    Example: tias-slurm pause --reason "downtime of the file system"
    """
    from tias_slurm import hands

    state_dir = _state_dir(config)
    hands.pause(state_dir, _who(), reason)
    words = "paused: nothing is written until tias-slurm resume; new jobs wait behind those that have a value"
    _say(as_json, {"paused": True}, f"{words} (for hours: end the daemon, tias-slurm restore)")


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

    name, settings = hands.job_name(job), load_in_use(config)
    state_dir = settings.daemon.state_dir
    hands.ignore(state_dir, name, _who(), reason)
    names = list(hands.ignored(state_dir))
    document = {"job": name, "ignored": True, "all": names}
    after = f"the mark stays for a job of that number; tias-slurm unignore {name} takes it away"
    _say_of_job(settings, name, as_json, document, f"{name} is ignored from now on", after)


def unignore(job: JobArgument, config: PathOption = None, as_json: JsonOption = False) -> None:
    """Take care of an ignored job again. A value that somebody gave it meanwhile stays.

    Example: tias-slurm unignore 4711
    """
    from tias_slurm import hands

    name, settings = hands.job_name(job), load_in_use(config)
    state_dir = settings.daemon.state_dir
    was = hands.unignore(state_dir, name)
    names = list(hands.ignored(state_dir))
    words = f"{name} is taken care of again" if was else f"{name} was not ignored"
    if not was and names:
        words += f"; ignored are {', '.join(names[:20])}"
    document = {"job": name, "ignored": False, "was_ignored": was, "all": names}
    _say_of_job(settings, name, as_json, document, words, "")


def _state_dir(config: str | None) -> str:
    return load_in_use(config).daemon.state_dir


def _who() -> str:
    """The account that gives the order; by sudo, who called it."""
    if user := os.environ.get("SUDO_USER"):
        return user
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _say_of_job(
    settings: Config, name: str, as_json: bool, document: dict[str, object], words: str, after: str
) -> None:
    """Say what was done, and that the job is not in the queue if Slurm answers that soon. `after`: what
    becomes of the order then."""
    if not as_json:
        typer.echo(words)
    there = _in_queue(settings, name)
    if as_json:
        typer.echo(json.dumps(document | {"in_queue": there}))
    elif there is False:
        typer.echo(f"note: no job {name} waits or runs now" + (f": {after}" if after else ""))


def _in_queue(settings: Config, name: str) -> bool | None:
    """Whether Slurm shows a job of that name that waits or runs; None: it does not say."""
    import numpy as np

    from tias_slurm import hands
    from tias_slurm.cli.look import adapter_of
    from tias_slurm.cli.lookup import find
    from tias_slurm.errors import InputError
    from tias_slurm.jobs import ACTIVE_STATES
    from tias_slurm.slurm.live import AdapterError

    try:
        adapter = adapter_of(settings, ASK_S)
        try:
            raw = adapter.jobs()
        finally:
            adapter.close()
        at = np.flatnonzero(hands.named((name,), raw)).tolist()
        if "_" in name and not at:
            # a task that waits has no record of its own
            row, _ = find(raw, name)
            at = [] if row is None else [row]
    except (InputError, AdapterError):
        return None
    return any(raw.state[row] in ACTIVE_STATES for row in at)


def _say(as_json: bool, document: dict[str, object], words: str) -> None:
    typer.echo(json.dumps(document) if as_json else words)
