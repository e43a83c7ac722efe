"""Slurm's other commands: what they print, the words of refusals, how they are run. Live: tests/live."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.slurm.command_parse import (
    all_failed,
    classify,
    may_pass,
    parse_config,
    parse_nodes,
    parse_pinned,
    parse_site_factors,
)
from tias_slurm.slurm.command_run import Runner, environment
from tias_slurm.slurm.commands import clamped, requeue_spelling, spelling
from tias_slurm.slurm.live import AdapterError


def test_names_that_mean_one_record() -> None:
    assert spelling(7, 0, "", 0, 0) == "7"
    assert spelling(20, 20, "0-3,7", 0, 0) == "20_[0-3,7]"
    assert spelling(20, 20, "1-9:2", 0, 0) == "20_[1,3,5,7,9]"
    assert spelling(21, 20, "5", 0, 0) == "21"
    assert spelling(30, 0, "", 30, 0) == "30+0"
    assert spelling(31, 0, "", 30, 1) == "31"
    assert requeue_spelling(30, "30+0") == "30"
    assert requeue_spelling(20, "20_[3]") == "20_[3]"


@given(st.sampled_from(["nice", "priority", "site_factor"]), st.integers())
def test_no_value_that_means_something_else(field: str, value: int) -> None:
    sent = clamped(field, value)  # type: ignore[arg-type]
    if field == "priority":
        assert 1 <= sent <= 4294967293
    else:
        assert abs(sent) <= 2147483645
    assert clamped(field, sent) == sent  # type: ignore[arg-type]


CONFIG = """Configuration data as of 1796017529
AccountingStorageBackupHost = (null)
AccountingStoreFlags    = job_comment
ClusterName             = tias
MessageTimeout          = 20 sec
MinJobAge               = 300 sec
PreemptMode             = OFF
PriorityParameters      = (null)
PrioritySiteFactorPlugin = (null)
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightTRES      = CPU=1000,Mem=2000.5,GRES/gpu=3000
SLURM_VERSION           = 26.05.5
SlurmUser               = slurm(64030)
SchedulerParameters     = bf_continue,x = y

Slurmctld(primary) at testbed is UP
"""


def test_config() -> None:
    facts, stamp = parse_config(CONFIG)
    assert stamp == 1796017529.0
    assert (facts.version, facts.cluster, facts.slurm_user) == ("26.05.5", "tias", "slurm")
    assert (facts.min_job_age_s, facts.message_timeout_s) == (300, 20)
    assert facts.priority_weights["Age"] == 1000
    assert facts.priority_weights["QOS"] == 0
    assert facts.priority_weights["TRES"] == 1000 + 2001 + 3000
    assert facts.site_factor_plugin == ""
    assert facts.scheduler_parameters == "bf_continue,x = y"
    with pytest.raises(ValueError, match="SLURM_VERSION"):
        parse_config("slurm_load_ctl_conf error")


NODES = (
    "NodeName=n1 Arch=x86_64 CPUAlloc=3 CPUEfctv=14 CPUTot=16 CPULoad=0.5 Gres=gpu:a100:4(S:0-1),gpu:v100:2 "
    "GresDrain=N/A GresUsed=gpu:a100:1(IDX:0),gpu:v100:2(IDX:4-5) OS=Linux 6.1 #1 SMP RealMemory=16000 "
    "AllocMem=300 State=IDLE+DRAIN Partitions=gpu,debug CfgTRES=cpu=16,gres/gpu=6 AllocTRES= "
    "Reason=State=IDLE Gres=gpu:99 Partitions=x\n"
    "NodeName=n2 CPUTot=8 CPUAlloc=0 Gres=(null) RealMemory=1 State=DOWN*+CLOUD CfgTRES=cpu=8 AllocTRES=\n"
    "NodeName=n3 CPUTot=8 Gres=gpu:8 GresUsed=gpu:0(IDX:N/A) State=MIXED~ Partitions=gpu AllocTRES=cpu=1\n"
)


def test_nodes() -> None:
    nodes = parse_nodes(NODES)
    assert nodes.name == ["n1", "n2", "n3"]
    assert nodes.state == ["IDLE+DRAIN", "DOWN+CLOUD+NOT_RESPONDING", "MIXED"]
    assert nodes.gpus.tolist() == [6, 0, 8]
    assert nodes.gpus_used.tolist() == [3, 0, 0]
    assert nodes.cpus.tolist() == [14, 8, 8]
    assert nodes.cpus_used.tolist() == [3, 0, 0]
    assert nodes.mem_mb.tolist() == [16000.0, 1.0, 0.0]
    assert nodes.mem_used_mb.tolist() == [300.0, 0.0, 0.0]
    assert nodes.partitions == [frozenset({"gpu", "debug"}), frozenset(), frozenset({"gpu"})]
    assert len(parse_nodes("No nodes in the system").name) == 0


@given(st.text())
def test_nothing_raises_on_text(text: str) -> None:
    assert len(parse_nodes(text).name) == len(parse_nodes(text).gpus)
    assert isinstance(parse_site_factors(text), dict)
    assert isinstance(parse_pinned(text), dict)
    assert classify(text) in ("refused", "gone", "no rights", "retry")
    assert isinstance(all_failed(text, "0-3"), bool)


def test_explicit_priorities() -> None:
    """Lines as sprio printed them; the two of job 9 by 22.05."""
    assert parse_pinned(
        "3|625|0.00000014551915|0\n 4|7777|7777.00000000000000|0\n5|1|1.00000000000000|0\n"
        "6|1|0.00000000023283|20000\n7|4294967295|1.00000000000000|-5000000\n"
        "9|1|0.00000000023283|-2147483648\n9|1|0.00000000023283|-2147483648\nJOBID|PRIORITY|PRIORITY|NICE\n"
    ) == {3: False, 4: True, 5: True, 6: False, 7: False, 9: True}


def test_site_factors() -> None:
    assert parse_site_factors("3|0\n  9|-30\n17|2147483645\nJOBID|SITE\n5|\n") == {
        3: 0,
        9: -30,
        17: 2147483645,
    }


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("Invalid job id specified for job 4000000", "gone"),
        ("20009_[7]: Invalid job id specified", "gone"),
        ("Job has already finished for job 20003", "gone"),
        ("Job has already finished for job 3 slurm_suspend error:Job has already finished", "gone"),
        ("Job is in held state, pending scheduler release for job 20001", "refused"),
        ("Cannot modify scrontab jobs through scontrol for job 20011", "refused"),
        ("Job not heterogeneous job leader for job 20005", "refused"),
        ("Only batch jobs are accepted or processed for job 20010", "refused"),
        ("Requested operation is presently disabled for job 20006", "refused"),
        ("Job is pending execution for job 22", "refused"),
        ("scontrol: error: site says no Unspecified error for job 20008", "refused"),
        ("Invalid user id for job 20008", "no rights"),
        ("Access/permission denied for job 20002", "no rights"),
        ("Unexpected message received for job 20024", "retry"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "retry"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", "retry"),
    ],
)
def test_the_controllers_words(said: str, result: str) -> None:
    assert classify(said) == result


def test_an_array_that_failed_in_part() -> None:
    old = "20007_0,2-3: No error\n20007_1: Job has already finished\n"
    new = "20007_[1]: Job has already finished\n"
    for said in (old, new):
        assert not all_failed(said, "0-3")
        assert all_failed(said, "1")
    assert all_failed("20009_[0-5]: Unspecified error (site says no)", "0-5")
    assert all_failed("Unexpected message received for job 20009_[0-5]", "0-5")


def test_what_waiting_does_not_cure() -> None:
    assert not may_pass("sprio: error: You are not running a supported priority plugin (priority/basic).")
    assert not may_pass("slurm_load_jobs error: Access/permission denied")
    assert may_pass("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


def scripts(directory: Path, text: str) -> str:
    for name in ("squeue", "scontrol", "sprio"):
        path = directory / name
        path.write_text(f"#!{sys.executable}\nimport os, subprocess, sys, time\n{text}\n")
        path.chmod(0o755)
    return str(directory)


def test_the_environment() -> None:
    outer = {
        "PATH": "/bin", "SLURM_CONF": "/c", "SQUEUE_FORMAT": "%i", "SLURM_CLUSTERS": "x", "LC_ALL": "de_DE",
        "FAKETIME_SHARED": "s", "SLURM_TIME_FORMAT": "relative", "TZ": "Asia/Tokyo",
    }  # fmt: skip
    assert environment(outer) == {
        "PATH": "/bin", "SLURM_CONF": "/c", "FAKETIME_SHARED": "s", "LC_ALL": "C", "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0",
    }  # fmt: skip


def test_words_reach_the_command_as_they_are(tmp_path: Path) -> None:
    runner = Runner(30.0, scripts(tmp_path, "sys.stdout.write('|'.join(sys.argv[1:])); sys.exit(3)"))
    assert runner.run(("scontrol", "a b", "$(x)", "*", "'")) == (3, b"a b|$(x)|*|'", "")


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    runner = Runner(1.5, scripts(tmp_path, text))
    begin = time.monotonic()
    with pytest.raises(AdapterError, match=r"no answer within 1\.5 s") as caught:
        runner.run(("squeue",))
    assert caught.value.retry
    assert time.monotonic() - begin < 10
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 5
        while _alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_commands_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="squeue: not found in") as caught:
        Runner(1.0, str(tmp_path))
    assert not caught.value.retry
    runner = Runner(1.0, scripts(tmp_path, ""))
    os.remove(tmp_path / "sprio")
    with pytest.raises(AdapterError, match="sprio: cannot be started: No such file") as caught:
        runner.run(("sprio",))
    assert not caught.value.retry
