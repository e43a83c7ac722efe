"""What squeue and scontrol print of requests, shares and reservations, hostile job names among it."""

import math

import pytest

from tias_slurm.slurm.command_places import (
    parse_excluded,
    parse_requests,
    parse_reservations,
    parse_shares,
)
from tias_slurm.slurm.live import Reservation, Share
from tias_slurm.slurm.requests import REQUEST_FIELDS

TOKEN = "0123abcd"
WIDE = (
    "JobId={id} JobName={name} UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A Priority=1000 Nice=0 "
    "Account=root QOS=normal JobState=RUNNING Reason=None Dependency=(null) ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=n[1-3] BatchHost=n1 NumNodes=3 NumCPUs=8 NumTasks=2 CPUs/Task=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=8,node=3,billing=2,gres/gpu=10 JOB_GRES=gpu:10 "
    "  Nodes=n[1-2] CPU_IDs=0,4-5 Mem=300 GRES=gpu:a100:4(IDX:0-3)"
    "   Nodes=n3 CPU_IDs=0-1 Mem=500 GRES=gpu:2(IDX:0,7) MinCPUsNode=1 Comment={comment} "
)


def record(job=7, name="train", comment="requeue=yes"):
    return WIDE.format(id=job, name=name, comment=comment) + "\n"


def squeue(*records, fields=("ArrayTaskID", *REQUEST_FIELDS)):
    """Records as dicts, as squeue prints them."""
    ends = ["\x1f".join(said.get(name, "") for name in fields) + f"\x1e{TOKEN}\n" for said in records]
    return "".join(ends).encode()


def test_requests_by_job():
    fields = ("ArrayTaskID", *(n for n in REQUEST_FIELDS if n != "Exclusive"))
    said = {"JobID": "12", "NumNodes": "2-4", "Network": "sn_all", "ReqNodes": "n1 "}
    found = parse_requests(squeue(said, {"JobID": "13"}, said, fields=fields), TOKEN, fields)
    assert sorted(found) == [12, 13]
    values = dict(zip(REQUEST_FIELDS[1:], found[12], strict=True))
    assert (values["NumNodes"], values["Network"], values["ReqNodes"]) == ("2-4", "sn_all", "n1")
    assert values["Exclusive"] == "N/A"  # not asked for


def test_what_a_user_writes_adds_no_record_and_no_field():
    hostile = {"JobID": "12", "Network": "x\x1f\n99\x1f2\x1e0000\nJobID"}
    found = parse_requests(squeue(hostile), TOKEN, ("ArrayTaskID", *REQUEST_FIELDS))
    assert list(found) == [12]
    assert found[12][-1].startswith("x\x1f")


@pytest.mark.parametrize("text", [b"", b"\n", b"garbage", b"\xff\xfe\x1e0123abcd\n", b"a\x1fb\x1e0123abcd\n"])
def test_texts_that_are_no_requests(text):
    assert parse_requests(text, TOKEN, ("ArrayTaskID", *REQUEST_FIELDS)) == {}


def test_excluded_nodes_from_elsewhere():
    assert parse_excluded("12|n[1-2]\n13|\n xx|n3\n12_3|n4\n") == {12: "n[1-2]", 13: ""}
    fields = ("ArrayTaskID", *(n for n in REQUEST_FIELDS if n != "ExcNodes"))
    found = parse_requests(squeue({"JobID": "12"}, {"JobID": "14"}, fields=fields), TOKEN, fields, {12: "n1"})
    at = REQUEST_FIELDS[1:].index("ExcNodes")
    assert (found[12][at], found[14][at]) == ("n1", "?")


def test_the_least_share_of_a_wide_job():
    assert parse_shares(record()) == {7: Share("n[1-3]", 10, 2, 2, 300.0)}


@pytest.mark.parametrize(
    "name",
    [
        "x NodeList=n1 y",
        "x NumCPUs=1 y",
        "x Nodes=n4 CPU_IDs=0 Mem=9 GRES=gpu:8 y",
        "x Nodes=n3 CPU_IDs=0-1 Mem=9 GRES=gpu:8 y",
    ],
)
def test_a_name_that_looks_like_a_share_makes_it_unknown(name):
    assert parse_shares(record(name=name)) == {}
    assert parse_shares(record(comment=name)) == {}


def test_a_line_that_a_user_made_hides_a_job_at_worst():
    forged = record(8, name="real") + record(9, comment="\n" + record(8, name="forged").strip())
    assert sorted(parse_shares(forged)) == [9]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n[1-3]", "n[1-4]"),  # a node without a share
        ("NumCPUs=8", "NumCPUs=9"),
        ("Nodes=n[1-2] ", "Nodes=n[1- "),
        ("CPU_IDs=0-1", "CPU_IDs=0-1,"),
    ],
)
def test_parts_that_do_not_make_up_the_whole(old, new):
    assert old in record()
    assert parse_shares(record().replace(old, new)) == {}


def test_jobs_on_one_node_and_such_that_wait_are_left_out():
    waits = record().partition(" JOB_GRES")[0].replace("NodeList=n[1-3] Batch", "NodeList= Batch") + "\n"
    narrow = record().replace("NodeList=n[1-3]", "NodeList=n3").replace("NumCPUs=8", "NumCPUs=2")
    narrow = narrow.replace("  Nodes=n[1-2] CPU_IDs=0,4-5 Mem=300 GRES=gpu:a100:4(IDX:0-3)", "")
    assert parse_shares(waits + "No jobs in the system\n") == {}
    assert parse_shares(narrow) == {}


def test_reservations():
    text = (
        "ReservationName=a StartTime=1800000000 EndTime=1800003600 Duration=01:00:00 Nodes=n[3-4] NodeCnt=2 "
        "CoreCnt=32 Users=root\n"
        "ReservationName=b StartTime=2026-11-30T08:00:00 EndTime=2026-11-30T09:00:00 Duration=01:00:00 "
        "Nodes=n4 NodeCnt=1\n"
        "ReservationName=licences StartTime=1800000000 EndTime=1800003600 Duration=1 Nodes=(null) NodeCnt=0\n"
        "ReservationName=c StartTime=now EndTime=never Duration=1 Nodes=n1 NodeCnt=1\n"
    )
    a, b, c = parse_reservations(text)
    assert a == Reservation(1.8e9, 1.8e9 + 3600, "n[3-4]")
    assert b == Reservation(1796025600.0, 1796029200.0, "n4")
    assert (c.start, c.end, c.nodes) == (0.0, math.inf, "n1")
    assert parse_reservations("No reservations in the system\n") == []
