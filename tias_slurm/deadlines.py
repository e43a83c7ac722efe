"""The comment grammar: text in, a deadline or a reasoned refusal out. Pure: no I/O, no clock.

    deadline=2026-12-01T18:00            the site's zone
    deadline=2026-12-01T18:00:00+01:00   an offset, or Z
    deadline=2026-12-01                  the end of that day
    deadline=@1796148000                 epoch seconds
    deadline=+36h  +2d12h  now+36hours   after the job's first submit
    requeue=yes|no  checkpoint=15m       consent to be requeued; how often the job saves itself
    requeue_signal=USR1@2m               the signal that its batch script wants two minutes before a requeue

Comments are shared with other tools and may hold any bytes: a token is ours only if it starts with
one of these keys and "=". Nothing here raises on any text.
"""

from __future__ import annotations

import functools
import json
import math
import re
import signal
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

from tias_slurm.submit_line import comment_of

MAX_EPOCH: Final = 253_402_300_800.0  # the year 10000; also tells milliseconds from seconds
OTHER_KEYS: Final = ("requeue", "checkpoint", "requeue_signal")
MAX_WARNING_S: Final = 3600.0
MAX_JSON_CHARS: Final = 65_536  # slurmctld itself takes no longer comment


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key whose value was not taken."""

    code: str  # a short phrase of a fixed set, fit to count by
    text: str  # one line for the user: what to write instead
    key: str = "deadline"  # or another key; this one whatever the site calls it


@dataclass(frozen=True, slots=True)
class Claim:
    """What one comment says."""

    deadline: float | None = None  # epoch seconds
    relative: bool = False  # counted from the first submit
    requeue: bool | None = None  # consent; None: unsaid
    checkpoint_s: float | None = None  # seconds between checkpoints; None: unsaid; 0: never
    warning: tuple[str, float] | None = None  # signal and seconds before a requeue; None: unsaid
    refusals: tuple[Refusal, ...] = ()

    @property
    def holds_key(self) -> bool:
        """Whether the text held the deadline key, with a good value or a bad one."""
        return self.deadline is not None or any(r.key == "deadline" for r in self.refusals)


@dataclass(frozen=True, slots=True)
class Limits:
    """The site's limits on claims. Empty sets: everybody may."""

    accounts: frozenset[str] = frozenset()
    qos: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    min_window_s: float = 0.0
    max_window_s: float | None = None


class _BadError(Exception):
    """Internal: a value is refused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code)
        self.code, self.text = code, text


_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_UNIT = r"(?:weeks?|days?|hours?|minutes?|seconds?|[wdhms])"
_PART = re.compile(rf"(\d{{1,12}})({_UNIT})", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(rf"(?:\d{{1,12}}{_UNIT})+", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d))?(Z|([+-])(\d\d):?(\d\d))?", re.ASCII | re.IGNORECASE
)
_CLOCK = re.compile(r"T?\d{1,2}(?::\d\d){1,2}(?:[ap]m)?|\d{1,2}[ap]m", re.ASCII | re.IGNORECASE)
_OFFSET = re.compile(r"(?:UTC|GMT)?[+-]\d\d?(?::?\d\d)?|Z|UTC|GMT|[ap]m", re.ASCII | re.IGNORECASE)
_OTHER_DATE = re.compile(
    r"\d{1,4}/\d{1,2}(?:/\d{1,4})?(?:T.*)?|\d{1,2}\.\d{1,2}\.(?:\d{2,4})?(?:T.*)?|\d{1,2}-\d{1,2}-\d{2,4}(?:T.*)?",
    re.ASCII | re.IGNORECASE,
)
_BARE = re.compile(r"(?:now)?[+-]?\d+(?:\.\d*)?", re.ASCII | re.IGNORECASE)
_SPLIT = re.compile(r"[,;\s]+")


def read_comment(text: str, *, key: str = "deadline", first_submit: float, zone: ZoneInfo) -> Claim:
    """What a job's comment claims.

    `key`: the site's name of the deadline key, ASCII. `first_submit`: epoch seconds; relative deadlines
    count from it. `zone`: of times without an offset. Never raises; a bad value is a Refusal in the Claim.
    """
    if not own_keys(key).search(text):
        return Claim()
    found = _json_values(text, key)
    if found is None:
        found = _token_values(text, key)
    refusals: list[Refusal] = []

    def read(name: str, reader: Any) -> Any:
        values = found.get(name, [])
        try:
            if len(values) > 1:
                raise _BadError("two keys", f"write {shown[name]}= once only")
            return reader(values[0]) if values else None
        except _BadError as bad:
            code = bad.code if name == "deadline" else f"{name}: {bad.code}"
            refusals.append(Refusal(code, bad.text, name))
            return None

    shown = {"deadline": key, **{name: name for name in OTHER_KEYS}}
    deadline = read("deadline", lambda v: _deadline(v, key, first_submit, zone))
    requeue = read("requeue", _consent)
    checkpoint = read("checkpoint", _checkpoint)
    when, relative = deadline or (None, False)
    warning = read("requeue_signal", _warning)
    return Claim(when, relative, requeue, checkpoint, warning, tuple(refusals))


def read_submit_line(text: str, *, key: str = "deadline", first_submit: float, zone: ZoneInfo) -> Claim:
    """What the --comment of a job's submit line (sacct's SubmitLine) claims. As read_comment."""

    if not own_keys(key).search(text):
        return Claim()

    def belongs(before: str, word: str) -> bool:
        name, _, value = _SPLIT.split(before)[-1].partition("=")
        torn = name.lower() == key.lower() and _torn(value, _SPLIT.split(word)[0])
        return torn or bool(own_keys(key).match(word))

    comment = comment_of(text, belongs)
    return (
        Claim() if comment is None else read_comment(comment, key=key, first_submit=first_submit, zone=zone)
    )


def admit(
    deadline: float,
    *,
    first_submit: float,
    limits: Limits,
    account: str = "",
    qos: str = "",
    partition: str = "",
    user: str = "",
) -> Refusal | None:
    """Check a claim (epoch seconds) against the site's limits; None: admitted.

    `partition` may be a comma list, as of a waiting job: then every one must be allowed.
    """
    window = deadline - first_submit
    if not window > 0:
        return Refusal("already past", "the deadline is not after the submit; write a later one")
    for name, have, allowed in (
        ("account", [account], limits.accounts),
        ("QOS", [qos], limits.qos),
        ("partition", partition.split(","), limits.partitions),
        ("user", [user], limits.users),
    ):
        if allowed and not allowed.issuperset(have):
            return Refusal(f"{name} may not", f"this site takes no deadlines from this {name}; leave it out")
    if window < limits.min_window_s:
        least = limits.min_window_s
        return Refusal(
            "too near", f"this site takes deadlines from {least:g} s after the submit; write a later one"
        )
    if limits.max_window_s is not None and window > limits.max_window_s:
        most = limits.max_window_s
        return Refusal(
            "too far", f"this site takes deadlines up to {most:g} s after the submit; write a nearer one"
        )
    return None


@functools.lru_cache(maxsize=8)
def own_keys(key: str) -> re.Pattern[str]:
    """A cheap test: a text that it does not find holds none of our keys. Most comments end here."""
    names = "|".join((re.escape(key), *OTHER_KEYS))
    return re.compile(rf"(?:{names})[=\"]", re.ASCII | re.IGNORECASE)


def _names(key: str) -> dict[str, str]:
    return {key.lower(): "deadline", **{name: name for name in OTHER_KEYS}}


def _json_values(text: str, key: str) -> dict[str, list[object]] | None:
    """The values of our keys if the whole text is a JSON object, else None."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")) or len(body) > MAX_JSON_CHARS:
        return None
    try:
        pairs = json.loads(body, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    found: dict[str, list[object]] = {}
    names = _names(key)
    for name, value in pairs:
        ours = names.get(name.lower()) if name.isascii() else None
        if ours:
            found.setdefault(ours, []).append(value)
    return found


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, doubled names kept."""


def _token_values(text: str, key: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    names = _names(key)
    tokens = [t for t in _SPLIT.split(text) if t]
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        ours = names.get(name.lower()) if equals and name.isascii() else None
        if ours == "deadline":  # the next token may be a part that was torn off
            after = tokens[at + 1] if at + 1 < len(tokens) else ""
            found.setdefault(ours, []).append(value if not _torn(value, after) else f"{value} {after}")
        elif ours:
            found.setdefault(ours, []).append(value)
    return found


def _torn(value: str, after: str) -> bool:
    """Whether a value and the token after it look like one value with a blank inside."""
    if _DATE.fullmatch(value):
        return bool(_CLOCK.fullmatch(after))
    if _TIME.fullmatch(value):
        return bool(_OFFSET.fullmatch(after))
    return value.lower().startswith(("+", "now+")) and bool(_DURATION.fullmatch(after))


def _deadline(value: object, key: str, first_submit: float, zone: ZoneInfo) -> tuple[float, bool]:
    """(epoch seconds, whether relative). Raises _BadError."""
    usual = f"write {key}=2026-12-01T18:00 or {key}=+36h"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _within(value, key), False
    if not isinstance(value, str):
        raise _BadError("not a time", f"{usual}; in JSON a string, or a number of epoch seconds")
    if not value:
        raise _BadError("no value", f"{usual}, without a blank after the =")
    if _DATE.fullmatch(value):
        return _within(_end_of_day(value, zone), key), False
    match = _TIME.fullmatch(value)
    if match:
        return _within(_moment(match, key, zone), key), False
    if value.startswith("@"):
        if not re.fullmatch(r"\d{1,18}", value[1:], re.ASCII):
            raise _BadError("not a time", f"write whole epoch seconds: {key}=@1796148000")
        return _within(int(value[1:]), key), False
    lower = value.lower()
    if lower.startswith(("+", "now+")):
        seconds = _seconds(lower.partition("+")[2], f"{key}=+36h, +2d12h or +90m")
        if not math.isfinite(first_submit):
            raise _BadError("no submit time", f"write a date: {key}=2026-12-01T18:00")
        return _within(first_submit + seconds, key), True
    raise _refused(value, key, usual)


def _refused(value: str, key: str, usual: str) -> _BadError:
    """Why a value is none of the forms."""
    date, _, after = value.partition(" ")
    if _DATE.fullmatch(date) and _CLOCK.fullmatch(after):
        return _BadError("date and time apart", f"write a T between date and time: {key}=2026-12-01T18:00")
    if _TIME.fullmatch(date) and after:
        return _BadError("offset apart", f"write the offset without a blank: {key}=2026-12-01T18:00+01:00")
    if _CLOCK.fullmatch(value):
        return _BadError("clock time only", f"write the date too: {key}=2026-12-01T18:00")
    if _OTHER_DATE.fullmatch(date):
        return _BadError("date in another order", f"write year-month-day: {key}=2026-12-01")
    if _BARE.fullmatch(value):
        return _BadError(
            "no unit", f"write {key}=+36h after the submit, or {key}=@1796148000 for epoch seconds"
        )
    return _BadError("not a time", usual)


def _end_of_day(value: str, zone: ZoneInfo) -> float:
    """The midnight that ends the day. Where clocks skip it, the first instant of the next day."""
    try:
        day = datetime.fromisoformat(value)
        return (day + timedelta(days=1)).replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        raise _BadError("no such date", "the calendar has no such day; write another") from None


def _moment(match: re.Match[str], key: str, zone: ZoneInfo) -> float:
    year, month, day, hour, minute, second = (int(g or 0) for g in match.groups()[:6])
    if hour > 23 or minute > 59 or second > 59:
        raise _BadError("no such time", f"hours go from 00 to 23, minutes to 59: {key}=2026-12-01T23:59")
    try:
        if match[7]:
            return datetime(year, month, day, hour, minute, second, tzinfo=_offset(match, key)).timestamp()
        local = datetime(year, month, day, hour, minute, second, tzinfo=zone)  # fold 0: the earlier one
        epoch = local.timestamp()
        there_and_back = datetime.fromtimestamp(epoch, zone)
    except (ValueError, OverflowError, OSError):
        raise _BadError("no such date", "the calendar has no such day; write another") from None
    if there_and_back.replace(tzinfo=None) != local.replace(tzinfo=None):
        raise _BadError("hour does not exist", "the clocks skip this hour that day; write an hour later")
    return epoch


def _offset(match: re.Match[str], key: str) -> timezone:
    if match[7] in "Zz":
        return UTC
    hours, minutes = int(match[9]), int(match[10])
    if hours * 60 + minutes > 14 * 60 or minutes > 59:
        raise _BadError("no such offset", f"offsets go from -14:00 to +14:00: {key}=2026-12-01T18:00+01:00")
    ahead = timedelta(hours=hours, minutes=minutes)
    return timezone(-ahead if match[8] == "-" else ahead)


def _within(epoch: float, key: str) -> float:
    if not 0 <= epoch < MAX_EPOCH:  # NaN fails as well
        raise _BadError(
            "out of range", f"write epoch seconds (not milliseconds) or a date: {key}=2026-12-01T18:00"
        )
    return float(epoch)


def _seconds(text: str, examples: str) -> float:
    """A duration such as 2d12h, larger units first, each once. Raises _BadError."""
    if _BARE.fullmatch(text):
        raise _BadError("no unit", f"write a whole number with a unit: {examples}")
    parts = _PART.findall(text)
    sizes = [_UNITS[unit[0].lower()] for _, unit in parts]
    if not _DURATION.fullmatch(text) or sizes != sorted(set(sizes), reverse=True):
        raise _BadError("not a duration", f"write whole numbers with units, the larger first: {examples}")
    return float(sum(int(count) * size for (count, _), size in zip(parts, sizes, strict=True)))


def _consent(value: object) -> bool:
    if value is True or value is False:  # of JSON
        return value
    if isinstance(value, str) and value.lower() in {"yes", "no"}:
        return value.lower() == "yes"
    raise _BadError("not yes or no", "write requeue=yes or requeue=no")


def _checkpoint(value: object) -> float:
    if not isinstance(value, str) or not value:
        raise _BadError("no unit", "write a whole number with a unit: checkpoint=15m")
    seconds = _seconds(value, "checkpoint=15m or 1h30m")
    if seconds >= MAX_EPOCH:
        raise _BadError("out of range", "write how often the job saves itself: checkpoint=15m")
    return seconds


def _warning(value: object) -> tuple[str, float]:
    usual = "requeue_signal=USR1@2m"
    name, at, time = value.partition("@") if isinstance(value, str) else ("", "", "")
    name = name.upper().removeprefix("SIG")
    if not at or f"SIG{name}" not in signal.Signals.__members__:
        raise _BadError("no signal", f"write a signal and how long before the requeue: {usual}")
    seconds = _seconds(time, usual)
    if seconds > MAX_WARNING_S:
        raise _BadError("too long", f"a warning of at most an hour can be had: {usual}")
    return name, seconds
