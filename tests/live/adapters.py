"""The live adapters that the contract tests run with, by name. Called with the time limit of a call, s.

TIAS_LIVE_ADAPTER names the only one to use; without it all that are there are used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import Adapter
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter


def commands(limit_s: float) -> Adapter:
    return CommandsAdapter(limit_s)


def pyslurm(limit_s: float) -> Adapter:
    return PyslurmAdapter(CommandsAdapter(limit_s), allow_version_mismatch=True, call_limit_s=limit_s)


_FOUND: dict[str, Callable[[float], Adapter]] = {"commands": commands}
if importlib.util.find_spec("pyslurm") is not None:
    _FOUND["pyslurm"] = pyslurm
_ONLY = os.environ.get("TIAS_LIVE_ADAPTER")
# a name that is not there must fail, not run nothing
ADAPTERS = {_ONLY: _FOUND[_ONLY]} if _ONLY else _FOUND
