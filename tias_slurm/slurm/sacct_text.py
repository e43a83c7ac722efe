"""Reads the text of `sacct --parsable` or `--parsable2`: any delimiter, with a header or a list of the columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tias_slurm.jobs import Floats
from tias_slurm.replay.workload import InputError
from tias_slurm.slurm import fields, values
from tias_slurm.slurm.files import LineBlock, Progress, label, line_blocks
from tias_slurm.slurm.records import Bad, Reader, Records, Texts, same_text, texts
from tias_slurm.slurm.repair import Assembler, Row
from tias_slurm.slurm.sizes import sizes
from tias_slurm.slurm.values import Memo

HEADER_LINES = 20  # what may stand before a header: messages of a login shell

NEEDED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("JobID", ("jobid", "jobidraw")),
    ("Submit", ("submit",)),
    ("Start", ("start",)),
    ("End", ("end", "elapsedraw", "elapsed")),
    ("State", ("state",)),
    ("AllocTRES", ("alloctres", "reqtres", "allocgres", "reqgres")),
)


def read_text(
    reader: Reader,
    path: str,
    number: int,
    *,
    delimiter: str | None,
    columns: str | None,
    how: str,
    progress: Progress | None = None,
) -> Iterator[Records]:
    """The records of one file, many at a time. `number` is the file's index, `how` the export command for messages.

    Refuses and counts what cannot be read, leaves steps out. Raises InputError where the file as a whole is unusable.
    """
    name = label(path)
    if delimiter is not None:
        delimiter = fields.read_delimiter(delimiter)
    assembler: Assembler | None = None
    layout: fields.Layout | None = None
    for block in line_blocks(path, progress):
        if assembler is None or layout is None:
            layout, block = _begin(reader, block, name, delimiter, columns, how)
            reader.names.append(frozenset(layout.names))
            assembler = Assembler(layout, name, reader.refused)
        yield _convert(reader, layout, name, number, *assembler.feed(block))
    if assembler is not None and layout is not None:
        yield _convert(reader, layout, name, number, *assembler.finish())
        reader.rows += assembler.rows
        reader.mended += assembler.mended


def _begin(
    reader: Reader, block: LineBlock, name: str, delimiter: str | None, columns: str | None, how: str
) -> tuple[fields.Layout, LineBlock]:
    """Find the layout in the first lines; returns it and the lines after the header."""
    lines = block.lines
    if 0 in block.too_long:
        raise InputError(f"{name} has a first line without end: not a text of sacct; export with: {how}")
    found, at = None, 0
    for at, line in enumerate(lines[:HEADER_LINES]):
        if line.count(",") > 50 * fields.MOST_COLUMNS or line.count(delimiter or "|") > fields.MOST_COLUMNS:
            raise InputError(
                f"{name}, line {block.first + at}: more than {fields.MOST_COLUMNS} columns; sacct has about 130: "
                f"export with: {how}"
            )
        if found := fields.header(line, delimiter):
            break
    if found is None and delimiter is not None:
        other = next((h for line in lines[:HEADER_LINES] if (h := fields.header(line, None))), None)
        if other is not None:
            raise InputError(
                f"{name}: its header is not cut by the delimiter {delimiter!r} but by {other[1]!r}: give that one, or none"
            )
    if found is not None:
        names, cut, trailing = found
        if len(lines) > at + 1 and not lines[at + 1].strip("- ") and cut.isspace():
            raise InputError(
                f"{name} is sacct's table for people, which cuts values short: export with: {how}"
            )
        for i, line in enumerate(lines[:at]):
            if line.strip():
                reader.rows += 1
                reader.refused.add(name, block.first + i, "stands before the header", line)
        rest = LineBlock(
            block.first + at + 1, lines[at + 1 :], {i - at - 1 for i in block.too_long if i > at}
        )
    else:
        if columns is None:
            raise InputError(
                f"{name} has no header with sacct's field names: name the columns by --format, or export with: {how}"
            )
        names = fields.column_list(columns)
        sample = [line for line in lines[:200] if line]
        if not sample:
            raise InputError(f"{name} is empty: export the history again")
        cut = delimiter or fields.find_delimiter(sample, len(names)) or ""
        cuts = Counter(line.count(cut) for line in sample) if cut else Counter()
        if not cuts[len(names) - 1] and not cuts[len(names)]:
            seen = f"{cuts.most_common(1)[0][0] + 1} by {cut!r}" if cut else "no delimiter gives that many"
            raise InputError(
                f"{name}: --format names {len(names)} columns, its lines have others ({seen}): give the list that "
                f"the export was made with, or --delimiter"
            )
        trailing = cuts[len(names)] > cuts[len(names) - 1]
        rest = block
    _refuse_missing(names, name, how)
    return fields.layout(names, cut, trailing), rest


def _refuse_missing(names: Sequence[str], name: str, how: str) -> None:
    missing = [title for title, any_of in NEEDED if not set(any_of) & set(names)]
    if missing:
        which = f"the column {missing[0]}" if len(missing) == 1 else f"the columns {', '.join(missing)}"
        raise InputError(f"{name} lacks {which}: export with: {how}")


def _drop_steps(
    reader: Reader, layout: fields.Layout, rows: list[Row], lines: list[int]
) -> tuple[list[Row], list[int]]:
    ids = [layout.index[x] for x in ("jobid", "jobidraw") if x in layout.index]
    step = values.STEP_ID.fullmatch
    keep = None
    for i in ids:
        if any("." in row[i] for row in rows):
            is_job = ["." not in row[i] or not step(row[i]) for row in rows]
            keep = is_job if keep is None else [a and b for a, b in zip(keep, is_job, strict=True)]
    if keep is None:
        return rows, lines
    reader.left_out["steps"] += len(rows) - sum(keep)
    return [r for r, k in zip(rows, keep, strict=True) if k], [
        n for n, k in zip(lines, keep, strict=True) if k
    ]


def _drop_headers(
    reader: Reader, layout: fields.Layout, rows: list[Row], lines: list[int]
) -> tuple[list[Row], list[int]]:
    """Headers again, of exports put one behind the other."""
    i = layout.index.get("jobid", layout.index.get("jobidraw", 0))
    again = [k for k, row in enumerate(rows) if row[i][:1] in ("J", "j") and _is_header(layout, row)]
    if not again:
        return rows, lines
    reader.left_out["header lines"] += len(again)
    drop = set(again)
    return [r for k, r in enumerate(rows) if k not in drop], [n for k, n in enumerate(lines) if k not in drop]


def _is_header(layout: fields.Layout, row: Row) -> bool:
    return tuple(x.strip().lower() for x in row[: len(layout.names)]) == layout.names


def _convert(
    reader: Reader, layout: fields.Layout, name: str, number: int, rows: list[Row], lines: list[int]
) -> Records:
    """Fields as columns of values; rows with a needed value that cannot be read are refused."""
    if rows:
        rows, lines = _drop_steps(reader, layout, rows, lines)
    if rows:
        rows, lines = _drop_headers(reader, layout, rows, lines)
    n = len(rows)
    if not n:
        return Records.empty()
    cut = (
        list(zip(*rows, strict=True)) if all(len(r) == len(rows[0]) for r in rows) else _ragged(rows, layout)
    )
    column = {x: cut[i] for x, i in layout.index.items() if x in fields.USED}
    nothing = ("",) * n
    bad = Bad(n)

    ids = column.get("jobid") or column["jobidraw"]
    valid = values.JOB_ID.fullmatch
    ids = tuple(map(str.strip, ids))
    bad.where([not (x.isdecimal() or valid(x)) for x in ids], "not a job id", ids)
    raw = column.get("jobidraw")
    keys = ids if raw is None else tuple(r or i for r, i in zip(raw, ids, strict=True))

    states = [reader.states[x] for x in column["state"]]
    if None in states:
        bad.where([s is None for s in states], "not a job state", column["state"])
    times = {}
    for x in ("submit", "start", "end", "eligible"):
        if x in column:
            t = times[x] = values.times(column[x], reader.zone)
            for problem, reason in values.TIME_PROBLEM.items():
                if (hit := t.problem == problem).any():
                    bad.where(hit, f"{x.capitalize()}: {reason}", column[x])
        else:
            times[x] = values.Times(np.full(n, math.nan), np.full(n, math.nan), np.zeros(n, np.int8))

    def duration(preferred: str, other: str, memo: Memo[float]) -> Floats:
        out = np.full(n, math.nan)
        for x, m in (
            (preferred, memo),
            (other, reader.minutes if other == "timelimit" else reader.durations),
        ):
            if x in column and np.isnan(out).any():
                got, unread = values.numbers(column[x], m)
                need = np.isnan(out)
                if (unread & need).any():
                    bad.where(unread & need, f"{x.capitalize()}: not a duration", column[x])
                out = np.where(need, got, out)
        return out

    elapsed = duration("elapsedraw", "elapsed", reader.durations)
    if np.isinf(elapsed).any():
        bad.where(np.isinf(elapsed), "Elapsed: not a duration", ids)
    limit = duration("timelimitraw", "timelimit", reader.minutes)
    suspended = duration("suspended", "", reader.durations)
    size = sizes(reader, column, n, bad)
    deadline = (
        values.times(column["deadline"], reader.zone).early if "deadline" in column else np.full(n, math.nan)
    )
    restarts, _ = values.numbers(column.get("restarts", nothing), reader.counts)

    def text(x: str) -> Texts:
        if x not in column:
            return same_text(n)
        keep = reader.texts.setdefault
        return texts([keep(t, t) for t in map(str.strip, column[x])])

    records = Records(
        file=np.full(n, number), line=np.array(lines, np.int64), key=texts(keys), job_id=texts(ids),
        cluster=text("cluster"), user=text("user"), account=text("account"), partition=text("partition"),
        qos=text("qos"), state=texts(states),
        comment=texts(column["comment"]) if "comment" in column else same_text(n),
        submit_line=texts(column["submitline"]) if "submitline" in column else same_text(n),
        submit=times["submit"].early, submit_late=times["submit"].late,
        eligible=times["eligible"].early, eligible_late=times["eligible"].late,
        start=times["start"].early, start_late=times["start"].late,
        end=times["end"].early, end_late=times["end"].late,
        elapsed=elapsed, suspended=suspended, time_limit=limit, native_deadline=deadline,
        restarts=values.as_ints(restarts), **size,
    )  # fmt: skip
    return records if bad.none else records.take(bad.refuse(reader.refused, name, lines))


def _ragged(rows: list[Row], layout: fields.Layout) -> list[tuple[str, ...]]:
    """Columns of rows some of which lack the empty field behind a trailing delimiter."""
    n = len(layout.names)
    return list(zip(*(row[:n] for row in rows), strict=True))
