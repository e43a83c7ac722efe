"""The checks of the laws find offences; no policy commits one, on random workloads and random clusters."""

import hashlib
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import (
    Stay,
    check_capacity,
    check_none_lost,
    check_not_before,
    check_one_at_a_time,
    check_pool,
    check_work,
)
from worlds import prepared, replay, workload

from tias_slurm.config import Config
from tias_slurm.jobs import PENDING
from tias_slurm.replay import engine, simulate
from tias_slurm.replay.cluster import VirtualCluster
from tias_slurm.replay.policies import ENTRIES
from tias_slurm.replay.textbook import run_textbook
from tias_slurm.slurm.node_set import make

NODES = {"a": {"gpus": 8, "cpus": 64}}


def stay(job, start, end, gpus, node="a"):
    return Stay(job, start, end, {node: {"gpus": gpus}})


def test_capacity_holds_when_one_begins_where_another_ends():
    check_capacity([stay(1, 0, 5, 8), stay(2, 5, 9, 8), stay(3, 5, 5, 8)], NODES)


@pytest.mark.parametrize(
    "stays",
    [
        [stay(1, 0, 5, 8), stay(2, 4, 9, 1)],
        [stay(1, 0, 5, 9)],
        [stay(1, 0, 5, 1, node="b")],
        [stay(1, 5, 0, 1)],
        [Stay(1, 0, 5, {"a": {"tapes": 1}})],
    ],
)
def test_capacity_broken_is_found(stays):
    with pytest.raises(AssertionError):
        check_capacity(stays, NODES)


def test_two_runs_at_once_are_found():
    check_one_at_a_time([stay(1, 0, 5, 1), stay(1, 5, 6, 1), stay(2, 3, 4, 1)])
    with pytest.raises(AssertionError, match="runs twice"):
        check_one_at_a_time([stay(1, 0, 5, 1), stay(1, 4, 6, 1)])


def test_an_early_start_is_found():
    check_not_before([stay(1, 3, 5, 1)], {1: 3})
    with pytest.raises(AssertionError, match="eligible"):
        check_not_before([stay(1, 3, 5, 1)], {1: 4})


def test_work_that_does_not_add_up_is_found():
    gpus = np.array([2, 4])
    check_work([100.0, 30.0], [70.0, 50.0], [60.0, 0.0], gpus, [True, False])
    for executed, lost in (
        ([99.0, 30.0], [60.0, 0.0]),
        ([100.0, 60.0], [60.0, 0.0]),
        ([69.5, 0.0], [-1.0, 0.0]),
    ):
        with pytest.raises(AssertionError):
            check_work(executed, [70.0, 50.0], lost, gpus, [True, False])


def test_a_lost_job_is_found():
    nan = np.nan
    check_none_lost([0.0, nan, nan], [1.0, nan, nan], [True, False, True], [False, False, True])
    for start, end in ([0.0], [nan]), ([2.0], [1.0]):
        with pytest.raises(AssertionError):
            check_none_lost(start, end, [True], [False])
    with pytest.raises(AssertionError, match="cannot fit"):
        check_none_lost([0.0], [1.0], [False], [False])


@pytest.mark.parametrize("policy", ["fifo-strict", "fifo-fit"])
def test_textbook_queues_keep_the_laws(policy):
    rng = np.random.default_rng(8)
    submit, work = rng.integers(0, 5000, 400).astype(float), rng.integers(0, 300, 400).astype(float)
    gpus = rng.choice([1, 2, 4, 8, 32], 400)
    start, end, _ = run_textbook(policy, submit, work, gpus, 16)
    check_pool(start, end, gpus, 16)
    check_none_lost(start, end, gpus <= 16, np.zeros(400, dtype=bool))
    ran = gpus <= 16
    assert np.array_equal(end[ran] - start[ran], work[ran])


# -- every policy that the virtual cluster runs

CLUSTER = make(
    ["a", "b", "c", "d"],
    [8, 8, 4, 0],
    cpus=[64, 64, 32, 16],
    mem_mb=[1000.0, 500.0, 500.0, 200.0],
    partitions=[frozenset({"gpu"}), frozenset({"gpu", "debug"}), frozenset({"gpu"}), frozenset({"cpu"})],
    source="a test",
)
EPOCH = 1_790_000_040
REPLAYED = [
    *(name for name, entry in ENTRIES.items() if entry.kind in ("slurm", "daemon")),
    "tias@off",
    "las@off",
]
JOB = st.fixed_dictionaries(
    {
        "submit": st.integers(EPOCH, EPOCH + 6000),
        "delay": st.sampled_from([0, 0, 0, 700]),
        "work": st.sampled_from([0, 1, 300, 1500, 4000, 4000, 9000]),
        "gpus": st.sampled_from([0, 1, 2, 4, 4, 8, 8, 12, 16, 16, 20, 21]),
        "nodes": st.sampled_from([0] * 6 + [1, 2, 3]),
        "cpus": st.sampled_from([0, 0, 0, 1, 16, 40]),
        "mem_mb": st.sampled_from([0.0, 0.0, 50.0, 400.5]),
        "partition": st.sampled_from(["gpu"] * 8 + ["debug", "cpu", "cpu,debug", "nowhere", ""]),
        "user": st.sampled_from(["u", "v", "w"]),
        "window": st.sampled_from([None, None, 0, 400, 5000, 40_000, 400_000]),
        "consent": st.sampled_from([-1] * 5 + [0]),
        "checkpoint": st.sampled_from([np.nan, np.nan, 0.0, 100.0]),
        "leaves_after": st.sampled_from([None] * 12 + [0, 900, 20_000]),
        "state": st.sampled_from(["COMPLETED", "COMPLETED", "FAILED"]),
    }
)


def rows_of(jobs):
    rows = []
    for job in jobs:
        row = {**job, "eligible": job["submit"] + job["delay"]}
        if job["leaves_after"] is not None:
            row["left"] = row["submit"] + job["leaves_after"]
            row["state"] = "CANCELLED"
        if job["window"] is not None and job["gpus"] > 0:
            row["deadline"] = job["submit"] + job["window"]
        rows.append(row)
    return rows


class Watched(VirtualCluster):
    """Goes from event to event and looks at who holds what after each."""

    def watch(self):
        self.open, self.stays = {}, []

    def advance(self, until):
        while self.next_event() <= until:
            super().advance(self.next_event())
            self.look()
        super().advance(until)
        self.look()

    def apply(self, snapshot, plan):
        s, ids = self.state, snapshot.jobs.job_id
        victims = ids[plan.victims]
        assert self.consent[victims].all()
        assert (s.status[victims] == engine.RUNNING).all()
        assert (self.now - s.run_start[victims] >= 600).all()
        assert (s.restarts[victims] < 8).all()
        assert (s.gpus[victims] > 0).all()
        assert (s.end[victims] != self.now).all()
        refused = super().apply(snapshot, plan)
        for job in set(ids[plan.beneficiaries].tolist()):
            assert s.status[job] == engine.RUNNING, "made room for a job that did not start"
            assert s.run_start[job] == self.now
        self.look()
        return refused

    def look(self):
        s, req = self.state, self.req
        free = np.stack([req.total_gpus, req.total_cpus, req.total_mem])
        now = {}
        for job in np.flatnonzero(s.status == engine.RUNNING).tolist():
            held = s.held[s.first[job] : s.first[job] + s.nodes_held[job]].tolist()
            assert len(set(held)) == len(held) > 0
            assert all(s.member[s.partition[job], v] for v in held)
            takes = {}
            for v in held:
                amounts = [
                    int(req.total_gpus[v] if s.nodes[job] == 0 else s.node_gpus[job]),
                    int(s.node_cpus[job]),
                    int(s.node_mem[job]),
                ]
                free[:, v] -= amounts
                takes[v] = dict(zip(("gpus", "cpus", "mem"), amounts, strict=True))
            assert sum(t["gpus"] for t in takes.values()) >= s.gpus[job]
            now[job, int(s.restarts[job])] = (float(s.run_start[job]), takes)
        assert np.array_equal(free, [s.free_gpus, s.free_cpus, s.free_mem]), "the account of free resources"
        assert (free >= 0).all()
        active = s.active[: s.counter[engine.ACTIVE]]
        assert (
            sorted(active) == np.flatnonzero((s.status > engine.FUTURE) & (s.status < engine.DONE)).tolist()
        )
        queue = s.queue[: s.counter[engine.QUEUE]]
        assert sorted(queue) == np.flatnonzero(s.status == engine.WAITING).tolist()
        waits = (s.status == engine.WAITING) | (s.status == engine.DELAYED)
        assert s.counter[engine.WAIT_JOBS] == (waits & (s.gpus > 0)).sum()
        assert s.load[engine.WAIT_GPUS] == pytest.approx(s.weight[waits].sum())
        assert s.load[engine.USED_GPUS] == pytest.approx(s.weight[s.status == engine.RUNNING].sum())
        assert not (waits & (s.leaves <= self.now)).any(), "still waits after it left"
        assert not np.isnan(s.lever).any()
        key = s.base[queue] - s.lever[queue]
        assert (np.diff(key) <= 0).all(), "the queue is out of order"
        for held_key in self.open.keys() - now.keys():
            start, takes = self.open[held_key]
            self.stays.append(Stay(held_key[0], start, float(self.now), takes))
        self.open = now


def check_plan(snapshot, ranking, plan):
    """Only across levels, only for jobs that wait; only jobs with GPUs that wait are written."""
    assert (ranking.level[plan.victims] > ranking.level[plan.beneficiaries]).all()
    assert len(set(plan.victims.tolist())) == len(plan.victims)
    assert len(set(plan.beneficiaries.tolist())) <= 10
    state = snapshot.jobs.state
    assert (state[plan.beneficiaries] == PENDING).all()
    assert (state[plan.write] == PENDING).all()
    assert (snapshot.jobs.gpus[plan.write] > 0).all()
    assert (plan.old != plan.new).all()


@pytest.mark.parametrize("name", REPLAYED)
@settings(max_examples=8)
@given(
    jobs=st.lists(JOB, min_size=8, max_size=30),
    interval=st.sampled_from([60.0, 60.0, 37.0, 300.0]),
    restart=st.sampled_from([60.0, 0.0]),
    delay=st.sampled_from([120.0, 0.0, 7.0]),
)
def test_every_policy_keeps_the_laws(name, jobs, interval, restart, delay):
    jobs[0] = {**jobs[0], "gpus": 1}
    work = workload(rows_of(jobs), trace=False)
    config = Config.model_validate(
        {
            "cycle": {"interval_s": interval},
            "replay": {"restart_s": restart, "requeue_delay_s": delay},
            "requeue": {"consent_default": True},
        }
    )
    run, wanted = prepared(work, CLUSTER, name, config)
    cluster, controller = run.prepare(wanted)
    cluster.__class__ = Watched
    cluster.watch()
    if controller is not None:
        controller.record = check_plan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate.run(cluster, controller, interval)
    s, req, stays = cluster.state, cluster.req, cluster.stays
    assert not cluster.open, "something still runs after the last event"

    sizes = zip(CLUSTER.gpus.tolist(), CLUSTER.cpus.tolist(), CLUSTER.mem_mb.tolist(), strict=True)
    check_capacity(
        stays, {v: dict(zip(("gpus", "cpus", "mem"), x, strict=True)) for v, x in enumerate(sizes)}
    )
    check_one_at_a_time(stays)
    check_not_before(stays, dict(enumerate(req.eligible)))

    table = work.jobs.iloc[req.row]
    never_ran = table["runs"].to_numpy() == 0
    check_none_lost(s.started, s.end, req.fits, never_ran)
    assert np.isnan(s.started[never_ran]).all()
    asked = np.where(never_ran, 0.0, table["work"].to_numpy())
    gpus = np.maximum(req.gpus, 1)  # so that jobs without GPUs are checked too
    check_work(s.executed, asked, s.lost * gpus, gpus, np.isfinite(s.end))
    held = np.zeros(len(table))
    for stay in stays:
        held[stay.job] += stay.end - stay.start
    assert np.allclose(held, s.executed, rtol=0, atol=1e-5)
    ran = np.isfinite(s.end)
    assert (s.end[ran] - req.eligible[ran] >= s.executed[ran] + delay * s.restarts[ran] - 1e-5).all()
    if wanted.preemption == "off":
        assert not s.restarts.any()
        assert not s.lost.any()
        assert np.allclose((s.end - s.started)[ran], asked[ran], rtol=0, atol=1e-5)
    no = work.jobs["consent"].to_numpy()[req.row] == 0
    assert not s.restarts[no].any()

    # the same again, in one go and without being watched
    again = run.policy(wanted, None, None)
    for seen, mine in (
        (again.outcome.start, s.started),
        (again.outcome.end, s.end),
        (again.outcome.executed, s.executed),
        (again.outcome.requeues, s.restarts),
    ):
        assert np.array_equal(seen, mine[req.number], equal_nan=True)
    assert again.writes == (controller.writes if controller else 0)


def busy_week():
    """Some hundred jobs on too few GPUs, a third with deadlines."""
    rng = np.random.default_rng(5)
    n = 260
    submit = EPOCH + np.sort(rng.integers(0, 200_000, n))
    duration = np.round(rng.lognormal(7.8, 1.3, n)) + 1
    return [
        {
            "submit": int(submit[i]),
            "work": float(duration[i]),
            "gpus": int(rng.choice([1, 1, 2, 4, 8, 16])),
            "user": f"u{rng.integers(5)}",
            "deadline": submit[i] + duration[i] * rng.uniform(1.1, 4) if rng.random() < 0.35 else np.nan,
        }
        for i in range(n)
    ]


def fingerprint():
    """What three policies make of the busy week, to the last bit."""
    digest = hashlib.sha256()
    nodes = make([f"n{i}" for i in range(4)], [8] * 4, source="a test")
    requeues = 0
    for name in ("multifactor", "las", "tias:balanced"):
        outcome = replay(busy_week(), nodes, name).outcome
        requeues += int(outcome.requeues.sum())
        for column in (outcome.start, outcome.end, outcome.executed, outcome.lost_gpu_s, outcome.requeues):
            digest.update(np.ascontiguousarray(column).tobytes())
    return f"{digest.hexdigest()} {requeues}"


def test_compiled_or_not_the_numbers_are_the_same():
    code = (
        "from tias_slurm.jit import HAVE_NUMBA; import test_laws; print(HAVE_NUMBA, test_laws.fingerprint())"
    )
    here = os.path.dirname(__file__)
    plain = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TIAS_SLURM_NO_NUMBA": "1", "PYTHONPATH": here},
        cwd=os.path.dirname(here),
        capture_output=True,
        text=True,
        check=True,
    )
    mine = fingerprint()
    assert int(mine.split()[1]) > 20, "nobody was requeued, so this shows little"
    assert plain.stdout.split() == ["False", *mine.split()]
