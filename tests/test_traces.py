"""Traces: names, units, relative deadlines, refused rows, SWF, and the public ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tias_slurm.errors import InputError
from tias_slurm.replay.traces import read_trace
from tias_slurm.replay.workload import COLUMNS

HEADER = "job_id,submit_time,duration,num_gpu"


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_csv_with_every_column(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "\ufeffuser, num_gpu,job_id,submit_time,duration,deadline,"
        "best_effort,time_limit,partition,num_cpu,extra\n"
        'ann,8,b,10.5,2,40,0,60,gpu,16,"x, y"\n'
        "bob,1.0,a,1,0.5,,false,,,,z\r\n"
        "bob,1,c,1,1,30,True,,,,\n"
        "\n"
        "bob,0,d,1,1,,,,,,\n",
    )
    work = read_trace([path], time_unit="minutes")
    jobs = work.jobs
    assert list(jobs.columns) == [*COLUMNS, "deadline"]
    assert {name: str(jobs[name].dtype) for name in COLUMNS} == {n: d for n, (d, _) in COLUMNS.items()}
    assert jobs.job_id.tolist() == ["b", "a", "c"]  # as they stood
    assert jobs.first_submit.tolist() == [630.0, 60.0, 60.0]
    assert jobs.work.tolist() == [120.0, 30.0, 60.0]
    assert jobs.gpus.tolist() == [8, 1, 1]
    assert jobs.cpus.tolist() == [16, 0, 0]
    assert jobs.user.tolist() == ["ann", "bob", "bob"]
    np.testing.assert_equal(jobs.deadline.to_numpy(), [2400.0, np.nan, np.nan])
    np.testing.assert_equal(jobs.time_limit.to_numpy(), [3600.0, np.nan, np.nan])
    assert jobs.start.isna().all()
    assert set(jobs.state) == {"COMPLETED"}
    assert (work.is_trace, work.rows, work.left_out["no GPUs"], work.refused.total) == (True, 4, 1, 0)
    assert work.notes == ["1 deadline of a best-effort job of the trace is void"]


def test_other_names_and_relative_deadlines(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "id\tat\tlen\tg\tdue\nx\t5\t1\t1\t7\ny\t5\t1\t1\t\n")
    work = read_trace(
        [path], columns="job_id=id, submit_time=at,duration=len,num_gpu=g,deadline=+due", time_unit="h"
    )
    np.testing.assert_equal(work.jobs.deadline.to_numpy(), [12 * 3600.0, np.nan])


def test_refused_rows_are_counted_with_their_lines(tmp_path: Path) -> None:
    rows = [
        ("1,0,5,1,", None),
        ("2,-1,5,1,", "submit time is negative"),
        ("3,0,-5,1,", "duration is negative"),
        ("4,x,5,1,", "submit time is no number"),
        ("5,0,inf,1,", "duration is no number"),
        ("6,0,5,1.5,", "GPUs are no whole number"),
        ("7,0,5,-1,", "GPUs are out of range"),
        ("8,0,5,1e9,", "GPUs are out of range"),
        ("9,0,1_000,1,", "duration is no number"),
        ("10,0,1e300,1,", "duration is out of range"),
        ("16,0,1e11,1,", "run time over ten years"),
        ("17,0,315576001,1,", "run time over ten years"),
        ("11,0,5", "fewer fields than the header"),
        ("12,0,5,1,,", "more fields than the header"),
        ("1,0,5,1,", "job id seen before"),
        (",0,5,1,", "no job id"),
        ('13,0,5,1,"', "not a line of CSV"),
        ("14,0,5,1,soon", "deadline is no number"),
        ("15,0,5,1,9", None),
    ]
    path = write(tmp_path / "t.csv", HEADER + ",deadline\n" + "\n".join(row for row, _ in rows))
    work = read_trace([path])
    assert work.jobs.job_id.tolist() == ["1", "15"]
    assert work.rows == len(rows)
    expected = [(i + 2, reason) for i, (_, reason) in enumerate(rows) if reason]
    assert sorted((r.line, r.reason) for r in work.refused.examples) == sorted(expected)
    assert {r.file for r in work.refused.examples} == {path}


def test_run_time_over_ten_years_in_the_unit_of_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", HEADER + "\n1,0,3652,1\n2,0,3653,1\n")
    work = read_trace([path], time_unit="d")
    assert work.jobs.job_id.tolist() == ["1"]
    assert work.refused.by_reason == {"run time over ten years": 1}
    swf = SWF.replace("1 10 5 100 ", "1 10 5 100000000000 ")
    assert read_trace([write(tmp_path / "t.swf", swf)]).refused.by_reason["run time over ten years"] == 1


def test_several_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.csv", f"{HEADER}\n{i},0,1,1\n0,0,1,1\n") for i in (1, 2)]
    work = read_trace(paths)
    assert work.jobs.job_id.tolist() == ["1", "0", "2"]
    assert work.files == 2
    assert work.refused.by_reason == {"job id seen before": 1}


SWF = """; Version: 2.2
; UnixStartTime: 0
1 10 5 100 8 -1 -1 16 3600 -1 1 7 1 -1 -1 2 -1 -1
2 20 5 200 -1 -1 -1 4 -1 -1 0 8 1 -1 -1 -1 -1 -1
3 30 -1 -1 -1 -1 -1 4 60 -1 5 8 1 -1 -1 -1 -1 -1
4 40 5 50 4 -1 -1 4 60 -1 3 8 1 -1 -1 -1 -1 -1
5 50 5
6 -5 5 50 4 -1 -1 4 60 -1 1 8 1 -1 -1 -1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    work = read_trace([write(tmp_path / "t.swf", SWF)])
    jobs = work.jobs
    assert jobs.job_id.tolist() == ["1", "2"]
    assert jobs.gpus.tolist() == [8, 4]
    assert jobs.first_submit.tolist() == [10.0, 20.0]
    assert jobs.work.tolist() == [100.0, 200.0]
    np.testing.assert_equal(jobs.time_limit.to_numpy(), [3600.0, np.nan])
    assert jobs.partition.tolist() == ["2", ""]
    assert work.left_out == {"never ran": 1, "partial run": 1}
    assert work.refused.by_reason == {"not 18 fields": 1, "submit time is negative": 1}
    # known by its content, without the comments too
    assert len(read_trace([write(tmp_path / "t", "\n".join(SWF.splitlines()[2:]))]).jobs) == 2


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", {}, "empty"),
        ("\n \n", {}, "no header line"),
        (b"\x7fELF\0\0\0", {}, "binary"),
        (HEADER, {}, "no job with GPUs in 0 rows"),
        (HEADER + "\n1,x,1,1", {}, "submit time is no number"),
        ("a,b\n1,2", {}, "no column job_id; the columns are a, b"),
        (HEADER + ",user,user\n1,0,1,1,a,a", {}, "two columns are called user"),
        (HEADER + "\n1,0,1,1", {"columns": "deadline=+due"}, "no column due"),
        (HEADER + "\n1,0,1,1", {"columns": "submit=x"}, "the nearest is submit_time"),
        (HEADER + "\n1,0,1,1", {"columns": "x"}, "no field of a trace; known are job_id, submit_time, dur"),
        (HEADER + "\n1,0,1,1", {"columns": "deadline=a,deadline=b"}, "deadline is given twice"),
        (HEADER + "\n1,0,1,1", {"columns": "user=user, user=user"}, "user is given twice"),
        (HEADER + "\n1,0,1,1", {"columns": "user"}, "write user=NAME"),
        (HEADER + "\n1,0,1,1", {"columns": "duration=+x"}, "leave out the +"),
        (HEADER + "\n1,0,1,1", {"time_unit": "fortnight"}, "not a unit of time"),
        ("x" * 5_000_000, {}, "no column job_id"),
        (",".join("c" * 3 for _ in range(100_000)), {}, "no column job_id"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: str | bytes, options: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace([write(tmp_path / "t.csv", content)], **options)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError):
            read_trace([str(path)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.text(alphabet='0123456789.-+e,;"x \r\t', max_size=25), max_size=8))
def test_every_row_is_accounted_for(tmp_path: Path, rows: list[str]) -> None:
    path = write(tmp_path / "t.csv", "\n".join([HEADER, "first,0,1,1", *rows]))
    work = read_trace([path])
    assert work.rows == len(work.jobs) + work.refused.total + work.left_out.total()
    assert work.rows == 1 + sum(bool(row.strip()) for row in rows)
    assert np.isfinite(work.jobs[["first_submit", "work"]].to_numpy()).all()


def test_chronus(shared_data: Path) -> None:
    path = shared_data / "traces" / "chronus" / "MIX1.csv"
    work = read_trace([str(path)], columns="deadline=+expect_time_list", time_unit="minutes")
    assert (work.rows, len(work.jobs), work.left_out["no GPUs"]) == (30_940, 30_756, 184)
    assert work.refused.total == 0
    assert work.jobs.deadline.notna().sum() == 21_600
    first = work.jobs.iloc[0]
    assert (first.first_submit, first.work, first.deadline) == (8555 * 60, 747 * 60, (8555 + 1105) * 60)


def test_elasticflow(shared_data: Path) -> None:
    for path in sorted((shared_data / "traces" / "elasticflow").glob("*.csv")):
        work = read_trace([str(path)], columns="submit_time=submission_time")
        assert len(work.jobs) == work.rows > 1000
        assert work.jobs.deadline.isna().all()
