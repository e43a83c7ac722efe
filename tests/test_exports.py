"""Exports as files: clusters, columns that lack, notes, the command that makes one, public ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from sacct_rows import BERLIN, COLUMNS, SONAR, at, conserved, read, record, run, text, write

from tias_slurm.errors import InputError
from tias_slurm.slurm.fields import SACCT_FIELDS, column_list
from tias_slurm.slurm.history import how_to_export, read_history, sniff
from tias_slurm.slurm.sacct_text import NEEDED


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
