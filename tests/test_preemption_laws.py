"""Whom to requeue, against trying every set of victims on tiny clusters, and what never happens."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from victims import select
from worlds import occupancy

from tias_slurm.placement import find_nodes, occupy, set_aside
from tias_slurm.preemption import select as preemption
from tias_slurm.preemption.tables import Budget

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

    def place(self, job, allowed=None):
        out = np.zeros(len(self.total), dtype=np.int64)
        gpus, cpus, mem = self.each[job]
        got = find_nodes(
            *self.free,
            self.total[:, 0].copy(),
            np.ones(len(self.total), dtype=bool) if allowed is None else allowed,
            self.kind[job],
            self.gpus[job],
            gpus,
            cpus,
            mem,
            out,
        )
        return out[:got].tolist()

    def start(self, some):
        """Have those run that fit, one after another."""
        for job in some:
            if where := self.place(job):
                self.held[job] = where
                self.move(job, where, -1)

    def move(self, job, held, sign):
        occupy(
            *self.free,
            self.total[:, 0].copy(),
            np.array(held, dtype=np.int64),
            self.kind[job],
            *self.each[job],
            sign,
        )

    def walk(self, waiting, victims, member=None, front=None):
        """Who starts of the waiting ones with the victims gone; member: partitions of jobs, nodes of each."""
        total, free = self.total, self.free.copy()
        partition, nodes = member or ([0] * len(self.kind), np.ones((1, len(total)), dtype=bool))
        nodes, started, aside = nodes.copy(), set(), False
        for v in victims:
            self.move(v, self.held[v], 1)
        for job in waiting:
            allowed = nodes[partition[job]]
            if where := self.place(job, allowed):
                started.add(job)
                self.move(job, where, -1)
            elif front is not None and front[job] and not aside:
                gpus, cpus, mem = self.each[job]
                allowed = allowed & (total[:, 1] >= cpus) & (total[:, 2] >= mem)
                out = np.zeros(len(total), dtype=np.int64)
                asked = (self.kind[job], self.gpus[job], gpus)
                got = set_aside(self.free[0], total[:, 0].copy(), allowed, *asked, out)
                nodes[:, out[:got]] = False
                aside = got > 0
        self.free[:] = free
        return started

    def fits_without(self, job, victims):
        for v in victims:
            self.move(v, self.held[v], 1)
        got = self.place(job)
        for v in victims:
            self.move(v, self.held[v], -1)
        return bool(got)


def check_that_they_start(starts, proposed, kept):
    """Slurm walks the queue with the victims gone: everybody with victims starts, none of them is needless to
    the whole plan, and there are some if all start with those that were proposed.

    starts: who starts with which gone; proposed, kept: victims and for whom, before that walk and after it.
    """
    all_of_them, theirs, wanted_by = set(proposed[0].tolist()), set(kept[0].tolist()), set(kept[1].tolist())
    assert theirs <= all_of_them
    assert wanted_by <= set(proposed[1].tolist())
    assert wanted_by <= starts(theirs)
    for one in theirs:
        assert not wanted_by <= starts(theirs - {one}), "a needless victim in the plan"
    if set(proposed[1].tolist()) <= starts(all_of_them):
        assert bool(theirs) == any(w not in starts(set()) for w in proposed[1].tolist())


@settings(max_examples=400)
@given(nodes=TINY, asked=st.lists(ASKED, min_size=2, max_size=9), limit=st.integers(1, 3), data=st.data())
def test_against_every_set_of_victims(nodes, asked, limit, data):
    world = World(nodes, asked)
    jobs = range(len(asked))
    world.start(j for j in jobs if data.draw(st.booleans()))
    level = np.array([a[0] for a in asked])
    may = np.array([j in world.held and not asked[j][5] for j in jobs])
    loss = np.array([float(a[6]) for a in asked])
    waiting = sorted((j for j in jobs if j not in world.held), key=lambda j: (level[j], j))
    room = occupancy(nodes, [(world.kind[j], *world.each[j]) for j in jobs], world.held)
    assert room.free_gpus.tolist() == world.free[0].tolist()
    given_all = (np.array(waiting, dtype=np.int64), np.array(world.gpus), level, may, loss, room, limit)
    victims, wanted_by = preemption.select(*given_all, checked=False)
    kept = preemption.select(*given_all)
    check_that_they_start(lambda some: world.walk(waiting, some), (victims, wanted_by), kept)
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


@settings(max_examples=200)
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


USERS = st.lists(st.integers(0, 2), min_size=9, max_size=9)


@settings(max_examples=300)
@given(
    nodes=TINY,
    asked=st.lists(ASKED, min_size=2, max_size=9),
    data=st.data(),
    users=USERS,
    left=st.integers(0, 4),
    each=st.lists(st.integers(-1, 3), min_size=3, max_size=3),
    preemptors=st.integers(1, 4),
    parts=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_laws_under_all_circumstances(nodes, asked, data, users, left, each, preemptors, parts):
    """Two partitions that may share nodes, jobs in front, jobs that may not, budgets: what never happens."""
    world = World(nodes, asked)
    jobs, n = range(len(asked)), len(asked)
    world.start(j for j in jobs if data.draw(st.booleans()))
    level = np.array([a[0] for a in asked])
    usable = np.array([j in world.held and not asked[j][5] for j in jobs])
    loss = np.array([float(a[6]) for a in asked])
    flags = [np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))) for _ in range(3)]
    may, front, partition = flags[0], flags[1], flags[2].astype(np.int64)
    waiting = [j for j in jobs if j not in world.held]
    waiting.sort(key=lambda j: (not front[j], level[j], j))
    room = occupancy(nodes, [(world.kind[j], *world.each[j]) for j in jobs], world.held)
    member = np.array([parts[: len(nodes)], parts[4 : 4 + len(nodes)]])
    room = type(room)(**{**vars(room), "member": member, "partition": partition})
    user = np.array(users[:n])
    budget = Budget(left, np.array(each), user)
    order = np.array(waiting, dtype=np.int64)

    def choose(usable, **more):
        return preemption.select(
            order, np.array(world.gpus), level, usable, loss, room, preemptors,
            may=may, front=front, budget=budget, **more,
        )  # fmt: skip

    kept = victims, wanted_by = choose(usable)
    check_that_they_start(
        lambda some: world.walk(waiting, some, (partition, member), front),
        choose(usable, checked=False),
        kept,
    )
    # who has nothing left is as good as not there
    assert all(map(np.array_equal, kept, choose(usable & (budget.left_of[user] > 0))))
    assert len(set(wanted_by.tolist())) <= preemptors
    assert len(set(victims.tolist())) == len(victims) <= left
    assert (np.bincount(user[victims], minlength=3) <= np.maximum(budget.left_of, 0)).all()
    assert usable[victims].all()
    assert may[wanted_by].all()
    assert (level[victims] > level[wanted_by]).all()
    for job in set(wanted_by.tolist()):
        allowed = [v for v in range(len(nodes)) if member[partition[job], v]]
        for victim in victims[wanted_by == job].tolist():
            assert set(world.held[victim]) & set(allowed), "a victim on no node that the job may use"
