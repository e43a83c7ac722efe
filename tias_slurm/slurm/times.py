"""Times in sacct's columns: epoch seconds, wall-clock stamps with or without an offset, and the words for
none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from tias_slurm.jobs import Floats, Ints
from tias_slurm.slurm.values import ABSENT, LAST_TIME, NAN, NO_VALUE

# problems of a time
OK, UNREADABLE, NEGATIVE, GAP = 0, 1, 2, 3
TIME_PROBLEM = {UNREADABLE: "not a time", NEGATIVE: "negative time", GAP: "time skipped by a DST change"}

_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)? ?(Z|z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?", re.ASCII)


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
    """Local wall-clock seconds, shape (n,), as epoch seconds: the earlier reading, the later one, and what
    exists.

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


def _word(text: str) -> np.uint64:
    """Eight characters as the word that they are in memory; `.` is a zero byte."""
    return np.uint64(int.from_bytes(text.replace(".", "\0").encode("latin-1"), "little"))


# YYYY-MM-DDTHH:MM:SS as three words: which bits of each are the same in every stamp, and what they are
_FIXED = np.array(
    [
        _word("\xf0\xf0\xf0\xf0\xff\xf0\xf0\xff"),
        _word("\xf0\xf0\xff\xf0\xf0\xff\xf0\xf0"),
        _word("\xff\xf0\xf0....."),
    ]
)
_STAMP = np.array([_word("0000-00-"), _word("00T00:00"), _word(":00.....")])
_SIX = np.array(
    [_word("\6\6\6\6.\6\6."), _word("\6\6.\6\6.\6\6"), _word(".\6\6.....")]
)  # takes 10 to 15 out of line
_NIBBLES = np.array([_word("\17\17\17\17.\17\17."), _word("\17\17.\17\17.\17\17"), _word(".\17\17.....")])


def iso_seconds(stamps: npt.NDArray[np.uint8]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Wall-clock seconds of stamps and which are of exactly the form YYYY-MM-DDTHH:MM:SS, shapes (n,).

    stamps has shape (n, 24): 19 bytes, then any.
    """
    words = np.ascontiguousarray(stamps.view("<u8").T)
    ok = np.ones(len(stamps), bool)
    pairs = []
    for word, fixed, stamp, six, nibbles in zip(words, _FIXED, _STAMP, _SIX, _NIBBLES, strict=True):
        ok &= (word & fixed) == stamp
        ok &= ((word + six) & fixed) == stamp
        digits = word & nibbles
        pairs.append(digits * np.uint64(10) + (digits >> np.uint64(8)))  # each byte and the next as a number

    def two(word: int, byte: int) -> Ints:
        number: Ints = ((pairs[word] >> np.uint64(8 * byte)) & np.uint64(255)).view(np.int64)
        return number

    year = two(0, 0) * 100 + two(0, 2)
    month, day, hour, minute, second = two(0, 5), two(1, 0), two(1, 3), two(1, 6), two(2, 1)
    ok &= (year >= 1970) & (year <= 2100) & (month >= 1) & (month <= 12)
    ok &= (hour < 24) & (minute < 60) & (second < 60)
    months = np.where(ok, (year - 1970) * 12 + month - 1, 0)
    days = _MONTH_STARTS[months] + day - 1
    ok &= (day >= 1) & (days < _MONTH_STARTS[months + 1])
    seconds: Floats = (((days * 24 + hour) * 60 + minute) * 60 + second).astype(np.float64)
    return seconds, ok


# days from the epoch to the first of each month up to 2101
_MONTH_STARTS = (
    np.arange("1970-01", "2101-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
)


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
