"""From records to jobs: runs joined, reused ids told apart, files that overlap, doubled hours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from sacct_rows import COLUMNS, at, read, record, run, text

from tias_slurm.replay.workload import COLUMNS as JOB_COLUMNS


def test_one_job_as_every_column(tmp_path: Path) -> None:
    work = read(
        tmp_path, text(run("10:00", "10:10", "11:10", Eligible="2025-03-01T10:05:00", Comment="deadline=+2h"))
    )
    assert list(work.jobs.columns) == list(JOB_COLUMNS)
    for column, (kind, _) in JOB_COLUMNS.items():
        assert work.jobs[column].dtype == kind, column
    job = work.jobs.loc[0]
    expected = {
        "job_id": "100", "cluster": "alpha", "user": "ann", "account": "lab", "partition": "gpu",
        "qos": "normal",
        "state": "COMPLETED", "first_submit": at("10:00"), "eligible": at("10:05"), "start": at("10:10"),
        "end": at("11:10"), "work": 3600, "lost_work": 0, "runs": 1, "gpus": 2, "gpu_type": "a100", "cpus": 8,
        "mem_mb": 65536, "nodes": 1, "time_limit": 7200, "comment": "deadline=+2h",
        "submit_line": "sbatch run.sh",
    }  # fmt: skip
    assert {k: job[k] for k in expected} == expected
    assert np.isnan(job["native_deadline"])


def test_runs_of_one_job_are_joined(tmp_path: Path) -> None:
    rows = [
        run("10:00", "10:10", "10:40", "REQUEUED", Comment="deadline=+9h"),
        run("10:40", "11:00", "11:20", "PREEMPTED"),
        run("11:21", "11:30", "11:40", "NODE_FAIL"),
        run("11:42", "12:00", "13:00"),
    ]
    work = read(tmp_path, text(record(JobID="99"), *reversed(rows)))
    assert work.jobs["job_id"].tolist() == ["99", "100"]
    job = work.jobs.loc[1]
    assert job["runs"] == 4
    assert (job["first_submit"], job["start"], job["end"]) == (at("10:00"), at("12:00"), at("13:00"))
    assert (job["work"], job["lost_work"]) == (3600, 60 * 60)
    assert job["state"] == "COMPLETED"
    assert job["comment"] == "deadline=+9h"
    assert work.left_out == {"earlier runs, joined": 3}


@pytest.mark.parametrize("times", [1, 2])
def test_requeued_job_that_was_cancelled_while_it_waited_again(tmp_path: Path, times: int) -> None:
    rows = [
        run("10:00", "10:10", "10:40", "REQUEUED", Restarts=0),
        run("10:40", "10:50", "11:00", "PREEMPTED", Restarts=1),
        run("11:00", "None", "12:00", "CANCELLED by 1000", AllocTRES="", Restarts=2),
    ]
    columns = (*COLUMNS[:-1], "Restarts", "SubmitLine")
    work = read(tmp_path, text(*rows[2 - times :], columns=columns))
    job = work.jobs.loc[0]
    assert (job["state"], job["runs"], job["work"]) == ("CANCELLED", 0, 0)
    assert job["lost_work"] == {1: 600, 2: 2400}[times]
    assert np.isnan(job["start"])
    assert job["end"] == at("12:00")
    assert job["gpus"] == 2
    hours = {1: "0.3", 2: "1.3"}[times]  # 600 s or 2400 s of 2 GPUs
    said = [note for note in work.notes if "then cancelled while it waited: it counts" in note]
    assert len(said) == 1
    assert said[0].startswith("1 job was requeued")
    assert f"the {hours} GPU-hours" in said[0]
    # that a run before these is not in the export is another matter
    assert any("export with -D" in note for note in work.notes) == (times == 1)


def test_resized_job_is_one_run(tmp_path: Path) -> None:
    rows = [
        run("10:00", "10:10", "10:40", "RESIZING"),
        run("10:40", "10:40", "11:10", AllocTRES="gres/gpu=1,node=1"),
    ]
    job = read(tmp_path, text(*rows)).jobs.loc[0]
    assert (job["runs"], job["work"], job["lost_work"], job["gpus"]) == (1, 3600, 0, 1)
    assert (job["start"], job["end"]) == (at("10:10"), at("11:10"))


@pytest.mark.parametrize(
    ("first", "second", "jobs"),
    [
        ({"state": "COMPLETED"}, {"day": "2025-06-01", "User": "bob"}, 2),
        ({"state": "COMPLETED"}, {"day": "2025-06-01"}, 2),
        ({"state": "REQUEUED"}, {"day": "2025-06-01"}, 2),
        ({"state": "REQUEUED"}, {"User": "bob"}, 2),
        ({"state": "FAILED"}, {}, 1),  # scontrol requeue of a job that the controller still remembers
        ({"state": "CANCELLED by 0"}, {"JobID": "100_1", "JobIDRaw": "100"}, 2),
        ({"state": "NODE_FAIL"}, {}, 1),
    ],
)
def test_reused_ids_are_told_apart(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], jobs: int
) -> None:
    rows = [run("10:00", "10:10", "10:40", **first), run("10:41", "11:00", "12:00", **second)]
    work = read(tmp_path, text(*rows))
    assert len(work.jobs) == jobs
    assert work.jobs["runs"].sum() == 2
    if jobs == 2:
        assert any("used again" in note for note in work.notes)


def test_overlapping_exports(tmp_path: Path) -> None:
    """January saw one job run and one wait; February saw both end, and tells of a third the same again."""
    same = record(JobID="1")
    january = text(
        same,
        run("10:00", "10:10", "Unknown", "RUNNING", JobID="2", ElapsedRaw=600),
        run("10:00", "Unknown", "Unknown", "PENDING", JobID="3", AllocTRES=""),
        run("10:00", "Unknown", "Unknown", "PENDING", JobID="4", AllocTRES=""),
    )
    february = text(
        same, run("10:00", "10:10", "12:10", JobID="2"), run("10:00", "11:00", "12:00", JobID="3")
    )
    for contents in ((january, february), (february, january)):
        work = read(tmp_path, *contents)
        assert sorted(work.jobs["job_id"]) == ["1", "2", "3"]
        assert work.jobs.set_index("job_id").loc["2", "work"] == 7200
        assert work.left_out == {"duplicate rows": 1, "superseded rows": 2, "pending": 1}
        assert work.jobs["runs"].tolist() == [1, 1, 1]


def test_running_suspended_and_pending(tmp_path: Path) -> None:
    rows = [
        run("10:00", "10:10", "Unknown", "RUNNING", JobID="1", ElapsedRaw=600),
        run("10:00", "10:10", "Unknown", "SUSPENDED", JobID="2", ElapsedRaw=60),
        run("10:00", "Unknown", "Unknown", "PENDING", JobID="3_[4-9%2]", JobIDRaw="3"),
    ]
    work = read(tmp_path, text(*rows))
    assert work.jobs["work"].tolist() == [600, 60]
    assert work.jobs["end"].isna().all()
    assert work.left_out == {"pending": 1}


@pytest.mark.parametrize("start", ["None", "Unknown", "2025-03-01T11:00:00"])
def test_cancelled_while_waiting(tmp_path: Path, start: str) -> None:
    row = run(
        "10:00", "None", "11:00", "CANCELLED by 1000", JobID="12_[0-4999%20]", JobIDRaw="12", AllocTRES=""
    )
    job = read(tmp_path, text(row | {"Start": start})).jobs.loc[0]
    assert (job["job_id"], job["state"], job["runs"], job["work"]) == ("12_[0-4999%20]", "CANCELLED", 0, 0)
    assert np.isnan(job["start"])
    assert job["end"] == at("11:00")
    assert job["gpus"] == 2


def test_cancelled_as_soon_as_it_started_has_run(tmp_path: Path) -> None:
    assert read(tmp_path, text(run("10:00", "11:00", "11:00", "CANCELLED by 1000"))).jobs.loc[0, "runs"] == 1


def test_held_job_was_never_eligible(tmp_path: Path) -> None:
    row = run("10:00", "None", "11:00", "CANCELLED by 0", AllocTRES="", Eligible="Unknown")
    assert read(tmp_path, text(row)).jobs.loc[0, "eligible"] == at("11:00")


def test_arrays_and_het_jobs_stay_apart(tmp_path: Path) -> None:
    ids = [("12_3", "15"), ("12_4", "16"), ("12_5", "12"), ("20+0", "20"), ("20+1", "21")]
    work = read(tmp_path, text(*(record(JobID=a, JobIDRaw=b) for a, b in ids)))
    assert work.jobs["job_id"].tolist() == [a for a, _ in ids]
    columns = tuple(c for c in COLUMNS if c != "JobIDRaw")
    assert len(read(tmp_path, text(*(record(JobID=a) for a, _ in ids), columns=columns)).jobs) == 5


def test_end_follows_from_start_and_elapsed(tmp_path: Path) -> None:
    columns = tuple(c for c in COLUMNS if c != "End")
    assert read(tmp_path, text(record(), columns=columns)).jobs.loc[0, "end"] == at("11:10")
    assert read(tmp_path, text(record(End="Unknown"))).jobs.loc[0, "end"] == at("11:10")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"End": "2025-03-01T10:05:00"}, "ends before its start"),
        ({"Start": "2025-03-01T09:00:00"}, "starts before its submit"),
        ({"Submit": "Unknown"}, "no submit time"),
        ({"End": "Unknown", "ElapsedRaw": ""}, "ended but has no end time"),
        ({"Start": "Unknown"}, "ran but has no start time"),
        ({"State": "RUNNING", "ElapsedRaw": ""}, "runs but has no Elapsed"),
        ({"State": "RUNNING", "Start": "Unknown"}, "runs but has no start time"),
        ({"State": "RUNNING", "End": "Unknown", "ElapsedRaw": "315576001"}, "run time over ten years"),
        ({"End": "Unknown", "ElapsedRaw": "100000000000"}, "run time over ten years"),
        ({"End": "2036-03-01T11:10:00", "ElapsedRaw": ""}, "run time over ten years"),
        ({"ElapsedRaw": "90000"}, "Elapsed is longer than Start to End"),
        ({"Start": "2025-03-30T02:30:00"}, "Start: time skipped by a DST change"),
        ({"State": "CANCELLED", "Start": "None", "End": "2025-03-01T09:00:00"}, "ends before its submit"),
    ],
)
def test_records_that_contradict_themselves(tmp_path: Path, values: dict[str, str], reason: str) -> None:
    work = read(tmp_path, text(record(JobID="1"), record(JobID="2", **values)))
    assert work.jobs["job_id"].tolist() == ["1"]
    assert [(r.line, r.reason) for r in work.refused.examples] == [(3, reason)]


def test_start_within_a_second_before_submit_is_rounding(tmp_path: Path) -> None:
    job = read(tmp_path, text(record(Submit="2025-03-01T10:10:01"))).jobs.loc[0]
    assert job["start"] == job["first_submit"]


@pytest.mark.parametrize(
    ("start", "end", "elapsed", "expected"),
    [  # 02:00 to 03:00 happens twice: from 00:00 UTC in summer time, from 01:00 UTC in winter time
        ("01:30", "02:30", 3600, (-30, 30)),
        ("01:30", "02:30", 7200, (-30, 90)),
        ("02:30", "03:30", 3600, (90, 150)),
        ("02:30", "03:30", 7200, (30, 150)),
        ("02:45", "02:15", 1800, (45, 75)),
        ("02:10", "02:20", 600, (10, 20)),  # either would do: the earlier
    ],
)
def test_doubled_hour_is_settled_by_elapsed(
    tmp_path: Path, start: str, end: str, elapsed: int, expected: tuple[int, int]
) -> None:
    row = record(
        Submit="2025-10-26T01:00:00",
        Start=f"2025-10-26T{start}:00",
        End=f"2025-10-26T{end}:00",
        ElapsedRaw=elapsed,
    )
    work = read(tmp_path, text(row))
    midnight = datetime(2025, 10, 26, tzinfo=UTC).timestamp()
    job = work.jobs.loc[0]
    assert ((job["start"] - midnight) / 60, (job["end"] - midnight) / 60) == expected
    assert any("happens twice" in note for note in work.notes)


def test_submit_in_the_doubled_hour_comes_before_start(tmp_path: Path) -> None:
    row = record(
        Submit="2025-10-26T02:40:00", Start="1761440400", End="1761444000", ElapsedRaw=3600
    )  # 02:00 winter
    job = read(tmp_path, text(row)).jobs.loc[0]
    assert job["first_submit"] == datetime(2025, 10, 26, 0, 40, tzinfo=UTC).timestamp()
