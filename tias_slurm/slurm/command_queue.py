"""The queue as squeue(1) prints it: the format that we ask for, and its text as a RawTable. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tias_slurm.gpu_weights import times
from tias_slurm.jobs import Floats, Ints
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN, RawTable, Texts
from tias_slurm.slurm.requests import whole_nodes
from tias_slurm.slurm.values import Memo, parse_count, parse_duration, parse_gres, parse_tres

# squeue(1) "--Format". What users write freely comes last.
FIELDS: Final = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "SubmitTime",
    "EligibleTime", "StartTime", "EndTime", "exit_code", "TimeUsed", "TimeLimit", "PriorityLong",
    "Nice", "NumNodes", "NumCPUs", "NumTasks", "Requeue", "BatchFlag", "RestartCnt", "Deadline",
    "CronJob", "OverSubscribe", "Exclusive",
    "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task",
    "UserName", "Account", "QOS", "Partition", "NodeList", "Reason", "Comment",
)  # fmt: skip
_BETWEEN: Final = "\x1f"
_TASK_ITEM: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_MOST_TASKS: Final = 4_000_001  # slurm.conf(5) MaxArraySize
_TASK: Final = FIELDS.index("ArrayTaskID")
_NOTHING: Final = frozenset({"", "N/A", "(null)", "None", "NONE", "Unknown"})
# Of a state with a flag squeue prints the flag alone. The base states that these flags stand for:
_BASE: Final = {
    "CONFIGURING": "RUNNING", "EXPEDITING": "PENDING", "LAUNCH_FAILED": "PENDING", "POWER_UP_NODE": "RUNNING",
    "RECONFIG_FAIL": "PENDING", "REQUEUED": "PENDING", "REQUEUE_FED": "PENDING", "REQUEUE_HOLD": "PENDING",
    "RESIZING": "RUNNING", "RESV_DEL_HOLD": "PENDING", "SIGNALING": "RUNNING", "SPECIAL_EXIT": "PENDING",
    "STOPPED": "RUNNING",
}  # fmt: skip
# and those that leave it open
_OPEN: Final = frozenset({"COMPLETING", "REVOKED", "STAGE_OUT", "UPDATE_DB"})
_BY_REASON: Final = {
    "DeadLine": "DEADLINE", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY", "TimeLimit": "TIMEOUT",
}  # fmt: skip
# slurm.h: NO_VAL and INFINITE
_NO_VAL: Final = 2**32 - 2


def format_option(fields: Sequence[str], token: str) -> str:
    """The value of squeue's --Format. `token`: a word that nobody can have put into a comment beforehand.

    Fields are divided by a control character, records end with the token: a comment comes last in its record,
    so whatever it holds, line breaks and dividers too, neither adds a field nor ends a record.
    """
    ends = [_BETWEEN] * (len(fields) - 1) + [f"\x1e{token}"]
    return ",".join(f"{name}:{end}" for name, end in zip(fields, ends, strict=True))


def unknown_fields(error_text: str, fields: Sequence[str]) -> set[str]:
    """The fields that this squeue does not have, by what it said on standard error."""
    return set(re.findall(r"Invalid job format specification: (\S+)", error_text)) & set(fields)


def parse_queue(
    raw: bytes, token: str, begin: float, end: float, ahead: float = 0.0, fields: Sequence[str] = FIELDS
) -> RawTable:
    """The table out of what `squeue --array` printed between `begin` and `end` of our clock, epoch s.

    `ahead`: the controller's clock minus ours, s. `fields`: those asked for, in the order of FIELDS; a job
    has "N/A" in the others. Records that cannot be read are left out and counted.
    """
    # undecodable bytes never swallow the ASCII that follows, so dividers stay whole
    records = raw.decode("utf-8", "replace").split(f"\x1e{token}\n")
    refused = int(bool(records.pop().strip()))
    missing = [at for at, name in enumerate(FIELDS) if name not in fields]
    rows: dict[int, list[str]] = {}
    tasks: dict[int, list[str]] = {}
    for record in records:
        values = record.split(_BETWEEN, len(fields) - 1)
        number = values[0]
        if len(values) != len(fields) or not (number.isascii() and number.isdigit() and len(number) < 12):
            refused += 1
            continue
        # a record of several waiting tasks comes once for each of them
        tasks.setdefault(int(number), []).append(values[_TASK])
        if len(tasks[int(number)]) == 1:
            for at in missing:
                values.insert(at, "N/A")
            rows[int(number)] = values
    for number_, several in tasks.items():
        if len(several) > 1:
            rows[number_][_TASK] = ranges(int(t) for t in several if t.isascii() and t.isdigit())
    ids = sorted(rows)
    columns = zip(*(rows[i] for i in ids), strict=True) if ids else ((),) * len(FIELDS)
    said: dict[str, Sequence[str]] = dict(zip(FIELDS, columns, strict=True))
    return _table(said, ids, begin, end, ahead, refused)


def ranges(numbers: Iterable[int]) -> str:
    """Task ids as squeue(1) writes them: `0-3,5,7-9`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def tasks_of(text: str) -> set[int]:
    """The task ids of `0-3,5`, `1-9:2` or `[0-3%2]`. ValueError: no such list."""
    found: set[int] = set()
    for item in text.strip("[]").partition("%")[0].split(","):
        match = _TASK_ITEM.fullmatch(item)
        if match is None:
            raise ValueError("not a list of tasks")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not 0 <= high - low <= _MOST_TASKS or step < 1:
            raise ValueError("not a list of tasks")
        found.update(range(low, high + 1, step))
    return found


def doubtful(table: RawTable) -> list[int]:
    """Waiting array records whose tasks `squeue --array` may not have listed in full.

    It leaves the last task out where they follow each other by a step (`1-9:2`), on all releases tried.
    """
    whole = (table.array_id == table.job_id) & (table.array_id > 0)
    return [
        int(table.job_id[row])
        for row in np.flatnonzero(whole).tolist()
        if table.state[row] == "PENDING" and "-" not in table.array_task[row]
    ]


TASKS_FORMAT: Final = f"JobID:{_BETWEEN},ArrayTaskID:"


def with_tasks(table: RawTable, raw: bytes, ids: Iterable[int]) -> RawTable:
    """The table with the tasks of these records as squeue without --array prints them, by TASKS_FORMAT.

    It counts waiting tasks that have a record of their own too, so these are taken off.
    """
    said = dict(
        line.split(_BETWEEN, 1) for line in raw.decode("utf-8", "replace").split("\n") if _BETWEEN in line
    )
    task = list(table.array_task)
    for number in ids:
        row = int(np.searchsorted(table.job_id, number))
        text = said.get(str(number), "").strip().partition("%")[0]
        try:
            tasks = tasks_of(text)
        except ValueError:
            continue  # it has ended in the meantime
        others = np.flatnonzero((table.array_id == number) & (table.job_id != number)).tolist()
        own = {int(task[at]) for at in others if task[at].isascii() and task[at].isdigit()}
        if tasks - own:
            task[row] = text if not tasks & own else ranges(tasks - own)
    return replace(table, array_task=task)


def _table(
    said: dict[str, Sequence[str]], ids: list[int], begin: float, end: float, ahead: float, refused: int
) -> RawTable:
    task = _texts(said["ArrayTaskID"])
    used = _numbers(said["TimeUsed"], _duration)
    start = _numbers(said["StartTime"], _time)
    ends = _numbers(said["EndTime"], _time)
    state, flags = _states(said, start, ends, used)
    asked = [
        _asked(*row)
        for row in zip(
            *(said[x] for x in FIELDS if x.startswith("tres-")),
            said["NumNodes"],
            said["NumTasks"],
            said["NumCPUs"],
            strict=True,
        )
    ]
    return RawTable(
        time=(begin + end) / 2 + ahead,
        job_id=np.array(ids, dtype=np.int64),
        array_id=np.where([t != "" for t in task], _ints(said["ArrayJobID"]), 0).astype(np.int64),
        array_task=[t.partition("%")[0] for t in task],
        het_id=_ints(said["HetJobID"]),
        het_offset=_ints(said["HetJobOffset"]),
        user=_texts(said["UserName"]),
        account=_texts(said["Account"]),
        qos=_texts(said["QOS"]),
        partition=_texts(said["Partition"]),
        state=state,
        flags=flags,
        reason=[r if r not in _NOTHING else "None" for r in said["Reason"]],
        submit=_numbers(said["SubmitTime"], _time),
        eligible=_numbers(said["EligibleTime"], _time),
        start=start,
        end=ends,
        suspended_s=_suspended(state, start, ends, used, begin, end),
        time_limit_s=_numbers(said["TimeLimit"], _limit),
        priority=_ints(said["PriorityLong"], _priority),
        nice=_ints(said["Nice"], _nice),
        gpus=np.array([a.gpus for a in asked], dtype=np.int64),
        gpu_type=[a.gpu_type for a in asked],
        cpus=np.array([a.cpus for a in asked], dtype=np.int64),
        mem_mb=np.array([a.mem_mb for a in asked], dtype=np.float64),
        nodes=_ints(said["NumNodes"]),
        node_list=_texts(said["NodeList"]),
        requeue=np.array([r == "1" for r in said["Requeue"]], dtype=np.bool_),
        batch=np.array([b == "1" for b in said["BatchFlag"]], dtype=np.bool_),
        restarts=_ints(said["RestartCnt"]),
        comment=[c if c != "(null)" else "" for c in said["Comment"]],
        native_deadline=_numbers(said["Deadline"], _time),
        cron=np.array([c == "Yes" for c in said["CronJob"]], dtype=np.bool_),
        refused=refused,
        shards=np.array([a.shards for a in asked], dtype=np.int64),
        exclusive=np.array(
            [whole_nodes(*two) for two in zip(said["OverSubscribe"], said["Exclusive"], strict=True)],
            dtype=np.bool_,
        ),
    )


def _states(said: dict[str, Sequence[str]], start: Floats, ends: Floats, used: Floats) -> tuple[Texts, Texts]:
    """Base states, and the flag that hides one."""
    state, flags = list(said["State"]), [""] * len(used)
    for row, word in enumerate(state):
        if word in _OPEN:
            # a job that was requeued waits again and has used no time, although it keeps its start
            waits = math.isnan(ends[row]) or (used[row] == 0 and ends[row] > start[row])
            state[row] = "PENDING" if waits else _ended(word, said["Reason"][row], said["exit_code"][row])
        elif word in _BASE:
            state[row] = _BASE[word]
        else:
            continue
        flags[row] = word
    return state, flags


def _ended(flag: str, reason: str, exit_code: str) -> str:
    """How a job ended that is not clean yet.

    exit_code: status and signal as `3:0`; on older releases the number of wait(2).
    """
    status, colon, signal = exit_code.partition(":")
    code, killed = _int(status), _int(signal)
    if not colon:
        code, killed = code >> 8, code & 0x7F
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if flag == "REVOKED" or killed:
        return "CANCELLED"
    return "FAILED" if code else "COMPLETED"


def _suspended(state: Texts, start: Floats, ends: Floats, used: Floats, begin: float, end: float) -> Floats:
    """Seconds since the start that were not used. squeue counts up to its own whole second as it prints."""
    running = np.array([s in ("RUNNING", "SUSPENDED") for s in state], dtype=np.bool_)
    ended = np.array([s not in ("RUNNING", "SUSPENDED", "PENDING") for s in state], dtype=np.bool_)
    until = np.where(running, (begin + end) / 2, np.where(ended, ends, np.nan))
    gap = np.nan_to_num(until - start - used)
    slack = np.where(running, (end - begin) / 2 + 1.0, 0.0)
    return np.where(gap > slack, np.floor(gap), 0.0)


class _Asked(NamedTuple):
    gpus: int
    gpu_type: str
    cpus: int
    mem_mb: float
    shards: int


@lru_cache(maxsize=16384)
def _asked(
    tres: str, per_job: str, per_node: str, per_socket: str, per_task: str, nodes: str, tasks: str, cpus: str
) -> _Asked:
    """What a job holds or asks for.

    TRES counts GPUs where AccountingStorageTRES has gres/gpu; where not, what was asked for per job, node,
    socket (one to a node is taken) or task does.
    """
    try:
        said = parse_tres(tres)
        gpus, kind = said.gpus, said.gpu_type
        cpu, mem, shards = said.cpus, said.mem_mb, said.shards
    except ValueError:
        gpus, kind, cpu, mem, shards = math.nan, "", math.nan, math.nan, math.nan
    for text, each in ((per_job, "1"), (per_node, nodes), (per_socket, nodes), (per_task, tasks)):
        if text in _NOTHING:
            continue
        try:
            count, typed, _ = parse_gres(text)
            pieces, _, _ = parse_gres(text, "shard")
        except ValueError:
            continue
        often = max(1, _int(each))
        if pieces > 0 and math.isnan(shards):
            shards = pieces * often
        if count > 0 and math.isnan(gpus):
            gpus = count * often
        kind = kind or times(typed, often)  # TRES may count GPUs of all types only
    return _Asked(
        gpus=0 if math.isnan(gpus) else int(gpus),
        gpu_type=kind,
        cpus=_int(cpus) if math.isnan(cpu) else int(cpu),
        mem_mb=0.0 if math.isnan(mem) else mem,
        shards=0 if math.isnan(shards) else int(shards),
    )


# ---- single values: never raise ----

_PLAIN: Final = re.compile(r"-?\d{1,18}", re.ASCII)


def _int(text: str) -> int:
    """A count, 0 where there is none. A range such as 2-4 (nodes of a waiting job) counts as its least."""
    text = text.partition("-")[0]
    try:
        value = parse_count(text) if text not in _NOTHING else 0.0
    except ValueError:
        return 0
    return int(value) if math.isfinite(value) else 0


def _signed(text: str, unknown: int) -> int:
    return int(text) if _PLAIN.fullmatch(text) else unknown


def _nice(text: str) -> int:
    value = _signed(text, NICE_UNKNOWN)
    return value if abs(value) < 2**31 else NICE_UNKNOWN


def _priority(text: str) -> int:
    value = _signed(text, PRIORITY_UNKNOWN)
    return value if 0 <= value < _NO_VAL else PRIORITY_UNKNOWN


def _time(text: str) -> float:
    value = _signed(text, 0)
    return float(value) if value > 0 else math.nan


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return math.nan


def _limit(text: str) -> float:
    return _duration(text) if text != "NOT_SET" else math.nan


def _numbers(texts: Sequence[str], parse: Callable[[str], float]) -> Floats:
    memo: Memo[float] = Memo(parse)
    return np.array([memo[t] for t in texts], dtype=np.float64)


def _ints(texts: Sequence[str], parse: Callable[[str], int] = _int) -> Ints:
    memo: Memo[int] = Memo(parse)
    return np.array([memo[t] for t in texts], dtype=np.int64)


def _texts(texts: Sequence[str]) -> Texts:
    return ["" if t in _NOTHING else t for t in texts]
