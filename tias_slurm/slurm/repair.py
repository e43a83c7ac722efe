"""Lines of a sacct text put together to records: what text fields broke is mended where there is one way only.

sacct escapes nothing, so a job name or comment with a delimiter or a line break tears its record. The header says how
many fields a record has. The rules:

* a line with as many fields as the header is a record;
* with fewer, it is joined with the lines after it, if each break falls in a free-text column and the whole has the
  right number of fields, each of its type; a line that is a whole record of its own, or begins one, is never taken in;
* with fewer, and not the beginning of a record, after a record whose last column is free text: more of that text;
* with more, one free-text column (or two) takes the surplus, if that fits the types of all other columns, and all
  ways that fit give the same values for what the replay reads;
* anything else is refused, with the lines that can only be more of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm.fields import SUBMIT_COMMANDS, USED, Layout
from tias_slurm.slurm.files import MAX_LINE, LineBlock

MOST_LINES = 1000  # of one record
MOST_SURPLUS = 5000  # delimiters in the text of one record

CUT = "too few fields (cut line)"
BROKEN = "line break in text, cannot be mended"
SURPLUS = "too many fields (delimiter in text)"
TOO_LONG = f"line longer than {MAX_LINE >> 20} MiB"

Row = list[str]


class Assembler:
    """Puts the lines of one file together; `rows` counts the records seen, refused ones included."""

    def __init__(self, layout: Layout, file: str, refused: Refusals) -> None:
        self.layout = layout
        self.file = file
        self.refused = refused
        self.rows = 0
        self.mended = 0
        self._want = layout.cuts + 1
        self._names = len(layout.names)
        self._held: LineBlock | None = None
        self._open_end = self._names - 1 in layout.free and not layout.trailing
        self._used = [i for name, i in layout.index.items() if name in USED]
        self._submit_line = layout.index.get("submitline")

    def feed(self, block: LineBlock) -> tuple[list[Row], list[int]]:
        """The records that are complete, and the line number of each. A row may have a spare last field."""
        held, self._held = self._held, None
        if held is not None:
            shift = len(held.lines)
            block = LineBlock(
                held.first, held.lines + block.lines, held.too_long | {i + shift for i in block.too_long}
            )
        return self._assemble(block, final=False)

    def finish(self) -> tuple[list[Row], list[int]]:
        """The last records."""
        block, self._held = self._held, None
        return self._assemble(block, final=True) if block else ([], [])

    def _whole(self, row: Row) -> bool:
        return len(row) == self._want and (not self.layout.trailing or not row[-1])

    def _record(self, row: Row) -> bool:
        """Whether these are the fields of a record beyond doubt."""
        return self._whole(row) and self.layout.plausible(row[: self._names])

    def _assemble(self, block: LineBlock, final: bool) -> tuple[list[Row], list[int]]:
        delimiter, want = self.layout.delimiter, self._want
        rows = [line.split(delimiter) for line in block.lines]
        if self.layout.trailing:
            odd = [i for i, row in enumerate(rows) if len(row) != want or row[-1]]
        else:
            odd = [i for i, row in enumerate(rows) if len(row) != want]
        if block.too_long:
            odd = sorted({*odd, *block.too_long})
        end = len(rows)
        if not final:
            end = self._hold(block, odd)
            odd = odd[: bisect_left(odd, end)]
        first = block.first
        if not odd:
            self.rows += end
            return rows[:end], list(range(first, first + end))

        out: list[Row] = []
        numbers: list[int] = []
        at = 0  # the next line to look at
        grows = -1  # where a line would be more of the last record's text
        for i in odd:
            if i < at:
                continue
            if i > at:
                out += rows[at:i]
                numbers += range(first + at, first + i)
                self.rows += i - at
                grows = i
            at = i + 1
            line = first + i
            if i in block.too_long:
                self._refuse(line, TOO_LONG, block.lines[i])
            elif len(rows[i]) > want:
                if (row := self._absorb(rows[i])) is not None:
                    self._take(row, line, out, numbers)
                    grows = at
                else:
                    self._refuse(line, SURPLUS, block.lines[i])
            elif self._open_end and grows == i and self.layout.begins(rows[i]) is False:
                out[-1][-1] += "\n" + block.lines[i]
                grows = at
            elif rows[i] == [""]:
                continue
            else:
                mended, at = self._join(rows, i, end)
                if mended is not None:
                    self._take(mended, line, out, numbers)
                    grows = at
                else:
                    self._refuse(line, CUT if at == i + 1 else BROKEN, block.lines[i])
        out += rows[at:end]
        numbers += range(first + at, first + end)
        self.rows += max(0, end - at)
        return out, numbers

    def _hold(self, block: LineBlock, odd: list[int]) -> int:
        """Keep the last record for the next block, in which it may go on; returns where it begins."""
        end = len(block.lines)
        odd_set = set(odd[-MOST_LINES:])
        start = end - 1
        while start > 0 and start in odd_set:
            start -= 1
        if start in odd_set and start > 0:
            return end  # so many odd lines in a row are no record
        self._held = LineBlock(
            block.first + start, block.lines[start:], {i - start for i in block.too_long if i >= start}
        )
        return start

    def _take(self, row: Row, line: int, out: list[Row], numbers: list[int]) -> None:
        out.append(row)
        numbers.append(line)
        self.rows += 1
        self.mended += 1

    def _refuse(self, line: int, reason: str, text: str) -> None:
        self.rows += 1
        self.refused.add(self.file, line, reason, text[:400])

    def _join(self, rows: list[Row], i: int, end: int) -> tuple[Row | None, int]:
        """Join line i with those after it to one record: (fields or None, the next line to look at)."""
        parts, size = list(rows[i]), 0
        j = i + 1
        while j < min(end, i + MOST_LINES) and len(parts) - 1 in self.layout.free and size < MAX_LINE:
            following = rows[j]
            if self._record(following) or (len(following) > 1 and self.layout.begins(following)):
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
        while at < end and len(rows[at]) < self._want:
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
        """The records that arise when columns take surplus fields, ways: ((column, number), ...); distinct ones."""
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
