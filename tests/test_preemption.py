"""Whom to requeue: by hand, and against trying every set of victims on tiny clusters."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import history, job_table, occupancy, ranking, snapshot

from tias_slurm import preemption
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.levers import ExactLever, NiceLever
from tias_slurm.placement import find_nodes, occupy
from tias_slurm.planner import Limits, Planner

NODE = (8, 64, 1000)


def select(nodes, running, waiting, *, limit=10, immune=(), loss=None):
    """Jobs as (level, node count or 0, GPUs on each node[, CPUs, memory[, GPUs in all]]).

    running: [(job, nodes held)]; waiting: [job], best first. Running jobs are rows 0.., waiting ones follow.
    Returns [(victim, waiting index)].
    """
    jobs = [(*job, 0, 0)[:5] if len(job) < 6 else job for job in [*(j for j, _ in running), *waiting]]
    n, r = len(jobs), len(running)
    level = np.array([j[0] for j in jobs])
    requests = [(j[1], j[2], j[3], j[4]) for j in jobs]
    gpus = np.array([j[5] if len(j) == 6 else j[2] * max(j[1], 1) for j in jobs])
    preemptible = np.array([i < r and i not in immune for i in range(n)])
    loss = np.array([*(loss if loss is not None else [100.0 * (i + 1) for i in range(r)]), *[0.0] * (n - r)])
    room = occupancy(nodes, requests, {i: held for i, (_, held) in enumerate(running)})
    before = [room.free_gpus.copy(), room.free_cpus.copy(), room.free_mem_mb.copy()]
    victims, wanted_by = preemption.select(np.arange(r, n), gpus, level, preemptible, loss, room, limit)
    assert all(map(np.array_equal, before, [room.free_gpus, room.free_cpus, room.free_mem_mb])), "not pure"
    return [(int(v), int(w) - r) for v, w in zip(victims, wanted_by, strict=True)]


def whole(level, gpus):
    return (level, 0, 0, 0, 0, gpus)


def test_the_least_loss_on_one_node():
    running = [((5, 1, 2), [0]), ((5, 1, 2), [0]), ((5, 1, 4), [0])]
    assert select([NODE], running, [(1, 1, 2)], loss=[30.0, 20.0, 10.0]) == [(2, 0)]
    # 4 GPUs at once for 10 cost less than 2 for 20
    assert select([NODE], running, [(1, 1, 6)], loss=[30.0, 20.0, 10.0]) == [(2, 0), (1, 0)]


def test_a_cheap_victim_that_does_not_help_is_left():
    # the cheapest frees 1 GPU, the next one 4: then the first is not needed
    running = [((5, 1, 1), [0]), ((5, 1, 4), [0]), ((5, 1, 3), [0])]
    assert select([NODE], running, [(1, 1, 4)], loss=[1.0, 2.0, 50.0]) == [(1, 0)]


def test_the_cheaper_node():
    running = [((5, 1, 8), [0]), ((5, 1, 4), [1]), ((5, 1, 4), [1])]
    assert select([NODE] * 2, running, [(1, 1, 8)], loss=[25.0, 10.0, 10.0]) == [(1, 0), (2, 0)]
    assert select([NODE] * 2, running, [(1, 1, 8)], loss=[15.0, 10.0, 10.0]) == [(0, 0)]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_only_worse_levels(level):
    assert select([NODE], [((2, 1, 8), [0])], [(level, 1, 8)]) == ([(0, 0)] if level < 2 else [])


def test_only_those_who_may():
    running = [((5, 1, 4), [0]), ((5, 1, 4), [0])]
    assert select([NODE], running, [(1, 1, 4)], immune=[0]) == [(1, 0)]
    assert select([NODE], running, [(1, 1, 8)], immune=[0]) == []


def test_nobody_is_requeued_for_a_job_that_fits():
    assert select([NODE], [((5, 1, 4), [0])], [(1, 1, 4)]) == []


def test_nobody_is_requeued_in_vain():
    # two of the three nodes could be emptied, three are needed
    running = [((5, 1, 8), [0]), ((5, 1, 8), [1]), ((0, 1, 1), [2])]
    assert select([NODE] * 3, running, [(1, 3, 8)]) == []
    assert select([NODE] * 3, running, [whole(1, 24)]) == []
    assert select([NODE] * 3, running, [whole(1, 16)]) == [(0, 0), (1, 0)]


def test_a_gang_goes_round_an_immune_job():
    running = [((5, 1, 8), [v]) for v in range(4)]
    assert select([NODE] * 4, running, [whole(1, 24)], immune=[1]) == [(0, 0), (2, 0), (3, 0)]
    assert select([NODE] * 4, running, [whole(1, 32)], immune=[1]) == []


def test_a_gang_takes_the_least_loss():
    running = [((5, 1, 8), [v]) for v in range(4)]
    assert select([NODE] * 4, running, [whole(1, 16)], loss=[9.0, 3.0, 7.0, 5.0]) == [(1, 0), (3, 0)]
    assert select([NODE] * 4, running, [(1, 2, 8)], loss=[9.0, 3.0, 7.0, 5.0]) == [(1, 0), (3, 0)]


def test_free_nodes_are_used_first():
    running = [((5, 1, 8), [0]), ((5, 1, 8), [2])]
    assert select([NODE] * 3, running, [whole(1, 16)], loss=[9.0, 3.0]) == [(1, 0)]


def test_a_victim_on_two_nodes_makes_others_needless():
    # by node: job 0 costs 10 there, job 1 costs 15 on each of two nodes; job 1 alone frees both
    running = [((5, 1, 8), [0]), ((5, 2, 8), [1, 2])]
    assert select([NODE] * 3, running, [whole(1, 16)], loss=[10.0, 30.0]) == [(1, 0)]
    assert select([NODE] * 3, running, [(1, 2, 8)], loss=[10.0, 30.0]) == [(1, 0)]


def test_for_one_node_a_victim_costs_all_of_its_loss():
    # job 0 holds four nodes: 25 on each, but 100 in all; job 1 costs 30
    running = [((5, 4, 4), [0, 1, 2, 3]), ((5, 1, 4), [0])]
    assert select([NODE] + [(4, 64, 1000)] * 3, running, [(1, 1, 4)], loss=[100.0, 30.0]) == [(1, 0)]


def test_a_small_node_that_others_made_needless():
    # nodes of 4, 8, 8 by ascending loss; 16 GPUs: with both large ones the small one is not needed
    running = [((5, 1, 4), [0]), ((5, 1, 8), [1]), ((5, 1, 8), [2])]
    nodes = [(4, 64, 1000), NODE, NODE]
    assert select(nodes, running, [whole(1, 16)], loss=[1.0, 2.0, 3.0]) == [(1, 0), (2, 0)]


def test_whole_nodes_are_freed_whole():
    running = [(whole(5, 16), [0, 1]), ((3, 1, 1), [2])]
    assert select([NODE] * 3, running, [(1, 1, 8)], loss=[100.0, 50.0]) == [(1, 0)]
    assert select([NODE] * 3, running, [(4, 1, 8)]) == [(0, 0)]


def test_cpus_and_memory_count():
    running = [((5, 1, 1, 60, 0), [0]), ((5, 1, 1, 0, 900), [0]), ((5, 1, 6), [0])]
    # 8 GPUs are taken: the job needs 1 GPU, 10 CPUs and 10 MB
    assert select([NODE], running, [(1, 1, 1, 10, 10)]) == [(0, 0)]
    assert select([NODE], running, [(1, 1, 1, 10, 200)]) == [(0, 0), (1, 0)]
    assert select([NODE], running, [(1, 1, 1, 2, 10)], loss=[9.0, 9.0, 1.0]) == [(2, 0)]


def test_the_limit_is_of_waiting_jobs():
    running = [((5, 1, 4), [v]) for v in range(4) for _ in range(2)]
    waiting = [(1, 1, 8)] * 4
    for limit in range(5):
        got = select([NODE] * 4, running, waiting, limit=limit)
        assert len({w for _, w in got}) == limit
        assert len(got) == 2 * limit


def test_the_first_takes_what_is_left_over_from_the_second():
    # room made for the first (its victim frees 8, it takes 2) is used by the second without a victim
    running = [((5, 1, 8), [0]), ((5, 1, 8), [1])]
    assert select([NODE] * 2, running, [(1, 1, 2), (1, 1, 6), (1, 1, 1)]) == [(0, 0), (1, 2)]


def test_jobs_without_gpus_preempt_nobody():
    assert select([NODE], [((5, 1, 8, 64, 0), [0])], [(1, 1, 0, 8, 0)]) == []


class TestPlanner:
    """Who may be a victim, and what a victim costs."""

    def victims(self, limits=None, *, level=None, requeues=0, **columns):
        # rows 0 and 1 run on 4 GPUs each, row 2 waits for 4
        given = {
            "state": [RUNNING, RUNNING, PENDING],
            "gpus": [4, 4, 4],
            "run_time": [1000.0, 1000.0, 0.0],
            **columns,
        }
        jobs = job_table(3, **given)
        room = occupancy([NODE], [(1, 4, 0, 0)] * 3, {0: [0], 1: [0]})
        planner = Planner(ExactLever(), limits or Limits(requeue=True))
        order = ranking(level or [1, 1, 0])
        plan = planner.plan(
            snapshot(5000.0, jobs, room=room),
            history(3, requeues=requeues),
            order,
        )
        assert plan.beneficiaries.tolist() == [2] * len(plan.victims)
        return plan.victims.tolist()

    def test_off_unless_asked_for(self):
        assert self.victims(Limits()) == []
        assert self.victims() == [0]

    def test_minimum_run_time(self):
        assert self.victims(run_time=[599.0, 600.0, 0.0]) == [1]
        assert self.victims(run_time=[599.0, 599.0, 0.0]) == []

    def test_consent(self):
        assert self.victims(requeueable=[False, True, True]) == [1]

    def test_requeues_of_one_job(self):
        assert self.victims(requeues=[8, 7, 0]) == [1]
        assert self.victims(requeues=[8, 8, 0]) == []

    def test_jobs_without_gpus_are_left_alone(self):
        jobs = job_table(2, state=[RUNNING, PENDING], gpus=[0, 1], run_time=[5000.0, 0.0])
        room = occupancy([NODE], [(1, 0, 64, 0), (1, 1, 8, 0)], {0: [0]})
        order = ranking([1, 0])
        planner = Planner(ExactLever(), Limits(requeue=True))
        plan = planner.plan(snapshot(9000.0, jobs, room=room), history(2), order)
        assert plan.victims.tolist() == []

    def test_a_job_that_cannot_start_preempts_nobody(self):
        assert self.victims(can_start=[True, True, False]) == []

    def test_the_loss_is_what_was_not_saved(self):
        # since the last checkpoint: 400 s and 100 s
        assert self.victims(run_time=[1000.0, 1300.0, 0.0], checkpoint=600.0) == [1]
        # one that never saves itself loses the run
        assert self.victims(run_time=[1000.0, 1300.0, 0.0], checkpoint=0.0) == [0]
        assert self.victims(run_time=[1000.0, 900.0, 0.0], checkpoint=[600.0, 0.0, 0.0]) == [0]

    def test_nobody_for_the_same_level(self):
        assert self.victims(level=[0, 0, 0]) == []
        assert self.victims(level=[0, 1, 0]) == [1]


class TestWrites:
    def plan(self, *, lever, level, limits=None, state=PENDING, gpus=1, found=0.0):
        n = len(level)
        jobs = job_table(n, lever=lever, state=state, gpus=gpus)
        order = ranking(level)
        planner = Planner(ExactLever(), limits or Limits())
        found = np.broadcast_to(np.asarray(found, dtype=float), n)
        return planner.plan(snapshot(0.0, jobs), history(n, found=found), order)

    def test_only_what_changes(self):
        plan = self.plan(lever=[0.0, 0.0, 2.0**40], level=[0, 1, 1])
        assert plan.write.tolist() == [1]
        assert (plan.old.tolist(), plan.new.tolist()) == ([0.0], [2.0**40])

    def test_running_jobs_and_jobs_without_gpus_are_not_written(self):
        plan = self.plan(lever=0.0, level=[1, 1, 1], state=[RUNNING, PENDING, PENDING], gpus=[1, 0, 1])
        assert plan.write.tolist() == [2]

    def test_the_budget_goes_to_the_largest_changes(self):
        limits = Limits(max_writes=2)
        plan = self.plan(lever=0.0, level=[1, 5, 0, 3, 5], limits=limits)
        assert plan.write.tolist() == [1, 4]
        assert plan.held_back == 2
        assert self.plan(lever=0.0, level=[0, 1], limits=limits).held_back == 0
        assert self.plan(lever=0.0, level=[1, 1], limits=Limits(max_writes=0)).write.tolist() == []

    def test_what_is_off_by_no_more_than_the_dead_band_is_left_alone(self):
        steps = np.array([0.0, 1.0, 2.0, 3.0])
        lever = NiceLever(levels=4, urgency_steps=1, site_weights=9)  # a step is worth 10
        jobs = job_table(4, lever=lever.target(np.zeros(4), _ranks([0, 0, 0, 0])))
        for band, written in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])):
            planner = Planner(lever, Limits(dead_band_steps=band))
            plan = planner.plan(snapshot(0.0, jobs), history(4), _ranks(steps))
            assert plan.write.tolist() == written


def _ranks(level):
    """Ranks by level alone."""
    return ranking(level)


# -- against trying everything

TINY = st.lists(
    st.tuples(st.sampled_from([2, 4, 4]), st.integers(2, 4), st.integers(2, 4)), min_size=1, max_size=4
)
ASKED = st.tuples(
    st.integers(0, 4),  # level
    st.sampled_from([0, 1, 1, 1, 2, 3]),  # nodes
    st.integers(1, 4),  # GPUs on each node; of all, for whole nodes
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),  # immune
    st.integers(0, 5),  # loss
)


class World:
    """A tiny cluster in which some jobs run and the others wait."""

    def __init__(self, nodes, asked):
        self.total = np.array(nodes, dtype=np.int64)
        self.free = self.total.T.copy()
        self.kind = [k for _, k, *_ in asked]
        self.each = [(0 if k == 0 else g, c, m) for _, k, g, c, m, _, _ in asked]
        self.gpus = [g * 2 if k == 0 else g * k for _, k, g, *_ in asked]
        self.held: dict[int, list[int]] = {}

    def place(self, job):
        out = np.zeros(len(self.total), dtype=np.int64)
        gpus, cpus, mem = self.each[job]
        got = find_nodes(
            *self.free,
            self.total[:, 0].copy(),
            np.ones(len(self.total), dtype=bool),
            self.kind[job],
            self.gpus[job],
            gpus,
            cpus,
            mem,
            out,
        )
        return out[:got].tolist()

    def move(self, job, held, sign):
        occupy(
            *self.free,
            self.total[:, 0].copy(),
            np.array(held, dtype=np.int64),
            self.kind[job],
            *self.each[job],
            sign,
        )

    def fits_without(self, job, victims):
        for v in victims:
            self.move(v, self.held[v], 1)
        got = self.place(job)
        for v in victims:
            self.move(v, self.held[v], -1)
        return bool(got)


def check_that_they_start(world, waiting, proposed, kept):
    """Slurm walks the order with the victims gone: everybody with victims starts, and nobody was dropped who
    would have started."""

    def starts(victims, wanted_by):
        free, started = world.free.copy(), set()
        for v in victims.tolist():
            world.move(v, world.held[v], 1)
        for job in waiting:
            where = world.place(job)
            if where:
                started.add(job)
                world.move(job, where, -1)
        world.free[:] = free
        return [w in started for w in wanted_by.tolist()]

    assert all(starts(*kept))
    pairs = [set(zip(*map(np.ndarray.tolist, pair), strict=True)) for pair in (kept, proposed)]
    assert pairs[0] <= pairs[1]
    if all(starts(*proposed)):
        assert pairs[0] == pairs[1]


@settings(max_examples=400, deadline=None)
@given(nodes=TINY, asked=st.lists(ASKED, min_size=2, max_size=9), limit=st.integers(1, 3), data=st.data())
def test_against_every_set_of_victims(nodes, asked, limit, data):
    world = World(nodes, asked)
    jobs = range(len(asked))
    for j in jobs:
        where = world.place(j) if data.draw(st.booleans()) else []
        if where:
            world.held[j] = where
            world.move(j, where, -1)
    level = np.array([a[0] for a in asked])
    may = np.array([j in world.held and not asked[j][5] for j in jobs])
    loss = np.array([float(a[6]) for a in asked])
    waiting = sorted((j for j in jobs if j not in world.held), key=lambda j: (level[j], j))
    room = occupancy(nodes, [(world.kind[j], *world.each[j]) for j in jobs], world.held)
    assert room.free_gpus.tolist() == world.free[0].tolist()
    given_all = (np.array(waiting, dtype=np.int64), np.array(world.gpus), level, may, loss, room, limit)
    victims, wanted_by = preemption.select(*given_all, checked=False)
    kept = preemption.select(*given_all)
    check_that_they_start(world, waiting, (victims, wanted_by), kept)
    assert len(set(victims.tolist())) == len(victims)
    assert len(set(wanted_by.tolist())) <= limit
    assert may[victims].all()
    assert (level[victims] > level[wanted_by]).all()

    preemptors, usable = 0, {j for j in jobs if may[j]}
    last_able = max(
        (i for i, j in enumerate(waiting) if usable and level[j] < max(level[list(usable)])), default=-1
    )
    for job in waiting[: last_able + 1]:
        mine = victims[wanted_by == job].tolist()
        if world.place(job):
            assert not mine, "requeued somebody for a job that fits"
        else:
            worse = [v for v in usable if level[v] > level[job]]
            possible = world.fits_without(job, worse)
            assert bool(mine) == (possible and preemptors < limit)
            if mine:
                assert world.fits_without(job, mine), "still does not fit"
                for some in combinations(mine, len(mine) - 1):
                    assert not world.fits_without(job, some), "could have done without one"
                preemptors += 1
        for v in mine:
            world.move(v, world.held.pop(v), 1)
            usable.remove(v)
        where = world.place(job)
        if where:
            world.move(job, where, -1)


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=3),
    want=st.integers(1, 4),
)
def test_the_least_loss_of_all(nodes, want):
    """Victims of one GPU each: no other set of them costs less. Loss by job, by node; all GPUs in use."""
    size = [(len(losses), 64, 1000) for losses in nodes]
    running = [((5, 1, 1), [v]) for v, losses in enumerate(nodes) for _ in losses]
    loss = [float(x) for losses in nodes for x in losses]
    got = select(size, running, [(1, 1, want)], loss=loss)
    least = min((sum(sorted(losses)[:want]) for losses in nodes if len(losses) >= want), default=None)
    assert bool(got) == (least is not None)
    if got:
        assert sum(loss[v] for v, _ in got) == least
        assert len(got) == want
