"""Reads the text of `sacct --parsable` or `--parsable2`: any delimiter, with a header or a list of the
columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats, Ints
from tias_slurm.slurm import fields, values
from tias_slurm.slurm.cells import WIDEST, Cells
from tias_slurm.slurm.files import LineBlock, Progress, label, line_blocks
from tias_slurm.slurm.records import Bad, Raw, Reader, Texts, same_text, texts
from tias_slurm.slurm.repair import Assembler
from tias_slurm.slurm.sizes import sizes
from tias_slurm.slurm.times import TIME_PROBLEM, Times

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
    *,
    delimiter: str | None,
    columns: str | None,
    how: str,
    progress: Progress | None = None,
) -> Iterator[Raw]:
    """The records of one file, many at a time. `how` is the export command for messages.

    Refuses and counts what cannot be read, leaves steps out. Raises InputError where the file as a whole
    is unusable.
    """
    name = label(path)
    if delimiter is not None:
        delimiter = fields.read_delimiter(delimiter)
    listed = fields.column_list(columns) if columns is not None else None
    assembler: Assembler | None = None
    for block in line_blocks(path, progress):
        if assembler is None:
            layout, header = _begin(reader, block, name, delimiter, listed, how)
            reader.names.append(frozenset(layout.names))
            also = frozenset({"nodelist"}) if reader.keep_nodes else frozenset[str]()
            assembler = Assembler(layout, name, reader.refused, also)
            if header:
                block.again = len(b"".join(block.data.split(b"\n", header)[:-1])) + header, header
                continue
        yield _convert(reader, name, assembler.feed(block))
    if assembler is not None:
        reader.rows += assembler.rows
        reader.mended += assembler.mended


def _begin(
    reader: Reader,
    block: LineBlock,
    name: str,
    delimiter: str | None,
    listed: Sequence[str] | None,
    how: str,
) -> tuple[fields.Layout, int]:
    """Find the layout in the first lines; returns it and how many lines the header takes. `listed`: the names
    that the user gave.
    """
    lines = [line.decode("utf-8", "replace") for line in block.data.split(b"\n", 200)[:200]]
    if 0 in block.too_long:
        raise InputError(f"{name} has a first line without end: not a text of sacct; export with: {how}")
    found, at = None, 0
    for at, line in enumerate(lines[:HEADER_LINES]):
        mark = delimiter or fields.header_delimiter(line)
        if mark and line.count(mark) > fields.MOST_COLUMNS:
            raise InputError(
                f"{name}, line {block.first + at}: {line.count(mark) + 1} columns, sacct has about 130: "
                f"export with: {how}"
            )
        if found := fields.header(line, delimiter):
            break
    if found is None and delimiter is not None:
        other = next((h for line in lines[:HEADER_LINES] if (h := fields.header(line, None))), None)
        if other is not None:
            raise InputError(
                f"{name}: its header has the delimiter {other[1]!r}, not {delimiter!r}: "
                f"give that one, or none"
            )
    if found is not None:
        names, cut, trailing = found
        if listed is not None and list(listed) != names:
            raise InputError(_other_header(names, listed, name, block.first + at))
        if len(lines) > at + 1 and not lines[at + 1].strip("- ") and cut.isspace():
            raise InputError(
                f"{name} is sacct's table for people, which cuts values short: export with: {how}"
            )
        for i, line in enumerate(lines[:at]):
            if line.strip():
                reader.rows += 1
                reader.refused.add(name, block.first + i, "stands before the header", line)
        header = at + 1
    else:
        if listed is None:
            raise InputError(
                f"{name} has no header with sacct's field names: name the columns by --format, "
                f"or export with: {how}"
            )
        names = list(listed)
        sample = [line.rstrip("\r\0") for line in lines]
        cut, trailing = _listed_layout([line for line in sample if line], len(names), name, delimiter)
        header = 0
    _refuse_missing(names, name, how)
    return fields.layout(names, cut, trailing), header


def _other_header(names: Sequence[str], listed: Sequence[str], name: str, line: int) -> str:
    """What to say where the header of a file and the list of the user differ."""
    at = next((i for i, (a, b) in enumerate(zip(names, listed, strict=False)) if a != b), None)
    differ = (
        f"{len(names)} columns, --format names {len(listed)}"
        if at is None
        else f"column {at + 1} is {printable(names[at])!r}, in --format {printable(listed[at])!r}"
    )
    return (
        f"{name} has a header of its own in line {line}, another than --format ({differ}): leave --format out"
    )


def _listed_layout(lines: Sequence[str], columns: int, name: str, delimiter: str | None) -> tuple[str, bool]:
    """Of lines without a header: the delimiter, and whether one ends each line. Raises InputError where
    nearly all have another number of fields than the list of columns.
    """
    if not lines:
        raise InputError(f"{name} is empty: export the history again")
    cut = delimiter or fields.find_delimiter(lines, columns) or fields.usual_delimiter(lines)
    cuts: Counter[tuple[int, bool]] = Counter()  # (delimiters, whether one ends the line) -> lines
    if cut:
        cuts.update((line.count(cut), line.endswith(cut)) for line in lines if cut in line)
    bare = cuts[columns - 1, False] + cuts[columns - 1, True]
    closed = cuts[columns, True]
    # as many delimiters, yet none at the end: one name is missing, and the last column is sometimes empty
    short = bare * 10 <= cuts.total() < cuts[columns, False] * 10
    if not cut or short or (bare + closed) * 10 <= cuts.total():
        seen = "no delimiter is known that cuts them"
        if cut:
            count = columns if short else cuts.most_common(1)[0][0][0] if cuts else 0
            closing = not short and sum(n for (_, ends), n in cuts.items() if ends) * 10 > 9 * cuts.total()
            seen = f"{count + 1 - (closing and count > 0)} by {cut!r}"
        raise InputError(
            f"{name}: --format names {columns} columns, its lines have others ({seen}): "
            f"give the list that the export was made with, or --delimiter"
        )
    return cut, closed > bare


def _refuse_missing(names: Sequence[str], name: str, how: str) -> None:
    missing = [title for title, any_of in NEEDED if not set(any_of) & set(names)]
    if missing:
        which = f"the column {missing[0]}" if len(missing) == 1 else f"the columns {', '.join(missing)}"
        raise InputError(f"{name} lacks {which}: export with: {how}")


def _convert(reader: Reader, name: str, parts: list[Cells]) -> Raw:
    """Fields as columns of values, in the order of the lines."""
    found = [_columns(reader, name, cells) for cells in parts if len(cells)]
    if len(found) < 2:
        return found[0] if found else Raw.empty()
    records = Raw.concat(found)
    return records.take(np.argsort(records.line, kind="stable"))


def _columns(reader: Reader, name: str, cells: Cells) -> Raw:
    """Fields as columns of values; rows with a needed value that cannot be read are refused, steps are
    left out.
    """
    cells, bad = _only_jobs(reader, cells)
    n = len(cells)
    if not n:
        return Raw.empty()
    job_id = cells.ids("jobid" if "jobid" in cells.spans else "jobidraw")
    found, row = cells.distinct("state")
    states = [reader.states[x] for x in found]
    if None in states:
        bad.where(np.array([x is None for x in states])[row], "not a job state", "state")
    times: dict[str, Times] = {}
    for x in ("submit", "start", "end", "eligible"):
        if x not in cells.spans:  # without an Eligible column a job is eligible from its submit
            times[x] = times["submit"] if x == "eligible" else Times.unknown(n)
            continue
        t = times[x] = cells.times(x, reader.zone)
        if t.problem.any():
            for problem, reason in TIME_PROBLEM.items():
                bad.where(t.problem == problem, f"{fields.spelled(x)}: {reason}", x)
    size = sizes(reader, cells, bad)
    deadline = cells.times("deadline", reader.zone).early if "deadline" in cells.spans else _unknown(n)
    restarts = cells.numbers("restarts", reader.counts)[0] if "restarts" in cells.spans else _unknown(n)

    def words(x: str) -> Texts:
        if x not in cells.spans:
            return same_text(n)
        said, row = cells.distinct(x)
        return texts([reader.intern(t) for t in said])[row]

    records = Raw(
        line=cells.lines, key=_keys(reader, cells), job_id=job_id,
        cluster=words("cluster"), user=words("user"), account=words("account"), partition=words("partition"),
        qos=words("qos"), state=texts(states)[row],
        comment=cells.objects("comment"), submit_line=cells.objects("submitline"),
        submit=times["submit"].early, submit_late=times["submit"].late,
        eligible=times["eligible"].early, eligible_late=times["eligible"].late,
        start=times["start"].early, start_late=times["start"].late,
        end=times["end"].early, end_late=times["end"].late,
        elapsed=_duration(reader, cells, bad, "elapsedraw", "elapsed"),
        suspended=_duration(reader, cells, bad, "suspended"),
        time_limit=_duration(reader, cells, bad, "timelimitraw", "timelimit"),
        native_deadline=deadline, restarts=values.as_ints(restarts), hosts=_hosts(reader, cells),
        **size,
    )  # fmt: skip
    bad.where(np.isinf(records.elapsed), "Elapsed: not a duration", "jobid")
    return records if bad.none else records.take(bad.refuse(reader.refused, name))


def _unknown(n: int) -> Floats:
    return np.full(n, math.nan)


def _only_jobs(reader: Reader, cells: Cells) -> tuple[Cells, Bad]:
    """Leave out steps, and headers of exports put one behind the other; refuse what has no job id."""
    drop = np.zeros(len(cells), bool)
    wrong = np.zeros(len(cells), bool)
    for x in ("jobid", "jobidraw"):
        if x not in cells.spans:
            continue
        odd = np.flatnonzero(~cells.integers(x)[1] & ~drop)
        steps = headers = 0
        for i, text in zip(odd.tolist(), cells.texts(x, odd), strict=True):
            if values.JOB_ID.fullmatch(text) or (not text and x == "jobidraw" and "jobid" in cells.spans):
                continue
            is_step, is_header = values.STEP_ID.fullmatch(text) is not None, text.strip().lower() == x
            drop[i] = is_step or is_header
            wrong[i] = not drop[i]
            steps += is_step
            headers += is_header
        reader.left_out["steps"] += steps
        reader.left_out["header lines"] += headers
    if drop.any():
        cells, wrong = cells.take(~drop), wrong[~drop]
    bad = Bad(cells)
    bad.where(wrong, "not a job id", "jobid" if "jobid" in cells.spans else "jobidraw")
    return cells, bad


def _keys(reader: Reader, cells: Cells) -> Ints:
    """The numeric job id; another number, negative, for an id that is not numeric. Shape (n,)."""
    keys = np.zeros(len(cells), np.int64)
    rest = np.ones(len(cells), bool)
    for x in ("jobidraw", "jobid"):
        if x not in cells.spans or not rest.any():
            continue
        number, plain = cells.integers(x)
        take = rest & plain
        keys[take] = number[take].astype(np.int64)
        odd = np.flatnonzero(rest & ~plain & (cells.widths(x) > 0))
        keys[odd] = [reader.key_of(t) for t in cells.texts(x, odd)]
        rest &= cells.widths(x) == 0
    return keys


def _hosts(reader: Reader, cells: Cells) -> Ints:
    """The place of each record's NodeList in Reader.node_lists. Shape (n,)."""
    out = np.zeros(len(cells), np.int64)
    if not reader.keep_nodes or "nodelist" not in cells.spans:
        return out
    long = cells.widths("nodelist") > WIDEST  # a few long lists must not make texts of all
    parts = [np.arange(len(cells))] if not long.any() else [np.flatnonzero(~long), np.flatnonzero(long)]
    for rows in parts:
        said, row = (cells if len(parts) == 1 else cells.take(rows)).distinct("nodelist")
        out[rows] = np.array([reader.place_of(t) for t in said], np.int64)[row]
    return out


def _duration(reader: Reader, cells: Cells, bad: Bad, *names: str) -> Floats:
    """Seconds by the first of the columns that says it, NaN where none does. Shape (n,)."""
    out = _unknown(len(cells))
    for x in names:
        need = np.isnan(out)
        if x not in cells.spans or not need.any():
            continue
        if x.startswith("timelimit"):  # a bare number is minutes
            found, unread = cells.numbers(x, reader.minutes)
        else:
            found, unread = cells.durations(x, reader.durations)
        bad.where(unread & need, f"{fields.spelled(x)}: not a duration", x)
        out = np.where(need, found, out)
    return out
