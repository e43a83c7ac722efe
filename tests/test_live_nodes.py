"""From nodes, requests and shares as Slurm shows them to who holds what, and who is sure to start where."""

import numpy as np
import pytest
from raw_queue import NOW, claims, config, nodes, queue, running

from tias_slurm.levers import HELD
from tias_slurm.slurm.live import Reservation, Share
from tias_slurm.slurm.live_nodes import occupancy, usable
from tias_slurm.slurm.observer import observe
from tias_slurm.slurm.requests import REQUEST_FIELDS

PLAIN = {
    "NumNodes": "1", "NumTasks": "1", "NumCPUs": "1", "cpus-per-task": "1", "MinCPUs": "1", "NTPerNode": "0",
    "tres-per-job": "gres/gpu:1", "tres-per-node": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
    "cpus-per-tres": "N/A", "mem-per-tres": "N/A", "MinMemory": "100",
    "tres-alloc": "cpu=1,mem=100M,node=1,billing=1,gres/gpu=1",
    "ReqNodes": "", "ExcNodes": "", "Feature": "(null)", "OverSubscribe": "NO", "Exclusive": "NO",
    "Contiguous": "0", "SCT": "*:*:*", "NTPerCore": "N/A", "NTPerSocket": "N/A", "NTPerBoard": "0",
    "CoreSpec": "N/A", "MinTmpDisk": "0", "ReqSwitch": "0", "Licenses": "(null)", "Reservation": "(null)",
    "BurstBuffer": "(null)", "Network": "(null)",
}  # fmt: skip
EIGHT = {"tres_per_job": "gres/gpu:8"}


def asked(**differs):
    """One request as squeue says it: what differs from a job of one GPU; names with _ for -."""
    said = PLAIN | {name.replace("_", "-"): value for name, value in differs.items()}
    assert said.keys() == PLAIN.keys()
    return tuple(said[name] for name in REQUEST_FIELDS[1:])


def seen(cluster, *jobs, requests=None, shares=None, reservations=()):
    """What is made of jobs on a cluster; `requests`: of the waiting ones, by id."""
    raw = queue(*jobs)
    made = observe(raw, claims(len(raw)), config())
    return occupancy(
        raw, made.rows, made.snapshot.jobs, cluster, requests or {}, shares or {}, list(reservations)
    )


def one(request, cluster=None, gpus=1, reservations=(), **job):
    """A single waiting job: the nodes that it may get, (nodes, GPUs, CPUs, MB), and why it is not certain."""
    cluster = cluster if cluster is not None else nodes({}, {}, {})
    made = seen(cluster, {"gpus": gpus, **job}, requests={100: request}, reservations=reservations)
    o = made.occupancy
    mask = o.member[o.partition[0]]
    shape = (int(o.nodes[0]), int(o.node_gpus[0]), int(o.node_cpus[0]), int(o.node_mem_mb[0]))
    names = [name for name, m in zip(cluster.name, mask, strict=True) if m]
    [why] = list(made.unsure) or [""]
    assert bool(o.certain[0]) == (why == "")
    return names, shape, why


# ---- nodes ----


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED", "MIXED+PLANNED", "IDLE+CLOUD", "IDLE+COMPLETING"]
)
def test_nodes_that_take_jobs(state):
    assert usable(state)
    assert one(asked(), nodes({"state": state}))[0] == ["n1"]


@pytest.mark.parametrize(
    "state",
    [
        "DOWN", "IDLE+DRAIN", "MIXED+DRAIN", "ALLOCATED+DRAIN", "IDLE+MAINTENANCE", "IDLE+RESERVED",
        "IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+NOT_RESPONDING", "FUTURE", "UNKNOWN", "IDLE+FAIL",
        "IDLE+REBOOT_REQUESTED", "IDLE+SOMETHING_NEW", "",
    ],
)  # fmt: skip
def test_nodes_that_take_none(state):
    made = seen(nodes({"state": state}, {}), {"gpus": 1}, requests={100: asked()})
    assert made.occupancy.free_gpus.tolist() == [0, 8]
    assert made.occupancy.member[made.occupancy.partition[0]].tolist() == [False, True]


def test_what_is_free_is_what_the_node_says():
    cluster = nodes({"gpus_used": 3, "cpus_used": 16, "mem_used_mb": 400.0}, {"gpus_used": 9})
    o = seen(cluster, running(gpus=2)).occupancy
    assert (o.free_gpus.tolist(), o.free_cpus.tolist(), o.free_mem_mb.tolist()) == (
        [5, 0],
        [0, 16],
        [600, 1000],
    )
    assert o.total_gpus.tolist() == [8, 8]


def test_a_node_that_is_away_counts_for_nothing():
    o = seen(nodes({"state": "MIXED+DRAIN"}, {"state": "IDLE+RESERVED"})).occupancy
    assert o.total_gpus.tolist() == [0, 8]


# ---- running jobs ----


def test_a_job_on_one_node_holds_all_that_it_has():
    job = running(gpus=2, cpus=5, mem_mb=70.0, node_list="n2")
    o = seen(nodes({}, {"gpus_used": 2}), job).occupancy
    assert (o.first.tolist(), o.count.tolist(), o.held.tolist()) == ([0], [1], [1])
    assert (o.node_gpus.tolist(), o.node_cpus.tolist(), o.node_mem_mb.tolist()) == ([2], [5], [70])


def test_a_job_on_several_nodes_holds_the_least_of_what_it_has_there():
    wide = running(gpus=12, cpus=6, mem_mb=500.0, nodes=2, node_list="n[1-2]")
    cluster = nodes({"gpus_used": 8}, {"gpus_used": 4})
    told = {100: Share("n[1-2]", 12, 4, 2, 200.0)}
    o = seen(cluster, wide, shares=told).occupancy
    assert (o.count.tolist(), o.held.tolist()) == ([2], [0, 1])
    assert (o.node_gpus.tolist(), o.node_cpus.tolist(), o.node_mem_mb.tolist()) == ([4], [2], [200])
    # nobody tells: with all of one node it still has four GPUs on the other, and a CPU
    o = seen(cluster, wide).occupancy
    assert (o.node_gpus.tolist(), o.node_cpus.tolist(), o.node_mem_mb.tolist()) == ([4], [1], [0])
    # what is told of other nodes, or of another number of GPUs, is of another run
    for stale in (Share("n[1-3]", 12, 1, 1, 0.0), Share("n[1-2]", 9, 1, 1, 0.0)):
        assert seen(cluster, wide, shares={100: stale}).occupancy.node_gpus.tolist() == [4]


@pytest.mark.parametrize(
    "job", [{"node_list": "n9"}, {"node_list": ""}, {"node_list": "n[1-"}, {"gpus": 9}, {"nodes": 2}]
)
def test_a_job_whose_nodes_are_not_known_frees_nothing(job):
    o = seen(nodes({"gpus_used": 8}, {}), running(**job)).occupancy
    assert o.count.tolist() == [0]


def test_a_node_on_which_more_runs_than_it_says_is_left_out():
    cluster = nodes({"gpus_used": 1}, {"gpus_used": 2})
    jobs = [running(gpus=2, node_list=name) for name in ("n1", "n2")]
    o = seen(cluster, *jobs, {"gpus": 1}, requests={102: asked()}).occupancy
    assert o.member[o.partition[2]].tolist() == [False, True]


# ---- waiting jobs: how much ----


@pytest.mark.parametrize(
    ("request_", "gpus", "shape"),
    [
        (asked(tres_per_job="gres/gpu:5", NumTasks="3", NumCPUs="3"), 5, (1, 5, 3, 0)),
        # more than a node has: over as many as are needed, alike
        (asked(tres_per_job="gres/gpu:20"), 20, (3, 7, 1, 0)),
        (asked(tres_per_job="gres/gpu:11", NumNodes="2", NumTasks="2", NumCPUs="2"), 11, (2, 6, 1, 0)),
        (asked(tres_per_job="N/A", tres_per_node="gres/gpu:3", NumNodes="2", NumTasks="4", NumCPUs="8",
               cpus_per_task="2"), 6, (2, 3, 4, 0)),
        (asked(tres_per_job="N/A", tres_per_node="gres/gpu:8", NumNodes="2-4"), 16, (2, 8, 1, 0)),
        # squeue has not worked out the nodes of a job whose GPUs are counted by task
        (asked(tres_per_job="N/A", tres_per_task="gres/gpu=4", NumTasks="4", NumCPUs="4"), 16, (2, 8, 2, 0)),
        (asked(tres_per_job="N/A", tres_per_task="cpu=2,gres/gpu=3", NumTasks="3", NumCPUs="6",
               cpus_per_task="2"), 9, (2, 6, 4, 0)),
        (asked(tres_per_job="N/A", tres_per_task="gres:gpu:9", NumTasks="1"), 9, (1, 9, 1, 0)),
        (asked(tres_per_job="gres/gpu:8", cpus_per_tres="gres/gpu:4"), 8, (1, 8, 32, 0)),
        (asked(tres_per_job="gres/gpu:2", NTPerNode="6", NumTasks="6", cpus_per_task="2"), 2, (1, 2, 12, 0)),
        (asked(tres_per_job="gres/gpu:2", MinCPUs="9"), 2, (1, 2, 9, 0)),
        (asked(tres_per_job="N/A", tres_per_node="gres/gpu:1", Exclusive="NODE"), 1, (1, 8, 16, 0)),
        # releases without that field
        (asked(tres_per_node="gres:gpu:1", Exclusive="N/A", OverSubscribe="NO"), 1, (1, 8, 16, 0)),
        (asked(tres_per_job="gres:gpu:1", Exclusive="N/A", OverSubscribe="OK"), 1, (1, 1, 1, 0)),
    ],
)  # fmt: skip
def test_how_much_a_job_asks_for(request_, gpus, shape):
    assert one(request_, gpus=gpus) == (["n1", "n2", "n3"], shape, "")


@pytest.mark.parametrize(
    ("request_", "mem"),
    [
        (asked(MinMemory="100", **{"tres-alloc": "cpu=2,mem=200M,node=1"}, NumCPUs="2", NumTasks="2"), 200),
        (asked(MinMemory="100M", **{"tres-alloc": "cpu=2,mem=100M,node=1"}, NumCPUs="2", NumTasks="2"), 100),
        (asked(MinMemory="1G", **{"tres-alloc": "cpu=4,mem=1G,node=1"}, NumCPUs="4", NumTasks="4"), 1024),
        # neither: the larger
        (asked(MinMemory="100", **{"tres-alloc": "cpu=2,mem=900M,node=1"}, NumCPUs="2", NumTasks="2"), 200),
        (asked(MinMemory="100", **{"tres-alloc": "(null)"}, NumCPUs="3", NumTasks="3"), 300),
        (asked(MinMemory="50M", mem_per_tres="gres/gpu:50", tres_per_job="gres/gpu:4"), 200),
        (asked(MinMemory="0"), 1000),
    ],
)  # fmt: skip
def test_how_much_memory_where_it_is_allocated(request_, mem):
    gpus = 4 if "gres/gpu:4" in request_ else 1
    assert one(request_, nodes({"mem_used_mb": 1.0}, {}), gpus=gpus)[1][3] == mem
    # nobody has any, so it is not allocated here
    assert one(request_, nodes({}, {}), gpus=gpus)[1][3] == 0


def test_whole_cores():
    request = asked(tres_per_job="gres/gpu:2", NumCPUs="3", NumTasks="3")
    assert one(request, nodes({"threads": 2}), gpus=2)[1] == (1, 2, 4, 0)


# ---- waiting jobs: where ----

CLUSTER = nodes(
    {"gpu_types": "a100", "features": frozenset({"ib", "big"})},
    {"gpu_types": "h100", "features": frozenset({"ib"})},
    {"gpu_types": "a100,h100"},
    {"gpus": 4, "partitions": frozenset({"gpu", "small"})},
    {"other_gres": "shard"},
    {"partitions": frozenset({"other"})},
)


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (asked(), ["n1", "n2", "n3", "n4"]),
        (asked(tres_per_job="gres/gpu:a100:1"), ["n1"]),
        (asked(tres_per_job="N/A", tres_per_task="gres/gpu:h100=1"), ["n2"]),
        (asked(tres_per_job="gres/gpu:v100:1"), []),
        (asked(Feature="ib"), ["n1", "n2"]),
        (asked(Feature="ib&big"), ["n1"]),
        (asked(Feature="gone"), []),
        (asked(ExcNodes="n[1-2],n9"), ["n3", "n4"]),
        (asked(ReqNodes="n2"), ["n2"]),
        (asked(ReqNodes="n6"), []),  # not in its partition
        # those with the same GPUs and CPUs, which most have
        (asked(Exclusive="NODE"), ["n1", "n2", "n3"]),
    ],
)
def test_where_a_job_may_start(request_, names):
    assert one(request_, CLUSTER)[::2] == (names, "")


def test_several_partitions():
    assert one(asked(), CLUSTER, partition="small,other")[0] in (["n4"], ["n6"])
    assert one(asked(), CLUSTER, partition="small,gpu")[0] == ["n1", "n2", "n3", "n4"]
    assert one(asked(), CLUSTER, partition="nowhere")[0] == []


def test_all_of_the_nodes_that_are_named():
    two = asked(tres_per_job="gres/gpu:2", ReqNodes="n[1-2]", NumNodes="2", NumTasks="2", NumCPUs="2")
    assert one(two, gpus=2) == (["n1", "n2"], (2, 1, 1, 0), "")
    # one of them takes no jobs
    assert one(two, nodes({"state": "DOWN"}, {}), gpus=2)[0] == []
    more = asked(tres_per_job="gres/gpu:20", ReqNodes="n1", NumNodes="3")
    assert one(more, gpus=20)[2] == "asks for nodes by name, and for others"


@pytest.mark.parametrize(
    ("limit", "start", "end", "names"),
    [
        (3600.0, NOW + 7200, NOW + 9000, ["n1", "n2"]),  # ends before it
        (3600.0, NOW + 1800, NOW + 9000, ["n2"]),
        (np.inf, NOW + 1e6, NOW + 2e6, ["n2"]),
        (3600.0, NOW - 600, NOW + 60, ["n2"]),
        (np.inf, NOW - 600, NOW - 60, ["n1", "n2"]),
    ],
)
def test_a_reservation_in_its_way(limit, start, end, names):
    kept = Reservation(start, end, "n1,n7")
    assert one(asked(), nodes({}, {}), reservations=[kept], time_limit_s=limit)[0] == names


# ---- waiting jobs: not certain ----


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("Licenses", "matlab:1", "licences"),
        ("Reservation", "tuesday", "reservation"),
        ("BurstBuffer", "#BB", "burst buffer"),
        ("Network", "sn_all", "network"),
        ("ReqSwitch", "1", "switches"),
        ("CoreSpec", "2", "cores"),
        ("MinTmpDisk", "100M", "disk"),
        ("tres-per-socket", "gres/gpu:2", "socket"),
        ("NTPerSocket", "1", "socket"),
        ("SCT", "1:*:*", "sockets or cores"),
        ("SCT", "*:4:*", "sockets or cores"),
        ("Feature", "ib|big", "features"),
        ("Feature", "[rack1|rack2]", "features"),
        ("Feature", "ib*2", "features"),
        ("Exclusive", "USER", "shares nodes"),
        ("Exclusive", "a word of a later release", "shares nodes"),
        ("tres-per-job", "gres/gpu:1,gres/shard:2", "other than GPUs"),
        ("tres-per-node", "gres/nic:1", "other than GPUs"),
        ("tres-per-job", "gres/gpu:a100:1,gres/gpu:h100:1", "several types"),
        ("tres-per-task", "gres/gpu:a100:1", ""),
        ("MinMemory", "a lot", "memory"),
        ("ExcNodes", "?", "excludes"),
    ],
)  # fmt: skip
def test_a_request_that_is_not_certain(name, value, why):
    said = one(asked(**{name: value}))[2]
    assert why in said
    assert bool(said) == bool(why)


@pytest.mark.parametrize("threads", [1, 2])
def test_single_threads_of_cores(threads):
    why = one(asked(SCT="*:*:1"), nodes({"threads": threads}))[2]
    assert why == ("asks for single threads of cores" if threads > 1 else "")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"reason": "None"}, "Slurm has not looked at it yet"),
        ({"het_id": 100}, "het job"),
        ({"job_id": 101}, "its request was not seen"),
    ],
)
def test_a_job_that_is_not_certain(job, why):
    cluster = nodes({}, {})
    made = seen(cluster, {"gpus": 9, "cpus": 3, **job}, requests={100: asked()})
    o = made.occupancy
    assert dict(made.unsure) == {why: 1}
    # it takes its place all the same, as far as can be told
    assert (o.nodes.tolist(), o.node_gpus.tolist(), o.node_cpus.tolist()) == ([2], [5], [2])
    assert o.member[o.partition[0]].tolist() == [True, True]


def test_jobs_that_ask_alike_share_a_row():
    jobs = [{"gpus": 1}, {"gpus": 1}, {"gpus": 1, "partition": "small"}]
    o = seen(CLUSTER, *jobs, requests={i: asked() for i in (100, 101, 102)}).occupancy
    assert o.partition[0] == o.partition[1] != o.partition[2]
    assert len(o.member) == 2


def test_what_we_hold_takes_room_once_it_is_let_go():
    """What it asks for is known, but nobody is requeued for it."""
    raw, cluster = queue({"gpus": 8, "priority": 0, "reason": "JobHeldAdmin"}), nodes({}, {})
    made = observe(raw, claims(1), config(), np.array([HELD]))
    jobs = made.snapshot.jobs
    assert not jobs.can_start[0]
    placed = occupancy(raw, made.rows, jobs, cluster, {100: asked(**EIGHT)}, {}, [])
    o = placed.occupancy
    assert (o.node_gpus.tolist(), o.certain.tolist(), placed.unsure) == ([8], [False], {})
    assert o.member[o.partition[0]].all()
