"""Lines of a sacct text put together to records: what text fields broke is mended where there is one way
only.

sacct escapes nothing, so a job name or comment with a delimiter or a line break tears its record. The
header says how many fields a record has. The rules:

* a line with as many fields as the header is a record;
* with fewer, it is joined with the lines after it, if the whole has the right number of fields,
  each of its type; a line with as many fields as the header, or that
  begins a record, is never taken in;
* with fewer, and not the beginning of a record, after a record whose last column is free text: more of
  that text;
* with more, one free-text column (or two) takes the surplus, if that fits the types of all other columns,
  and all ways that fit give the same values for what the replay reads;
* anything else is refused, with the lines that can only be more of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tias_slurm.jobs import Bools, Ints
from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm.cells import Bytes, Cells
from tias_slurm.slurm.fields import SUBMIT_COMMANDS, USED, Layout
from tias_slurm.slurm.files import MAX_LINE, ROOM, LineBlock

MOST_LINES = 1000  # of one record
MOST_HELD = 2 * MAX_LINE  # bytes
MOST_SURPLUS = 5000  # delimiters in the text of one record

CUT = "too few fields (cut line)"
BROKEN = "line break in text, cannot be mended"
SURPLUS = "too many fields (delimiter in text)"
TOO_LONG = f"line longer than {MAX_LINE >> 20} MiB"

Row = list[str]


class Assembler:
    """Puts the lines of one file together; `rows` counts the records seen, refused ones included."""

    def __init__(
        self, layout: Layout, file: str, refused: Refusals, also: frozenset[str] = frozenset()
    ) -> None:
        """`also`: columns to give besides those that the replay reads."""
        self.layout = layout
        self.file = file
        self.refused = refused
        self.rows = 0
        self.mended = 0
        self._want = layout.cuts + 1
        self._names = len(layout.names)
        self._open_end = self._names - 1 in layout.free and not layout.trailing
        self._delimiter = layout.delimiter.encode()
        self._columns = {name: i for name, i in layout.index.items() if name in USED | also}
        # without `also`: what is mended and what refused does not depend on it
        self._used = [i for name, i in self._columns.items() if name in USED]
        self._submit_line = layout.index.get("submitline")

    def feed(self, block: LineBlock) -> list[Cells]:
        """The records that are complete; asks for the last again. Whole lines make one part, mended ones
        another.
        """
        buffer = block.data
        text = np.frombuffer(buffer, np.uint8)
        ends = np.flatnonzero(text == 10)
        if not len(ends):
            return []
        starts = np.concatenate([[0], ends[:-1] + 1])
        cuts, overlap = self._cuts(text, buffer)
        place = np.searchsorted(cuts, ends)
        count = np.diff(place, prepend=0)
        odd = count != self.layout.cuts
        if self.layout.trailing:
            odd |= (
                (count > 0) & (cuts[np.maximum(place - 1, 0)] + len(self._delimiter) != ends)
                if len(cuts)
                else True
            )
        for at in overlap:
            odd[min(int(np.searchsorted(ends, at)), len(odd) - 1)] = True
        odd[list(block.too_long)] = True

        end = len(ends)
        if not block.last:
            end = self._hold(block, odd, starts)
            odd = odd[:end]
        dirty = odd.copy()
        dirty[:-1] |= odd[1:]  # the record before an odd line may go on in it
        clean = np.flatnonzero(~dirty)
        self.rows += len(clean)
        whole = self._cells(block, buffer, starts, ends, cuts, place, clean)
        if not dirty.any():
            return [whole]
        rows: list[Row] = []
        numbers: list[int] = []
        edges = np.flatnonzero(np.diff(np.concatenate([[0], dirty.view(np.int8), [0]])))
        for a, b in edges.reshape(-1, 2).tolist():
            lines = block.data[starts[a] : ends[b - 1]].decode("utf-8", "replace").split("\n")
            too_long = {i - a for i in block.too_long if a <= i < b}
            self._assemble(lines, block.first + a, too_long, rows, numbers)
        return [whole, Cells.of_rows(rows, numbers, self._columns)]

    def _cuts(self, text: Bytes, buffer: bytes) -> tuple[Ints, Ints]:
        """Where delimiters are, and where they overlap, so that it is not plain which of them cut."""
        mark = self._delimiter
        found = text == mark[0]
        for i in range(1, len(mark)):
            found[:-i] &= text[i:] == mark[i]
        cuts = np.flatnonzero(found)
        return cuts, cuts[1:][np.diff(cuts) < len(mark)] if len(mark) > 1 else cuts[:0]

    def _cells(
        self, block: LineBlock, buffer: bytes, starts: Ints, ends: Ints, cuts: Ints, place: Ints, rows: Ints
    ) -> Cells:
        """The used fields of the given lines, each of which has as many delimiters as the header."""
        first = place[rows] - self.layout.cuts
        spans = {}
        for name, i in self._columns.items():
            a = starts[rows] if i == 0 else cuts[first + i - 1] + len(self._delimiter)
            b = ends[rows] if i == self.layout.cuts else cuts[first + i]
            spans[name] = a, b
        return Cells(buffer, block.first + rows, spans)

    def _hold(self, block: LineBlock, odd: Bools, starts: Ints) -> int:
        """Ask for the last record again with the next block, in which it may go on; returns where it
        begins.
        """
        end = len(odd)
        near = max(0, end - MOST_LINES)
        good = np.flatnonzero(~odd[near:])
        start = near + int(good[-1]) if len(good) else self._last_begin(block, near, end, starts)
        if len(block.data) - starts[start] > MOST_HELD:
            return end
        block.again = int(starts[start]), start
        return start

    def _last_begin(self, block: LineBlock, near: int, end: int, starts: Ints) -> int:
        """The last line, of those from near on, that looks like the begin of a record; else near."""
        stops = [*starts[near + 1 : end].tolist(), len(block.data) - ROOM]
        for i in range(end - 1, near, -1):
            line = block.data[starts[i] : stops[i - near] - 1]
            row = line.decode("utf-8", "replace").split(self.layout.delimiter)
            if len(row) > 1 and self.layout.begins(row):
                return i
        return near

    def _whole(self, row: Row) -> bool:
        return len(row) == self._want and (not self.layout.trailing or not row[-1])

    def _record(self, row: Row) -> bool:
        """Whether these are the fields of a record beyond doubt."""
        return self._whole(row) and self.layout.plausible(row[: self._names])

    def _assemble(
        self, lines: list[str], first: int, too_long: set[int], out: list[Row], numbers: list[int]
    ) -> None:
        """Put lines together that are not all whole; adds the records to out, their line numbers to
        numbers.
        """
        want = self._want
        rows = [line.split(self.layout.delimiter) for line in lines]
        end = len(rows)
        at = 0  # the next line to look at
        grows = -1  # where a line would be more of the last record's text
        while at < end:
            i, line, row = at, first + at, rows[at]
            at += 1
            if i in too_long:
                self._refuse(line, TOO_LONG, lines[i])
            elif self._whole(row):
                self._take(row, line, out, numbers)
                grows = at
            elif len(row) > want:
                if (absorbed := self._absorb(row)) is not None:
                    self._take(absorbed, line, out, numbers)
                    self.mended += 1
                    grows = at
                else:
                    self._refuse(line, SURPLUS, lines[i])
            elif self._open_end and grows == i and self.layout.begins(row) is False:
                out[-1][-1] += "\n" + lines[i]
                grows = at
            elif row != [""]:
                joined, at = self._join(rows, i, end)
                if joined is not None:
                    self._take(joined, line, out, numbers)
                    self.mended += 1
                    grows = at
                else:
                    self._refuse(line, CUT if at == i + 1 else BROKEN, lines[i])

    def _take(self, row: Row, line: int, out: list[Row], numbers: list[int]) -> None:
        out.append(row)
        numbers.append(line)
        self.rows += 1

    def _refuse(self, line: int, reason: str, text: str) -> None:
        self.rows += 1
        self.refused.add(self.file, line, reason, text[:400])

    def _join(self, rows: list[Row], i: int, end: int) -> tuple[Row | None, int]:
        """Join line i with those after it to one record: (fields or None, the next line to look at)."""
        parts, size = list(rows[i]), 0
        j = i + 1
        text_from = min(self.layout.free, default=end)  # a break before it is none in a text
        while j < min(end, i + MOST_LINES) and len(parts) > text_from and size < MAX_LINE:
            following = rows[j]
            if self._whole(following) or (len(following) > 1 and self.layout.begins(following)):
                break
            parts[-1] += "\n" + following[0]
            parts += following[1:]
            size += sum(map(len, following))
            j += 1
            if len(parts) >= self._want:
                mended = parts if self._record(parts) else self._absorb(parts)
                if mended is not None:
                    return mended, j
                break
        # Refused. What can only be more of the same text goes with it.
        at = i + 1
        while at < min(end, i + MOST_LINES) and len(rows[at]) < self._want:
            begins = self.layout.begins(rows[at])
            if begins or (begins is None and len(rows[at]) > 1):
                break
            at += 1
        return None, at

    def _absorb(self, parts: Row) -> Row | None:
        """Give the surplus fields back to the text that they came from; None where that is not certain."""
        surplus = len(parts) - self._want
        free = self.layout.free
        if not 0 < surplus <= MOST_SURPLUS:
            return None
        found = self._fitting(parts, [((f, surplus),) for f in free])
        if not found and 2 <= surplus <= 20:
            pairs = [(f, g, k) for f in free for g in free if f < g for k in range(1, surplus)]
            found = self._fitting(parts, [((f, k), (g, surplus - k)) for f, g, k in pairs])
        if len(found) > 1 and self._submit_line is not None:
            found = [row for row in found if SUBMIT_COMMANDS.match(row[self._submit_line])]
        return found[0] if len(found) == 1 else None

    def _fitting(self, parts: Row, ways: Sequence[tuple[tuple[int, int], ...]]) -> list[Row]:
        """The records that arise when columns take surplus fields, ways: ((column, number), ...); distinct
        ones.
        """
        found: dict[tuple[str, ...], Row] = {}
        for way in ways:
            row = list(parts)
            for column, number in way:
                row[column : column + number + 1] = [
                    self.layout.delimiter.join(row[column : column + number + 1])
                ]
            if self._record(row):
                found.setdefault(tuple(row[i] for i in self._used), row)
        return list(found.values())
