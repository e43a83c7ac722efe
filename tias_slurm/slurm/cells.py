"""The fields of many records as spans of one buffer of bytes, and their values worked out a column at a time.

A large export has tens of millions of fields. Making a Python object of each takes most of the time that
reading may take, so only texts that the jobs keep become objects; numbers, times and repeated words are
read from the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.slurm import times, values
from tias_slurm.slurm.files import ROOM
from tias_slurm.slurm.times import Times
from tias_slurm.slurm.values import Memo

Bytes = npt.NDArray[np.uint8]
Spans = tuple[Ints, Ints]  # where the fields of a column begin and end in the buffer

WIDEST = ROOM  # bytes of a field that is read from the bytes
_DIGITS = 15  # of a whole number that a float holds exactly
# odd numbers without a pattern, to spread the words of a text over 64 bits
_SPREAD = np.random.default_rng(7).integers(1, 2**63, WIDEST // 8, dtype=np.uint64) * np.uint64(
    2
) + np.uint64(1)
# the first k of 8 bytes, as they lie in memory
_FIRST = np.array([[255] * k + [0] * (8 - k) for k in range(9)], np.uint8).view(np.uint64)[:, 0]


@dataclass(frozen=True)
class Cells:
    """Records of one layout. All columns have n fields."""

    data: bytes  # UTF-8, not always valid; ends with ROOM zero bytes
    lines: Ints  # line number of each record
    spans: Mapping[str, Spans]
    _whole: dict[str, tuple[Floats, Bools]] = field(
        default_factory=dict, repr=False
    )  # integers() done before

    def __len__(self) -> int:
        return len(self.lines)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[str]], lines: Sequence[int], index: Mapping[str, int]) -> Cells:
        """Cells of records that are texts already; index: name -> place in a row."""
        parts = [row[i].encode("utf-8", "replace") for row in rows for i in index.values()]
        ends = np.cumsum([len(p) for p in parts], dtype=np.int64).reshape(len(rows), len(index))
        starts = np.concatenate([[0], ends.ravel()[:-1]]).reshape(ends.shape) if len(rows) else ends
        spans = {x: (starts[:, k], ends[:, k]) for k, x in enumerate(index)}
        return cls(b"".join(parts) + bytes(ROOM), np.array(lines, np.int64), spans)

    def take(self, rows: Ints | Bools) -> Cells:
        """The given records only."""
        return Cells(self.data, self.lines[rows], {x: (a[rows], b[rows]) for x, (a, b) in self.spans.items()})

    @cached_property
    def _text(self) -> str | None:
        """The buffer as text, if bytes and characters have the same places in it."""
        return self.data.decode("ascii") if self.data.isascii() else None

    def widths(self, name: str) -> Ints:
        """Bytes of each field, shape (n,)."""
        starts, ends = self.spans[name]
        return ends - starts

    def texts(self, name: str, rows: Ints | None = None) -> list[str]:
        """The fields as texts; of the given rows only."""
        starts, ends = self.spans[name]
        if rows is not None:
            starts, ends = starts[rows], ends[rows]
        spans = map(slice, starts.tolist(), ends.tolist())
        if (text := self._text) is not None:
            return list(map(text.__getitem__, spans))
        return [field.decode("utf-8", "replace") for field in map(self.data.__getitem__, spans)]

    def ids(self, name: str) -> npt.NDArray[np.object_]:
        """objects() of a column that is whole numbers for the most part, shape (n,)."""
        number, plain = self.integers(name)
        starts, _ = self.spans[name]
        if not plain.all() or (self.window(starts, 1)[:, 0] == 48).any():  # 007 is not 7
            return self.objects(name)
        return np.fromiter(map(str, number.astype(np.int64).tolist()), object, len(self))

    def objects(self, name: str) -> npt.NDArray[np.object_]:
        """The fields as an array of texts; empty ones share one object. Shape (n,)."""
        out = np.empty(len(self), object)
        out.fill("")
        if name in self.spans:
            rows = np.flatnonzero(self.widths(name))
            found = self.texts(name, rows)
            out[rows] = np.fromiter(found, object, len(found))
        return out

    def window(self, starts: Ints, width: int) -> Bytes:
        """The width bytes from each start on, shape (m, width)."""
        places = len(self.data) - width + 1
        view: npt.NDArray[np.bytes_] = np.ndarray((places,), f"S{width}", self.data, strides=(1,))
        return view[starts].view(np.uint8).reshape(len(starts), width)

    def distinct(self, name: str) -> tuple[list[str], Ints]:
        """The different texts of a column, and for each record which it has, shape (n,)."""
        widths = self.widths(name)
        widest = int(widths.max(initial=0))
        if widest == 0:
            return [""], np.zeros(len(self), np.int64)
        if widest > WIDEST:
            return _distinct(self.texts(name))
        starts, _ = self.spans[name]
        room = (widest + 7) // 8 * 8
        words = self.window(starts, room).view(np.uint64)
        for k in range(int(widths.min()) // 8, room // 8):  # what lies behind the field does not count
            words[:, k] &= _FIRST[np.clip(widths - 8 * k, 0, 8)]
        if (words == words[0]).all():
            return self.texts(name, np.zeros(1, np.int64)), np.zeros(len(self), np.int64)
        mixed = words[:, 0] if room == 8 else (words * _SPREAD[: room // 8]).sum(axis=1, dtype=np.uint64)
        codes, found = pd.factorize(mixed)
        first = np.empty(len(found), np.int64)
        first[codes[::-1]] = np.arange(len(self) - 1, -1, -1)
        if room > 8 and not np.array_equal(words, words[first[codes]]):
            return _distinct(self.texts(name))  # two texts fell on one number
        return self.texts(name, first), codes.astype(np.int64)

    def integers(self, name: str) -> tuple[Floats, Bools]:
        """Whole numbers of decimal digits, and which fields are such. Shapes (n,)."""
        if name not in self._whole:
            self._whole[name] = self._integers(*self.spans[name])
        out, ok = self._whole[name]
        return out.copy(), ok.copy()

    def _integers(self, starts: Ints, ends: Ints) -> tuple[Floats, Bools]:
        widths = ends - starts
        out = np.full(len(widths), np.nan)
        ok = np.zeros(len(widths), bool)
        for width in np.flatnonzero(np.bincount(np.minimum(widths, _DIGITS + 1))).tolist():
            if not 0 < width <= _DIGITS:
                continue
            rows = np.flatnonzero(widths == width)
            digits = self.window(starts[rows], width) - np.uint8(48)
            whole = (digits <= 9).all(axis=1)
            number = digits.astype(np.float64) @ 10.0 ** np.arange(width - 1, -1, -1)
            out[rows], ok[rows] = np.where(whole, number, np.nan), whole
        return out, ok

    def numbers(self, name: str, memo: Memo[float]) -> tuple[Floats, Bools]:
        """A column by a parser of texts: the values, and which fields could not be read (NaN there).
        Shapes (n,).
        """
        said, row = self.distinct(name)
        found, unread = values.numbers(said, memo)
        return found[row], unread[row]

    def durations(self, name: str, memo: Memo[float]) -> tuple[Floats, Bools]:
        """A column of durations: bare seconds and [D-]HH:MM:SS at once, any other by the parser. As
        numbers().
        """
        out, ok = self.integers(name)
        starts, ends = self.spans[name]
        widths = ends - starts
        clock = np.flatnonzero((widths == 8) | ((widths >= 10) & (widths <= 14)))
        if len(clock):
            face = self.window(ends[clock] - 8, 8)
            digits = (face - np.uint8(48))[:, [0, 1, 3, 4, 6, 7]]
            fits = (digits <= 9).all(axis=1) & (face[:, 2] == 58) & (face[:, 5] == 58)
            seconds = digits.astype(np.float64) @ np.array([36000.0, 3600, 600, 60, 10, 1])
            long = widths[clock] > 8
            if long.any():
                a, b = starts[clock][long], ends[clock][long]
                days, whole = self._integers(a, b - 9)
                fits[long] &= whole & (self.window(b - 9, 1)[:, 0] == 45)
                seconds[long] += 86400 * np.nan_to_num(days)
            out[clock[fits]], ok[clock[fits]] = seconds[fits], True
        ok &= out <= 4e9  # NO_VAL and the like are for the parser
        unread = np.zeros(len(self), bool)
        if not ok.all():
            rest = np.flatnonzero(~ok)
            out[rest], unread[rest] = self.take(rest).numbers(name, memo)
        return out, unread

    def times(self, name: str, zone: ZoneInfo) -> Times:
        """A column of times in any of sacct's forms; local ones are read in the zone."""
        n = len(self)
        starts, ends = self.spans[name]
        widths = ends - starts
        seconds, local = np.full(n, np.nan), np.full(n, np.nan)
        problem = np.zeros(n, np.int8)
        rest = np.ones(n, bool)
        stamps = np.flatnonzero(widths == 19)
        if len(stamps):
            found, ok = times.iso_seconds(self.window(starts[stamps], 24))
            local[stamps[ok]] = found[ok]
            rest[stamps[ok]] = False
        epochs = np.flatnonzero((widths >= 9) & (widths <= 10))
        if len(epochs):
            found, ok = self._integers(starts[epochs], ends[epochs])
            ok &= (found < 4294967294) & (found > 0)
            seconds[epochs[ok]] = found[ok]
            rest[epochs[ok]] = False
        if rest.any():
            rows = np.flatnonzero(rest)
            said, row = self.take(rows).distinct(name)
            found, on_wall, wrong = times.parse_times(said)
            on_wall = on_wall[row]
            seconds[rows] = np.where(on_wall, np.nan, found[row])
            local[rows] = np.where(on_wall, found[row], np.nan)
            problem[rows] = wrong[row]
        on_wall = ~np.isnan(local)
        late = seconds
        if on_wall.any():
            early, after, exists = times.local_to_utc(local[on_wall], zone)
            late = seconds.copy()
            seconds[on_wall], late[on_wall] = early, after
            problem[np.flatnonzero(on_wall)[~exists]] = times.GAP
            problem[(seconds <= 0) & (problem == times.OK)] = times.NEGATIVE
        return Times(seconds, late, problem)


def _distinct(column: Sequence[str]) -> tuple[list[str], Ints]:
    index: dict[str, int] = {}
    row = np.array([index.setdefault(t, len(index)) for t in column], np.int64)
    return list(index), row
