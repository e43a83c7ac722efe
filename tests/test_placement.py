"""Which nodes a job gets, against trying every choice of nodes on tiny clusters."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import workload

from tias_slurm.placement import find_nodes, occupy, set_aside
from tias_slurm.replay.requests import requests
from tias_slurm.slurm.node_set import make


def find(free, total, nodes, gpus, node_gpus, cpus=0, mem=0, member=None):
    """free: (GPUs, CPUs, memory) by node; total: GPUs by node. The chosen nodes."""
    g, c, m = np.array(free, dtype=np.int64).reshape(-1, 3).T.copy()
    allowed = np.ones(len(g), dtype=bool) if member is None else np.array(member)
    out = np.full(len(g), -1, dtype=np.int64)
    got = find_nodes(
        g, c, m, np.array(total, dtype=np.int64), allowed, nodes, gpus, node_gpus, cpus, mem, out
    )
    return out[:got].tolist()


def test_one_node_best_fit():
    free = [(8, 9, 9), (3, 9, 9), (2, 9, 9), (4, 9, 9)]
    assert find(free, [8] * 4, 1, 2, 2) == [2]
    assert find(free, [8] * 4, 1, 3, 3) == [1]
    assert find(free, [8] * 4, 1, 5, 5) == [0]
    assert find(free, [8] * 4, 1, 9, 9) == []


def test_one_node_ties_go_to_fewer_free_cpus_then_to_the_first():
    assert find([(4, 9, 9), (4, 5, 9), (4, 5, 9)], [8] * 3, 1, 4, 4) == [1]
    assert find([(4, 9, 9), (4, 2, 9), (4, 5, 9)], [8] * 3, 1, 4, 4, cpus=3) == [2]


def test_a_job_without_gpus_goes_where_no_gpus_are():
    assert find([(4, 9, 9), (0, 9, 9)], [8, 0], 1, 0, 0, cpus=2) == [1]


def test_cpus_and_memory_bind():
    free = [(8, 1, 9), (8, 9, 1), (8, 9, 9)]
    assert find(free, [8] * 3, 1, 1, 1, cpus=2, mem=2) == [2]
    assert find(free, [8] * 3, 2, 2, 1, cpus=2, mem=2) == []
    assert find(free, [8] * 3, 2, 2, 1, cpus=1, mem=1) == [0, 1]


def test_several_nodes_those_with_least_left_over():
    free = [(8, 9, 9), (5, 9, 9), (4, 9, 9), (3, 9, 9)]
    assert find(free, [8] * 4, 2, 8, 4) == [2, 1]
    assert find(free, [8] * 4, 3, 12, 4) == [2, 1, 0]
    assert find(free, [8] * 4, 4, 16, 4) == []


def test_whole_nodes_are_empty_of_gpu_jobs():
    free = [(7, 9, 9), (8, 9, 9), (8, 0, 9), (8, 9, 9)]
    assert find(free, [8] * 4, 0, 12, 0) == [1, 2]
    assert find(free, [8] * 4, 0, 12, 0, cpus=1) == [1, 3]
    assert find(free, [8] * 4, 0, 25, 0) == []


def test_whole_nodes_of_unlike_sizes_until_the_gpus_suffice():
    assert find([(4, 9, 9), (8, 9, 9), (8, 9, 9)], [4, 8, 8], 0, 12, 0) == [0, 1]
    assert find([(4, 9, 9), (8, 9, 9), (8, 9, 9)], [4, 8, 8], 0, 13, 0) == [0, 1, 2]
    assert find([(0, 9, 9), (8, 9, 9), (8, 9, 9)], [0, 8, 8], 0, 16, 0) == [1, 2]


def test_only_nodes_of_the_partition():
    assert find([(8, 9, 9), (2, 9, 9)], [8, 8], 1, 2, 2, member=[True, False]) == [0]
    assert find([(8, 9, 9), (2, 9, 9)], [8, 8], 1, 2, 2, member=[False, False]) == []


def kept_for(free, total, nodes, gpus, node_gpus, member=None):
    """The nodes that are set aside for a request."""
    allowed = np.ones(len(free), dtype=bool) if member is None else np.array(member)
    out = np.full(len(free), -1, dtype=np.int64)
    got = set_aside(np.array(free), np.array(total), allowed, nodes, gpus, node_gpus, out)
    return out[:got].tolist()


def test_nodes_set_aside_are_those_with_most_free_gpus():
    assert kept_for([0, 3, 5, 3], [8] * 4, 1, 4, 4) == [2]
    assert kept_for([0, 3, 5, 3], [8] * 4, 2, 16, 8) == [2, 1]
    assert kept_for([0, 3, 5, 3], [8] * 4, 0, 20, 0) == [2, 1, 3]
    assert kept_for([0, 0], [8, 8], 1, 1, 1) == [0]


def test_nodes_set_aside_could_hold_the_job_once_they_are_empty():
    assert kept_for([4, 3, 2], [4, 8, 8], 1, 8, 8) == [1]
    assert kept_for([4, 3, 2], [4, 8, 8], 3, 24, 8) == []
    assert kept_for([0, 3], [0, 8], 0, 8, 0) == [1]
    assert kept_for([8, 8], [8, 8], 0, 17, 0) == []
    assert kept_for([8, 3], [8, 8], 1, 8, 8, member=[False, True]) == [1]
    assert kept_for([8, 3], [8, 8], 2, 16, 8, member=[False, True]) == []


NODES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 4), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=400)
@given(
    nodes=NODES,
    kind=st.integers(0, 4),
    gpus=st.integers(1, 20),
    cpus=st.integers(0, 3),
    mem=st.integers(0, 3),
    data=st.data(),
)
def test_against_every_choice_of_nodes(nodes, kind, gpus, cpus, mem, data):
    free = [(min(g, t), c, m) for g, t, c, m in nodes]
    total = [t for _, t, _, _ in nodes]
    member = data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))
    node_gpus = -(-gpus // kind) if kind else 0
    got = find(free, total, kind, gpus, node_gpus, cpus, mem, member)

    def fits(v):
        g, c, m = free[v]
        room = total[v] > 0 and g == total[v] if kind == 0 else g >= node_gpus
        return member[v] and room and c >= cpus and m >= mem

    def enough(chosen):
        return sum(total[v] for v in chosen) >= gpus if kind == 0 else len(chosen) == kind

    sizes = range(1, len(nodes) + 1)
    possible = any(
        enough(chosen) and all(map(fits, chosen))
        for k in sizes
        for chosen in combinations(range(len(nodes)), k)
    )
    assert bool(got) == possible
    if got:
        assert len(set(got)) == len(got)
        assert all(map(fits, got))
        assert enough(got)
        if kind == 0:
            assert not enough(got[:-1]), "a node more than needed"


@settings(max_examples=100)
@given(nodes=NODES, kind=st.integers(0, 2), amounts=st.tuples(*[st.integers(0, 9)] * 3), data=st.data())
def test_what_is_taken_is_given_back(nodes, kind, amounts, data):
    free = np.array([(t, c, m) for _, t, c, m in nodes], dtype=np.int64).T.copy()
    total, before = free[0].copy(), free.copy()
    held = np.array(data.draw(st.lists(st.integers(0, len(nodes) - 1), unique=True)), dtype=np.int64)
    occupy(*free, total, held, kind, *amounts, -1)
    for v in range(len(nodes)):
        took = before[:, v] - free[:, v]
        assert took.tolist() == (
            [total[v] if kind == 0 else amounts[0], *amounts[1:]] if v in held else [0] * 3
        )
    occupy(*free, total, held, kind, *amounts, 1)
    assert np.array_equal(free, before)


@pytest.mark.parametrize(
    ("asked", "nodes", "each", "fits"),
    [
        ({"gpus": 4}, 1, 4, True),  # names no node count: one node if the GPUs fit one
        ({"gpus": 8}, 1, 8, True),
        ({"gpus": 9}, 0, 0, True),  # else whole nodes
        ({"gpus": 24}, 0, 0, True),
        ({"gpus": 25}, 0, 0, False),
        ({"gpus": 4, "nodes": 2}, 2, 2, True),
        ({"gpus": 4, "nodes": 4}, 4, 1, False),  # there are three nodes
        ({"gpus": 20, "nodes": 3}, 3, 7, True),  # not divisible: rounded up
        ({"gpus": 20, "nodes": 2}, 2, 10, False),
        ({"gpus": 9, "nodes": 2}, 2, 5, True),
        ({"gpus": 0, "cpus": 16}, 1, 0, True),
        ({"gpus": 0, "cpus": 17}, 1, 0, False),
        ({"gpus": 1, "cpus": 17}, 1, 1, False),
        ({"gpus": 16, "cpus": 32}, 0, 0, True),  # CPUs of the whole job, shared out
        ({"gpus": 16, "cpus": 33}, 0, 0, False),
        ({"gpus": 1, "mem_mb": 100.0}, 1, 1, True),
        ({"gpus": 1, "mem_mb": 100.5}, 1, 1, False),
        ({"gpus": 1, "partition": "gpu"}, 1, 1, True),
        ({"gpus": 1, "partition": "cpu, gpu"}, 1, 1, True),
        ({"gpus": 1, "partition": "gone"}, 1, 1, False),
    ],
)
def test_what_a_job_asks_for_on_each_node(asked, nodes, each, fits):
    cluster = make(
        ["a", "b", "c"],
        [8, 8, 8],
        cpus=[16] * 3,
        mem_mb=[100.0] * 3,
        partitions=[frozenset({"gpu"})] * 3,
        source="a test",
    )
    req = requests(workload([dict(submit=0, work=1, **asked)]).jobs, cluster)
    assert bool(req.fits[0]) is fits
    if fits:
        assert (req.nodes[0], req.node_gpus[0]) == (nodes, each)


def test_jobs_are_numbered_by_eligibility_and_tie_by_submit():
    rows = [
        {"submit": 5, "work": 1, "gpus": 1},
        {"submit": 1, "work": 1, "gpus": 1, "eligible": 9},
        {"submit": 5, "work": 1, "gpus": 1},
        {"submit": 3, "work": 1, "gpus": 1, "eligible": np.nan},
    ]
    req = requests(workload(rows).jobs, make(["a"], [8], source="a test"))
    assert req.row.tolist() == [3, 0, 2, 1]
    assert req.number.tolist() == [1, 3, 2, 0]
    assert req.eligible.tolist() == [3, 5, 5, 9]
    assert req.tie.tolist() == [1, 2, 3, 0]
