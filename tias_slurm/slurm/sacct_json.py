"""Reads `sacct --json` (slurmdbd) and `squeue --json` (slurmctld) documents of Slurm 21.08 to 26.05."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tias_slurm.errors import InputError
from tias_slurm.gpu_weights import times
from tias_slurm.slurm import values
from tias_slurm.slurm.files import Progress, blocks, label
from tias_slurm.slurm.records import Raw, Reader, texts

MOST_BYTES = 1 << 31  # of one document; text has no such limit
CHUNK = 20_000
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def read_json(reader: Reader, path: str, *, how: str, progress: Progress | None = None) -> Iterator[Raw]:
    """The job records of one file; `line` is the place in jobs[], from 1.

    Refuses and counts what cannot be read. Raises InputError where the file holds no list of jobs.
    """
    name = label(path)
    text = b"".join(blocks(path, progress, limit=MOST_BYTES)).decode("utf-8", "replace").lstrip("\ufeff")
    reader.names.append(frozenset(_ALL))
    clock = _last_update(text)
    rows: list[dict[str, Any]] = []
    count = 0
    for job in _jobs(text, name, how):
        count += 1
        reader.rows += 1
        if isinstance(job, _Cut):
            reader.refused.add(name, count, "the document ends here (cut file)")
            continue
        try:
            if not isinstance(job, dict):
                raise ValueError("not a job record")
            steps = job.get("steps")
            if isinstance(steps, list):
                reader.rows += len(steps)
                reader.left_out["steps"] += len(steps)
            rows.append({**_row(reader, job, clock), "line": count})
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as e:
            shown = job.get("job_id", "") if isinstance(job, dict) else job
            reason = str(e.args[0]) if isinstance(e, ValueError) and e.args else "not a job record"
            reader.refused.add(name, count, reason, str(shown)[:200])
        if len(rows) >= CHUNK:
            yield _records(rows)
            rows = []
    yield _records(rows)


# every column that an export may lack is there in JSON
_ALL = frozenset(
    [
        "jobid",
        "jobidraw",
        "comment",
        "submitline",
        "user",
        "timelimit",
        "eligible",
        "elapsed",
        "partition",
        "cluster",
        "account",
        "qos",
    ]
)


class _Cut:
    """The document ends within the list of jobs."""


def _skip(text: str, at: int) -> int:
    m = _SPACE.match(text, at)
    return m.end() if m else at


def _jobs(text: str, name: str, how: str) -> Iterator[Any]:
    """The members of the list `jobs` of each document, one at a time, so that only one is ever held.

    The last is a _Cut where the text ends, or ceases to be JSON, within the list.
    """
    at = _skip(text, 0)
    found = False
    while at < len(text):
        try:
            if text[at] != "{":
                raise json.JSONDecodeError("not an object", text, at)
            at = _skip(text, at + 1)
            while text[at : at + 1] == '"':
                key, at = _DECODER.raw_decode(text, at)
                at = _skip(text, at)
                if text[at : at + 1] != ":":
                    raise json.JSONDecodeError("no colon", text, at)
                at = _skip(text, at + 1)
                if key == "jobs" and text[at : at + 1] == "[":
                    found = True
                    at = _skip(text, at + 1)
                    while text[at : at + 1] != "]":
                        job, at = _DECODER.raw_decode(text, at)
                        yield job
                        at = _skip(text, at)
                        if text[at : at + 1] == ",":
                            at = _skip(text, at + 1)
                        elif text[at : at + 1] != "]":
                            raise json.JSONDecodeError("no comma", text, at)
                    at += 1
                else:
                    _, at = _DECODER.raw_decode(text, at)
                at = _skip(text, at)
                if text[at : at + 1] == ",":
                    at = _skip(text, at + 1)
            if text[at : at + 1] != "}":
                raise json.JSONDecodeError("no end", text, at)
            at = _skip(text, at + 1)
        except (ValueError, RecursionError) as e:
            if found:
                yield _Cut()
                return
            line = f", line {e.lineno}" if isinstance(e, json.JSONDecodeError) else ""
            raise InputError(f"{name}{line}: not a JSON document of Slurm: export with: {how}") from None
    if not found:
        raise InputError(f"{name} is JSON but has no list 'jobs', so not of sacct --json: export with: {how}")


def _last_update(text: str) -> float:
    """When slurmctld wrote the document; NaN where it does not say."""
    at = text.rfind('"last_update"')
    if at < 0:
        return math.nan
    try:
        value, _ = _DECODER.raw_decode(text, _skip(text, text.index(":", at) + 1))
        return _time(value, "last_update")
    except (ValueError, RecursionError):
        return math.nan


# ---- values ----------------------------------------------------------------------------------


def number(value: Any) -> float:
    """A number as any data_parser writes it: int, {set, infinite, number}, null, "Infinity". NaN: none;
    inf.
    """
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return math.inf
        return math.nan if value.get("set") is False else number(value.get("number"))
    if isinstance(value, str):
        low = value.strip().lower()
        if low in ("infinity", "infinite", "unlimited"):
            return math.inf
        return values.parse_count(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    if value in (4294967295, 18446744073709551615):
        return math.inf
    return math.nan if value in values.NO_VALUE else float(value)


def _time(value: Any, what: str) -> float:
    t = number(value)
    if t < 0:
        raise ValueError(f"{what}: negative time")
    if values.LAST_TIME < t < math.inf:
        raise ValueError(f"{what}: not a time")
    return t if 0 < t < math.inf else math.nan


def _duration(value: Any, what: str) -> float:
    t = number(value)
    if t < 0:
        raise ValueError(f"{what}: not a duration")
    return t if t < math.inf else math.nan


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _state(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("current")
    if isinstance(value, list):
        return values.parse_states([w for w in value if isinstance(w, str)])
    return values.parse_state(_text(value))


def _tres(items: Any) -> values.Tres:
    """A list of {type, name, id, count}, or a TRES string."""
    if isinstance(items, str):
        return values.parse_tres(items)
    untyped = cpus = mem = nodes = math.nan
    shards = math.nan
    typed: dict[str, float] = {}
    pieces: dict[str, float] = {}
    for item in items if isinstance(items, list) else ():
        kind, name, count = item.get("type"), _text(item.get("name")), number(item.get("count"))
        if count < 0:  # not known
            continue
        if kind == "gres" and name == "gpu":
            untyped = count
        elif kind == "gres" and name.startswith("gpu:"):
            typed[name[4:]] = count
        elif kind == "gres" and name == "shard":
            shards = count
        elif kind == "gres" and name.startswith("shard:"):
            pieces[name[6:]] = count
        elif kind == "cpu":
            cpus = count
        elif kind == "mem":
            mem = count
        elif kind == "node":
            nodes = count
    gpus, gpu_type = values.gpus_of(untyped, typed)
    return values.Tres(gpus, gpu_type, cpus, mem, nodes, values.gpus_of(shards, pieces)[0])


def _first(*amounts: float) -> float:
    """The first that is known."""
    return next((a for a in amounts if not math.isnan(a)), math.nan)


def _job_id(job_id: int, array: float, task: float, tasks: str, het: float, offset: float) -> str:
    if array > 0 and task >= 0:
        return f"{array:.0f}_{task:.0f}"
    if array > 0 and tasks:
        return f"{array:.0f}_[{tasks}]"
    if het > 0:
        return f"{het:.0f}+{0 if math.isnan(offset) else offset:.0f}"
    return str(job_id)


def _row(reader: Reader, job: dict[str, Any], clock: float) -> dict[str, Any]:
    """One job as the values of Raw. Raises ValueError with a reason."""
    row = _from_controller(job, clock) if "job_state" in job else _from_database(job)
    job_id = number(job.get("job_id"))
    if not 0 < job_id < 2**53 or job_id != int(job_id):
        raise ValueError("not a job id")
    alloc, asked, gres = row.pop("alloc"), row.pop("asked"), row.pop("gres")
    gpus = _first(alloc.gpus, asked.gpus, gres[0])
    shards = _first(alloc.shards, asked.shards, row.pop("gres_shards"))
    reader.said_gpu = reader.said_gpu or gpus > 0 or shards > 0
    kind = next(
        (
            k
            for g, k in ((alloc.gpus, alloc.gpu_type), (asked.gpus, asked.gpu_type), gres)
            if not math.isnan(g)
        ),
        "",
    )
    association = job.get("association")
    cluster = _text(job.get("cluster")) or _text(
        association.get("cluster") if isinstance(association, dict) else ""
    )
    row |= {
        "key": int(job_id),
        "job_id": _job_id(int(job_id), *row.pop("id")),
        "cluster": reader.intern(cluster),
        "gpus": gpus,
        "gpu_type": reader.intern(kind),
        "shards": shards,
        "cpus": _first(alloc.cpus, asked.cpus, row["cpus"]),
        "nodes": _first(alloc.nodes, asked.nodes, row["nodes"]),
        "mem_mb": _first(alloc.mem_mb, asked.mem_mb),
        "restarts": number(job.get("restart_cnt")),
        "hosts": reader.place_of(_text(job.get("nodes"))) if reader.keep_nodes else 0,
        "submit_line": _text(job.get("submit_line")),
        "native_deadline": _time(job.get("deadline"), "deadline"),
    }
    for x in ("account", "partition", "qos"):
        row[x] = reader.intern(_text(job.get(x)))
    return row


def _from_database(job: dict[str, Any]) -> dict[str, Any]:
    """A record of slurmdbd: sacct --json."""
    time, tres = job.get("time"), job.get("tres")
    if not isinstance(time, dict) or "submission" not in time:
        raise ValueError("not a job record")
    if not isinstance(tres, dict):
        raise ValueError("no TRES")
    array, het = job.get("array") or {}, job.get("het") or {}
    comment, required = job.get("comment"), job.get("required") or {}
    return {
        "id": (
            number(array.get("job_id")), number(array.get("task_id")), _text(array.get("task")),
            number(het.get("job_id")), number(het.get("job_offset")),
        ),
        "user": _text(job.get("user")),
        "state": _state(job.get("state")),
        "comment": _text(comment.get("job")) if isinstance(comment, dict) else _text(comment),
        "submit": _time(time.get("submission"), "Submit"),
        "eligible": _time(time.get("eligible"), "Eligible"),
        "start": _time(time.get("start"), "Start"),
        "end": _time(time.get("end"), "End"),
        "elapsed": _duration(time.get("elapsed"), "Elapsed"),
        "suspended": _duration(time.get("suspended"), "Suspended"),
        "time_limit": 60 * number(time.get("limit")),
        "alloc": _tres(tres.get("allocated")),
        "asked": _tres(tres.get("requested")),
        "gres": (math.nan, ""),
        "gres_shards": math.nan,
        "allocated": bool(tres.get("allocated")),
        "cpus": number(required.get("CPUs")),
        "nodes": number(job.get("allocation_nodes")),
    }  # fmt: skip


def _from_controller(job: dict[str, Any], clock: float) -> dict[str, Any]:
    """A record of slurmctld: squeue --json, scontrol show jobs --json, the REST interface."""
    state = _state(job.get("job_state"))
    start, end = _time(job.get("start_time"), "Start"), _time(job.get("end_time"), "End")
    resumed, before = (
        _time(job.get("suspend_time"), "Suspended"),
        _duration(job.get("pre_sus_time"), "Suspended"),
    )
    until = clock if state == "RUNNING" else end
    if state == "SUSPENDED":
        elapsed = before
    else:  # suspend_time is when the job was last suspended or resumed
        elapsed = until - start if math.isnan(resumed) else _first(before, 0.0) + until - resumed
    nodes = number(job.get("node_count"))
    return {
        "id": (
            number(job.get("array_job_id")), number(job.get("array_task_id")),
            _text(job.get("array_task_string")), number(job.get("het_job_id")),
            number(job.get("het_job_offset")),
        ),
        "user": _text(job.get("user_name")),
        "state": state,
        "comment": _text(job.get("comment")),
        "submit": _time(job.get("submit_time"), "Submit"),
        "eligible": _time(job.get("eligible_time"), "Eligible"),
        "start": start,
        "end": end,
        "elapsed": max(elapsed, 0.0) if state in ("RUNNING", "SUSPENDED") or elapsed > 0 else math.nan,
        "suspended": math.nan,
        "time_limit": 60 * number(job.get("time_limit")),
        "alloc": _tres(job.get("tres_alloc_str")),
        "asked": _tres(job.get("tres_req_str")),
        "gres": _controller_gres(job, nodes),
        "gres_shards": _controller_gres(job, nodes, "shard")[0],
        "allocated": bool(job.get("tres_alloc_str")),
        "cpus": number(job.get("cpus")),
        "nodes": nodes,
    }  # fmt: skip


def _controller_gres(job: dict[str, Any], nodes: float, of: str = "gpu") -> tuple[float, str]:
    """GPUs (or shards) where no TRES counts them: what the nodes gave (one text a node), else what was asked
    for."""
    given = [t for t in job.get("gres_detail") or () if isinstance(t, str)]
    if given:
        count, kind, _ = values.parse_gres(",".join(given), of)
        return (0.0 if math.isnan(count) else count), kind
    for key, each in (
        ("tres_per_job", 1.0),
        ("tres_per_node", nodes),
        ("tres_per_task", number(job.get("tasks"))),
    ):
        text = _text(job.get(key))
        if of in text:
            count, kind, _ = values.parse_gres(text, of)
            often = max(1.0, _first(each, 1.0))
            return count * often, times(kind, int(often) if often < values.MOST else 1)
    return math.nan, ""


def _records(rows: list[dict[str, Any]]) -> Raw:
    """Rows as columns."""
    if not rows:
        return Raw.empty()
    like = Raw.empty()
    columns: dict[str, Any] = {}
    for x, empty in vars(like).items():
        source = x.removesuffix("_late")
        if empty.dtype == object:
            columns[x] = texts([row[source] for row in rows])
        elif empty.dtype == np.int64:
            columns[x] = values.as_ints(np.array([row[source] for row in rows], np.float64))
        else:
            columns[x] = np.array([row[source] for row in rows], empty.dtype)
    columns["mem_mb"] = np.nan_to_num(columns["mem_mb"], nan=0.0)
    return Raw(**columns)
