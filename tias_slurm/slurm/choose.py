"""Which live adapter to use, and why."""

from __future__ import annotations

from typing import Literal

from tias_slurm.errors import InputError
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import Adapter, AdapterError
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter, installed_pyslurm, read_versions

Backend = Literal["auto", "pyslurm", "commands"]


def choose(
    backend: Backend,
    *,
    allow_version_mismatch: bool = False,
    call_limit_s: float = 60.0,
    slurm_bin: str | None = None,
) -> tuple[Adapter, str]:
    """The adapter, and one line that says which one and why.

    "auto" takes pyslurm where it is installed, was built for the Slurm that is here, and answers; else
    Slurm's commands. `call_limit_s`: for each call, s. `slurm_bin`: directory of the commands; None: PATH.
    InputError: the backend asked for cannot work here. AdapterError: no commands, or (retry) the controller
    does not answer, so that its version is not known.
    """
    commands = CommandsAdapter(call_limit_s, slurm_bin)
    if backend == "commands":
        return commands, "commands: as set"
    if not installed_pyslurm():
        if backend == "pyslurm":
            raise InputError(
                'backend = "pyslurm": pyslurm is not installed here; install the pyslurm of your Slurm '
                'release, or set backend = "commands"'
            )
        return commands, "commands: pyslurm is not installed"
    versions = read_versions(commands, Runner(call_limit_s, slurm_bin))
    problem = versions.problem()
    if problem and not allow_version_mismatch:
        if backend == "pyslurm":
            raise InputError(
                f'backend = "pyslurm": {problem}; or set allow_version_mismatch = true, or '
                'backend = "commands"'
            )
        return commands, f"commands: {problem}"
    adapter = PyslurmAdapter(
        commands,
        allow_version_mismatch=allow_version_mismatch,
        call_limit_s=call_limit_s,
        slurm_bin=slurm_bin,
    )
    if backend == "auto":
        try:
            adapter.facts()
        except AdapterError as error:
            adapter.close()
            return commands, f"commands: {error}"
    how = f"pyslurm {versions.pyslurm} with Slurm {versions.libslurm}, controller {versions.controller}"
    return adapter, f"{how}; allow_version_mismatch: {problem}" if problem else how
