"""The live adapter that speaks to slurmctld through pyslurm, in a worker process. See `live.Adapter`.

This side never imports pyslurm: an RPC cannot be interrupted, and libslurm may end its process.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast, get_args

import numpy as np

from tias_slurm.errors import printable
from tias_slurm.slurm.command_parse import classify
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.commands import CommandsAdapter, clamped, requeue_spelling, spelling
from tias_slurm.slurm.live import (
    AdapterError,
    Field,
    Partition,
    RawNodes,
    RawRequests,
    RawTable,
    Reservation,
    Result,
    Share,
    SiteFacts,
    WriteResult,
)
from tias_slurm.slurm.pyslurm_pipe import Column
from tias_slurm.slurm.pyslurm_process import WORKER, WorkerProcess
from tias_slurm.slurm.pyslurm_rows import GPUS_UNKNOWN

_LOG = logging.getLogger(__name__)
_RESULTS: Final = frozenset(get_args(Result))
_TEXTS: Final = frozenset(f.name for f in fields(RawTable) if f.type == "Texts")


@dataclass(frozen=True, slots=True)
class Versions:
    """The three that have to fit, as "25.11.2"; pyslurm "" if it is not installed."""

    pyslurm: str
    libslurm: str
    controller: str

    def problem(self) -> str:
        """Why they do not fit, "" if they do. pyslurm is compiled for the structs of one X.Y of libslurm.

        A controller may be newer than its clients (upgrades.html), never older.
        """
        if not self.pyslurm:
            return "pyslurm is not installed"
        if _release(self.pyslurm) != _release(self.libslurm):
            return (
                f"pyslurm {self.pyslurm} is built for Slurm {_dotted(self.pyslurm)}, here is Slurm "
                f"{self.libslurm}: install pyslurm {_dotted(self.libslurm)}.*"
            )
        if _release(self.controller) < _release(self.libslurm):
            return (
                f"the controller runs Slurm {self.controller}, older than Slurm {self.libslurm} here: "
                "upgrade the controller first"
            )
        return ""


def installed_pyslurm() -> str:
    """The version of pyslurm in this environment, without importing it; "" if there is none."""
    try:
        return importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_versions(commands: CommandsAdapter, runner: Runner) -> Versions:
    """pyslurm's, libslurm's and the controller's version; AdapterError if the controller does not answer.

    scontrol(1) stands for libslurm: both come from one build of Slurm and are upgraded together.
    """
    status, out, err = runner.run(("scontrol", "--version"))
    words = out.decode("utf-8", "replace").split()
    if status or len(words) < 2 or not _release(words[1]):
        said = printable(err or " ".join(words), 200)
        raise AdapterError(f"scontrol --version: not understood: {said}", retry=False)
    return Versions(installed_pyslurm(), words[1], commands.facts().version)


def _release(version: str) -> tuple[int, int]:
    """X.Y as numbers, (0, 0) for what is no version."""
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        return 0, 0
    return int(parts[0]), int(parts[1])


def _dotted(version: str) -> str:
    return ".".join(version.split(".")[:2])


class PyslurmAdapter:
    """Adapter by pyslurm. Slurm's commands do what it cannot, or not safely: requeues, site factors."""

    name = "pyslurm"

    def __init__(
        self,
        commands: CommandsAdapter,
        *,
        allow_version_mismatch: bool = False,
        call_limit_s: float = 60.0,
        start_limit_s: float = 90.0,
        slurm_bin: str | None = None,
        worker: Sequence[str] = WORKER,
        versions: Callable[[], Versions] | None = None,
    ) -> None:
        """Nothing is started before the first call.

        `call_limit_s`: for each request, s; longer than the MessageTimeout that libslurm itself waits.
        `start_limit_s`: for a new worker, s; libslurm looks for a slurm.conf for 60. `worker`, `versions`:
        for tests. Raises AdapterError if Slurm's commands are missing.
        """
        self._commands = commands
        self._runner = Runner(call_limit_s, slurm_bin)
        self._limit_s = call_limit_s
        self._allow = allow_version_mismatch
        self._versions = versions or (lambda: read_versions(commands, self._runner))
        self._worker = WorkerProcess(start_limit_s, self._check_versions, worker)
        self._warned = ""
        self.repaired_texts = 0  # texts of the last jobs() with bytes that are not UTF-8

    @property
    def worker(self) -> WorkerProcess:
        """The worker process."""
        return self._worker

    def _check_versions(self) -> None:
        problem = self._versions().problem()
        if not problem:
            return
        if not self._allow or problem == "pyslurm is not installed":
            raise AdapterError(f"{problem}; or use the backend commands", retry=False)
        if problem != self._warned:
            _LOG.warning("allow_version_mismatch: %s; what it reads may be wrong", problem)
            self._warned = problem

    def jobs(self) -> RawTable:
        """See Adapter. A second, small RPC reads the controller's clock.

        GPUs that pyslurm cannot count, as where AccountingStorageTRES lacks gres/gpu, are asked of squeue.
        """
        header, columns = self._ask("jobs")
        try:
            table = _table(header, columns)
        except (KeyError, TypeError, ValueError) as error:
            self._worker.end()
            raise AdapterError(f"pyslurm worker: a queue that cannot be read: {error}", retry=True) from None
        self.repaired_texts = int(header.get("repaired", 0))
        if (table.gpus == GPUS_UNKNOWN).any():
            table = with_gpus(table, self._commands.jobs())
        return table

    def nodes(self) -> RawNodes:
        """See Adapter."""
        header, columns = self._ask("nodes")
        if not header.get("tracked"):
            # AccountingStorageTRES lacks gres/gpu, so only scontrol -d knows what is in use
            return self._commands.nodes()
        said: dict[str, Any] = dict(columns)
        try:
            for name in ("partitions", "features"):
                said[name] = [frozenset(p for p in text.split(",") if p) for text in said[name]]
            return RawNodes(**said)
        except (KeyError, TypeError) as error:
            self._worker.end()
            raise AdapterError(f"pyslurm worker: nodes that cannot be read: {error}", retry=True) from None

    def facts(self) -> SiteFacts:
        """See Adapter."""
        header, _ = self._ask("facts")
        try:
            return SiteFacts(**header["facts"])
        except (KeyError, TypeError) as error:
            self._worker.end()
            raise AdapterError(f"pyslurm worker: facts that cannot be read: {error}", retry=True) from None

    def site_factors(self) -> dict[int, int]:
        """See Adapter. By sprio(1): pyslurm does not show it."""
        return self._commands.site_factors()

    def pinned(self) -> dict[int, bool]:
        """See Adapter. By sprio(1), as site_factors."""
        return self._commands.pinned()

    def write(self, job_id: int, field: Field, value: int) -> WriteResult:
        """See Adapter."""
        return self._tell("write", job_id=job_id, field=field, value=clamped(field, int(value)))

    def unpin(self, job_id: int) -> WriteResult:
        """See Adapter. A hold within the millisecond between the look and the write would be released."""
        return self._tell("unpin", job_id=job_id)

    def hold(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._tell("hold", job_id=job_id)

    def release(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._tell("release", job_id=job_id)

    def requeue(self, job_id: int) -> WriteResult:
        """See Adapter. By `scontrol requeue Incomplete`: pyslurm's own would run an ended job again."""
        seen = self._send("state", job_id=job_id)
        if not seen["ok"]:
            return _write_result(seen)
        if seen.get("state") not in ("RUNNING", "SUSPENDED"):
            pending = seen.get("state") == "PENDING"
            return WriteResult("refused" if pending else "gone", f"state {seen.get('state') or 'unknown'}")
        # a plain array id would mean all of its tasks
        name = requeue_spelling(job_id, spelling(job_id, *seen["record"]))
        try:
            status, out, err = self._runner.run(("scontrol", "requeue", "Incomplete", name))
        except AdapterError as error:
            if not error.retry:
                raise
            return WriteResult("retry", str(error))
        words = printable(" ".join((err + " " + out.decode("utf-8", "replace")).split()), 300)
        if status:
            return WriteResult(classify(words), words or f"exit status {status}")
        # success is also what scontrol says of a job that had ended and was left alone
        header = self._send("state", job_id=job_id)
        if header["ok"] and header.get("state") == "PENDING":
            return WriteResult("ok", words)
        if not header["ok"] and header.get("result") != "gone":
            return _write_result(header)
        return WriteResult("gone", f"state {header.get('state') or 'unknown'}")

    def signal(self, job_id: int, name: str) -> WriteResult:
        """See Adapter. By scancel(1): what pyslurm's own says of its success cannot be relied on."""
        return self._commands.signal(job_id, name)

    def requests(self, jobs: Sequence[int] | None = None) -> RawRequests:
        """See Adapter. By squeue(1): of GPUs per task or node, and of memory per GPU, pyslurm shows something
        else than what was asked for."""
        return self._commands.requests(jobs)

    def shares(self) -> dict[int, Share]:
        """See Adapter. By scontrol(1)."""
        return self._commands.shares()

    def reservations(self) -> list[Reservation]:
        """See Adapter. By scontrol(1)."""
        return self._commands.reservations()

    def partitions(self) -> dict[str, Partition]:
        """See Adapter. By scontrol(1)."""
        return self._commands.partitions()

    def close(self) -> None:
        """See Adapter."""
        self._worker.end()

    # ---- how it is done ----

    def _ask(self, name: str, **arguments: Any) -> tuple[dict[str, Any], Mapping[str, Column]]:
        """The answer to a question; AdapterError if there is none."""
        header, columns = self._worker.call(name, self._limit_s, **arguments)
        if not header["ok"]:
            self._after_error(header)
            failed = _write_result(header)
            raise AdapterError(f"pyslurm: {failed.message}", retry=failed.result != "no rights")
        return header, columns

    def _tell(self, name: str, **arguments: Any) -> WriteResult:
        header = self._send(name, **arguments)
        return WriteResult("ok") if header["ok"] else _write_result(header)

    def _send(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a write; a worker that failed makes one that says "retry"."""
        try:
            header, _ = self._worker.call(name, self._limit_s, **arguments)
        except AdapterError as error:
            if not error.retry:
                raise
            return {"ok": False, "result": "retry", "message": str(error), "code": 0}
        if not header["ok"]:
            self._after_error(header)
        return header

    def _after_error(self, header: Mapping[str, Any]) -> None:
        # libslurm reads slurm.conf once; a controller that moved is found by a new worker only
        if header.get("result") == "retry" and not header.get("fault"):
            self._worker.end()


def with_gpus(table: RawTable, other: RawTable) -> RawTable:
    """The table with what another one says where its GPUs are unknown: 0 where that one lacks the job too."""
    rows = np.flatnonzero(table.gpus == GPUS_UNKNOWN)
    at = np.minimum(np.searchsorted(other.job_id, table.job_id[rows]), max(len(other) - 1, 0))
    gpus, kinds, mem = table.gpus.copy(), list(table.gpu_type), table.mem_mb.copy()
    shards = np.zeros(len(table), dtype=np.int64) if table.shards is None else table.shards.copy()
    for row, place in zip(rows.tolist(), at.tolist(), strict=True):
        found = len(other) > 0 and other.job_id[place] == table.job_id[row]
        gpus[row] = other.gpus[place] if found else 0
        kinds[row] = other.gpu_type[place] if found else ""
        mem[row] = other.mem_mb[place] if found else mem[row]
        if found and other.shards is not None:
            shards[row] = other.shards[place]
    return replace(table, gpus=gpus, gpu_type=kinds, mem_mb=mem, shards=shards)


def _write_result(header: Mapping[str, Any]) -> WriteResult:
    result = header.get("result")
    known = cast(Result, result) if result in _RESULTS else "retry"
    code = header.get("code")
    return WriteResult(
        known, printable(str(header.get("message", "")), 300), code if isinstance(code, int) else 0
    )


def _table(header: Mapping[str, Any], columns: Mapping[str, Column]) -> RawTable:
    table = RawTable(time=float(header["time"]), refused=int(header["refused"]), **cast(Any, columns))
    length = len(table)
    for name, column in columns.items():
        if len(column) != length or isinstance(column, list) != (name in _TEXTS):
            raise ValueError(f"column {name}")
    if length > 1 and bool((np.diff(table.job_id) <= 0).any()):
        raise ValueError("job ids in disorder")
    return table
