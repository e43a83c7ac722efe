"""The site's own history and nodes, asked for: `sacct` over some time, and `scontrol show node`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import pandas as pd

from tias_slurm.errors import InputError, printable
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.history import FIELDS
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.node_files import nodes_of
from tias_slurm.slurm.node_set import NodeSet

# a sacct over weeks of a large site takes minutes
SACCT_S: Final = 600.0
LIVE_NODES: Final = "the running Slurm"


@contextmanager
def exported(since: float, until: float, slurm_bin: str | None = None) -> Iterator[str]:
    """The path of an export of all jobs that were there between two times (epoch s), as `dry-run` reads it.

    The file is gone afterwards. Raises AdapterError where sacct is missing, fails or does not answer.
    """
    runner = Runner(SACCT_S, slurm_bin, commands=("sacct",))
    # the commands' zone is UTC, see command_run
    start, end = (datetime.fromtimestamp(int(t), UTC).strftime("%Y-%m-%dT%H:%M:%S") for t in (since, until))
    out = _ask(
        runner, "sacct", "-a", "-D", "-X", "--parsable2", "--noconvert", "--delimiter=\x1f", "-S", start,
        "-E", end, f"--format={FIELDS}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tias-slurm-") as directory:
        path = os.path.join(directory, "sacct")
        with open(path, "wb") as file:
            file.write(out)
        yield path


def live_nodes(limit_s: float, jobs: pd.DataFrame, slurm_bin: str | None = None) -> NodeSet:
    """The nodes of the running Slurm; `jobs`: see node_files.read_nodes. Raises AdapterError, InputError."""
    runner = Runner(limit_s, slurm_bin, commands=("scontrol",))
    text = _ask(runner, "scontrol", "--oneliner", "--all", "show", "node").decode("utf-8", "replace")
    try:
        return nodes_of(text, LIVE_NODES, jobs)
    except InputError as error:
        raise InputError(f"scontrol show node: {error}") from None


def _ask(runner: Runner, *argv: str) -> bytes:
    status, out, err = runner.run(argv)
    if status:
        said = printable(" ".join(err.split()), 300) or f"exit status {status}"
        raise AdapterError(f"{argv[0]}: {said}", retry=True)
    return out
