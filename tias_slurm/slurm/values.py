"""The values in sacct's columns: times, durations, TRES, memory, GRES, states, job ids.

Two layers: a parser of one text (raises ValueError with a short reason), and columns of texts to arrays with a
mask of what could not be read. Columns never raise on data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Generic, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from tias_slurm.jobs import ACTIVE_STATES, ENDED_STATES, Floats, Ints

T = TypeVar("T")

NAN = math.nan
# What Slurm stores where it has no number (NO_VAL, INFINITE, in 32 and 64 bits).
NO_VALUE = frozenset({4294967294, 4294967295, 18446744073709551614, 18446744073709551615})
ABSENT = frozenset({"", "unknown", "none", "n/a", "invalid", "(null)", "null", "nan", "nat"})
LAST_TIME = 1e11  # a number beyond is no time in seconds (milliseconds, ids)

# problems of a time
OK, UNREADABLE, NEGATIVE, GAP = 0, 1, 2, 3
TIME_PROBLEM = {UNREADABLE: "not a time", NEGATIVE: "negative time", GAP: "time skipped by a DST change"}

_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)? ?(Z|z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?", re.ASCII)
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(\.\d+)?", re.ASCII)


# ---- times ----


@lru_cache(maxsize=8)
def _segments(zone: ZoneInfo) -> tuple[Floats, Floats, Floats]:
    """The zone's UTC offsets from 1970 to 2100 as segments of local time: their starts, ends and offsets.

    Segments overlap where an hour happens twice and leave a hole where one is skipped.
    """

    def offset(t: int) -> int:
        delta = (datetime.fromtimestamp(0, UTC) + timedelta(seconds=t)).astimezone(zone).utcoffset()
        return int(delta.total_seconds()) if delta is not None else 0

    step = 48 * 3600
    begin, end = -step * 2, 131 * 366 * 86400
    changes: list[int] = []
    offsets = [offset(begin)]
    t = begin
    while t < end:
        after = offset(t + step)
        if after != offsets[-1]:
            low, high = t, t + step
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == offsets[-1] else (low, middle)
            changes.append(high)
            offsets.append(after)
        t += step
    utc, off = np.array(changes, float), np.array(offsets, float)
    return np.r_[-np.inf, utc + off[1:]], np.r_[utc + off[:-1], np.inf], off


def local_to_utc(local: Floats, zone: ZoneInfo) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Local wall-clock seconds, shape (n,), as epoch seconds: the earlier reading, the later one, and what exists.

    The two readings differ only in an hour that happens twice. NaN stays NaN.
    """
    starts, ends, offsets = _segments(zone)
    if len(local) and not np.isnan(low := local.min()):
        span = np.array([low, local.max()])
        one = np.searchsorted(ends, span, side="right"), np.searchsorted(starts, span, side="right") - 1
        if one[0][0] == one[0][1] == one[1][0] == one[1][1]:  # as in almost every block: no change among them
            utc = local - offsets[one[0][0]]
            return utc, utc, np.ones(len(local), bool)
    late = np.searchsorted(starts, local, side="right") - 1
    early = np.searchsorted(ends, local, side="right")
    exists = early <= late
    known = np.isfinite(local)
    top = len(offsets) - 1
    early, late = np.clip(early, 0, top), np.clip(late, 0, top)
    a, b = local - offsets[early], local - offsets[late]
    return np.minimum(a, b), np.maximum(a, b), exists | ~known


def parse_time(text: str) -> tuple[float, bool]:
    """One time: (seconds, whether they are local wall-clock seconds and not yet epoch seconds).

    NaN for what Slurm prints where there is none. Raises ValueError with a reason of TIME_PROBLEM.
    """
    text = text.strip()
    if text.lower() in ABSENT:
        return NAN, False
    if _NUMBER.fullmatch(text):
        value = float(text)
        if value == 0 or value in NO_VALUE:
            return NAN, False
        if value < 0:
            raise ValueError(TIME_PROBLEM[NEGATIVE])
        if value > LAST_TIME:
            raise ValueError(TIME_PROBLEM[UNREADABLE])
        return value, False
    m = _TIME.fullmatch(text)
    if m is None:
        raise ValueError(TIME_PROBLEM[UNREADABLE])
    year, month, day, hour, minute, second = (int(x or 0) for x in m.groups()[:6])
    try:
        seconds = (datetime(year, month, day, hour, minute, second) - _EPOCH).total_seconds()
    except ValueError:
        raise ValueError(TIME_PROBLEM[UNREADABLE]) from None
    if m[7]:
        seconds += float("0." + m[7])
    zone = m[8]
    if zone and zone not in "Zz":
        minutes = int(zone[1:3]) * 60 + int(zone[3:].lstrip(":") or 0)
        seconds -= 60 * minutes if zone[0] == "+" else -60 * minutes
    if seconds <= 0:
        raise ValueError(TIME_PROBLEM[NEGATIVE])
    if year > 2100:
        raise ValueError(TIME_PROBLEM[UNREADABLE])
    return seconds, not zone


@dataclass(frozen=True)
class Times:
    """A column of times. Shapes (n,)."""

    early: Floats  # epoch seconds; NaN: none
    late: Floats  # the same, but in an hour that happens twice its later reading
    problem: npt.NDArray[np.int8]  # OK or a key of TIME_PROBLEM

    @classmethod
    def unknown(cls, n: int) -> Times:
        """A column that says nothing."""
        return cls(np.full(n, NAN), np.full(n, NAN), np.zeros(n, np.int8))


_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_MARKS = np.array([4, 7, 10, 13, 16])
_MARK = np.frombuffer(b"--T::", np.uint8)
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def iso_seconds(stamps: npt.NDArray[np.uint8]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Wall-clock seconds of stamps, shape (n, 19), of exactly the form YYYY-MM-DDTHH:MM:SS, and which those are."""
    digits = stamps[:, _DIGITS] - np.uint8(48)
    ok = (digits <= 9).all(axis=1) & (stamps[:, _MARKS] == _MARK).all(axis=1)
    digits[~ok] = 1
    # one product gives all six numbers
    year, month, day, hour, minute, second = (digits.astype(np.float64) @ _PLACES).astype(np.int64).T
    ok &= (year >= 1970) & (year <= 2100) & (month >= 1) & (month <= 12)
    ok &= (hour < 24) & (minute < 60) & (second < 60)
    month = np.where(ok, month, 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    ok &= (day >= 1) & (day <= _MONTH_DAYS[month] + (leap & (month == 2)))
    # days since the epoch, counting years from March so that the leap day is the last
    y = year - (month <= 2)
    days = 365 * y + y // 4 - y // 100 + y // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    return ((days * 24 + hour) * 60 + minute) * 60.0 + second, ok


_PLACES = np.zeros((14, 6))
for _column, _places in enumerate(((0, 1, 2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13))):
    for _power, _place in enumerate(reversed(_places)):
        _PLACES[_place, _column] = 10.0**_power


def parse_times(texts: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_], npt.NDArray[np.int8]]:
    """parse_time of each text: seconds, whether they are on the wall clock, and the problem. Shapes (n,)."""
    seconds, local, problem = (
        np.full(len(texts), NAN),
        np.zeros(len(texts), bool),
        np.zeros(len(texts), np.int8),
    )
    for i, text in enumerate(texts):
        try:
            seconds[i], local[i] = parse_time(text)
        except ValueError as e:
            problem[i] = next(k for k, v in TIME_PROBLEM.items() if v == e.args[0])
    return seconds, local, problem


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


def parse_count(text: str) -> Count:
    """A count such as `16`, `2K` (2048) or `0.00K`. NaN for nothing. Raises ValueError."""
    text = text.strip()
    if text.lower() in ABSENT:
        return NAN
    m = _AMOUNT.fullmatch(text)
    if m is None or len(text) > 30:
        raise ValueError("not a count")
    value = float(m[1]) * _POWER[m[2].upper() or " "]
    return NAN if value in NO_VALUE else value


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
    gpu_type: str = ""
    cpus: Count = NAN
    mem_mb: float = NAN
    nodes: Count = NAN


def gpus_of(untyped: Count, typed: dict[str, float]) -> tuple[Count, str]:
    """GPUs and their type: the untyped count where there is one, else the sum of the typed ones; never both."""
    total = untyped if not math.isnan(untyped) else sum(typed.values()) if typed else NAN
    if not math.isnan(total) and (total != int(total) or not 0 <= total <= MOST_GPUS):
        raise ValueError("not a number of GPUs")
    return total, "+".join(sorted(k for k, v in typed.items() if v > 0))


def parse_tres(text: str) -> Tres:
    """A TRES string: `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1`. Raises ValueError."""
    untyped, cpus, mem, nodes = NAN, NAN, NAN, NAN
    typed: dict[str, float] = {}
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
        elif name == "cpu":
            cpus = parse_count(amount)
        elif name == "mem":
            mem = parse_memory(amount)[0]
        elif name == "node":
            nodes = parse_count(amount)
    gpus, kind = gpus_of(untyped, typed)
    return Tres(gpus, kind, cpus, mem, nodes)


def parse_gres(text: str) -> tuple[Count, str, bool]:
    """GPUs of a GRES list (`gpu:2`, `gpu:a100:2(S:0-1)`, `PER_JOB:gpu:8`, `gres/gpu:4`): count, type, whether per node.

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
        if name != "gpu":
            continue
        amount = parse_count(rest.pop()) if rest and rest[-1][:1].isdigit() and len(rest[-1]) < 12 else 1.0
        if rest:
            kind = ":".join(rest)
            typed[kind] = typed.get(kind, 0.0) + amount
        else:
            untyped = amount if math.isnan(untyped) else untyped + amount
    gpus, kind = gpus_of(untyped, typed)
    return (0.0 if math.isnan(gpus) else gpus), kind, per_node


# ---- words ----

_SHORT_STATES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "S": "SUSPENDED", "TO": "TIMEOUT", "SE": "SPECIAL_EXIT", "ST": "STOPPED",
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
    """Counts as integers; 0 where unknown."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0).astype(np.int64)
