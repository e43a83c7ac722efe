"""Public traces as a Workload: CSV with named columns, and the Standard Workload Format (SWF)."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from tias_slurm.errors import InputError, printable
from tias_slurm.replay.wording import plural
from tias_slurm.replay.workload import COLUMNS, Refusals, Workload
from tias_slurm.slurm.files import ROOM, LineBlock, Progress, label, line_blocks, peek
from tias_slurm.slurm.values import LONGEST_RUN, TOO_LONG

REQUIRED: Final = ("job_id", "submit_time", "duration", "num_gpu")
OPTIONAL: Final = ("deadline", "user", "partition", "time_limit", "best_effort", "num_cpu")
UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
MAX_SECONDS: Final = 253_402_300_800.0  # the year 10000
MAX_COUNT: Final = 10_000_000  # GPUs or CPUs of one job
_TRUE: Final = frozenset({"1", "1.0", "true", "t", "yes", "y"})
_FALSE: Final = frozenset({"", "0", "0.0", "false", "f", "no", "n"})


class _BadError(Exception):
    """Internal: a row is refused. The arguments are the reason (of a fixed set) and what stood there."""


@dataclass(slots=True)
class _Job:
    """One good row. Times in seconds of the trace's own clock."""

    job_id: str
    submit: float
    duration: float
    gpus: int
    deadline: float = math.nan
    voided: bool = False  # best effort, with a deadline that therefore does not count
    user: str = ""
    partition: str = ""
    time_limit: float = math.nan
    cpus: int = 0


def read_trace(
    paths: Sequence[str],
    *,
    columns: str | None = None,
    time_unit: str = "s",
    progress: Progress | None = None,
) -> Workload:
    """Read traces, CSV or SWF by content.

    `columns`: other names for the columns, as in "submit_time=submission_time,deadline=+expect_time":
    a "+" before the name of a deadline column says that it counts from the submit. `time_unit`: of all
    times of the trace: ms, s, m, h or d. `progress` gets the bytes taken since its last call.

    The Workload has the column `deadline` (seconds of the trace's own clock, NaN: none) besides COLUMNS;
    start and end are NaN, state is COMPLETED. replay.claims checks the deadlines. Rows without GPUs are
    left out and counted, bad rows and doubled ids refused. Raises InputError on a file that is no trace.
    """
    names = _mapping(columns)
    unit = UNITS.get(time_unit.strip().lower())
    if unit is None:
        raise InputError(f"--time-unit {printable(time_unit)}: not a unit of time; write ms, s, m, h or d")
    work = Workload(pd.DataFrame(), is_trace=True, files=len(paths), rows=0, refused=Refusals())
    jobs: list[_Job] = []
    seen: set[str] = set()
    for path in paths:
        reader = _swf_rows if _is_swf(path) else _csv_rows
        for line, row in reader(path, names, unit, work, progress):
            if isinstance(row, _BadError):
                work.refused.add(label(path), line, *row.args)
            elif row.gpus == 0:
                work.left_out["no GPUs"] += 1
            elif row.job_id in seen:
                work.refused.add(label(path), line, "job id seen before", row.job_id)
            else:
                seen.add(row.job_id)
                jobs.append(row)
    if not jobs:
        first = f" (the first: {work.refused.examples[0].reason})" if work.refused.examples else ""
        raise InputError(
            f"{', '.join(label(p) for p in paths)}: no job with GPUs in {work.rows} rows, "
            f"{work.refused.total} of them refused{first}; check the columns and --columns"
        )
    work.jobs = _table(jobs)
    voided = sum(job.voided for job in jobs)
    if voided:
        what = plural(voided, "deadline of a best-effort job", "deadlines of best-effort jobs")
        work.notes.append(f"{what} of the trace {'is' if voided == 1 else 'are'} void")
    return work


def _mapping(columns: str | None) -> dict[str, str]:
    """Field -> name of its column, as --columns says; a "+" stays in front of the deadline's."""
    names = {name: name for name in (*REQUIRED, *OPTIONAL)}
    given: set[str] = set()
    for part in (columns or "").split(","):
        if not part.strip():
            continue
        field, equals, name = (p.strip() for p in part.partition("="))
        if field not in names:
            close = difflib.get_close_matches(field, list(names), n=1, cutoff=0.3)
            near = f"; the nearest is {close[0]}" if close else ""
            known = ", ".join(names)
            raise InputError(
                f"--columns: {printable(field)!r} is no field of a trace{near}; known are {known}"
            )
        if not equals or not name.removeprefix("+"):
            raise InputError(f"--columns: {field} has no column; write {field}=NAME")
        if name.startswith("+") and field != "deadline":
            raise InputError(
                f"--columns: {field}=+...: only a deadline counts from the submit; leave out the +"
            )
        if field in given:
            raise InputError(f"--columns: {field} is given twice; leave one out")
        given.add(field)
        names[field] = name
    return names


def _is_swf(path: str) -> bool:
    head = peek(path).decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    first = head.partition("\n")[0].split()
    return head.startswith(";") or (len(first) == 18 and all(_is_number(word) for word in first))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


Rows = Iterator[tuple[int, "_Job | _BadError"]]


def _csv_rows(
    path: str, names: dict[str, str], unit: float, work: Workload, progress: Progress | None
) -> Rows:
    header: list[str] = []
    at: dict[str, int] = {}
    delimiter = ","
    relative = names["deadline"].startswith("+")
    for block in line_blocks(path, progress):
        for i, text in enumerate(_texts(block)):
            if not text.strip():
                continue
            if not header:
                delimiter = max(",;\t|", key=lambda c, text=text: text.count(c))  # type: ignore[misc]
                header = _fields(text, delimiter) or [text]
                at = _places(header, names, path)
                continue
            work.rows += 1
            try:
                fields = None if i in block.too_long else _fields(text, delimiter)
                if fields is None:
                    raise _BadError("not a line of CSV", text)
                if len(fields) != len(header):
                    few = len(fields) < len(header)
                    raise _BadError(f"{'fewer' if few else 'more'} fields than the header", text)
                yield block.first + i, _csv_job({f: fields[n] for f, n in at.items()}, unit, relative)
            except _BadError as bad:
                yield block.first + i, bad
    if not header:
        raise InputError(f"{label(path)}: no header line; the first line must name the columns")


def _fields(text: str, delimiter: str) -> list[str] | None:
    """One line cut into fields; None if its quotes do not match.

    Lines are cut one by one, so that a quote that is never closed spoils its own row and no other.
    """
    if '"' not in text:
        return [f.strip() for f in text.split(delimiter)]
    try:
        return [f.strip() for f in next(csv.reader([text], delimiter=delimiter, strict=True), [])]
    except csv.Error:
        return None


def _places(header: list[str], names: dict[str, str], path: str) -> dict[str, int]:
    """Field -> index of its column. Raises InputError if a needed or a named column is absent."""
    found: dict[str, int] = {}
    for field, name in names.items():
        column = name.removeprefix("+")
        if header.count(column) > 1:
            raise InputError(f"{label(path)}: two columns are called {printable(column)}; rename one")
        if column in header:
            found[field] = header.index(column)
        elif field in REQUIRED or field != name:
            have = printable(", ".join(header[:30]), 160) or "none"
            raise InputError(
                f"{label(path)}: no column {printable(column)}; the columns are {have}; "
                f"map one with --columns '{field}=NAME'"
            )
    return found


def _csv_job(row: dict[str, str], unit: float, relative: bool) -> _Job:
    job = _Job(
        job_id=row["job_id"],
        submit=_seconds(row["submit_time"], "submit time", unit),
        duration=_duration(row["duration"], unit),
        gpus=_count(row["num_gpu"], "GPUs"),
        user=row.get("user", ""),
        partition=row.get("partition", ""),
    )
    if not job.job_id:
        raise _BadError("no job id", "")
    best_effort = row.get("best_effort", "").lower()
    if best_effort not in _TRUE and best_effort not in _FALSE:
        raise _BadError("best_effort is neither true nor false", best_effort)
    if row.get("deadline"):
        job.deadline = _number(row["deadline"], "deadline") * unit + (job.submit if relative else 0.0)
        if best_effort in _TRUE:
            job.deadline, job.voided = math.nan, True
    if row.get("time_limit"):
        job.time_limit = _seconds(row["time_limit"], "time limit", unit)
    if row.get("num_cpu"):
        job.cpus = _count(row["num_cpu"], "CPUs")
    return job


def _texts(block: LineBlock) -> list[str]:
    """The lines of a block without their line breaks; bytes that are not UTF-8 are replaced."""
    data = block.data[: len(block.data) - ROOM]
    return [line.rstrip("\r") for line in data.decode("utf-8", "replace").split("\n")[:-1]]


def _swf_rows(
    path: str, names: dict[str, str], unit: float, work: Workload, progress: Progress | None
) -> Rows:
    del names  # SWF has places, no names
    for block in line_blocks(path, progress):
        for line, text in enumerate(_texts(block), block.first):
            fields = text.split()
            if not fields or fields[0].startswith(";"):
                continue
            work.rows += 1
            try:
                if len(fields) != 18:
                    raise _BadError("not 18 fields", text)
                if fields[10] in {"2", "3", "4"}:  # pieces of a job that has a line as a whole
                    work.left_out["partial run"] += 1
                elif _number(fields[3], "duration") < 0:
                    work.left_out["never ran"] += 1
                else:
                    yield line, _swf_job(fields, unit)
            except _BadError as bad:
                yield line, bad


def _swf_job(fields: list[str], unit: float) -> _Job:
    """One line of SWF: -1 is unknown; processors are taken for GPUs."""
    known = [f if f.lstrip("-") and not f.startswith("-") else "" for f in fields]
    return _Job(
        job_id=fields[0],
        submit=_seconds(fields[1], "submit time", unit),
        duration=_duration(fields[3], unit),
        gpus=_count((known[4] if known[4] not in {"", "0"} else known[7]) or "0", "GPUs"),
        time_limit=_seconds(known[8], "time limit", unit) if known[8] else math.nan,
        user=known[11],
        partition=known[15],
    )


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:  # Python reads 1_000, CSV does not
        raise _BadError(f"{what} is no number", text)
    return value


def _seconds(text: str, what: str, unit: float) -> float:
    value = _number(text, what) * unit
    if value < 0:
        raise _BadError(f"{what} is negative", text)
    if value > MAX_SECONDS:
        raise _BadError(f"{what} is out of range", text)
    return value


def _duration(text: str, unit: float) -> float:
    value = _seconds(text, "duration", unit)
    if value > LONGEST_RUN:
        raise _BadError(TOO_LONG, text)
    return value


def _count(text: str, what: str) -> int:
    value = _number(text, what)
    if value != int(value):
        raise _BadError(f"{what} are no whole number", text)
    if not 0 <= value <= MAX_COUNT:
        raise _BadError(f"{what} are out of range", text)
    return int(value)


def _table(jobs: list[_Job]) -> pd.DataFrame:
    def floats(values: list[float]) -> Any:
        return np.array(values, dtype=np.float64)

    n = len(jobs)
    submit = floats([j.submit for j in jobs])
    given: dict[str, Any] = {
        "job_id": [j.job_id for j in jobs],
        "user": [j.user for j in jobs],
        "partition": [j.partition for j in jobs],
        "state": ["COMPLETED"] * n,
        "first_submit": submit,
        "eligible": submit.copy(),
        "start": np.full(n, np.nan),
        "end": np.full(n, np.nan),
        "work": floats([j.duration for j in jobs]),
        "runs": np.ones(n, np.int64),
        "gpus": np.array([j.gpus for j in jobs], np.int64),
        "cpus": np.array([j.cpus for j in jobs], np.int64),
        "time_limit": floats([j.time_limit for j in jobs]),
        "native_deadline": np.full(n, np.nan),
    }
    empty: dict[str, Any] = {"object": "", "float64": 0.0, "int64": 0}
    columns = {
        name: pd.Series(given.get(name, [empty[dtype]] * n), dtype=dtype)
        for name, (dtype, _) in COLUMNS.items()
    }
    columns["deadline"] = pd.Series(floats([j.deadline for j in jobs]))
    return pd.DataFrame(columns)
