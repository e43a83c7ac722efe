"""Jobs by the names that Slurm's commands take."""

from __future__ import annotations

import re

import numpy as np

from tias_slurm.errors import InputError
from tias_slurm.jobs import ACTIVE_STATES, Bools, Ints
from tias_slurm.slurm.live import PRIORITY_UNKNOWN, RawTable
from tias_slurm.slurm.live_cluster import job_names
from tias_slurm.slurm.observer import helped

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


def find(raw: RawTable, name: str) -> tuple[int | None, str]:
    """The row of a job, and if there is none, why. Raises InputError where the name means several.

    A task of an array that has no record of its own is in the record of those that wait.
    """
    gone = f"no job {name} waits or runs: it may have ended, or never have been there"
    if "_" in name:
        array, task = name.split("_")
        rows = np.flatnonzero(raw.array_id == int(array)).tolist()
        hit = [r for r in rows if raw.array_task[r] == str(int(task))]
        hit = hit or [r for r in rows if _holds(raw.array_task[r], int(task))]
        return (hit[0], "") if hit else (None, gone)
    if "+" in name:
        leader, offset = map(int, name.split("+"))
        hit = np.flatnonzero((raw.het_id == leader) & (raw.het_offset == offset)).tolist()
        return (hit[0], "") if hit else (None, gone)
    hit = np.flatnonzero(raw.job_id == int(name)).tolist()
    if hit and raw.state[hit[0]] in ACTIVE_STATES:
        return hit[0], ""
    tasks = np.flatnonzero(raw.array_id == int(name)).tolist()
    tasks = [r for r in tasks if raw.state[r] in ACTIVE_STATES]
    if len(tasks) > 1:
        some = ", ".join(job_names(raw, tasks[:5]))
        raise InputError(f"{name} is an array of which {len(tasks)} tasks wait or run; name one: {some}")
    if tasks:
        return tasks[0], ""
    return (hit[0], "") if hit else (None, gone)


def _holds(text: str, task: int) -> bool:
    """Whether the tasks of a record, such as "5-9,12%4", hold a number. Slurm may cut a long list."""
    for part in text.strip("[]").partition("%")[0].split(","):
        if match := _RANGE.fullmatch(part):
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if first <= task <= last and (task - first) % max(step, 1) == 0:
                return True
    return "..." in text


def names_of(raw: RawTable, row: int) -> str:
    """What users call the job of a row: 4711, 4711_3, 4711+1."""
    if raw.het_id[row] and raw.het_offset[row]:
        return f"{int(raw.het_id[row])}+{int(raw.het_offset[row])}"
    return job_names(raw, [row])[0]


def startable(raw: RawTable, rows: Ints) -> Bools:
    """Which of the jobs in `rows` wait for nothing but nodes and their turn, ours or not. Shape (n,)."""
    able = (helped(raw.reason[r]) and raw.priority[r] != 0 for r in rows.tolist())
    return np.fromiter(able, dtype=np.bool_, count=len(rows))


def ahead(raw: RawTable, at: int) -> int | None:
    """How many jobs come before the waiting job in row `at` by the priorities that Slurm shows, of those that
    wait for nothing but nodes and their turn and may use its partitions; None: it shows none, or the job is
    held."""
    if raw.priority[at] in (0, PRIORITY_UNKNOWN):
        return None
    rows = np.flatnonzero(np.array(raw.state) == "PENDING")
    higher = raw.priority[rows] > raw.priority[at]
    higher |= (raw.priority[rows] == raw.priority[at]) & (raw.job_id[rows] < raw.job_id[at])
    rows = rows[higher]
    return int((peers(raw, rows, at) & startable(raw, rows)).sum())


def peers(raw: RawTable, rows: Ints, at: int) -> Bools:
    """Which of the jobs in `rows` may use a partition that the job in row `at` may use. Shape (n,)."""
    mine = frozenset(raw.partition[at].split(","))
    meets: dict[str, bool] = {}
    for text in {raw.partition[r] for r in rows.tolist()}:
        meets[text] = not mine.isdisjoint(text.split(","))
    return np.fromiter((meets[raw.partition[r]] for r in rows.tolist()), dtype=np.bool_, count=len(rows))
