"""What every live adapter tells of jobs, on a real Slurm. `live.Adapter` is the contract.

contrib/testbed/testbed exec -- python -m pytest tests/live/test_contract_jobs.py
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import contract_bed
from contract_bed import Submit, records, state_of
from live_bed import configured, end_jobs, row, run, wait_for

from tias_slurm.slurm.command_queue import tasks_of
from tias_slurm.slurm.live import Adapter

adapter = contract_bed.adapter
submit = contract_bed.submit
running = contract_bed.running
completed = contract_bed.completed

TEXTS = {
    "line break": b"a\nJobId=1 Nice=5\n\nb\r",
    "dividers": b"|,;:\x1e\x1f\x1d\t%s %% \x1eNONCE\n\x1f\x1f",
    "Latin-1": b"caf\xe9 deadline=+3h",
    "no text": b"\xff\xfe\x80\xc3",
    "emoji": "🚀 früh\u2028東京".encode(),
    "quotes": b"'\"\\; $(touch /tmp/x) `id` {}",
    "longest": b"x" * 1023 + b"|",
    "JSON": b'{"deadline": "2026-12-01", "a\\n": [1, "b"]}',
    "blanks": b"  a  ",
    "words of Slurm": b"N/A",
    "empty": b"",
}


def test_any_bytes_in_comments_and_names(adapter: Adapter, submit: Submit) -> None:
    ids = {
        name: submit("--hold", b"--comment=" + raw, b"--job-name=" + (raw[:200].strip() or b"j"), "--gpus=1")
        for name, raw in TEXTS.items()
    }
    table = adapter.jobs()
    assert table.refused == 0
    seen = {name: row(table, job_id) for name, job_id in ids.items()}
    assert {name: one["comment"] for name, one in seen.items()} == {
        name: raw.decode("utf-8", "replace") for name, raw in TEXTS.items()
    }
    for one in seen.values():
        assert (one["user"], one["state"], one["gpus"], one["priority"]) == ("root", "PENDING", 1, 0)


def test_a_comment_is_read_anew(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--hold")
    assert row(adapter.jobs(), job_id)["comment"] == ""
    run("scontrol", "update", f"JobId={job_id}", "Comment=deadline=+3h")
    assert row(adapter.jobs(), job_id)["comment"] == "deadline=+3h"


def test_arrays(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-6%2", "--gpus=1")
    wait_for(lambda: len(records(adapter.jobs(), array)) == 3)
    table = adapter.jobs()
    found = records(table, array)
    assert set(found) == {"0", "1", "2-6"}
    assert found["2-6"] == array
    assert row(table, found["0"])["state"] == "RUNNING"
    assert row(table, array)["state"] == "PENDING"
    # a waiting task with a record of its own is a record, not part of the others'
    run("scontrol", "update", f"JobId={array}_4", "Nice=33")
    table = adapter.jobs()
    found = records(table, array)
    assert set(found) == {"0", "1", "2-3,5-6", "4"}
    assert row(table, found["4"])["nice"] == 33
    assert row(table, array)["nice"] == 0


LISTS = {"1-399:2": 200, "1,13": 2, "1,3,5,7": 4, "0,2-3,9": 4, "7": 1, "1,5,9,13": 4, "0-9": 10}


def test_a_list_of_tasks_is_whole(adapter: Adapter, submit: Submit) -> None:
    irregular = ",".join(str(n * n) for n in range(30))  # far longer than the 64 bytes that Slurm prints
    expected = {**LISTS, irregular: 30}
    ids = {text: submit("--hold", f"--array={text}") for text in expected}
    table = adapter.jobs()
    for text, array in ids.items():
        assert tasks_of(row(table, array)["array_task"]) == tasks_of(text)
        assert len(tasks_of(text)) == expected[text]
        assert adapter.write(array, "nice", 3).result == "ok"
    table = adapter.jobs()
    for array in ids.values():
        assert len(records(table, array)) == 1  # nothing was split
        assert row(table, array)["nice"] == 3
    # one of them gets a record of its own: no part of the others' any more
    array = ids["1-399:2"]
    run("scontrol", "update", f"JobId={array}_399", "Nice=8")
    table = adapter.jobs()
    assert tasks_of(row(table, array)["array_task"]) == tasks_of("1-397:2")
    assert row(table, records(table, array)["399"])["nice"] == 8


def test_het_jobs(adapter: Adapter, submit: Submit) -> None:
    words = [
        "sbatch",
        "--parsable",
        "-o",
        "/dev/null",
        "--hold",
        "--gpus=1",
        ":",
        "--gpus=2",
        "--wrap",
        "sleep 9",
    ]
    leader = int(run(*words).strip())
    try:
        table = adapter.jobs()
        first, second = row(table, leader), row(table, leader + 1)
        assert (first["het_id"], first["het_offset"], first["gpus"]) == (leader, 0, 1)
        assert (second["het_id"], second["het_offset"], second["gpus"]) == (leader, 1, 2)
        # one record, not all components
        assert adapter.write(leader, "nice", 5).result == "ok"
        table = adapter.jobs()
        assert [int(row(table, leader + i)["nice"]) for i in (0, 1)] == [5, 0]
        assert adapter.write(leader + 1, "nice", 6).result == "ok"
        table = adapter.jobs()
        assert [int(row(table, leader + i)["nice"]) for i in (0, 1)] == [5, 6]
    finally:
        end_jobs([leader])


def test_an_ordinary_job(adapter: Adapter, running: Submit) -> None:
    before = time.time()
    job_id = running("--gpus=2", "-n3", "-t", "1-1", "--comment=c", "--nice=12")
    table = adapter.jobs()
    one = row(table, job_id)
    assert (one["array_id"], one["array_task"], one["het_id"], one["het_offset"]) == (0, "", 0, 0)
    assert (one["user"], one["account"], one["qos"], one["partition"]) == ("root", "root", "normal", "gpu")
    assert (one["flags"], one["reason"], one["time_limit_s"]) == ("", "None", 25 * 3600.0)
    assert (one["gpus"], one["gpu_type"], one["cpus"], one["nodes"]) == (2, "", 3, 1)
    assert one["node_list"].startswith("n")
    assert one["nice"] == 12
    assert one["priority"] > 0
    assert (bool(one["requeue"]), bool(one["batch"]), bool(one["cron"]), one["restarts"]) == (
        True,
        True,
        False,
        0,
    )
    assert before - 2 <= one["submit"] <= one["eligible"] <= one["start"] <= table.time + 1
    assert one["end"] == one["start"] + 25 * 3600
    assert one["suspended_s"] == 0
    assert math.isnan(one["native_deadline"])
    assert before - 2 <= table.time <= time.time() + 2
    assert list(table.job_id) == sorted(set(table.job_id.tolist()))


def test_waiting_jobs(adapter: Adapter, submit: Submit) -> None:
    held = submit("--hold", "--no-requeue")
    later = submit("--begin=now+1hour", "-p", "gpu,debug")
    first = submit("--hold")
    depends = submit(f"--dependency=afterok:{first}")
    dated = submit("--begin=now+1hour", "--deadline=now+3days", "-t", "10")
    table = adapter.jobs()
    one = row(table, held)
    assert (one["state"], one["reason"], one["priority"]) == ("PENDING", "JobHeldUser", 0)
    assert not one["requeue"]
    assert math.isnan(one["eligible"])
    assert math.isnan(one["start"])
    assert one["node_list"] == ""
    assert one["time_limit_s"] == math.inf
    one = row(table, later)
    assert (one["reason"], one["partition"]) == ("BeginTime", "gpu,debug")
    assert 3590 < one["eligible"] - one["submit"] < 3610
    assert row(table, depends)["reason"] == "Dependency"
    assert 3 * 86400 - 10 < row(table, dated)["native_deadline"] - table.time < 3 * 86400 + 10


def test_memory_is_of_the_whole_job(adapter: Adapter, submit: Submit) -> None:
    ids = [submit("--hold", "-N2", "--mem=300M"), submit("--hold", "-n3", "-c2", "--mem-per-cpu=100M")]
    table = adapter.jobs()
    assert [row(table, i)["mem_mb"] for i in ids] == [600.0, 600.0]
    assert row(table, ids[1])["cpus"] == 6


def test_jobs_of_others_and_jobs_without_a_script(adapter: Adapter, submit: Submit) -> None:
    theirs = submit("--hold", "--account=a2", "--qos=normal", user="bob")
    with subprocess.Popen(["srun", "-J", "no-script", "sleep", "60"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: run("squeue", "-h", "-n", "no-script", "-t", "R", "-o", "%A").strip() != "")
            number = int(run("squeue", "-h", "-n", "no-script", "-t", "R", "-o", "%A"))
            table = adapter.jobs()
            assert (row(table, theirs)["user"], row(table, theirs)["account"]) == ("bob", "a2")
            assert not row(table, number)["batch"]
            assert adapter.requeue(number).result == "refused"
        finally:
            process.terminate()
            wait_for(lambda: run("squeue", "-h", "-n", "no-script") == "")


def test_ended_jobs_stay_for_a_while(adapter: Adapter, submit: Submit, completed: int) -> None:
    failed, ended = submit(script="exit 3"), submit("--begin=now+1hour")
    run("scancel", str(ended))
    wait_for(lambda: state_of(adapter, failed) == "FAILED" and state_of(adapter, ended) == "CANCELLED")
    one = row(adapter.jobs(), completed)
    assert one["submit"] <= one["start"] <= one["end"] <= time.time() + 1
    assert one["suspended_s"] == 0
    assert one["flags"] == ""


def test_suspended(adapter: Adapter, running: Submit) -> None:
    job_id = running("--gpus=1")
    began = time.time()
    run("scontrol", "suspend", str(job_id))
    wait_for(lambda: time.time() > began + 4)
    one = row(adapter.jobs(), job_id)
    assert one["state"] == "SUSPENDED"
    # both ends are whole seconds of Slurm's
    assert 2 <= one["suspended_s"] <= time.time() - began + 3
    run("scontrol", "resume", str(job_id))
    one = row(adapter.jobs(), job_id)
    assert one["state"] == "RUNNING"
    assert 2 <= one["suspended_s"] <= time.time() - began + 3


@contextlib.contextmanager
def endless_epilogs() -> Iterator[None]:
    """Jobs that end stay COMPLETING until the block is left; Slurm has the epilog as it is within."""
    epilog, hold = Path("/tmp/slow-epilog"), Path("/tmp/slow-epilog-waits")
    epilog.write_text(f"#!/bin/sh\nwhile [ -e {hold} ]; do sleep 0.2; done\n")
    epilog.chmod(0o755)
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def test_the_state_behind_a_flag(adapter: Adapter, running: Submit) -> None:
    with configured("Epilog=/tmp/slow-epilog"):
        with endless_epilogs():
            again, gone, bad = running(), running(), running(script="sleep 1; exit 3")
            wait_for(lambda: row(adapter.jobs(), bad)["flags"] == "COMPLETING")
            assert row(adapter.jobs(), bad)["state"] == "FAILED"
            assert adapter.requeue(bad).result == "gone"
            assert adapter.requeue(again).result == "ok"
            run("scancel", str(gone))
            wait_for(lambda: row(adapter.jobs(), gone)["flags"] == "COMPLETING")
            # how it ended is known when its processes are gone, that it has ended at once
            wait_for(lambda: row(adapter.jobs(), gone)["state"] == "CANCELLED")
            table = adapter.jobs()
            assert row(table, gone)["flags"] == "COMPLETING"
            assert row(table, again)["flags"] == "COMPLETING"
            assert (row(table, again)["state"], row(table, again)["restarts"]) == ("PENDING", 1)
        wait_for(lambda: not row(adapter.jobs(), gone)["flags"])
        run("scontrol", "requeuehold", "State=SpecialExit", str(running()))
        wait_for(lambda: "SPECIAL_EXIT" in adapter.jobs().flags)
        table = adapter.jobs()
        special = table.flags.index("SPECIAL_EXIT")
        assert (table.state[special], table.priority[special]) == ("PENDING", 0)
