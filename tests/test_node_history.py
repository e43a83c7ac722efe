"""Nodes as a history knows them: inferred from where jobs ran, or known from a file and held against it."""

from __future__ import annotations

import sys
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacct_rows import SONAR

from tias_slurm.cli.dry_run import Reading, _nodes, _read
from tias_slurm.config import load_config
from tias_slurm.errors import InputError
from tias_slurm.gpu_weights import weigh
from tias_slurm.replay.requests import requests
from tias_slurm.replay.workload import Refusals, Workload
from tias_slurm.slurm.history import read_history
from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.node_history import natural
from tias_slurm.slurm.nodes import UNKNOWN_CPUS, UNKNOWN_MEM_MB, NodeSet, infer, read_nodes, with_history

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import virtual_site as site  # noqa: E402

BERLIN = ZoneInfo("Europe/Berlin")


def job(node_list: str, start: float, end: float, gpus: int = 0, **more: object) -> dict[str, object]:
    """One job that ran on the given nodes, 8 CPUs and 1000 MB on each."""
    width = len(expand(node_list)) if node_list else 1
    row = {
        "job_id": "1", "user": "ann", "partition": "gpu", "start": start, "end": end, "work": 5.0,
        "first_submit": 0.0, "eligible": 0.0, "deadline": np.nan, "runs": 1, "gpus": gpus,
        "gpu_type": "a100" if gpus else "", "cpus": 8 * width, "mem_mb": 1000.0 * width, "nodes": width,
        "node_list": node_list,
    }  # fmt: skip
    return row | more


def history(*rows: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame(rows)


def by_name(nodes: NodeSet, column: str = "gpus") -> dict[str, object]:
    values = getattr(nodes, column)
    return dict(zip(nodes.names, values.tolist() if column == "gpus" else values, strict=True))


def test_of_several_types_each_counts_by_itself() -> None:
    """Slices of MIG beside whole GPUs: never all in use at once, but of one type none is of the other."""
    found = infer(
        history(
            job("n1", 0, 10, 4, gpu_type="h100"),
            job("n2", 0, 10, 3, gpu_type="1g.5gb"),
            job("n1", 20, 30, 7, gpu_type="1g.5gb=6,h100=1"),
            job("n2", 20, 30, 2, gpu_type="h100"),
            job("n[1-2]", 40, 50, 4, gpu_type="1g.5gb=2,h100=2"),
            job("n3", 0, 10),
        )
    )
    assert by_name(found) == {"n1": 10, "n2": 10, "n3": 10}
    assert set(found.gpu_types) == {"1g.5gb=6,h100=4"}
    assert weigh(found.gpus, found.gpu_types, {"1g.5gb": 0.125}).tolist() == [4.75] * 3


def test_gpus_are_the_most_in_use_at_once() -> None:
    found = infer(
        history(
            job("x1", 0, 10, 2),
            job("x1", 5, 15, 3),
            job("x1", 10, 20, 1),  # begins as the first ends
            job("y[1-2]", 0, 10, 12),
            job("y1", 2, 4, 1),
        )
    )
    assert by_name(found) == {"x1": 5, "y1": 7, "y2": 7}
    assert found.inferred
    assert "3 nodes, 3 of them with 19 GPUs" in found.notes[0]


def test_an_uneven_job_fits_the_nodes_that_it_had() -> None:
    jobs = history(job("z[1-3]", 0, 10, 20))
    found = infer(jobs)
    assert by_name(found) == {"z1": 7, "z2": 7, "z3": 7}
    assert requests(jobs, found).fits.all()


@pytest.mark.parametrize(
    ("other", "gpus"),
    [
        ({}, 8),
        ({"partition": "old"}, 2),  # other partitions
        ({"gpu_type": "v100"}, 2),
        ({"node_list": "login1"}, 2),  # another name
    ],
)
def test_nodes_alike_have_as_many(other: dict[str, object], gpus: int) -> None:
    small = job("n2", 0, 10, 2) | other
    found = infer(history(job("n1", 0, 10, 8), small))
    assert by_name(found)[str(small["node_list"])] == gpus


def test_a_node_that_ran_no_gpu_job_has_what_most_nodes_alike_have() -> None:
    rows = [job("n1", 0, 10, 4), job("n2", 0, 10, 4), job("n3", 0, 10)]
    found = infer(history(*rows))
    assert by_name(found) == {"n1": 4, "n2": 4, "n3": 4}
    assert by_name(found, "gpu_types")["n3"] == "a100"
    assert any("1 node (n3) ran jobs without GPUs only" in note for note in found.notes)
    # where as many have none, or where they have different ones, none is taken to be there
    assert by_name(infer(history(*rows, job("n4", 0, 10))))["n3"] == 0
    assert by_name(infer(history(rows[0], job("n2", 0, 10, 8, gpu_type="v100"), rows[2])))["n3"] == 0


def test_partitions_are_those_whose_jobs_ran_there() -> None:
    rows = [job("n1", 0, 1, 1), job("n1", 2, 3, 1, partition="debug"), job("n2", 0, 1, 1, partition="")]
    assert by_name(infer(history(*rows)), "partitions") == {"n1": {"gpu", "debug"}, "n2": frozenset()}


def test_names_come_in_their_natural_order() -> None:
    found = infer(history(*(job(f"n{i}", 0, 1, 1) for i in (10, 9, 100, 1))))
    assert found.names == ("n1", "n9", "n10", "n100")
    assert sorted(["b2", "a10", "7", "a9x"], key=natural) == ["7", "a9x", "a10", "b2"]


def test_cpus_and_memory_are_known_where_several_nodes_are_full() -> None:
    busy = [
        job(f"n{i}", t, t + 10, 1, cpus=16, mem_mb=1000.0 * i)
        for i in (1, 2, 3)
        for t in range(0, 200, 5)  # two at once on each
    ]
    found = infer(history(*busy))
    assert found.cpus.tolist() == [32] * 3
    assert (found.mem_mb == UNKNOWN_MEM_MB).all()  # each came to an amount of its own
    assert "CPUs of 3, memory of 0 of 3 nodes" in "".join(found.notes)
    few = infer(history(*busy[:10], *busy[40:50], *busy[80:90]))
    assert (few.cpus == UNKNOWN_CPUS).all()


def test_a_few_jobs_without_names_do_not_matter_and_many_do() -> None:
    rows = [job("n1", 0, 10, 2)] * 19
    jobs = history(*rows, job("", 0, 10, 2))
    assert infer(jobs).names == ("n1",)
    found = infer(history(*rows, *[job("", 0, 10, 2)] * 2))
    assert found.names[:2] == ("n1", "n2")
    assert "only 90 % of the GPU jobs say on which nodes they ran" in found.notes[0]
    assert infer(jobs.assign(node_list="None assigned")).names[0] == "n1"


def test_what_is_no_host_list_is_counted() -> None:
    rows = [job("n1", 0, 10, 2)] * 40
    found = infer(history(*rows, job("n1", 0, 10, 2) | {"node_list": "n[1-"}))
    assert found.names == ("n1",)
    assert any(note.startswith("1 jobs have a NodeList that is no list") for note in found.notes)


def test_jobs_without_times_bring_no_node() -> None:
    found = infer(history(job("n1", 0, 10, 2), job("m1", np.nan, np.nan)))
    assert found.names == ("n1",)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(0, 50), st.integers(0, 20), st.integers(0, 200),
            st.sampled_from(["n1", "n2", "n[1-3]", "m[1-2]", "n3,m1"]), st.sampled_from(["gpu", "long"]),
            st.integers(0, 3),
        ),
        min_size=1, max_size=50,
    )
)  # fmt: skip
def test_every_recorded_job_fits_and_all_of_them_at_once(
    rows: list[tuple[int, int, int, int, str, str, int]],
) -> None:
    rows.append((0, 1, 1, 1, "n1", "gpu", 0))  # one with a GPU
    jobs = history(
        *(
            job(names, a, a + b, g, cpus=c, mem_mb=c * 10.0, partition=p, nodes=k or len(expand(names)))
            for a, b, g, c, names, p, k in rows
            if k <= len(expand(names))
        )
    )
    found = infer(jobs)
    assert requests(jobs, found).fits.all()
    gpus = by_name(found)
    for name in found.names:
        here = jobs[[name in expand(x) for x in jobs.node_list]]
        share = (here.gpus / here.node_list.map(lambda x: len(expand(x)))).to_numpy()
        for t in range(101):
            now = ((here.start <= t) & (t < here.end)).to_numpy()
            assert share[now].sum() <= gpus[name] + 1e-6


def test_the_example_is_inferred_as_it_is() -> None:
    work = read_history([str(EXAMPLES / "cluster-export.txt.gz")], zone=BERLIN, keep_nodes=True)
    found = infer(work.jobs)
    true = {n.name: n for n in site.make_nodes()}
    assert set(true) - set(found.names) <= {"cn02"}  # which may have stood idle
    assert set(found.names) <= set(true)
    assert found.total_gpus == 80
    for i, name in enumerate(found.names):
        node = true[name]
        assert found.gpus[i] == node.gpus
        assert found.partitions[i] == set(node.partitions)
        assert found.cpus[i] in (node.cpus, UNKNOWN_CPUS)
        assert 0.9 * node.mem_mb < found.mem_mb[i] <= node.mem_mb or found.mem_mb[i] == UNKNOWN_MEM_MB
    assert (found.cpus[found.gpus > 0] == 64).all()
    ran = (work.jobs["runs"] > 0).to_numpy()
    assert (
        requests(work.jobs.assign(deadline=np.nan), found)
        .fits[requests(work.jobs.assign(deadline=np.nan), found).number[ran]]
        .all()
    )


def test_a_public_export_is_inferred(shared_data: Path) -> None:
    path = str(shared_data / "sacct" / "sonar-2025-gpu.txt")
    work = read_history([path], columns=SONAR, zone=BERLIN, keep_nodes=True)
    found = infer(work.jobs)
    gpus = by_name(found)
    assert gpus["gpu-1"] == gpus["gpu-2"] == 4  # the second ran a job of one GPU
    assert gpus["bigmem-1"] == 0
    assert by_name(found, "gpu_types")["gpu-12"] == "a40"
    assert set(gpus.values()) == {0, 4, 6, 7}
    assert (found.cpus == UNKNOWN_CPUS).all()  # a handful of jobs each


# ---- a file of nodes against the history ----------------------------------------------------------


FILE = """NodeName=n1 CPUTot=64 Gres=gpu:8 RealMemory=1000 State=IDLE Partitions=gpu
NodeName=n2 CPUTot=32 Gres=gpu:a100:4 RealMemory=2000 State=DOWN* Partitions=gpu,long
NodeName=n3 CPUTot=64 Gres=gpu:8 RealMemory=1000 State=IDLE+DRAIN Partitions=gpu
"""


@pytest.fixture
def nodes_file(tmp_path: Path) -> str:
    path = tmp_path / "nodes.txt"
    path.write_text(FILE)
    return str(path)


def test_nodes_left_out_are_at_hand(nodes_file: str) -> None:
    found = read_nodes(nodes_file)
    assert found.names == ("n1",)
    assert found.left_out is not None
    assert found.left_out.names == ("n2", "n3")
    assert found.left_out.gpus.tolist() == [4, 8]
    assert found.notes == ("2 nodes (n2, n3) down or drained when the file was written, left out",)


def test_a_node_that_ran_jobs_is_part_of_the_cluster(nodes_file: str) -> None:
    jobs = history(job("n[1-2]", 0, 10, 8))
    plain = read_nodes(nodes_file)
    found = with_history(plain, jobs)
    assert by_name(found) == {"n1": 8, "n2": 4}
    assert found.cpus.tolist() == [64, 32]
    assert found.mem_mb.tolist() == [1000, 2000]
    assert found.partitions == (frozenset({"gpu"}), frozenset({"gpu", "long"}))
    assert found.gpu_types == ("", "a100")
    assert found.left_out is not None
    assert found.left_out.names == ("n3",)
    notes = "\n".join(found.notes)
    assert "1 node (n2) down or drained when the file was written, but ran jobs of the history" in notes
    assert "1 node (n3) down or drained when the file was written, left out" in notes
    assert len(found.notes) == 2
    assert plain.names == ("n1",)  # nothing was changed in place
    both = read_nodes(nodes_file, history(job("n[1-3]", 0, 10, 8)))
    assert both.left_out is None
    assert both.names == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    "jobs", [history(job("", 0, 10, 8)), history(job("n1", 0, 1, 1)).drop(columns="node_list")]
)
def test_without_names_nothing_changes(nodes_file: str, jobs: pd.DataFrame) -> None:
    found = read_nodes(nodes_file)
    assert with_history(found, jobs) is found


def test_nodes_that_the_file_does_not_know_are_counted(nodes_file: str) -> None:
    jobs = history(job("n1", 0, 10, 8), job("m[1-2]", 0, 10, 8), job("m2,n1", 0, 10, 8))
    found = read_nodes(nodes_file, jobs)
    assert found.names == ("n1",)
    assert (
        "2 nodes (m1, m2) ran 2 jobs of the history but are not in the file, nor in the replay" in found.notes
    )
    other = read_nodes(nodes_file, history(job("m[1-2]", 0, 10, 8)))
    assert any("is it of this cluster?" in note for note in other.notes)


def test_a_file_of_a_cluster_under_maintenance(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text(FILE.replace("IDLE ", "IDLE+DRAIN "))
    with pytest.raises(InputError, match="no node that is up"):
        read_nodes(str(path))
    with pytest.raises(InputError, match="no node that is up"):
        read_nodes(str(path), history(job("", 0, 10, 8)))
    assert read_nodes(str(path), history(job("n[1-3]", 0, 10, 8))).total_gpus == 20


# ---- the command -----------------------------------------------------------------------------------


class Told:
    """Keeps what a person would be shown."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []

    def __call__(self, what: str, share: float) -> None:
        self.said.append((what, share))


def test_the_command_shows_how_much_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},{i},60,1,{'u' * 1000}\n" for i in range(6000))
    path.write_text("job_id,submit_time,duration,num_gpu,user\n" + rows)
    told = Told()
    work = _read([str(path)], load_config(None, {}), None, None, None, "s", None, True, told)  # type: ignore[arg-type]
    assert work.is_trace
    assert len(told.said) > 1
    shares = [share for _, share in told.said]
    assert shares == sorted(shares)
    assert told.said[-1] == (f"reading, {path.stat().st_size / 1e6:,.0f} MB", 1.0)


def test_what_is_no_file_has_no_share() -> None:
    told = Told()
    reading = Reading(["-"], told)  # type: ignore[arg-type]
    reading(2_000_000)
    reading(1_000_000_000)
    assert told.said == [("reading, 2 MB", 0.0), ("reading, 1,002 MB", 0.0)]


@pytest.mark.parametrize("keep", [True, False])
def test_the_command_reads_the_nodes_of_a_history_where_needed(keep: bool) -> None:
    told = Told()
    path = str(EXAMPLES / "cluster-export.txt.gz")
    work = _read([path], load_config(None, {}), None, None, None, "s", None, keep, told)  # type: ignore[arg-type]
    assert ("node_list" in work.jobs.columns) == keep
    assert told.said[-1][1] == 1.0
    found = _nodes(work, None, None, None, None)
    assert found.total_gpus == 80
    assert ("gn01" in found.names) == keep


def test_the_command_holds_a_file_against_the_history(nodes_file: str) -> None:
    work = Workload(history(job("n2", 0, 10, 4)), False, 1, 1, Refusals())
    assert _nodes(work, nodes_file, None, None, None).names == ("n1", "n2")
    assert _nodes(work, nodes_file, None, None, "count").gpus.tolist() == [12]
