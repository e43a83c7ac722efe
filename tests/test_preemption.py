"""Whom to requeue: by hand."""

import numpy as np
import pytest
from victims import select
from worlds import NODE, occupancy

from tias_slurm.preemption import select as preemption
from tias_slurm.preemption.tables import Budget


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


def arrays(*columns):
    return [np.array(c) for c in columns]


def one_node(n, running):
    """n jobs of 4 GPUs; `running` of them on nodes of 8 GPUs, two on each."""
    return occupancy([NODE] * ((running + 1) // 2), [(1, 4, 0, 0)] * n, {i: [i // 2] for i in range(running)})


class TestWhoStandsInBetween:
    """Slurm walks the queue in order: what is freed goes to whoever comes first."""

    def select(self, level, running, order=None, **more):
        n = len(level)
        gpus, level, loss = arrays([4] * n, level, [100.0 * (i + 1) for i in range(n)])
        may_go = np.arange(n) < running
        order = np.arange(running, n) if order is None else np.array(order)
        room = one_node(n, running)
        more = {k: np.array(v) if k != "budget" else v for k, v in more.items()}
        got = preemption.select(order, gpus, level, may_go, loss, room, 10, **more)
        return list(zip(*map(np.ndarray.tolist, got), strict=True))

    def test_somebody_in_front_who_may_not(self):
        # row 2 goes first and may not preempt as its level is the worst; row 3 would free a place for it
        level, front = [5, 5, 9, 0], [False, False, True, False]
        assert self.select(level, 2, front=front) == []
        assert self.select(level, 2, order=[3], front=front) == [(0, 3)]

    def test_nodes_are_set_aside_for_the_one_in_front(self):
        # two nodes: one is kept for row 4, the other one is free to be taken
        level, front = [5, 5, 5, 5, 9, 0], [False] * 4 + [True, False]
        assert self.select(level, 4, front=front) == []  # the walk with victims gone gives it to row 4
        may = [True] * 4 + [False, True]
        assert self.select([5, 5, 5, 5, 0, 0], 4, may=may) == []
        assert self.select([5, 5, 5, 5, 0, 0], 4) == [(0, 4), (1, 5)]

    def test_who_is_not_certain_to_start(self):
        level = [5, 5, 0]
        room = one_node(3, 2)
        for certain, got in ((True, [0]), (False, [])):
            sure = type(room)(**{**vars(room), "certain": np.array([True, True, certain])})
            victims, _ = preemption.select(
                np.array([2]), np.full(3, 4), np.array(level), np.arange(3) < 2, np.ones(3), sure, 10
            )
            assert victims.tolist() == got


class TestNeedlessInTheWholePlan:
    """What is freed for one makes room for another."""

    def test_a_later_one_leaves_room_for_an_earlier_one(self):
        # the first has job 0 requeued; job 2, requeued for the second, leaves 2 GPUs over
        running = [((5, 1, 4), [0]), ((5, 1, 4), [0]), ((5, 1, 8), [1])]
        waiting = [(1, 1, 2), (1, 1, 6)]
        assert select([NODE] * 2, running, waiting, loss=[1.0, 50.0, 10.0]) == [(2, 1)]
        assert select([NODE] * 2, running, waiting[:1], loss=[1.0, 50.0, 10.0]) == [(0, 0)]

    def test_who_fits_anyhow_goes_elsewhere(self):
        # the first would go to node 1; as soon as node 0 has 2 GPUs free it goes there and leaves 3 on node 1
        running = [((5, 1, 2), [0]), ((5, 1, 1), [0]), ((0, 1, 5), [0]), ((0, 1, 5), [1])]
        got = select([NODE] * 2, running, [(9, 1, 1), (1, 1, 3)], loss=[1.0, 2.0, 0.0, 0.0])
        assert got == [(0, 1)]

    @pytest.mark.parametrize(("n", "most"), [(4, 7), (100, 200)])
    def test_many_preemptors_at_once(self, n, most):
        # each of the last n leaves room for one of the first n, but two of these would share a node, the best
        # fit; with hundreds not all is tried
        running = [((5, 1, 2), [v]) for v in range(n)] + [((5, 1, 6), [v]) for v in range(n)]
        running += [((5, 1, 8), [n + v]) for v in range(n)]
        loss = [1.0] * n + [50.0] * n + [10.0] * n
        waiting = [(1, 1, 2)] * n + [(1, 1, 6)] * n
        got = select([NODE] * (2 * n), running, waiting, loss=loss, limit=1000)
        assert {v for v, _ in got} >= set(range(2 * n, 3 * n))
        assert len(got) <= most


class TestBudgetsOfUsers:
    def select(self, running, waiting, left_of, loss=None, left=99):
        """Running: (user, GPUs, node)."""
        each = [g for _, g, _ in running] + [g for _, _, g in waiting]
        r, n = len(running), len(each)
        nodes = [1] * r + [k for _, k, _ in waiting]
        requests = [(k, g, 0, 0) for k, g in zip(nodes, each, strict=True)]
        room = occupancy(
            [NODE] * (1 + max(v for *_, v in running)), requests, {i: [x[2]] for i, x in enumerate(running)}
        )
        level = np.array([5] * r + [x for x, *_ in waiting])
        user = np.array([u for u, *_ in running] + [0] * len(waiting))
        loss = np.arange(1.0, n + 1) if loss is None else np.array([*loss, *[0.0] * (n - r)])
        got = preemption.select(
            np.arange(r, n), np.array(nodes) * np.array(each), level, np.arange(n) < r, loss, room, 10,
            budget=Budget(left, np.array(left_of), user),
        )  # fmt: skip
        return [(int(v), int(w) - r) for v, w in zip(*got, strict=True)]

    def test_whose_budget_is_used_up_shields_nobody(self):
        running = [(0, 8, 0), (1, 8, 1)]
        assert self.select(running, [(1, 1, 8)], [10, 10]) == [(0, 0)]
        for nothing in (0, -3):
            assert self.select(running, [(1, 1, 8)], [nothing, 10]) == [(1, 0)]
        assert self.select(running, [(1, 1, 8)], [0, 0]) == []

    def test_it_is_used_up_within_a_cycle(self):
        running = [(0, 8, 0), (0, 8, 1), (1, 8, 2)]
        assert self.select(running, [(1, 1, 8)] * 2, [1, 10]) == [(0, 0), (2, 1)]
        assert self.select(running, [(1, 1, 8)] * 3, [1, 10]) == [(0, 0), (2, 1)]

    def test_a_node_that_takes_too_many_of_one_user(self):
        # both on node 0 are his, and only one of them may go; on node 1 one of his and one of another
        running = [(0, 4, 0), (0, 4, 0), (0, 4, 1), (1, 4, 1)]
        assert self.select(running, [(1, 1, 8)], [2, 10]) == [(0, 0), (1, 0)]
        assert self.select(running, [(1, 1, 8)], [1, 10]) == [(2, 0), (3, 0)]
        assert self.select(running, [(1, 1, 8)], [0, 10]) == []

    def test_a_gang_goes_round_him(self):
        running = [(0, 8, 0), (0, 8, 1), (1, 8, 2), (2, 8, 3)]
        assert self.select(running, [(1, 2, 8)], [2, 9, 9]) == [(0, 0), (1, 0)]
        assert self.select(running, [(1, 2, 8)], [1, 9, 9]) == [(0, 0), (2, 0)]
        assert self.select(running, [(1, 2, 8)], [1, 0, 0]) == []

    def test_what_failed_costs_no_budget(self):
        # the gang of three cannot be had with one each of two users; the one behind it can
        running = [(0, 8, 0), (0, 8, 1), (1, 8, 2)]
        assert self.select(running, [(1, 3, 8), (1, 1, 8)], [1, 1]) == [(0, 1)]

    def test_the_budget_of_all(self):
        running = [(0, 8, 0), (0, 8, 1), (1, 8, 2)]
        assert self.select(running, [(1, 2, 8), (1, 1, 8)], [9, 9], left=1) == [(0, 1)]
        assert self.select(running, [(1, 1, 8)] * 2, [9, 9], left=1) == [(0, 0)]
        assert self.select(running, [(1, 1, 8)], [9, 9], left=0) == []
