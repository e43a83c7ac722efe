"""What every live adapter does, on a real Slurm. `live.Adapter` is the contract.

contrib/testbed/testbed exec -- python -m pytest tests/live/test_contract.py
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from adapters import ADAPTERS
from live_bed import (
    MIG_TRES,
    configured,
    end_jobs,
    frozen_controller,
    has_accounting,
    left_out,
    mig_gpus,
    python,
    row,
    run,
    shown,
    typed_gpus,
    wait_for,
)

from tias_slurm.gpu_weights import by_type, weigh
from tias_slurm.slurm.command_queue import tasks_of
from tias_slurm.slurm.live import PRIORITY_UNKNOWN, Adapter, AdapterError, RawTable

UNKNOWN_JOB = 66_000_000
Submit = Callable[..., int]


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    made = ADAPTERS[request.param](60.0)
    yield made
    made.close()
    made.close()  # safe to call twice


@pytest.fixture
def submit() -> Iterator[Submit]:
    """sbatch with the words given; the job's id. All are ended afterwards."""
    ids: list[int] = []

    def one(*words: str | bytes, script: str = "sleep 300", user: str = "") -> int:
        said = run("sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", script, user=user)
        ids.append(int(said.strip().split(";")[0]))
        return ids[-1]

    yield one
    end_jobs(ids)


def state_of(adapter: Adapter, job_id: int) -> str:
    return str(row(adapter.jobs(), job_id)["state"])


@pytest.fixture
def running(adapter: Adapter, submit: Submit) -> Submit:
    def one(*words: str, script: str = "sleep 300") -> int:
        job_id = submit(*words, script=script)
        wait_for(lambda: state_of(adapter, job_id) == "RUNNING")
        return job_id

    return one


@pytest.fixture
def completed(adapter: Adapter, submit: Submit) -> int:
    job_id = submit(script="true")
    wait_for(lambda: (one := row(adapter.jobs(), job_id))["state"] == "COMPLETED" and not one["flags"])
    return job_id


# ---- reading: what users write ----

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


# ---- reading: kinds of jobs ----


def records(table: RawTable, array: int) -> dict[str, int]:
    """array_task -> job_id of the records of one array."""
    return {
        task: int(job_id)
        for task, job_id, of in zip(table.array_task, table.job_id, table.array_id, strict=True)
        if of == array
    }


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


GPUS = {
    ("--gpus=3",): 3,
    ("-N2", "--gres=gpu:3"): 6,
    ("-N2", "--gpus-per-node=4"): 8,
    ("-n3", "--gpus-per-task=2"): 6,
    ("-N2",): 0,
}


def test_gpus_are_of_the_whole_job(adapter: Adapter, submit: Submit) -> None:
    ids = {words: submit("--hold", *words) for words in GPUS}
    table = adapter.jobs()
    assert {words: int(row(table, i)["gpus"]) for words, i in ids.items()} == GPUS
    assert row(table, ids["-N2", "--gres=gpu:3"])["nodes"] == 2


TYPED = {
    ("--gpus=a100:2",): (2, "a100"),
    ("-N2", "--gres=gpu:v100:1"): (2, "v100"),
    ("--gres=gpu:a100:1,gpu:v100:2",): (3, "a100=1,v100=2"),
    ("--gpus=3",): (3, ""),
}


def test_gpus_with_a_type(adapter: Adapter, submit: Submit, running: Submit) -> None:
    if adapter.facts().version < "23.11":
        pytest.skip("a reconfigure changes Gres= from 23.11 on")
    with typed_gpus():
        ids = {words: submit("--hold", *words) for words in TYPED}
        runs = running("--gpus=a100:2")
        table = adapter.jobs()
        seen = {words: (int(row(table, i)["gpus"]), row(table, i)["gpu_type"]) for words, i in ids.items()}
        assert seen == TYPED
        assert (row(table, runs)["gpus"], row(table, runs)["gpu_type"]) == (2, "a100")
        nodes = adapter.nodes()
        assert set(nodes.gpus.tolist()) == {8}
        assert nodes.gpus_used.sum() == 2
        end_jobs([*ids.values(), runs])


SLICES = {
    ("--gres=gpu:1g.5gb:1",): (1, "1g.5gb", 0),  # 22.05 takes none without a count
    ("--gpus=1g.5gb:3",): (3, "1g.5gb", 0),
    ("--gres=gpu:a100_1g.5gb:2",): (2, "a100_1g.5gb", 0),
    ("--gres=gpu:a100_1g.5gb:2,gpu:h100:1",): (3, "a100_1g.5gb=2,h100=1", 0),
    ("--gres=shard:6",): (0, "", 6),
    ("--gres=shard:h100:2",): (0, "", 2),
    ("--gpus=8",): (8, "", 0),
}


@pytest.mark.core
def test_slices_and_shards_of_gpus(adapter: Adapter, submit: Submit, running: Submit) -> None:
    with mig_gpus():
        assert set(MIG_TRES.split(",")) <= set(adapter.facts().tracked_tres.split(","))
        ids = {words: submit("--hold", *words) for words in SLICES}
        runs = [running("--gpus=1g.5gb:2"), running("--gres=shard:3"), running("-w", "n2", "-N1", "--gpus=6")]
        table = adapter.jobs()

        def seen(job: int) -> tuple[int, str, int]:
            one = row(table, job)
            return int(one["gpus"]), one["gpu_type"], int(one["shards"])

        assert {words: seen(job) for words, job in ids.items()} == SLICES
        assert [seen(job) for job in runs[:2]] == [(2, "1g.5gb", 0), (0, "", 3)]
        gpus, kinds, _ = seen(runs[2])
        assert (gpus, sum(by_type(gpus, kinds).values()), by_type(gpus, kinds)[""]) == (6, 6, 0)
        nodes = adapter.nodes()
        assert nodes.gpus.tolist() == [8, 8, 8, 8]
        assert list(nodes.gpu_types) == ["1g.5gb", "a100_1g.5gb=4,h100=4", "h100", ""]
        assert list(nodes.other_gres) == ["", "", "shard", ""]
        assert nodes.gpus_used.tolist() == [2, 6, 0, 0]
        weights = {"1g.5gb": 0.125, "a100_1g.5gb": 0.25, "h100": 2.0, "shard": 0.5}
        assert weigh(nodes.gpus, nodes.gpu_types, weights).tolist() == [1.0, 9.0, 16.0, 8.0]
        end_jobs([*ids.values(), *runs])


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


# ---- reading: the site ----


def test_nodes(adapter: Adapter, running: Submit) -> None:
    job_id = running("--gpus=3", "-n2")
    name = row(adapter.jobs(), job_id)["node_list"]
    run(
        "scontrol",
        "update",
        f"NodeName={name}",
        "State=DRAIN",
        "Reason=NodeName=n1 State=IDLE\nNodeName=n9 Gres=gpu:9",
    )
    try:
        nodes = adapter.nodes()
        assert "n9" not in nodes.name
        at = nodes.name.index(name)
        assert "DRAIN" in nodes.state[at]
        assert set(nodes.gpus.tolist()) == {8}
        assert nodes.gpus_used[at] == 3
        assert nodes.cpus_used[at] == 2
        assert nodes.cpus[at] == 16
        assert nodes.mem_mb[at] > 1000
        assert "gpu" in nodes.partitions[at]
        assert len(nodes.name) == len(nodes.state) == len(nodes.mem_used_mb) == len(nodes.partitions)
    finally:
        run("scontrol", "update", f"NodeName={name}", "State=RESUME")


def test_facts(adapter: Adapter) -> None:
    facts = adapter.facts()
    said = run("scontrol", "show", "config")
    assert f"SLURM_VERSION           = {facts.version}\n" in said
    assert f"ClusterName             = {facts.cluster}\n" in said
    assert facts.priority_type == "priority/multifactor"
    assert facts.priority_weights["Age"] == 1000
    assert set(facts.priority_weights) == {"Age", "Assoc", "Fairshare", "JobSize", "Partition", "QOS", "TRES"}
    assert "bf_continue" in facts.scheduler_parameters
    assert facts.slurm_user == "root"
    assert facts.min_job_age_s == 300
    assert facts.message_timeout_s == 20
    assert facts.site_factor_plugin in ("", "(null)")
    assert facts.state_save_location == "/var/spool/slurmctld"


# ---- writing ----


def test_nice_and_its_zero(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    for value in (50, 0, -7, 0):
        assert adapter.write(job_id, "nice", value).result == "ok"
        assert row(adapter.jobs(), job_id)["nice"] == value
        assert shown(job_id, "Nice") == str(value)


def test_site_factor_and_its_zero(adapter: Adapter, submit: Submit, running: Submit) -> None:
    # sprio shows a job that is eligible and cannot start
    every = f"-N{len(adapter.nodes().name)}"
    running(every, "--exclusive")
    job_id = submit(every, "--exclusive")
    for value in (900, 0, -30):
        assert adapter.write(job_id, "site_factor", value).result == "ok"
        wait_for(lambda value=value: adapter.site_factors().get(job_id) == value)  # type: ignore[misc]


def test_values_are_clamped_and_priority_is_never_zero(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    for asked, stands in ((2**31, 2**31 - 3), (-(2**40), -(2**31) + 3), (2**63, 2**31 - 3)):
        assert adapter.write(job_id, "nice", asked).result == "ok"
        assert row(adapter.jobs(), job_id)["nice"] == stands
    for asked, stands in ((0, 1), (-5, 1), (2**32 - 1, 2**32 - 3), (2**32 - 2, 2**32 - 3), (777, 777)):
        assert adapter.write(job_id, "priority", asked).result == "ok"
        assert row(adapter.jobs(), job_id)["priority"] == stands
    assert row(adapter.jobs(), job_id)["reason"] != "JobHeldAdmin"
    assert adapter.write(job_id, "site_factor", 2**40).result == "ok"


def test_held_jobs_stay_held(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--hold")
    assert adapter.write(job_id, "nice", -5).result == "ok"
    refused = adapter.write(job_id, "priority", 100)
    assert refused.result == "refused"
    assert "held" in refused.message.lower()
    assert adapter.unpin(job_id).result == "refused"
    assert shown(job_id, "Priority") == "0"
    assert shown(job_id, "Nice") == "-5"


def test_the_waiting_tasks_of_an_array_are_one_record(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-9%2", "--gpus=1")
    wait_for(lambda: len(records(adapter.jobs(), array)) == 3)
    before = records(adapter.jobs(), array)
    assert adapter.write(array, "nice", 44).result == "ok"
    table = adapter.jobs()
    assert records(table, array) == before  # nothing was split
    assert {task: int(row(table, i)["nice"]) for task, i in before.items()} == {"0": 0, "1": 0, "2-9": 44}
    assert adapter.write(before["1"], "nice", 3).result == "ok"
    table = adapter.jobs()
    assert {task: int(row(table, i)["nice"]) for task, i in before.items()} == {"0": 0, "1": 3, "2-9": 44}
    assert adapter.write(array, "priority", 5000).result == "ok"
    assert row(adapter.jobs(), array)["priority"] == 5000
    assert adapter.unpin(array).result == "ok"
    assert row(adapter.jobs(), array)["priority"] != 5000
    assert records(adapter.jobs(), array) == before


def test_an_array_that_moved_on_since_it_was_read(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-5", "--hold")
    adapter.jobs()
    run("scancel", f"{array}_[1,3]")
    assert adapter.write(array, "nice", 9).result == "ok"
    assert row(adapter.jobs(), array)["nice"] == 9
    adapter.jobs()
    run("scancel", str(array))
    assert adapter.write(array, "nice", 8).result == "gone"


def test_a_first_write_without_a_look_at_the_queue(
    adapter: Adapter, submit: Submit, request: pytest.FixtureRequest
) -> None:
    array = submit("--array=0-3", "--hold")
    run("scontrol", "update", f"JobId={array}_2", "Nice=1")
    fresh = ADAPTERS[adapter.name](60.0)
    assert fresh.write(array, "nice", 21).result == "ok"
    fresh.close()
    table = adapter.jobs()
    assert {task: int(row(table, i)["nice"]) for task, i in records(table, array).items()} == {
        "0-1,3": 21,
        "2": 1,
    }


def test_unpin(adapter: Adapter, submit: Submit, running: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    eligible = row(adapter.jobs(), job_id)["eligible"]
    assert adapter.write(job_id, "priority", 4242).result == "ok"
    assert adapter.unpin(job_id).result == "ok"
    one = row(adapter.jobs(), job_id)
    assert one["priority"] not in (4242, 0, PRIORITY_UNKNOWN)
    assert one["eligible"] == eligible
    started = running()
    assert adapter.write(started, "priority", 4242).result == "ok"
    assert adapter.unpin(started).result == "ok"
    assert row(adapter.jobs(), started)["priority"] not in (4242, 0)
    assert adapter.unpin(UNKNOWN_JOB).result == "gone"


# ---- what is refused ----


def test_gone(adapter: Adapter, completed: int) -> None:
    for job_id in (UNKNOWN_JOB, completed):
        assert adapter.write(job_id, "nice", 1).result == "gone"
        assert adapter.unpin(job_id).result == "gone"
        assert adapter.requeue(job_id).result == "gone"


def test_a_site_that_says_no(adapter: Adapter, submit: Submit) -> None:
    job_id, array = submit("--begin=now+1hour"), submit("--hold", "--array=0-3")
    adapter.jobs()
    Path("/etc/slurm/job_submit.lua").write_text(
        "function slurm_job_submit(d, p, u) return slurm.SUCCESS end\n"
        'function slurm_job_modify(d, r, p, u) slurm.log_user("our site says no") return slurm.ERROR end\n'
    )
    with configured("JobSubmitPlugins=lua"):
        for one in (job_id, array):
            refused = adapter.write(one, "nice", 5)
            assert refused.result == "refused"
            assert refused.message
    assert row(adapter.jobs(), job_id)["nice"] == 0


def test_scrontab(adapter: Adapter) -> None:
    if shutil.which("scrontab") is None:
        pytest.skip("Debian's packages of this release have no scrontab")
    if "enable" not in run("scontrol", "show", "config").split("ScronParameters")[1].splitlines()[0]:
        left_out("needs a cluster that was brought up with --conf ScronParameters=enable")
    subprocess.run(["scrontab", "-"], input=b"0 0 1 1 * true\n", check=True)
    try:
        job_id = int(run("squeue", "-h", "-u", "root", "-n", "true", "-t", "PD", "-o", "%A"))
        knows = adapter.name == "pyslurm" or adapter.facts().version >= "26"
        assert bool(row(adapter.jobs(), job_id)["cron"]) == knows
        assert adapter.write(job_id, "nice", 5).result == "refused"
    finally:
        subprocess.run(["scrontab", "-r"], check=True)


def test_without_rights(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    code = (
        "from adapters import ADAPTERS\n"
        f"a = ADAPTERS[{adapter.name!r}](30.0)\n"
        f"print(*(a.write({job_id}, f, 9).result for f in ('nice', 'priority', 'site_factor')), sep='|')\n"
        "a.close()\n"
    )
    assert python(code, user="alice").strip() == "no rights|no rights|no rights"
    assert row(adapter.jobs(), job_id)["nice"] == 0


def test_an_operator_may(adapter: Adapter, submit: Submit) -> None:
    if not has_accounting():
        left_out("this cluster has no slurmdbd")
    job_id = submit("--begin=now+1hour")
    code = (
        "from adapters import ADAPTERS\n"
        f"a = ADAPTERS[{adapter.name!r}](30.0)\n"
        f"print(*(a.write({job_id}, f, 9).result for f in ('nice', 'site_factor', 'priority')), sep='|')\n"
        f"print(a.unpin({job_id}).result)\na.close()\n"
    )
    assert python(code, user="tias").split() == ["ok|ok|ok", "ok"]


# ---- requeue ----


def test_requeue(adapter: Adapter, running: Submit) -> None:
    job_id = running("--gpus=1", "--nice=5")
    before = row(adapter.jobs(), job_id)
    assert adapter.requeue(job_id).result == "ok"
    one = row(adapter.jobs(), job_id)
    assert (one["state"], one["restarts"], one["nice"]) == ("PENDING", 1, 5)
    assert one["submit"] >= before["submit"]
    assert adapter.requeue(running("--no-requeue")).result == "refused"


def test_a_requeue_leaves_ended_jobs_alone(adapter: Adapter, completed: int) -> None:
    assert adapter.requeue(completed).result == "gone"
    time.sleep(1)
    assert (shown(completed, "JobState"), shown(completed, "Restarts")) == ("COMPLETED", "0")


def test_a_requeue_means_one_task(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-2", "--gpus=1", "--hold")
    assert row(adapter.jobs(), array)["array_task"] == "0-2"  # the last that the adapter sees of it
    run("scontrol", "release", str(array))
    wait_for(lambda: run("squeue", "-h", "-r", "-j", str(array), "-o", "%t").split() == ["R"] * 3)
    assert adapter.requeue(array).result == "ok"  # the last task, which bears the array's own id
    table = adapter.jobs()
    assert sorted(int(row(table, i)["restarts"]) for i in records(table, array).values()) == [0, 0, 1]
    assert row(table, array)["restarts"] == 1


def test_a_requeue_of_a_het_job_is_of_all_of_it(adapter: Adapter) -> None:
    words = ["sbatch", "--parsable", "-o", "/dev/null", "-n1", ":", "-n2", "--wrap", "sleep 300"]
    leader = int(run(*words).strip())
    try:
        wait_for(lambda: state_of(adapter, leader) == state_of(adapter, leader + 1) == "RUNNING")
        assert adapter.requeue(leader + 1).result == "refused"
        assert adapter.requeue(leader).result == "ok"
        table = adapter.jobs()
        assert [row(table, leader + i)["state"] for i in (0, 1)] == ["PENDING", "PENDING"]
    finally:
        end_jobs([leader, leader + 1])


# ---- a controller that does not answer ----


def test_every_call_ends_in_time(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    impatient = ADAPTERS[adapter.name](2.0)
    try:
        impatient.jobs()
        with frozen_controller():
            for call in (impatient.jobs, impatient.nodes, impatient.facts, impatient.site_factors):
                begin = time.monotonic()
                with pytest.raises(AdapterError) as caught:
                    call()
                assert caught.value.retry
                assert "\n" not in str(caught.value)
                assert time.monotonic() - begin < 30
            assert impatient.write(job_id, "nice", 9).result == "retry"
            assert impatient.unpin(job_id).result == "retry"
            assert impatient.requeue(job_id).result == "retry"
        wait_for(lambda: run("scontrol", "ping") != "")
        assert impatient.write(job_id, "nice", 11).result == "ok"
        assert row(impatient.jobs(), job_id)["nice"] == 11
    finally:
        impatient.close()
