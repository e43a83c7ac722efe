"""Texts of sacct: delimiters, headers, what text fields break, steps, and that no row is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacct_rows import BERLIN, COLUMNS, conserved, read, record, text, write

from tias_slurm.errors import InputError
from tias_slurm.slurm import files, repair
from tias_slurm.slurm.history import read_history

PLAIN = [record(JobID=str(100 + i), ElapsedRaw=3600, Comment=f"deadline=+{i}h") for i in range(5)]


@pytest.mark.parametrize("delimiter", ["|", "\x1f", "|#", "☃", "\t", ";", "^~^", ","])
@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_delimiters(tmp_path: Path, delimiter: str, trailing: bool, header: bool) -> None:
    rows = [{**r, "AllocTRES": "gres/gpu=2", "ReqTRES": ""} if delimiter == "," else r for r in PLAIN]
    content = text(*rows, delimiter=delimiter, end=delimiter if trailing else "")
    columns = None
    if not header:
        content = content.split("\n", 1)[1]
        columns = ",".join(f"{c.lower()}%30" for c in COLUMNS)
    for given_delimiter in (None, delimiter):
        work = read(tmp_path, content, columns=columns, delimiter=given_delimiter)
        assert work.jobs["job_id"].tolist() == ["100", "101", "102", "103", "104"]
        assert work.jobs["comment"].tolist()[4] == "deadline=+4h"
        assert work.jobs["submit_line"].tolist() == ["sbatch run.sh"] * 5
        assert work.jobs["gpus"].tolist() == [2] * 5
        assert not work.refused.total


@pytest.mark.parametrize("written", [r"\x1f", r"$'\x1f'", r"\037"])
def test_delimiter_as_typed_in_a_shell(tmp_path: Path, written: str) -> None:
    assert len(read(tmp_path, text(*PLAIN, delimiter="\x1f"), delimiter=written).jobs) == 5


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    content = "\ufeff" + text(*PLAIN).replace("\n", "\r\n").rstrip("\r\n")
    work = read(tmp_path, content)
    assert len(work.jobs) == 5
    assert work.jobs["submit_line"].tolist()[-1] == "sbatch run.sh"


def test_messages_before_the_header_are_refused_by_line(tmp_path: Path) -> None:
    work = read(tmp_path, "module loaded\n\n" + text(*PLAIN))
    assert len(work.jobs) == 5
    assert [(r.line, r.reason) for r in work.refused.examples] == [(1, "stands before the header")]


def test_exports_put_one_behind_the_other(tmp_path: Path) -> None:
    work = read(tmp_path, text(*PLAIN[:2]) + text(*PLAIN[2:]))
    assert len(work.jobs) == 5
    assert work.left_out == {"header lines": 1}


def test_steps_are_left_out_and_counted(tmp_path: Path) -> None:
    steps = [record(JobID=f"100.{s}", User="", Partition="") for s in ("batch", "extern", "0", "interactive")]
    steps += [record(JobID="200_3.batch", JobIDRaw="203.batch"), record(JobID="300+1.0", JobIDRaw="301.0")]
    work = read(tmp_path, text(PLAIN[0], *steps))
    assert len(work.jobs) == 1
    assert work.left_out == {"steps": 6}


def test_columns_in_another_order_and_case(tmp_path: Path) -> None:
    columns = tuple(reversed(COLUMNS))
    content = text(*PLAIN, columns=columns)
    head, rest = content.split("\n", 1)
    work = read(tmp_path, head.upper() + "\n" + rest)
    assert work.jobs["job_id"].tolist()[0] == "100"
    assert work.jobs["work"].tolist() == [3600.0] * 5


BREAKS = {
    "line break in a name": ({"JobName": "a\nb"}, {}),
    "two line breaks in a name": ({"JobName": "a\n\nb"}, {}),
    "line break in a comment": ({"Comment": "see\nme"}, {"comment": "see\nme"}),
    "line breaks at the end": (
        {"SubmitLine": "sbatch --wrap 'x\ny | z\n'"},
        {"submit_line": "sbatch --wrap 'x\ny | z\n'"},
    ),
    "delimiter in a name": ({"JobName": "a|b"}, {}),
    "delimiters in a submit line": (
        {"SubmitLine": "sbatch a | b || c"},
        {"submit_line": "sbatch a | b || c", "comment": ""},
    ),
    "delimiter in a comment": ({"Comment": "deadline=+1h|x"}, {"comment": "deadline=+1h|x"}),
    "delimiter in two fields": (
        {"JobName": "a|b", "SubmitLine": "sbatch -J a|b"},
        {"submit_line": "sbatch -J a|b"},
    ),
    "delimiter and line break": ({"JobName": "a|b\nc"}, {}),
}


@pytest.mark.parametrize("case", BREAKS)
def test_torn_records_are_mended(tmp_path: Path, case: str) -> None:
    torn, expected = BREAKS[case]
    work = read(tmp_path, text(PLAIN[0], record(JobID="999", **torn), *PLAIN[1:]))
    assert work.jobs["job_id"].tolist() == ["100", "999", "101", "102", "103", "104"]
    assert not work.refused.total
    row = work.jobs.loc[1]
    assert row["work"] == 3600
    for column, value in expected.items():
        assert row[column] == value


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("999|999|cut off", "too few fields (cut line)"),
        ("|".join(["x"] * 40), "too many fields (delimiter in text)"),
        ({"Timelimit": "1|2"}, "too many fields (delimiter in text)"),
        ({"Comment": "a|b", "SubmitLine": "x|y"}, "too many fields (delimiter in text)"),
        ({"User": "a\nb"}, "line break in text, cannot be mended"),
        ({"JobID": "no id"}, "not a job id"),
        ({"State": "DONE"}, "not a job state"),
        ({"Submit": "soon", "Eligible": ""}, "Submit: not a time"),
        ({"Start": "-5"}, "Start: negative time"),
        ({"AllocTRES": "gres/gpu=x"}, "AllocTRES: cannot be read"),
        ({"ElapsedRaw": "long"}, "ElapsedRaw: not a duration"),
        ({"Timelimit": "long"}, "Timelimit: not a duration"),
    ],
)
@pytest.mark.parametrize("last", ["SubmitLine", "ExitCode"])
def test_bad_records_do_not_harm_their_neighbours(
    tmp_path: Path, bad: str | dict[str, str], reason: str, last: str
) -> None:
    columns = (*(c for c in COLUMNS if c != last), last)
    good = text(*PLAIN, columns=columns).split("\n")
    line = (
        bad
        if isinstance(bad, str)
        else text(record(**{"JobID": "999", **bad}), columns=columns).split("\n", 1)[1]
    )
    work = read(tmp_path, "\n".join([*good[:3], line.removesuffix("\n"), *good[3:]]))
    assert work.jobs["job_id"].tolist() == ["100", "101", "102", "103", "104"]
    assert work.jobs["submit_line"].tolist() == ["sbatch run.sh"] * 5
    assert [(r.line, r.reason) for r in work.refused.examples] == [(4, reason)]


def test_line_that_belongs_to_no_record_is_refused(tmp_path: Path) -> None:
    columns = (*COLUMNS, "ExitCode")  # whose last column is no text that could go on
    lines = text(*PLAIN, columns=columns).split("\n")
    work = read(tmp_path, "\n".join([*lines[:3], "a text, left alone", *lines[3:]]))
    assert len(work.jobs) == 5
    assert [(r.line, r.reason) for r in work.refused.examples] == [(4, "too few fields (cut line)")]


def test_cut_record_is_not_joined_with_the_next_torn_one(tmp_path: Path) -> None:
    torn = text(record(JobID="999", JobName="a\nb")).split("\n", 1)[1]
    work = read(tmp_path, text(PLAIN[0]) + "998|998|cut\n" + torn + text(PLAIN[1]).split("\n", 1)[1])
    assert work.jobs["job_id"].tolist() == ["100", "999", "101"]
    assert [(r.line, r.reason) for r in work.refused.examples] == [(3, "too few fields (cut line)")]


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    content = text(record(Comment="caf\udce9 deadline=+1h", User="j\u00f6rg"))
    work = read(tmp_path, content)
    assert work.jobs["comment"].tolist() == ["caf\ufffd deadline=+1h"]
    assert work.jobs["user"].tolist() == ["j\u00f6rg"]


def test_line_that_is_too_long_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    for block in (64, 300, 5000, 1 << 20):
        monkeypatch.setattr(files, "BLOCK", block)
        work = read(tmp_path, text(PLAIN[0], record(JobID="9", Comment="x" * 1500), *PLAIN[1:]))
        assert work.jobs["job_id"].tolist() == ["100", "101", "102", "103", "104"]
        assert [r.line for r in work.refused.examples] == [3]
        assert "longer than" in work.refused.examples[0].reason


def test_torn_records_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one whole line near the end of a block, it still ends between two records."""
    monkeypatch.setattr(files, "BLOCK", 2000)
    monkeypatch.setattr(repair, "MOST_LINES", 7)
    work = read(
        tmp_path, text(*(record(JobID=str(i), JobName="a\nb", Comment="c\nd") for i in range(1, 201)))
    )
    assert work.jobs["job_id"].tolist() == [str(i) for i in range(1, 201)]
    assert not work.refused.total


FIELD = st.text(st.sampled_from("ab |\n=\u00e9"), max_size=6)


@given(st.lists(st.tuples(FIELD, FIELD, st.sampled_from(["sbatch ", ""]), FIELD), min_size=1, max_size=8),
       st.sampled_from([40, 97, 250, 1 << 20]))  # fmt: skip
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_do_not_matter_and_no_row_is_lost(
    tmp_path: Path, rows: list[tuple[str, str, str, str]], block: int
) -> None:
    """Any text in the free fields, whatever the size of the blocks: the same jobs and refusals, all rows
    counted.
    """
    records = [
        record(JobID=str(10 + i), JobName=name, Comment=comment, SubmitLine=command + line)
        for i, (name, comment, command, line) in enumerate(rows)
    ]
    content = text(record(JobID="1"), *records, record(JobID="99"))
    before = files.BLOCK
    try:
        whole = read(tmp_path, content)
        files.BLOCK = block
        parts = read(tmp_path, content)
    finally:
        files.BLOCK = before
    assert whole.jobs.equals(parts.jobs)
    assert whole.refused.examples == parts.refused.examples
    assert whole.rows == parts.rows
    found = whole.jobs["job_id"].tolist()
    assert found[0] == "1"
    for r in records:
        if not any(c in r[x] for x in ("JobName", "Comment", "SubmitLine") for c in "|\n"):
            assert r["JobID"] in found


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_jobs_or_one_clear_line(tmp_path: Path, data: bytes, header: bool) -> None:
    head = text(record()).encode() if header else b""
    try:
        work = read_history([write(tmp_path / "any", head + data)], zone=BERLIN)
        assert conserved(work)
        assert len(work.jobs) > 0
    except InputError as e:
        message = str(e)
    else:
        message = "read"
    assert message
    assert "\n" not in message


def test_gpus_by_gres_where_no_tres_is_given(tmp_path: Path) -> None:
    columns = (
        *tuple(c for c in COLUMNS if "TRES" not in c),
        "AllocGRES",
        "ReqGRES",
        "NNodes",
        "NCPUS",
        "ReqMem",
    )
    rows = [
        record(JobID="1", AllocGRES="gpu:2", ReqGRES="gpu:4", NNodes=2, NCPUS=16, ReqMem="4Gn"),
        record(JobID="2", AllocGRES="", ReqGRES="gpu:a100:1", NNodes=1, NCPUS=4, ReqMem="2000Mc"),
        record(JobID="3", AllocGRES="", ReqGRES="", NNodes="2K", NCPUS=4, ReqMem="8G"),
    ]
    jobs = read(tmp_path, text(*rows, columns=columns)).jobs
    assert jobs["gpus"].tolist() == [4, 1, 0]
    assert jobs["gpu_type"].tolist() == ["", "a100", ""]
    assert jobs["nodes"].tolist() == [2, 1, 2048]
    assert jobs["mem_mb"].tolist() == [8192, 8000, 8192]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("NNodes", "NNodes: not a count"),
        ("AllocCPUS", "AllocCPUS: not a count"),
        ("ReqMem", "ReqMem: not an amount of memory"),
        ("AllocGRES", "AllocGRES: cannot be read"),
        ("TimelimitRaw", "TimelimitRaw: not a duration"),
        ("Suspended", "Suspended: not a duration"),
    ],
)
def test_reasons_name_columns_as_sacct_writes_them(tmp_path: Path, column: str, reason: str) -> None:
    columns = (*(c for c in COLUMNS if "TRES" not in c), column, "ReqGRES")
    rows = [
        record(JobID="1", ReqGRES="gpu:1"),
        record(JobID="2", **{column: "gpu:a100:1xx" if column == "AllocGRES" else "gpu:1xx"}),
    ]
    assert read(tmp_path, text(*rows, columns=columns)).refused.by_reason == {reason: 1}


def test_requested_gpus_where_the_allocation_names_none(tmp_path: Path) -> None:
    rows = [
        record(JobID="1", AllocTRES="cpu=8,mem=64G,node=1", ReqTRES="cpu=8,gres/gpu=4,node=1"),
        record(JobID="2", AllocTRES="", ReqTRES="cpu=8,gres/gpu=3,mem=1G,node=1"),
        record(JobID="3", AllocTRES="cpu=8,gres/gpu=0", ReqTRES="gres/gpu=3"),
    ]
    assert read(tmp_path, text(*rows)).jobs["gpus"].tolist() == [4, 3, 0]


def test_limits_and_durations(tmp_path: Path) -> None:
    columns = (*tuple(c for c in COLUMNS if c not in ("Timelimit", "ElapsedRaw")), "TimelimitRaw", "Elapsed")
    rows = [
        record(JobID=str(i), TimelimitRaw=limit, Elapsed="01:00:00")
        for i, limit in enumerate(["60", "UNLIMITED", "Partition_Limit", ""], 1)
    ]
    jobs = read(tmp_path, text(*rows, columns=columns)).jobs
    np.testing.assert_array_equal(jobs["time_limit"], [3600, np.inf, np.nan, np.nan])
    assert jobs["work"].tolist() == [3600] * 4
