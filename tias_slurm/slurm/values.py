"""The values in sacct's columns other than times: durations, TRES, memory, GRES, states, job ids.

Two layers: a parser of one text (raises ValueError with a short reason), and columns of texts to arrays
with a mask of what could not be read. Columns never raise on data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tias_slurm.gpu_weights import kinds
from tias_slurm.jobs import ACTIVE_STATES, ENDED_STATES, Floats, Ints

T = TypeVar("T")

NAN = math.nan
# What Slurm stores where it has no number (NO_VAL, INFINITE, in 32 and 64 bits).
NO_VALUE = frozenset({2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1, 2**64})  # 2**64: as a float has them
ABSENT = frozenset({"", "unknown", "none", "n/a", "invalid", "(null)", "null", "nan", "nat"})
LAST_TIME = 1e11  # a number beyond is no time in seconds (milliseconds, ids)
LONGEST_RUN = 10 * 365.25 * 86400.0  # seconds; a job that ran for longer is an error of the record
TOO_LONG = "run time over ten years"  # the reason for which such a record is refused

_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(\.\d+)?", re.ASCII)


# ---- durations ----


def parse_duration(text: str, unit: float = 1.0) -> float:
    """Seconds of `[D-]HH:MM:SS`, `MM:SS.mmm`, `D-HH`, or of a bare number of `unit` seconds.

    inf for UNLIMITED, NaN for what says nothing (also Partition_Limit and INVALID). Raises ValueError.
    """
    text = text.strip()
    low = text.lower()
    if low in ABSENT or low in ("partition_limit", "not_set"):
        return NAN
    if low in ("unlimited", "infinite"):
        return math.inf
    if text.startswith("-"):
        raise ValueError("negative duration")
    m = _DURATION.fullmatch(text)
    if m is None or len(text) > 30:
        raise ValueError("not a duration")
    days, a, b, c, fraction = m.groups()
    part = float(fraction or 0)
    if days is not None:  # D-HH[:MM[:SS]]
        value = int(days) * 86400 + int(a) * 3600 + int(b or 0) * 60 + int(c or 0) + part
    elif b is None:
        value = (int(a) + part) * unit
        if int(a) in NO_VALUE:
            return NAN
    elif c is None:  # MM:SS
        value = int(a) * 60 + int(b) + part
    else:
        value = int(a) * 3600 + int(b) * 60 + int(c) + part
    if value > LAST_TIME:
        raise ValueError("not a duration")
    return value


# ---- amounts ----

_AMOUNT = re.compile(r"(\d+(?:\.\d*)?)([KMGTPE]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_POWER = {c: 1024.0**i for i, c in enumerate(" KMGTPE")}
MOST_GPUS = 10_000_000
Count = float  # NaN: not said


# no cluster has more of anything that is counted
MOST = 1e15


def parse_count(text: str) -> Count:
    """A count such as `16`, `2K` (2048) or `0.00K`. NaN for nothing. Raises ValueError."""
    text = text.strip()
    if text.lower() in ABSENT:
        return NAN
    m = _AMOUNT.fullmatch(text)
    if m is None or len(text) > 30:
        raise ValueError("not a count")
    value = float(m[1]) * _POWER[m[2].upper() or " "]
    if value in NO_VALUE:
        return NAN
    if value > MOST:
        raise ValueError("not a count")
    return value


def parse_memory(text: str) -> tuple[float, str]:
    """Memory as MB and what it is per: `n` (node), `c` (CPU), or `` (the job). A bare number is MB.

    Forms: 64G, 32000M, 4Gn, 2000Mc, 65536. Raises ValueError.
    """
    text = text.strip()
    per = ""
    if text[-1:] in ("n", "c") and text[:1].isdigit():
        text, per = text[:-1], text[-1]
    if text.lower() in ABSENT:
        return NAN, ""
    m = _AMOUNT.fullmatch(text)
    if m is None or len(text) > 30:
        raise ValueError("not an amount of memory")
    return float(m[1]) * (_POWER[m[2].upper()] / 1024**2 if m[2] else 1.0), per


@dataclass(frozen=True, slots=True)
class Tres:
    """What one TRES string says. NaN: it does not say."""

    gpus: Count = NAN
    gpu_type: str = ""  # see gpu_weights.kinds
    cpus: Count = NAN
    mem_mb: float = NAN
    nodes: Count = NAN
    shards: Count = NAN  # pieces of GPUs


def gpus_of(untyped: Count, typed: dict[str, float]) -> tuple[Count, str]:
    """GPUs and their types (gpu_weights.kinds): the untyped count where there is one, else the sum of the
    typed ones; never both.
    """
    total = untyped if not math.isnan(untyped) else sum(typed.values()) if typed else NAN
    if not math.isnan(total) and (total != int(total) or not 0 <= total <= MOST_GPUS):
        raise ValueError("not a number of GPUs")
    return total, "" if math.isnan(total) else kinds(typed, total)


def parse_tres(text: str) -> Tres:
    """A TRES string: `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1`. Raises ValueError."""
    untyped, cpus, mem, nodes, shards = NAN, NAN, NAN, NAN, NAN
    typed: dict[str, float] = {}
    pieces: dict[str, float] = {}
    text = text.strip()
    if text.lower() in ABSENT:
        return Tres()
    for item in text.split(","):
        name, equals, amount = item.partition("=")
        if not equals or not name:
            raise ValueError("not a TRES list")
        if name == "gres/gpu":
            untyped = parse_count(amount)
        elif name.startswith("gres/gpu:"):
            typed[name[9:]] = parse_count(amount)
        elif name == "gres/shard":
            shards = parse_count(amount)
        elif name.startswith("gres/shard:"):
            pieces[name[11:]] = parse_count(amount)
        elif name == "cpu":
            cpus = parse_count(amount)
        elif name == "mem":
            mem = parse_memory(amount)[0]
        elif name == "node":
            nodes = parse_count(amount)
    gpus, kind = gpus_of(untyped, typed)
    return Tres(gpus, kind, cpus, mem, nodes, gpus_of(shards, pieces)[0])


def parse_gres(text: str, of: str = "gpu") -> tuple[Count, str, bool]:
    """GPUs of a GRES list (`gpu:2`, `gpu:a100:2(S:0-1)`, `PER_JOB:gpu:8`, `gres/gpu:4`): count, types,
    whether per node. `of`: of another GRES, as `shard`.

    0 for a list without a GPU; NaN for an empty text. Raises ValueError.
    """
    text = text.strip()
    if text.lower() in ABSENT:
        return NAN, "", True
    per_node = True
    untyped = NAN
    typed: dict[str, float] = {}
    for raw in re.split(r",(?![^(]*\))", text):
        item = re.sub(r"\(.*?\)", "", raw).strip()
        if m := re.match(r"PER_(NODE|JOB|SOCKET|TASK):", item):
            per_node = m[1] == "NODE"
            item = item[m.end() :]
        name, *rest = item.removeprefix("gres/").removeprefix("gres:").replace("=", ":").split(":")
        if name != of:
            continue
        # a MIG slice's type begins with a digit too
        counted = bool(rest) and len(rest[-1]) < 12 and _AMOUNT.fullmatch(rest[-1]) is not None
        amount = parse_count(rest.pop()) if counted else 1.0
        if len(rest) > 1 or (rest and (not rest[0] or rest[0].isdigit())):
            raise ValueError("not NAME:TYPE:COUNT")
        if rest:
            typed[rest[0]] = typed.get(rest[0], 0.0) + amount
        else:
            untyped = amount if math.isnan(untyped) else untyped + amount
    gpus, kind = gpus_of(untyped, typed)
    return (0.0 if math.isnan(gpus) else gpus), kind, per_node


# ---- words ----

_SHORT_STATES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "DL": "DEADLINE", "F": "FAILED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "TO": "TIMEOUT",
    "SE": "SPECIAL_EXIT", "ST": "STOPPED",
}  # fmt: skip
_ALIASES = {
    "COMPLETING": "RUNNING", "CONFIGURING": "RUNNING", "STAGE_OUT": "RUNNING", "SIGNALING": "RUNNING",
    "POWER_UP_NODE": "RUNNING", "UPDATE_DB": "RUNNING", "EXPEDITING": "PENDING", "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING", "RESV_DEL_HOLD": "PENDING", "CANCELED": "CANCELLED",
}  # fmt: skip
_FLAGS = frozenset(
    {"REQUEUED", "RESIZING", "REVOKED", "SPECIAL_EXIT", "STOPPED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
)


def parse_state(text: str) -> str:
    """The base word of a state: `CANCELLED by 1000` is CANCELLED. Raises ValueError for what is no state."""
    word = (text.split(None, 1) or [""])[0].upper().rstrip("+")
    word = _SHORT_STATES.get(word, word)
    word = _ALIASES.get(word, word)
    if word in ENDED_STATES or word in ACTIVE_STATES:
        return word
    raise ValueError("not a job state")


def parse_states(words: Sequence[str]) -> str:
    """The base word of a state given as a list of a base and flags: [PENDING, REQUEUED] is PENDING."""
    names = [w.upper() for w in words]
    for known in (ENDED_STATES | ACTIVE_STATES) - _FLAGS, _FLAGS, _ALIASES:
        for name in names:
            if name in known:
                return parse_state(name)
    raise ValueError("not a job state")


_TASKS = r"(?:_(?:\d+|\[[^\]]*\]?|\*))?(?:\+\d+)?"
JOB_ID = re.compile(r"\d+" + _TASKS, re.ASCII)
STEP_ID = re.compile(r"\d+" + _TASKS + r"\.[\w.]+(?:\+\d+)?", re.ASCII)


# ---- columns of what is said in few different texts ----


class Memo(dict[str, T | None], Generic[T]):
    """text -> value, worked out once for each text; None: cannot be read."""

    def __init__(self, parse: Callable[[str], T]) -> None:
        super().__init__()
        self.parse = parse

    def __missing__(self, text: str) -> T | None:
        try:
            value: T | None = self.parse(text)
        except ValueError:
            value = None
        self[text] = value
        return value


def numbers(texts: Sequence[str], memo: Memo[float]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """A column of numbers, and a mask of what could not be read (NaN there)."""
    found = [memo[t] for t in texts]
    unread = np.zeros(len(found), bool) if None not in found else np.array([v is None for v in found])
    return np.array(found, dtype=np.float64), unread  # None becomes NaN


def as_ints(values: Floats) -> Ints:
    """Counts as integers; 0 where unknown, MOST where they are larger than any."""
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=0.0), -MOST, MOST).astype(np.int64)
