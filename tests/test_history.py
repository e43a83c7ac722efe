"""From records to jobs: runs joined, reused ids told apart, files that overlap, clusters, doubled hours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from sacct_rows import BERLIN, COLUMNS, conserved, read, record, text, write

from tias_slurm.errors import InputError
from tias_slurm.replay.workload import COLUMNS as JOB_COLUMNS
from tias_slurm.slurm.fields import SACCT_FIELDS, column_list
from tias_slurm.slurm.history import how_to_export, read_history, sniff
from tias_slurm.slurm.sacct_text import NEEDED


def at(clock: str, day: str = "2025-03-01") -> float:
    """Epoch seconds of a time in Berlin's winter."""
    return datetime.fromisoformat(f"{day}T{clock}:00+01:00").astimezone(UTC).timestamp()


def run(
    submit: str, start: str, end: str, state: str = "COMPLETED", day: str = "2025-03-01", **more: object
) -> dict[str, str]:
    """A record of one run, times as HH:MM of one day."""

    def stamp(t: str) -> str:
        return f"{day}T{t}:00" if t[:1].isdigit() else t

    seconds = at(end) - at(start) if end[0].isdigit() and start[0].isdigit() else more.pop("ElapsedRaw", 0)
    return record(
        Submit=stamp(submit),
        Start=stamp(start),
        End=stamp(end),
        State=state,
        **{"ElapsedRaw": int(seconds)} | more,
    )


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


def test_clusters(tmp_path: Path) -> None:
    content = text(record(JobID="1"), record(JobID="1", Cluster="beta"), record(JobID="2", Cluster="beta"))
    with pytest.raises(InputError, match=r"2 clusters \(alpha, beta\).*--cluster"):
        read(tmp_path, content)
    work = read(tmp_path, content, cluster="beta")
    assert work.jobs["job_id"].tolist() == ["1", "2"]
    assert work.left_out == {"other clusters": 1}
    with pytest.raises(InputError, match=r"no job of cluster .gamma.*alpha, beta"):
        read(tmp_path, content, cluster="gamma")


@pytest.mark.parametrize("number", [1, 2])
def test_notes_of_one_and_of_several(tmp_path: Path, number: int) -> None:
    def several(first: int, *args: str, **more: object) -> list[dict[str, str]]:
        return [run(*args, **{"JobID": str(first + i), **more}) for i in range(number)]

    rows = [
        *several(10, "10:00", "10:10", "Unknown", "RUNNING", ElapsedRaw=600),
        *several(20, "10:00", "10:10", "10:20", "REQUEUED"),
        *several(30, "10:00", "10:10", "10:20", Restarts=1),
        *several(40, "10:00", "10:10", "10:20", "REQUEUED", Restarts=0),
        *several(40, "10:20", "None", "10:30", "CANCELLED", Restarts=1, AllocTRES=""),
        *several(50, "10:00", "10:10", "10:20", JobName="a|b"),
        *several(60, "02:30", "02:40", "02:50", day="2025-10-26", ElapsedRaw=600),
        *several(70, "10:00", "10:10", "10:20", User="ann"),
        *several(70, "12:00", "12:10", "12:20", User="bob"),
    ]
    columns = (*COLUMNS[:-1], "Restarts", "SubmitLine")
    said = {
        1: [
            "1 record has a time in an hour that happens twice, settled by Elapsed and order",
            "1 record was torn by text that holds the delimiter or a line break, and mended",
            "1 job still ran at the export: its work is the run time so far",
            "1 job was requeued last: its next run is not in the history",
            "1 job was requeued and then cancelled while it waited: it counts as cancelled while waiting; "
            "the 0.3 GPU-hours that it ran before are in no measure",
            "1 job was requeued before but only its last run is here: export with -D",
            "1 job id was used again by another job",
        ],
        2: [
            "2 records have a time in an hour that happens twice, settled by Elapsed and order",
            "2 records were torn by text that holds the delimiter or a line break, and mended",
            "2 jobs still ran at the export: their work is the run time so far",
            "2 jobs were requeued last: their next run is not in the history",
            "2 jobs were requeued and then cancelled while they waited: they count as cancelled while "
            "waiting; the 0.7 GPU-hours that they ran before are in no measure",
            "2 jobs were requeued before but only their last run is here: export with -D",
            "2 job ids were used again by another job",
        ],
    }
    assert read(tmp_path, text(*rows, columns=columns)).notes == said[number]


def test_cluster_of_a_history_that_names_none(tmp_path: Path) -> None:
    columns = tuple(c for c in COLUMNS if c != "Cluster")
    without = text(record(JobID="1"), columns=columns)
    with pytest.raises(InputError, match=r"export1\.txt has no Cluster column, so --cluster alpha"):
        read(tmp_path, text(record(JobID="2")), without, cluster="alpha")
    with pytest.raises(InputError, match=r"no job of the history names its cluster, so --cluster alpha"):
        read(tmp_path, text(record(Cluster="")), cluster="alpha")
    with pytest.raises(InputError, match=r"a header but no jobs"):
        read(tmp_path, text(), cluster="alpha")
    assert len(read(tmp_path, without).jobs) == 1


def test_missing_columns_are_named_with_the_command(tmp_path: Path) -> None:
    for missing, _ in NEEDED:
        gone = {
            "JobID": {"JobID", "JobIDRaw"},
            "End": {"End", "ElapsedRaw"},
            "AllocTRES": {"AllocTRES", "ReqTRES"},
        }
        columns = tuple(c for c in COLUMNS if c not in gone.get(missing, {missing}))
        with pytest.raises(InputError) as caught:
            read(tmp_path, text(record(), columns=columns))
        assert f"lacks the column {missing}:" in str(caught.value)
        assert how_to_export() in str(caught.value)
        assert "\n" not in str(caught.value)


def test_useful_columns_that_lack_are_noted(tmp_path: Path) -> None:
    needed = ("JobID", "Submit", "Start", "End", "State", "AllocTRES")
    work = read(tmp_path, text(record(AllocTRES="cpu=4,node=1"), columns=needed))
    assert work.jobs.loc[0, "eligible"] == at("10:00")
    for name in ("Comment", "User", "Timelimit", "Eligible", "SubmitLine", "Elapsed", "Partition"):
        assert any(f"no {name} column" in note for note in work.notes), name
    assert any("no record names a GPU" in note for note in work.notes)
    assert work.jobs.loc[0, "gpus"] == 0


def test_export_command_names_fields_of_sacct_and_gives_what_is_needed() -> None:
    command = how_to_export()
    names = column_list(command.split("--format=")[1].split()[0])
    assert set(names) <= SACCT_FIELDS
    assert names[-2:] == ["comment", "submitline"]
    assert all(set(any_of) & set(names) for _, any_of in NEEDED)
    for part in (
        "SLURM_TIME_FORMAT=%s",
        "SLURM_BITSTR_LEN=0",
        " -a -D -X ",
        "--parsable2",
        "--noconvert",
        r"$'\x1f'",
    ):
        assert part in command


def test_what_the_command_exports_reads_without_notes(tmp_path: Path) -> None:
    names = how_to_export().split("--format=")[1].split()[0].split(",")
    epoch = {
        x: int(at(t))
        for x, t in (("Submit", "10:00"), ("Eligible", "10:00"), ("Start", "10:10"), ("End", "11:10"))
    }
    row = record(TimelimitRaw=120, NNodes=1, Suspended="00:00:00", **epoch)
    work = read(tmp_path, text(row, columns=tuple(names), delimiter="\x1f"))
    assert work.notes == []
    job = work.jobs.loc[0]
    assert (job["start"], job["end"], job["time_limit"]) == (at("10:10"), at("11:10"), 7200)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (text(record()), "sacct"),
        (text(record(), delimiter=","), "sacct"),
        (text(record(), delimiter="|#"), "sacct"),
        (text(record()).split("\n", 1)[1], "sacct"),
        ('  {"jobs": []}', "json"),
        ("job_id,submit_time,duration,num_gpu\n1,0,5,1\n", "csv-trace"),
        ("job_id,num_gpu,submit_time,duration,user,state\n", "csv-trace"),
        ("; Version: 2.2\n; Computer: SP2\n", "swf"),
        ("1 0 5 100 4 -1 -1 4 200 -1 1 1 1 -1 1 -1 -1 -1\n", "swf"),
    ],
)
def test_sniff(tmp_path: Path, content: str, kind: str) -> None:
    assert sniff(write(tmp_path / "x", content)) == kind


def test_same_bytes_same_result(tmp_path: Path) -> None:
    content = text(*(record(JobID=str(i), Comment=f"c{i % 3}") for i in range(50)))
    one, two = read(tmp_path, content), read(tmp_path, content)
    assert one.jobs.equals(two.jobs)
    assert (one.notes, one.left_out) == (two.notes, two.left_out)


SONAR = (
    "JobID,JobIDRaw,User,Account,State,Start,End,AveCPU,AveDiskRead,AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,ExitCode,"
    "Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,"
    "UserCPU,NodeList,Partition,AllocTRES,Priority,JobName"
)


@pytest.mark.parametrize(
    ("name", "columns", "rows", "jobs", "left_out"),
    [
        ("sonar-2024.txt", SONAR, 96, 29, {"steps": 67}),
        ("sonar-2025-gpu.txt", SONAR, 301, 91, {"steps": 179, "pending": 31}),
        ("slurm2sql-1.csv", None, 5, 2, {"steps": 3}),
        ("slurm2sql-2.csv", None, 5, 2, {"steps": 3}),
        ("gcm-one-multiline.txt", None, 4, 2, {"steps": 2}),
        ("gcm-fake-line-break.txt", None, 4, 2, {"steps": 2}),
        ("gcm-output-invalid-utf8.txt", None, 11, 2, {"steps": 9}),
    ],
)
def test_public_exports(
    shared_data: Path, name: str, columns: str | None, rows: int, jobs: int, left_out: dict[str, int]
) -> None:
    path = str(shared_data / "sacct" / name)
    assert sniff(path) == "sacct"
    work = read_history([path], columns=columns, zone=BERLIN)
    assert conserved(work)
    assert not work.refused.total
    assert (work.rows, len(work.jobs), work.left_out) == (rows, jobs, left_out)
    assert (work.jobs["work"] > 0).any()


def test_public_export_with_a_line_cut_off(shared_data: Path) -> None:
    path = str(shared_data / "sacct" / "gcm-output-with-invalid-lines.txt")
    with pytest.raises(InputError, match=r"none of 1 rows .* \(too few fields"):
        read_history([path], zone=BERLIN)


def test_public_gpu_counts(shared_data: Path) -> None:
    jobs = read_history([str(shared_data / "sacct" / "sonar-2025-gpu.txt")], columns=SONAR, zone=BERLIN).jobs
    first = jobs.set_index("job_id").loc["1902893"]  # gres/gpu:a100_80=4,gres/gpu=4
    assert (first["gpus"], first["gpu_type"], first["state"], first["work"]) == (
        4,
        "a100_80",
        "RUNNING",
        256072,
    )
