"""pyslurm's jobs -> columns. Takes them as they come and imports nothing of pyslurm's.

pyslurm 25.11: strings are decoded strictly, flags hide the base state, 0 becomes None, counts come twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tias_slurm.gpu_weights import kinds
from tias_slurm.jobs import Floats, Ints
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN
from tias_slurm.slurm.pyslurm_pipe import Column

# in the order of a row; times are epoch s, time_limit minutes
ATTRIBUTES = (
    "id",
    "state",
    "array_id",
    "array_tasks_waiting",
    "array_task_id",
    "heterogeneous_id",
    "heterogeneous_offset",
    "user_id",
    "account",
    "qos",
    "partition",
    "state_reason",
    "submit_time",
    "eligible_time",
    "start_time",
    "end_time",
    "suspend_time",
    "pre_suspension_time",
    "time_limit",
    "priority",
    "nice",
    "tres",
    "cpus",
    "num_nodes",
    "allocated_nodes",
    "is_requeueable",
    "is_batch_job",
    "requeue_count",
    "comment",
    "deadline",
    "is_cronjob",
    "resource_sharing",
)
AT = {name: place for place, name in enumerate(ATTRIBUTES)}
_READ = attrgetter(*ATTRIBUTES)
_STATE, _TRES, _NODES = AT["state"], AT["tres"], AT["allocated_nodes"]
_ID = attrgetter("id")
# a record without these says nothing of use; the rest has a value for "unknown"
_NEEDED = frozenset(
    ("id", "state", "partition", "array_id", "heterogeneous_id", "cpus", "num_nodes", "is_cronjob")
)
_STATES = frozenset(
    (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
    )
)
_BY_REASON = {
    "TimeLimit": "TIMEOUT",
    "NodeDown": "NODE_FAIL",
    "OutOfMemory": "OUT_OF_MEMORY",
    "DeadLine": "DEADLINE",
}
_HELD_FLAGS = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


# a TRES that pyslurm fails on: only Slurm's commands can say
GPUS_UNKNOWN = -1
_UNREADABLE = object()


class UnreadableError(Exception):
    """A record that cannot be used."""


def job_columns(
    jobs: Iterable[Any], now: float, user_name: Callable[[int | None], str]
) -> tuple[dict[str, Column], int, int]:
    """Columns of a RawTable but for `time`; how many records were refused; how many texts were repaired.

    gpus is GPUS_UNKNOWN where it could not be read.
    """
    rows: list[Sequence[Any]] = []
    refused = repaired = 0
    states: list[str] = []
    flags: list[str] = []
    gpus: list[tuple[int, str]] = []
    mem: list[float] = []
    shards: list[int] = []
    for job in sorted(jobs, key=_ID):
        try:
            row: Sequence[Any] = _READ(job)
        except Exception:  # whatever a C extension may raise for one record must not cost the others
            try:
                row, count = slow_row(job)
                repaired += count
            except UnreadableError:
                refused += 1
                continue
        state, tres, flag = row[_STATE], row[_TRES], ""
        try:
            if state not in _STATES:
                state, flag = base_state(job, row, now)
            if state not in ("PENDING", "RUNNING"):
                tres = _taken(job, row[_NODES])
            taken, amount = _amounts(tres)
            pieces = shard_count(tres)
        except Exception:
            refused += 1
            continue
        rows.append(row)
        states.append(state)
        flags.append(flag)
        gpus.append(taken)
        shards.append(pieces)
        mem.append(amount)
    columns = _columns(rows, states, flags, now, user_name)
    columns["gpus"] = np.array([count for count, _ in gpus], dtype=np.int64)
    columns["gpu_type"] = [kind for _, kind in gpus]
    columns["shards"] = np.array(shards, dtype=np.int64)
    columns["mem_mb"] = np.array(mem, dtype=np.float64)
    return columns, refused, repaired


def slow_row(job: Any) -> tuple[list[Any], int]:
    """The same row, each attribute guarded; how many texts had bytes that are not UTF-8. UnreadableError."""
    row: list[Any] = []
    repaired = 0
    for name in ATTRIBUTES:
        try:
            row.append(getattr(job, name))
        except UnicodeDecodeError as error:
            # the exception holds the bytes that pyslurm could not decode
            row.append(bytes(error.object).decode("utf-8", "replace"))
            repaired += 1
        except Exception:
            if name in _NEEDED:
                raise UnreadableError(name) from None
            row.append(_UNREADABLE if name == "tres" else None)
    if row[AT["id"]] is None or row[AT["state"]] is None:
        raise UnreadableError("id")
    return row, repaired


def _taken(job: Any, nodes: str | None) -> Any:
    """What a job that has ended or is suspended has held, else what it asked for.

    Without nodes it has held nothing, whatever a controller that was started anew made of its allocation.
    """
    for name in ("allocated_tres", "requested_tres") if nodes else ("requested_tres",):
        try:
            tres = getattr(job, name)
        except Exception:
            return _UNREADABLE
        if tres is not None:
            return tres
    return None


def _amounts(tres: Any) -> tuple[tuple[int, str], float]:
    """GPUs with their type, and MB of memory."""
    if tres is None:
        return (0, ""), 0.0
    if tres is _UNREADABLE:
        return (GPUS_UNKNOWN, ""), 0.0
    memory = tres.mem
    return gpu_count(tres), 0.0 if memory is None else float(memory.count)


def gpu_count(tres: Any) -> tuple[int, str]:
    """GPUs and their types. `gpu` counts all, `gpu:a100` those of a type: never added together."""
    untyped = 0
    typed = {}
    for gres in tres.gres.values():
        name = gres.name
        if name == "gpu":
            untyped = gres.count
        elif name.startswith("gpu:"):
            typed[name[4:]] = gres.count
    total = max(untyped, sum(typed.values()))
    return total, kinds(typed, total)


def shard_count(tres: Any) -> int:
    """Shards of GPUs; `shard` counts all, `shard:a100` those of a type."""
    if tres is None or tres is _UNREADABLE:
        return 0
    untyped = typed = 0
    for gres in tres.gres.values():
        if gres.name == "shard":
            untyped = gres.count
        elif gres.name.startswith("shard:"):
            typed += gres.count
    return max(untyped, typed)


def base_state(job: Any, row: Sequence[Any], now: float) -> tuple[str, str]:
    """The base state behind a flag, and the flag: pyslurm shows one word, of the two the flag.

    How a job ended is a guess while it is COMPLETING: its exit code comes when its processes are gone.
    """
    flag, start, end = row[_STATE], row[AT["start_time"]], row[AT["end_time"]]
    if flag in _STATES:
        return flag, ""
    if flag in _HELD_FLAGS or start is None or start > now:
        return "PENDING", flag
    if flag == "CONFIGURING":
        return "RUNNING", flag
    # run_time is 0 for whatever is pending: a requeued job keeps its last start until its nodes are clean
    if end is not None and end > start and not job.run_time:
        return "PENDING", flag
    if flag not in ("COMPLETING", "STAGE_OUT", "REVOKED") and (end is None or end > now):
        return "RUNNING", flag
    reason = row[AT["state_reason"]]
    if reason in _BY_REASON:
        return _BY_REASON[reason], flag
    if job.exit_code_signal or flag == "REVOKED":
        return "CANCELLED", flag
    return ("FAILED" if job.exit_code else "COMPLETED"), flag


def floats(values: Iterable[Any]) -> Floats:
    """None is unknown: NaN."""
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def ints(values: Iterable[Any], unknown: int = 0) -> Ints:
    """Whatever is no number, as None and "UNLIMITED", is `unknown`."""
    return np.array([v if isinstance(v, int) else unknown for v in values], dtype=np.int64)


def _texts(values: Iterable[Any]) -> list[str]:
    return [v or "" for v in values]


def _columns(
    rows: list[Sequence[Any]],
    states: list[str],
    flags: list[str],
    now: float,
    user_name: Callable[[Any], str],
) -> dict[str, Column]:
    by_name = dict(zip(ATTRIBUTES, zip(*rows, strict=True) if rows else [()] * len(ATTRIBUTES), strict=True))
    het_id = ints(by_name["heterogeneous_id"])
    names = ("id", "array_id", "array_tasks_waiting", "array_task_id", "allocated_nodes", "requeue_count")
    tasks = [_task(*record) for record in zip(states, *(by_name[n] for n in names), strict=True)]
    array_id = np.where([task != "" for task in tasks], ints(by_name["array_id"]), 0).astype(np.int64)
    start, suspend = floats(by_name["start_time"]), floats(by_name["suspend_time"])
    # None stands for unlimited too
    limit_s = np.array(
        [v * 60.0 if isinstance(v, int) else math.inf for v in by_name["time_limit"]], dtype=np.float64
    )
    end = floats(by_name["end_time"])
    # without a limit Slurm gives a year from the start, which squeue does not show either
    end[np.isinf(limit_s) & (end > now)] = math.nan
    return {
        "job_id": ints(by_name["id"]),
        "array_id": array_id,
        "array_task": tasks,
        "het_id": het_id,
        # 0 comes as None and NO_VAL as a number: only a het job has an offset
        "het_offset": np.where(het_id > 0, ints(by_name["heterogeneous_offset"]), 0),
        "user": [user_name(uid) for uid in by_name["user_id"]],
        "account": _texts(by_name["account"]),
        "qos": _texts(by_name["qos"]),
        "partition": _texts(by_name["partition"]),
        "state": states,
        "flags": flags,
        "reason": [v or "None" for v in by_name["state_reason"]],
        "submit": floats(by_name["submit_time"]),
        "eligible": floats(by_name["eligible_time"]),
        "start": start,
        "end": end,
        "suspended_s": _suspended(states, start, suspend, by_name["pre_suspension_time"], now),
        "time_limit_s": limit_s,
        "priority": ints(by_name["priority"], PRIORITY_UNKNOWN),  # "UNLIMITED", None
        "nice": ints(by_name["nice"], NICE_UNKNOWN),
        "exclusive": np.array([v == "NO" for v in by_name["resource_sharing"]], dtype=np.bool_),
        "cpus": ints(by_name["cpus"]),
        "nodes": ints(by_name["num_nodes"]),
        "node_list": _texts(by_name["allocated_nodes"]),
        "requeue": np.array(by_name["is_requeueable"], dtype=np.bool_),
        "batch": np.array(by_name["is_batch_job"], dtype=np.bool_),
        "restarts": ints(by_name["requeue_count"]),
        "comment": _texts(by_name["comment"]),
        "native_deadline": floats(by_name["deadline"]),
        "cron": np.array(by_name["is_cronjob"], dtype=np.bool_),
    }


def _task(
    state: str,
    job_id: int,
    array: int | None,
    waiting: str | None,
    task: int | None,
    nodes: str | None,
    restarts: int | None,
) -> str:
    """The task or tasks of a record; task 0 comes as None."""
    if not array or waiting or task:
        return (waiting or str(task)) if array else ""
    # the record that all tasks of an array began in has none left once each was cancelled by itself
    return "0" if job_id != array or nodes or restarts or state == "PENDING" else ""


def _suspended(states: list[str], start: Floats, suspend: Floats, ran: Iterable[Any], now: float) -> Floats:
    """Seconds suspended; `suspend`: when it was last suspended or resumed, `ran`: what it had run by then."""
    before = floats(0 if v is None else v for v in ran)
    paused = np.array([state == "SUSPENDED" for state in states], dtype=np.bool_)
    waits = np.array([state == "PENDING" for state in states], dtype=np.bool_)
    until = np.where(paused, now, suspend)
    seconds = np.where(np.isnan(suspend) | waits, 0.0, until - start - before)
    return np.asarray(np.maximum(np.nan_to_num(seconds), 0.0), dtype=np.float64)
