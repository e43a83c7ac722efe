"""The command run from tests, and small inputs for it."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tias_slurm.cli import main

HEADER = (
    "JobID|JobIDRaw|User|Partition|State|Submit|Eligible|Start|End|ElapsedRaw"
    "|AllocTRES|Comment|SubmitLine|Deadline"
)
T0 = 1_750_000_000


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def run(directory: Path, *arguments: object) -> Done:
    """Run the command in this process, in a directory of its own; the process keeps its signal handlers."""
    out, err = io.StringIO(), io.StringIO()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    code = None
    try:
        argv = mock.patch.object(sys, "argv", ["tias-slurm", *map(str, arguments)])
        with argv, chdir(directory), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def row(i: int, **changes: object) -> str:
    """Job i: 2 GPUs for 3,000 s, submitted 200 s after the one before it, started 10 s later."""
    submit = T0 + 200 * i
    cells: dict[str, object] = dict.fromkeys(HEADER.split("|"), "")
    cells |= {"JobID": i, "JobIDRaw": i, "User": f"u{i % 5}", "Partition": "gpu", "State": "COMPLETED"}
    cells |= {"Submit": submit, "Eligible": submit, "Start": submit + 10, "End": submit + 3010}
    cells |= {"ElapsedRaw": 3000, "AllocTRES": "cpu=4,gres/gpu=2", "SubmitLine": "sbatch x.sh"}
    cells |= {"Deadline": "Unknown", **changes}
    return "|".join(str(c) for c in cells.values())


def export(path: Path, *rows: str) -> Path:
    """Write an export with a header."""
    path.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
    return path


def write_history(directory: Path) -> Path:
    """60 jobs, every third with a deadline in its comment, every second with consent."""
    comments = ["deadline=+2h", "", "requeue=yes", "deadline=+4h,requeue=yes", "note", "requeue=yes"]
    return export(directory / "export.txt", *(row(i, Comment=comments[i % 6]) for i in range(60)))


def write_trace(directory: Path) -> Path:
    """50 jobs, every second with a deadline."""
    rows = [f"{i},{10 * i},{100 + i},{1 + i % 4},{10 * i + 400 if i % 2 else ''}" for i in range(50)]
    path = directory / "trace.csv"
    path.write_text(
        "\n".join(("job_id,submit_time,duration,num_gpu,deadline", *rows)) + "\n", encoding="utf-8"
    )
    return path
