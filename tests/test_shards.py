"""Shards of GPUs and MIG slices in the accounting and in the replay, and the same rule live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_queue import NOW, queue, running
from worlds import workload

from tias_slurm.config import Config
from tias_slurm.controller import Controller
from tias_slurm.gpu_weights import by_type, kinds, of_jobs, shards_of_gpu, spoken, times
from tias_slurm.ledger.book import Ledger
from tias_slurm.policy.tias import Tias
from tias_slurm.replay.cluster import VirtualCluster
from tias_slurm.replay.dry_run import Options, Run, dry_run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.workload import weigh_jobs
from tias_slurm.slurm.history import read_history
from tias_slurm.slurm.node_set import NodeSet, make
from tias_slurm.slurm.nodes import infer, read_nodes
from tias_slurm.slurm.observer import Claims, observe

UTC = ZoneInfo("UTC")
WEIGHTS = {"shard": 0.25, "1g.5gb": 0.14, "h100": 3.0, "a100_1g.5gb": 0.125}


def config(**more: object) -> Config:
    return Config.model_validate({"gpus": {"weights": WEIGHTS}, **more})


# ---- the text of types


@given(st.dictionaries(st.sampled_from(["a100", "h100", "1g.5gb", "a100_1g.5gb"]), st.integers(1, 9)),
       st.integers(0, 5), st.integers(1, 4))  # fmt: skip
def test_a_text_of_types_loses_no_gpu(counts: dict[str, int], rest: int, nodes: int) -> None:
    total = sum(counts.values()) + rest
    text = kinds(counts, total)
    assert {k: v for k, v in by_type(total, text).items() if v} == {
        k: v for k, v in {**counts, "": rest}.items() if v
    }
    weight = float(sum(n * WEIGHTS.get(k, 1.0) for k, n in counts.items()) + rest)
    none = np.zeros(1, dtype=np.int64)
    assert of_jobs(np.array([total]), [text], none, WEIGHTS)[0] == pytest.approx(weight)
    many = of_jobs(np.array([total * nodes]), [times(text, nodes)], none, WEIGHTS)[0]
    assert many == pytest.approx(weight * nodes)


def test_what_people_read() -> None:
    assert spoken(8, 0, 8.0) == "8 GPUs"
    assert spoken(0, 4, 1.0) == "4 shards = 1 GPU"
    assert spoken(0, 1, 0.25) == "1 shard = 0.25 GPUs"
    assert spoken(0, 6, 0.0) == "6 shards"
    assert spoken(1, 0, 0.14) == "1 GPU = 0.14 by weight"
    assert (shards_of_gpu({"shard": 0.25}), shards_of_gpu({"shard": 3.0}), shards_of_gpu({})) == (4, 1, 0)


# ---- the accounting

HEADER = "JobID|User|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES|NNodes"
CASES = [  # AllocTRES, ReqTRES, GPUs, types, shards, weight
    ("cpu=1,gres/shard=4", "cpu=1,gres/shard=4", 0, "", 4, 1.0),
    ("cpu=1,gres/shard:h100=6", "", 0, "", 6, 1.5),
    ("cpu=1,gres/shard=6,gres/shard:h100=2,gres/shard:a100=4", "", 0, "", 6, 1.5),
    ("", "cpu=1,gres/shard=2,mem=1G", 0, "", 2, 0.5),
    ("cpu=1,gres/gpu:1g.5gb=1,gres/gpu=1", "", 1, "1g.5gb", 0, 0.14),
    ("cpu=1,gres/gpu:a100_1g.5gb=7", "", 7, "a100_1g.5gb", 0, 0.875),
    ("gres/gpu=4,gres/gpu:1g.5gb=2,gres/gpu:h100=2", "", 4, "1g.5gb=2,h100=2", 0, 6.28),
    ("gres/gpu=4,gres/gpu:h100=1", "gres/gpu=4", 4, "h100=1", 0, 6.0),
    ("cpu=4,mem=4G", "cpu=4", 0, "", 0, 0.0),
    ("gres/gpu=1,gres/shard=3", "", 1, "", 3, 1.0),
]


@pytest.mark.parametrize("form", ["text", "json", "json with texts"])
def test_readers_tell_shards_and_slices(form: str, tmp_path: Path) -> None:
    path = tmp_path / "history"
    if form == "text":
        rows = [
            f"{i}|u|gpu|COMPLETED|100|200|300|100|{alloc}|{asked}|1"
            for i, (alloc, asked, *_) in enumerate(CASES, 1)
        ]  # fmt: skip
        path.write_text("\n".join([HEADER, *rows]) + "\n")
    else:
        jobs = [record(i, a, r, as_text=form != "json") for i, (a, r, *_) in enumerate(CASES, 1)]
        path.write_text(json.dumps({"jobs": jobs}))
    work = read_history([str(path)], zone=UTC)
    assert work.jobs["gpus"].tolist() == [c[2] for c in CASES]
    assert work.jobs["gpu_type"].tolist() == [c[3] for c in CASES]
    assert work.jobs["shards"].tolist() == [c[4] for c in CASES]
    assert weigh_jobs(work.jobs, WEIGHTS).tolist() == pytest.approx([c[5] for c in CASES])


def record(job: int, alloc: str, asked: str, *, as_text: bool) -> dict[str, object]:
    """As slurmdbd's data_parser writes it: TRES as lists of {type, name, count}, or as text."""

    def tres(text: str) -> object:
        if as_text:
            return text
        items = []
        for part in filter(None, text.split(",")):
            name, _, count = part.partition("=")
            kind, _, rest = name.partition("/")
            amount = count.removesuffix("G")
            items.append({"type": kind, "name": rest, "id": 1, "count": int(amount)})
        return items

    return {
        "job_id": job, "user": "u", "partition": "gpu", "state": {"current": ["COMPLETED"]},
        "time": {"submission": 100, "start": 200, "end": 300, "elapsed": 100, "eligible": 100},
        "tres": {"allocated": tres(alloc), "requested": tres(asked)}, "allocation_nodes": 1,
    }  # fmt: skip


def test_a_record_of_the_controller_tells_shards(tmp_path: Path) -> None:
    given = {
        "user_name": "u",
        "job_state": ["COMPLETED"],
        "submit_time": 100,
        "start_time": 200,
        "end_time": 300,
    }
    jobs = [
        given | {"job_id": 1, "tres_alloc_str": "cpu=1,gres/shard=3"},
        given | {"job_id": 2, "tres_per_node": "gres/shard:2", "node_count": 2},
        given | {"job_id": 3, "gres_detail": ["shard:h100:3(3/4,0/4)"]},
        given
        | {"job_id": 4, "gres_detail": ["gpu:1g.5gb:1(IDX:0),gpu:h100:2(IDX:4-5)", "gpu:1g.5gb:1(IDX:0)"]},
    ]
    (tmp_path / "j").write_text(json.dumps({"jobs": jobs}))
    table = read_history([str(tmp_path / "j")], zone=UTC).jobs
    assert table["shards"].tolist() == [3, 4, 3, 0]
    assert table["gpus"].tolist() == [0, 0, 0, 4]
    assert table["gpu_type"].tolist()[3] == "1g.5gb=2,h100=2"


# ---- the nodes

NODE = "NodeName=n1 CPUTot=16 RealMemory=16000 State=IDLE "


@pytest.mark.parametrize("form", ["text", "json", "toml"])
def test_nodes_tell_slices_and_shards(form: str, tmp_path: Path) -> None:
    gres = "gpu:a100_1g.5gb:4,gpu:h100:2,gpu:1g.5gb:2,shard:a100_1g.5gb:0,shard:h100:8,shard:1g.5gb:0"
    path = tmp_path / ("nodes.toml" if form == "toml" else "nodes")
    if form == "toml":
        path.write_text('[[nodes]]\nname = "n1"\ngpus = 8\ngpu_type = "h100"\nshards = 8\n')
    elif form == "json":
        path.write_text(json.dumps({"nodes": [{"name": "n1", "gres": gres, "cpus": 16, "state": ["IDLE"]}]}))
    else:
        path.write_text(f"{NODE}Gres={gres}\n")
    found = read_nodes(str(path))
    assert (found.gpus.tolist(), found.shards.tolist()) == ([8], [8])
    assert found.gpu_types == (("h100",) if form == "toml" else ("1g.5gb=2,a100_1g.5gb=4,h100=2",))
    run = prepare([{"submit": 0, "work": 10, "gpus": 1}], found)[2]
    assert run.requests.weighted.tolist() == pytest.approx([24.0 if form == "toml" else 6.78])


# ---- the replay


def prepare(
    rows: list[dict[str, object]], nodes: NodeSet, shards: list[int] | None = None, **settings: object
) -> tuple[VirtualCluster, Controller, Run]:
    work = workload(rows)
    work.jobs["shards"] = shards or [0] * len(rows)
    run = Run(work, nodes, config(**settings), Options(), [])
    (wanted,) = parse("tias@on", is_trace=True, preemption=None)
    cluster, controller = run.prepare(wanted)
    assert controller is not None
    return cluster, controller, run


CUT = make(["n1"], [2], shards=[8], source="a test")


def test_a_gpu_of_which_a_shard_is_used_is_given_to_nobody_whole() -> None:
    rows = [{"submit": t, "work": 100, "gpus": g} for t, g in ((0, 0), (1, 2), (2, 1), (3, 0), (4, 0))]
    cluster, _, run = prepare(rows, CUT, [1, 0, 0, 3, 1])
    cluster.advance(50.0)
    # 1 shard takes a GPU, 1 GPU the other; 3 shards more fill the first, a further one finds no room
    assert cluster.state.status.tolist() == [3, 1, 3, 3, 1]
    assert (cluster.state.free_gpus.tolist(), cluster.state.used_shards.tolist()) == ([0], [4])
    assert cluster.observe().jobs.weight.tolist() == [0.25, 2, 1, 0.75, 0.25]
    cluster.advance(1000.0)
    assert cluster.state.free_gpus.tolist() == [2]
    assert cluster.state.used_shards.tolist() == [0]
    assert np.isfinite(cluster.state.end).all()
    assert run.requests.weighted.tolist() == [2.0]  # shards are no GPUs more


def test_without_a_weight_of_shards_they_stand_outside() -> None:
    work = workload([{"submit": 0, "work": 100, "gpus": 0}, {"submit": 0, "work": 100, "gpus": 2}])
    work.jobs["shards"] = [4, 0]
    result = dry_run(work, CUT, parse("fifo,tias@off", is_trace=True, preemption=None), Config(), Options())
    for p in result.policies.values():
        assert (p.metrics["non_deadline_jobs"], p.metrics["gpu_hours"]) == (1, pytest.approx(200 / 3600))
        assert p.outcome.start.tolist() == [0.0, 0.0]
    assert "weighted_gpus" not in result.cluster


def test_what_no_gpu_can_hold_or_no_node_has() -> None:
    rows = [{"submit": 0, "work": 10, "gpus": 0, "nodes": n} for n in (1, 1, 2, 1)]
    two = make(["n1", "n2", "n3"], [2, 2, 2], shards=[8, 4, 0], source="a test")
    _, _, run = prepare(rows, two, [9, 8, 8, 4])
    assert run.requests.fits[run.requests.number].tolist() == [False, True, True, True]


def test_gpu_hours_are_weighed_under_every_policy() -> None:
    rows = [{"submit": 0, "work": 3600, "gpus": g} for g in (0, 0, 1)]
    work = workload(rows)
    work.jobs["shards"] = [4, 2, 0]
    wanted = parse("fifo,tias@off,tias@on", is_trace=True, preemption=None)
    result = dry_run(work, CUT, wanted, config(), Options())
    assert result.cluster["weighted_gpus"] == 2.0
    for p in result.policies.values():
        assert p.metrics["non_deadline_jobs"] == 3
        assert p.metrics["gpu_hours"] == pytest.approx(1 + 0.5 + 1)
        assert p.metrics["unfinished"] == 0
        assert p.metrics["gpu_utilisation"] is not None
        assert p.metrics["gpu_utilisation"] <= 1.0
    assert result.policies["fifo"].series.used_gpus.max() <= 2.5


def test_the_cluster_is_inferred_with_the_share_of_a_gpu_that_shards_are() -> None:
    table = workload([{"submit": 0, "work": 100, "gpus": 0}] * 6).jobs
    table["start"], table["end"], table["shards"] = 0.0, 100.0, [2] * 6
    with pytest.raises(Exception, match="no job of the history has GPUs"):
        infer(table)
    assert infer(table, WEIGHTS).total_gpus == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 50), st.integers(0, 3), st.integers(0, 5)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_no_gpu_is_given_twice(jobs: list[tuple[int, int, int, int]], gpus: int, of_gpu: int) -> None:
    nodes = make(["a", "b"], [gpus, gpus], shards=[gpus * of_gpu, 0], source="a test")
    rows = [{"submit": t, "work": w, "gpus": g} for t, w, g, _ in jobs]
    shards = [0 if g else max(1, k) for _, _, g, k in jobs]
    cluster, _, run = prepare(rows, nodes, shards)
    s, req = cluster.state, run.requests
    for now in range(0, 2000, 7):
        cluster.advance(float(now))
        held = np.zeros(2, dtype=np.int64)
        cut = np.zeros(2, dtype=np.int64)
        for j in np.flatnonzero(s.status == 3):
            on = s.held[s.first[j] : s.first[j] + s.nodes_held[j]]
            np.add.at(held, on, np.where(s.nodes[j] == 0, s.total_gpus[on], s.node_gpus[j]))
            np.add.at(cut, on, s.node_shards[j])
        assert cut.tolist() == s.used_shards.tolist()
        assert cut[1] == 0
        taken = held + -(-cut // np.maximum(req.shards_of_gpu, 1))
        assert (taken <= req.total_gpus).all()
        assert (s.free_gpus == req.total_gpus - taken).all()
        if cluster.finished():
            break
    assert np.isfinite(s.end[req.fits]).all()


# ---- live and replayed: one rule


@st.composite
def asked(draw: st.DrawFn) -> tuple[int, str, int]:
    """GPUs, their types, shards of a job."""
    counts = draw(
        st.dictionaries(st.sampled_from(["h100", "1g.5gb", "v100", ""]), st.integers(1, 4), max_size=3)
    )
    if not counts:
        return 0, "", draw(st.integers(0, 9))
    return sum(counts.values()), kinds(counts, sum(counts.values())), 0


@given(
    st.lists(
        st.tuples(asked(), st.integers(600, 200_000), st.none() | st.integers(3600, 400_000)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([WEIGHTS, {k: v for k, v in WEIGHTS.items() if k != "shard"}, {}]),
    st.sampled_from(["jct-first", "slots"]),
)
def test_live_and_replay_give_the_same_job_the_same_place(
    jobs: list[tuple[tuple[int, str, int], int, int | None]], weights: dict[str, float], preset: str
) -> None:
    """The same jobs, running for as long on a cluster as large: the adapters' table and the replay."""
    settings = Config.model_validate({"gpus": {"weights": weights}, "policy": {"preset": preset}})
    start, size = NOW - 300_000.0, 50
    due = [np.nan if d is None else NOW - ran + d for _, ran, d in jobs]
    nodes = make(
        ["n1", "n2"], [size, size], gpu_types=["h100=10,1g.5gb=40", ""], shards=[200, 0], source="test"
    )
    work = workload([{"submit": NOW - ran - start, "work": 1e6, "gpus": g[0]} for g, ran, _ in jobs])
    work.jobs["gpu_type"], work.jobs["shards"] = [g[1] for g, *_ in jobs], [g[2] for g, *_ in jobs]
    work.jobs["deadline"] = np.array(due) - start
    if not any(g[0] or (g[2] and "shard" in weights) for g, *_ in jobs):
        return
    run = Run(work, nodes, settings, Options(), [])
    (wanted,) = parse("tias@off", is_trace=True, preemption=None)
    cluster, controller = run.prepare(wanted)
    assert controller is not None
    cluster.advance(NOW - start)
    replayed = cluster.observe()
    numbers = run.requests.number[np.array([bool(of) for of in work.jobs["weight"] > 0])]

    raw = queue(
        *[
            running(
                gpus=g[0], gpu_type=g[1], shards=g[2], start=NOW - ran, submit=NOW - ran, eligible=NOW - ran
            )
            for g, ran, _ in jobs
        ]
    )
    n = len(jobs)
    claims = Claims(np.array(due), np.full(n, -1), np.full(n, np.nan))
    live = observe(raw, claims, settings)
    assert live.rows.tolist() == np.flatnonzero(work.jobs["weight"] > 0).tolist()
    at = np.searchsorted(replayed.jobs.job_id, numbers)
    assert (replayed.jobs.state[at] == 1).all()

    seen = live.snapshot
    known = Ledger(None, 3).remember(seen)
    other = controller.ledger.remember(replayed)
    policy = controller.policy
    assert isinstance(policy, Tias)
    capacity = replayed.capacity
    known = replace(known, capacity=capacity)
    survival = controller.ledger.learner.survival()
    one, two = policy.rank(seen.now, known, survival), policy.rank(replayed.now, other, survival)
    assert known.gpus.tolist() == pytest.approx(other.gpus[at].tolist())
    assert known.attained.tolist() == pytest.approx(other.attained[at].tolist())
    assert one.level.tolist() == two.level[at].tolist()
    plain = one.site_order
    assert plain.tolist() == two.site_order[at].tolist()
    assert one.urgency[~plain].tolist() == pytest.approx(two.urgency[at][~plain].tolist())
    assert one.slot.tolist() == two.slot[at].tolist()
