"""The live adapters that the contract tests run with, by name. Called with the time limit of a call, s."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import Adapter
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter


def commands(limit_s: float) -> Adapter:
    return CommandsAdapter(limit_s)


def pyslurm(limit_s: float) -> Adapter:
    return PyslurmAdapter(CommandsAdapter(limit_s), allow_version_mismatch=True, call_limit_s=limit_s)


ADAPTERS: dict[str, Callable[[float], Adapter]] = {"commands": commands}
if importlib.util.find_spec("pyslurm") is not None:
    ADAPTERS["pyslurm"] = pyslurm
