"""The virtual cluster keeps the laws whoever gives the orders: jobs are requeued and raised at random.

The cluster is watched from outside, at every instant at which something happens.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import Stay, check_capacity, check_none_lost, check_not_before, check_one_at_a_time, check_work

from tias_slurm.jobs import RUNNING
from tias_slurm.planner import Plan
from tias_slurm.replay import simulate
from tias_slurm.replay.cluster import Costs, VirtualCluster
from tias_slurm.replay.requests import requests
from tias_slurm.replay.textbook import run_textbook
from tias_slurm.slurm.node_set import make, pool

NODES = make(
    ["a", "b", "c", "d"],
    [8, 8, 4, 0],
    cpus=[64, 64, 32, 16],
    mem_mb=[1000.0, 500.0, 500.0, 200.0],
    partitions=[frozenset({"gpu"}), frozenset({"gpu", "debug"}), frozenset({"gpu"}), frozenset({"cpu"})],
    source="a test",
)
EPOCH = 1_790_000_000


def table(jobs):
    """A workload's table from (submit, delay, work, gpus, nodes, cpus, mem, partition, ran)."""
    names = ["first_submit", "delay", "work", "gpus", "nodes", "cpus", "mem_mb", "partition", "ran"]
    frame = pd.DataFrame(jobs, columns=names)
    frame["first_submit"] = EPOCH + frame["first_submit"].astype(float)
    frame["eligible"] = frame["first_submit"] + frame["delay"]
    frame["runs"] = frame["ran"].astype(np.int64)
    frame["end"] = np.where(frame["ran"], np.nan, frame["eligible"] + frame["work"])  # else: when it left
    frame["work"] = frame["work"].astype(float)
    frame["deadline"] = np.nan
    frame["user"] = "u"
    return frame


JOB = st.tuples(
    st.integers(0, 3000),
    st.sampled_from([0, 0, 0, 500]),
    st.integers(0, 2500),
    st.sampled_from([0, 1, 1, 2, 3, 4, 8, 12, 16, 20, 21]),
    st.sampled_from([0, 0, 1, 2, 3]),
    st.sampled_from([0, 1, 16, 40, 70]),
    st.sampled_from([0.0, 50.0, 400.5, 900.0]),
    st.sampled_from(["gpu", "gpu", "gpu", "debug", "cpu", "cpu,debug", "nowhere", ""]),
    st.sampled_from([True, True, True, True, False]),
)


class Watch:
    """What an onlooker sees: who holds what from when to when."""

    def __init__(self, cluster):
        self.cluster, self.open, self.stays = cluster, {}, []

    def look(self):
        snapshot = self.cluster.observe()
        jobs, room = snapshot.jobs, snapshot.occupancy
        now = {}
        for i in np.flatnonzero(jobs.state == RUNNING):
            held = room.held[room.first[i] : room.first[i] + room.count[i]]
            assert len(set(held)) == len(held) > 0
            whole = room.nodes[i] == 0
            takes = {
                int(v): {
                    "gpus": int(room.total_gpus[v] if whole else room.node_gpus[i]),
                    "cpus": int(room.node_cpus[i]),
                    "mem": int(room.node_mem_mb[i]),
                }
                for v in held
            }
            assert sum(t["gpus"] for t in takes.values()) >= jobs.gpus[i]
            assert all(room.member[room.partition[i], v] for v in held)
            start = snapshot.now - jobs.run_time[i]
            now[int(jobs.job_id[i]), int(jobs.restarts[i])] = (start, takes)
        for key in self.open.keys() - now.keys():
            start, takes = self.open[key]
            self.stays.append(Stay(key[0], start, snapshot.now, takes))
        self.open = now
        assert (room.free_gpus >= 0).all()
        assert (room.free_cpus >= 0).all()
        assert (room.free_mem_mb >= 0).all()
        return snapshot


def play(frame, costs, checkpoint, rng, *, requeue_share):
    """Run to the end, with orders at random; the cluster and what was seen."""
    req = requests(frame, NODES)
    n = len(frame)
    cluster = VirtualCluster(req, consent=np.ones(n, bool), checkpoint=np.full(n, checkpoint), costs=costs)
    watch = Watch(cluster)
    orders = 0
    while not cluster.finished():
        cluster.advance(cluster.next_event())
        snapshot = watch.look()
        jobs = snapshot.jobs
        running = np.flatnonzero(jobs.state == RUNNING)
        waiting = np.flatnonzero(jobs.state != RUNNING)
        victims = running[rng.random(len(running)) < requeue_share] if orders < 40 else running[:0]
        raised = waiting[rng.random(len(waiting)) < requeue_share]
        if len(victims) or len(raised):
            orders += 1
            new = rng.integers(-5, 6, len(raised)).astype(float)
            nobody = np.full(len(victims), -1)
            cluster.apply(snapshot, Plan(raised, jobs.lever[raised], new, victims, nobody, 0))
            watch.look()
    watch.look()
    assert not watch.open, "something still runs after the last event"
    return cluster, watch


@settings(max_examples=120)
@given(
    jobs=st.lists(JOB, min_size=1, max_size=25),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.05, 0.4]),
    checkpoint=st.sampled_from([0.0, 100.0, 600.0]),
    costs=st.sampled_from([Costs(60.0, 120.0), Costs(0.0, 0.0), Costs(300.0, 7.0)]),
)
def test_laws_hold_under_random_orders(jobs, seed, share, checkpoint, costs):
    frame = table(jobs)
    cluster, watch = play(frame, costs, checkpoint, np.random.default_rng(seed), requeue_share=share)
    state, req = cluster.state, cluster.req

    size = zip(NODES.gpus.tolist(), NODES.cpus.tolist(), NODES.mem_mb.tolist(), strict=True)
    has = {v: dict(zip(("gpus", "cpus", "mem"), amounts, strict=True)) for v, amounts in enumerate(size)}
    check_capacity(watch.stays, has)
    check_one_at_a_time(watch.stays)
    check_not_before(watch.stays, dict(enumerate(req.eligible)))

    never_ran = ~frame["ran"].to_numpy()[req.row]
    check_none_lost(state.started, state.end, req.fits, never_ran)
    assert np.isnan(state.started[never_ran]).all(), "a job that left while waiting has run"
    finished = np.isfinite(state.end)
    work = np.where(never_ran, 0.0, frame["work"].to_numpy()[req.row])
    gpus = np.maximum(req.gpus, 1)  # so that jobs without GPUs are checked too
    check_work(state.executed, work, state.lost * gpus, gpus, finished)

    held = np.zeros(len(frame))
    for stay in watch.stays:
        held[stay.job] += stay.end - stay.start
    assert np.array_equal(held, state.executed), "executed is not the time that an onlooker saw"
    if share == 0:
        assert not state.lost.any()
        assert not state.restarts.any()
    # the cluster is empty again
    assert np.array_equal(state.free_gpus, NODES.gpus)
    assert np.array_equal(state.free_cpus, NODES.cpus)
    assert np.array_equal(state.free_mem, NODES.mem_mb)


@settings(max_examples=80)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=25
    )
)
def test_first_come_first_served_is_the_textbooks(jobs):
    # both skip what does not fit; here the one plays on nodes, with one node of 8 GPUs
    frame = table([(s, 0, w, g, 0, 0, 0.0, "", True) for s, w, g in jobs])
    n = len(jobs)
    req = requests(frame, pool(8))
    cluster = VirtualCluster(req, consent=np.ones(n, bool), checkpoint=np.zeros(n), costs=Costs())
    simulate.run(cluster, None, 60.0)
    submit, work, gpus = (np.array(c) for c in zip(*jobs, strict=True))
    start, end, _ = run_textbook("fifo-fit", EPOCH + submit.astype(float), work, gpus, 8)
    assert np.array_equal(cluster.state.started[req.number], start, equal_nan=True)
    assert np.array_equal(cluster.state.end[req.number], end, equal_nan=True)


@pytest.mark.parametrize(
    ("checkpoint", "ran", "lost"),
    [(600.0, 1500.0, 300.0), (600.0, 599.0, 599.0), (600.0, 1200.0, 0.0), (0.0, 1500.0, 1500.0)],
)
def test_what_one_requeue_costs(checkpoint, ran, lost):
    # 4,000 s of work, requeued after `ran`: eligible 120 s later, 60 s for the restart, unsaved work again
    frame = table([(0, 0, 4000, 4, 0, 0, 0.0, "gpu", True)])
    req = requests(frame, NODES)
    cluster = VirtualCluster(req, consent=np.ones(1, bool), checkpoint=np.array([checkpoint]), costs=Costs())
    cluster.advance(EPOCH + ran)
    row, none = np.array([0]), np.empty(0, dtype=np.int64)
    cluster.apply(cluster.observe(), Plan(none, np.empty(0), np.empty(0), row, row, 0))
    while not cluster.finished():
        cluster.advance(cluster.next_event())
    state = cluster.state
    assert state.started[0] == EPOCH + ran + 120
    assert state.end[0] == EPOCH + 4000 + 120 + 60 + lost
    assert state.lost[0] == lost + 60
    assert state.executed[0] == 4000 + lost + 60


@pytest.mark.parametrize(
    ("second_run", "lost"),
    [
        (
            30.0,
            30.0,
        ),  # in the middle of its restart: nothing was done, what the first run saved is still there
        (650.0, 60.0 + 590.0),  # 590 s of work after the restart, short of a checkpoint
        (670.0, 60.0 + 10.0),  # 610 s of work: one checkpoint more
    ],
)
def test_the_restart_is_no_progress(second_run, lost):
    frame = table([(0, 0, 4000, 4, 0, 0, 0.0, "gpu", True)])
    req = requests(frame, NODES)
    cluster = VirtualCluster(req, consent=np.ones(1, bool), checkpoint=np.array([600.0]), costs=Costs())
    row, none = np.array([0]), np.empty(0, dtype=np.int64)
    for time in (1500.0, 1500.0 + 120 + second_run):
        cluster.advance(EPOCH + time)
        cluster.apply(cluster.observe(), Plan(none, np.empty(0), np.empty(0), row, row, 0))
    while not cluster.finished():
        cluster.advance(cluster.next_event())
    first_loss, last_restart = 300.0, 60.0
    assert cluster.state.lost[0] == first_loss + lost + last_restart
    assert cluster.state.executed[0] == 4000 + first_loss + lost + last_restart
    assert cluster.state.end[0] == EPOCH + cluster.state.executed[0] + 2 * 120
