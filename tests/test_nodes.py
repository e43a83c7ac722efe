"""Nodes: every form of file, numbers of GPUs, and what a history shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.errors import InputError
from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.node_files import gpus_of_gres, gpus_of_tres
from tias_slurm.slurm.nodes import UNKNOWN_CPUS, UNKNOWN_MEM_MB, infer, pool, read_nodes, uniform

BLOCK = """NodeName=n1 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=0 CPUEfctv=62 CPUTot=64 CPULoad=0.04
   AvailableFeatures=(null)
   Gres=gpu:a100:8(S:0,1)
   NodeAddr=n1 NodeHostName=n1 Version=25.11.2
   OS=Linux 6.1.0-18-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1
   RealMemory=512000 AllocMem=0 FreeMem=120 Sockets=2 Boards=1
   State=MIXED+CLOUD ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,debug
   CfgTRES=cpu=64,mem=500G,billing=64,gres/gpu=8,gres/gpu:a100=8
   AllocTRES=
   Reason=State=DOWN Gres=gpu:99 said the log [root@2026-01-01T00:00:00]

NodeName=n2 CPUTot=64 Gres=(null) RealMemory=1000 State=IDLE Partitions=gpu CfgTRES=cpu=64,gres/gpu=4
NodeName=n3 CPUTot=64 Gres=gpu:8 RealMemory=1000 State=IDLE+DRAIN Partitions=gpu
NodeName=n4 CPUTot=64 Gres=gpu:8 RealMemory=1000 State=DOWN* Partitions=gpu
NodeName=n5 CPUTot=0 Gres=gpu:a100:2,gpu:v100:2,shard:16 State=IDLE+POWERED_DOWN
NodeName=n6 CPUTot=32 Gres=(null) RealMemory=64000 State=IDLE
NodeName=n6 CPUTot=32 Gres=(null) RealMemory=64000 State=IDLE
"""


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_scontrol_text(tmp_path: Path) -> None:
    found = read_nodes(write(tmp_path / "nodes.txt", BLOCK))
    assert found.names == ("n1", "n2", "n5", "n6")
    assert found.gpus.tolist() == [8, 4, 4, 0]
    assert found.total_gpus == 16
    assert found.cpus.tolist() == [64, 64, UNKNOWN_CPUS, 32]
    assert found.mem_mb.tolist() == [512000, 1000, UNKNOWN_MEM_MB, 64000]
    assert found.partitions[0] == {"gpu", "debug"}
    assert found.partitions[2] == frozenset()
    assert found.gpu_types == ("a100", "", "a100=2,v100=2", "")
    assert found.shards.tolist() == [0, 0, 16, 0]
    assert not found.inferred
    notes = "\n".join(found.notes)
    assert "2 nodes (n3, n4) down or drained" in notes
    assert "1 node (n6) listed more than once" in notes
    assert "1 node (n5) with GPUs of several types" in notes


@pytest.mark.parametrize(
    "node",
    [
        {"state": "idle", "state_flags": [], "gres": "gpu:8", "cpus": 64, "real_memory": 512000},  # 22.05
        {"state": ["IDLE"], "gres": "gpu:8(S:0-1)", "cpus": 64, "real_memory": 512000},
        {
            "state": ["MIXED"],
            "gres": "",
            "tres": "cpu=64,mem=500G,gres/gpu=8",
            "cpus": 64,
            "real_memory": 512000,
        },
        {
            "state": ["IDLE", "CLOUD"],
            "gres": "gpu:8",
            "cpus": {"set": True, "infinite": False, "number": 64},
            "real_memory": {"set": True, "infinite": False, "number": 512000},
        },
    ],
)
def test_scontrol_json(tmp_path: Path, node: dict[str, object]) -> None:
    down = {**node, "name": "down", "state": "down", "state_flags": ["DRAIN"]}
    document = {"meta": {}, "nodes": [{**node, "name": "n1", "partitions": ["gpu"]}, down]}
    found = read_nodes(write(tmp_path / "nodes.json", json.dumps(document)))
    assert found.names == ("n1",)
    assert (found.gpus[0], found.cpus[0], found.mem_mb[0]) == (8, 64, 512000)
    assert found.partitions == (frozenset({"gpu"}),)
    assert "down" in found.notes[0]


def test_toml(tmp_path: Path) -> None:
    text = """
[[nodes]]
name = "n[001-003]"
gpus = 8
cpus = 128
memory_mb = 1_000_000
partitions = ["gpu"]
[[nodes]]
name = "big"
gpus = 16
gpu_type = "h200"
"""
    found = read_nodes(write(tmp_path / "nodes.toml", text))
    assert found.names == ("n001", "n002", "n003", "big")
    assert found.gpus.tolist() == [8, 8, 8, 16]
    assert found.cpus.tolist() == [128, 128, 128, UNKNOWN_CPUS]
    assert found.gpu_types == ("", "", "", "h200")
    assert found.partitions[3] == frozenset()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.txt", "", "no node that is up"),
        ("prose.txt", "hello\n", "scontrol show node"),
        ("binary", b"\x7fELF\0\0", "not text"),
        ("x.json", "{", "not valid JSON"),
        ("x.json", '{"jobs": []}', "list `nodes`"),
        ("x.json", '{"nodes": [3]}', "list `nodes`"),
        ("x.json", '{"nodes": [{}]}', "nodes[1] has no name"),
        ("x.json", '{"a":' * 100_000, "not valid JSON"),
        ("x.toml", "nodes = 3", "no [[nodes]] table"),
        ("x.toml", "[[nodes]]\nname='a'\ngpu=1", "nearest known one is gpus"),
        ("x.toml", "[[nodes]]\nname='a'", "gpus is missing"),
        ("x.toml", "[[nodes]]\nname='a'\ngpus=-1", "whole number from 0"),
        ("x.toml", "[[nodes]]\nname='a'\ngpus=true", "whole number from 0"),
        ("x.toml", "[[nodes]]\nname='a'\ngpus=1\npartitions='gpu'", "list of names"),
        ("x.toml", "[[nodes]]\nname='a[3-1]'\ngpus=1", "smaller number to the larger"),
        ("x.toml", "[[nodes]]\nname='a[1-9][1-99999]'\ngpus=1", "more than 100000"),
        ("x.toml", "[[nodes]]\nname='a'\ngpus=1\n[[nodes]]\nname='a'\ngpus=1", "twice"),
        ("x.toml", "[[nodes]", "not valid TOML"),
        ("x.txt", "NodeName=n1 Gres=gpu:8 State=DOWN", "no node that is up"),
        ("x.txt", "NodeName=n1 CPUTot=8 State=IDLE", "no node has a GPU"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_nodes(write(tmp_path / name, content))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "absent"), "a\0b"):
        with pytest.raises(InputError, match="cannot be read"):
            read_nodes(path)


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:8", {"": 8}),
        ("gpu", {"": 1}),
        ("gpu:a100", {"a100": 1}),
        ("gpu:a100:8(S:0-1)", {"a100": 8}),
        ("gpu:a100:4(S:0,1),gpu:a100:4(S:2)", {"a100": 8}),
        ("gpu:a100_3g.39gb:2,mps:800", {"a100_3g.39gb": 2}),
        ("gpu:no_consume:4", {"": 4}),
        ("shard:32,nic:2", {}),
        ("", {}),
    ],
)
def test_gres(gres: str, expected: dict[str, int]) -> None:
    assert gpus_of_gres(gres) == expected


def test_types_are_never_added_to_the_total() -> None:
    assert gpus_of_tres("cpu=4,gres/gpu=4,gres/gpu:a100=4") == {"a100": 4}
    assert gpus_of_tres("gres/gpu:a100=2,gres/gpu:v100=2") == {"a100": 2, "v100": 2}
    assert gpus_of_tres("gres/gpu=4,gres/gpu:a100=2") == {"": 4}
    assert gpus_of_tres("cpu=4,mem=1G") == {}


def test_hostlists() -> None:
    assert expand("n[001-003,7],login") == ["n001", "n002", "n003", "n7", "login"]
    assert expand("r[1-2]n[08-09]x") == ["r1n08x", "r1n09x", "r2n08x", "r2n09x"]
    for bad in ("", "a,,b", "n[1", "n]1", "n[]", "n[a-b]", "n[2-1]", "n[0-999999999]", "n[[1]]"):
        with pytest.raises(ValueError, match=r"\w"):
            expand(bad)


@given(st.text(alphabet="n01[]-,x ", max_size=20))
def test_hostlists_give_names_or_a_reason(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert names
    assert all(names)
    assert not set("[],") & set("".join(names))


def test_numbers_of_gpus() -> None:
    assert pool(100).gpus.tolist() == [100]
    assert len(pool(1)) == 1
    assert uniform(16, 8).gpus.tolist() == [8, 8]
    assert uniform(20, 8).gpus.tolist() == [8, 8, 4]
    assert uniform(4, 8).gpus.tolist() == [4]
    for gpus, per_node, said in (
        (16, 8, "2 nodes of 8 GPUs"),
        (8, 3, "2 nodes of 3 GPUs and 1 node of 2 GPUs"),
        (8, 16, "1 node of 8 GPUs"),
        (3, 2, "1 node of 2 GPUs and 1 node of 1 GPU"),
        (2, 1, "2 nodes of 1 GPU"),
    ):
        assert uniform(gpus, per_node).source == said
    for bad in (0, -1, 10**9):
        with pytest.raises(InputError):
            pool(bad)
        with pytest.raises(InputError):
            uniform(8, bad)


def history(*rows: tuple[float, float, int, int, str]) -> pd.DataFrame:
    """Rows of start, end, GPUs, nodes, node names."""
    frame = pd.DataFrame(rows, columns=["start", "end", "gpus", "nodes", "node_list"])
    return frame.assign(work=5.0, partition="gpu")


def test_infer_from_use() -> None:
    jobs = history((0, 10, 12, 2, ""), (10, 20, 30, 5, ""), (5, 9, 3, 1, ""), (1, 2, 0, 7, "")).drop(
        columns="node_list"
    )
    found = infer(jobs)
    # 6 a node, so 8; a peak of 30 at 10 s, where the first job has just ended; the job of 5 nodes needs 5
    assert found.gpus.tolist() == [8] * 5 + [0, 0]
    assert found.inferred
    assert "inferred" in found.source
    assert "30 GPUs were in use at once" in found.notes[0]
    assert "does not say on which nodes" in found.notes[0]
    assert (found.cpus == UNKNOWN_CPUS).all()


def test_infer_takes_a_running_job_to_now() -> None:
    jobs = history((0, np.nan, 8, 1, ""), (4, 6, 8, 1, "")).drop(columns="node_list")  # 5 s of work so far
    assert infer(jobs).gpus.tolist() == [8, 8]


def test_infer_needs_a_start() -> None:
    with pytest.raises(InputError, match="--nodes"):
        infer(history((np.nan, np.nan, 8, 1, "")))
    with pytest.raises(InputError, match="no job of the history has GPUs"):
        infer(history((0, 1, 0, 1, "")))


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 40), st.integers(0, 4)),
        min_size=1,
        max_size=20,
    )
)
def test_the_inferred_cluster_holds_the_recorded_use(rows: list[tuple[int, int, int, int]]) -> None:
    jobs = history(*((a, a + b, g, n, "") for a, b, g, n in rows)).drop(columns="node_list")
    found = infer(jobs)
    for t in range(101):
        now = jobs[(jobs.start <= t) & (t < jobs.end)]
        assert now.gpus.sum() <= found.total_gpus
    size = int(found.gpus.max())
    assert all(max(n, -(-g // size)) <= int((found.gpus > 0).sum()) for _, _, g, n in rows)
