"""Long work beyond its share: who is held, who is let go, and what a hold is to the ledger."""

import numpy as np
import pytest
from worlds import DAY, HOUR, NODE, history, job_table, occupancy, plan, ranking, replay, snapshot

from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger.book import Ledger
from tias_slurm.levers import HELD, PriorityLever
from tias_slurm.planner import Limits, Planner
from tias_slurm.slurm.node_set import make

NOW = 100_000.0


class TestHolds:
    """Ten nodes of 8 GPUs, of which 80 % are for long jobs."""

    LEVER = PriorityLever(12, 32)

    def plan(
        self, gpus, *, running=0, window=np.nan, level=3, lever=0.0, can_start=True, front=False, **more
    ):
        n = len(gpus)
        state = [RUNNING] * running + [PENDING] * (n - running)
        jobs = job_table(n, state=state, gpus=gpus, lever=lever, can_start=can_start, run_time=1.0)
        room = occupancy([NODE] * 10, [(1, 1, 0, 0)] * n, {})
        if "member" in more:
            room = type(room)(**{**vars(room), "member": more["member"], "partition": more["partition"]})
        limits = Limits(long_share=0.8, long_window_s=DAY)
        order = ranking(np.broadcast_to(level, n), front=front)
        plan = Planner(self.LEVER, limits).plan(
            snapshot(NOW, jobs, room=room), history(n, window=window), order
        )
        return dict(zip(plan.write.tolist(), plan.new.tolist(), strict=True))

    def held(self, gpus, **more):
        return [row for row, value in self.plan(gpus, **more).items() if value == HELD]

    def test_what_is_over_the_share_is_held(self):
        assert self.held([8] * 10) == [8, 9]
        assert self.held([8] * 10, running=7) == [8, 9]
        assert self.held([8] * 10, running=9) == [9]

    def test_near_deadlines_are_neither_held_nor_counted(self):
        near = [DAY / 1.28] * 8
        assert self.held([8] * 16, window=near + [np.nan] * 8) == []
        assert self.held([8] * 17, window=near + [np.nan] * 9) == [16]
        assert self.held([8] * 9, window=DAY / 1.28 + 1.0) == [8]

    def test_wider_than_the_share_is_never_held(self):
        assert self.held([72, 8]) == []
        assert self.held([72, 8], running=1) == [1]  # but what runs counts

    def test_the_better_place_goes_first(self):
        assert self.held([32, 32, 32], level=[5, 3, 1]) == [0]

    def test_what_does_not_fit_is_passed_over_but_not_in_front(self):
        assert self.held([60, 8, 4]) == [1]
        assert self.held([60, 8, 4], front=[True, True, False]) == [1, 2]

    def test_let_go_when_there_is_room(self):
        given = {"lever": [0.0] * 7 + [HELD] * 2, "can_start": [True] * 7 + [False] * 2}
        found = self.plan([8] * 9, running=7, **given)
        assert found[7] > 0
        assert 8 not in found  # stays as it is
        assert self.plan([8] * 6 + [16] + [8] * 2, running=7, **given) == {}

    def test_no_new_values_without_need(self):
        # one that was let go keeps its place against one that is as good, not against one a level better
        for level, written in (([3, 3], []), ([3, 2], []), ([3, 1], [0, 1])):
            value = self.LEVER.target(np.zeros(2), ranking(level))[0]
            got = self.plan([64, 64], level=level, lever=[value, HELD], can_start=[True, False])
            assert sorted(got) == written

    def test_a_hold_of_a_person_is_left_alone(self):
        jobs = job_table(1, gpus=8, lever=HELD, can_start=False, writable=False)
        planner = Planner(self.LEVER, Limits(long_share=0.8))
        assert not len(planner.plan(snapshot(NOW, jobs), history(1), ranking([3])).write)

    def test_nodes_that_share_no_partition_have_shares_of_their_own(self):
        member = np.array([[True] * 5 + [False] * 5, [False] * 5 + [True] * 5])
        assert self.held([8] * 10, member=member, partition=np.array([0] * 5 + [1] * 5)) == [4, 9]
        assert self.held([8] * 10, member=np.ones((2, 10), dtype=bool), partition=np.arange(10) % 2) == [8, 9]

    def test_who_is_to_be_held_has_nobody_requeued(self):
        jobs = job_table(3, state=[RUNNING, RUNNING, PENDING], gpus=8, run_time=[9e3, 9e3, 0])
        room = occupancy([NODE] * 2, [(1, 8, 0, 0)] * 3, {0: [0], 1: [1]})
        for share, victims in ((0.9, []), (None, [0])):
            planner = Planner(self.LEVER, Limits(requeue=True, long_share=share))
            plan = planner.plan(snapshot(NOW, jobs, room=room), history(3), ranking([5, 5, 0]))
            assert plan.victims.tolist() == victims

    def test_who_is_let_go_may_take_the_room(self):
        # row 1, long, is let go and goes before row 2: nobody is requeued for row 2
        jobs = job_table(
            3,
            state=[RUNNING, PENDING, PENDING],
            gpus=8,
            run_time=[9e3, 0, 0],
            lever=[0.0, HELD, self.LEVER.target(np.zeros(1), ranking([3]))[0]],
            can_start=[False, False, True],
        )
        room = occupancy([NODE], [(1, 8, 0, 0)] * 3, {0: [0]})
        for level, victims in ((2, []), (4, [0])):
            planner = Planner(self.LEVER, Limits(requeue=True, long_share=1.0))
            known = history(3, window=[HOUR, np.nan, HOUR])
            plan = planner.plan(snapshot(NOW, jobs, room=room), known, ranking([5, level, 3]))
            assert plan.victims.tolist() == victims
            assert 1 in plan.write


class TestHoldsInReplay:
    """Four nodes of 8 GPUs, half of them for long jobs; all are busy when those come."""

    def outcome(self, share, preemption="off"):
        rows = [{"submit": 0, "work": 1000.0, "gpus": 8, "deadline": 2 * HOUR} for _ in range(4)]
        rows += [{"submit": 10 + i, "work": 3000.0, "gpus": 8} for i in range(6)]
        rows += [{"submit": 1500, "work": 600.0, "gpus": 16, "deadline": 1500 + 2 * HOUR}]
        config = Config.model_validate({"lever": {"kind": "priority"}, "planner": {"long_share": share}})
        nodes = make([f"n{i}" for i in range(4)], [8] * 4, source="a test")
        return replay(rows, nodes, f"tias@{preemption}", config=config).outcome

    def test_long_jobs_keep_to_their_share_and_all_of_them_run(self):
        capped = self.outcome(0.5)
        assert np.isfinite(capped.end).all()
        long = slice(4, 10)
        for now in capped.start[long]:
            assert (8 * ((capped.start[long] <= now) & (now < capped.end[long]))).sum() <= 16
        assert capped.start[10] == 1500, "an urgent job found no room beside the share"
        free = self.outcome(None)
        assert free.start[10] > 1500
        assert not capped.requeues.any()

    def test_a_share_of_all_costs_a_cycle_at_most(self):
        late = self.outcome(1.0).start - self.outcome(None).start
        assert ((late >= 0) & (late <= 60)).all()

    def test_with_requeues_too(self):
        assert np.isfinite(self.outcome(0.5, "on").end).all()


def test_time_under_a_hold_of_ours_counts_as_waiting():
    ledger = Ledger()
    given = {"state": PENDING, "submit": 1000.0, "since": 1000.0}
    ledger.remember(snapshot(1000.0, job_table(2, **given)))
    ledger.intend(snapshot(1000.0, job_table(2, **given)), plan(write=(0,), new=(HELD,)))
    held = job_table(2, **given, lever=HELD, can_start=False)
    known = ledger.remember(snapshot(5000.0, held))
    assert known.able.tolist() == [True, False]
    # the other one is held by a person since the last look
    assert known.since.tolist() == [1000.0, 1000.0]
    assert ledger.remember(snapshot(9000.0, held)).since.tolist() == [1000.0, 5000.0]


@pytest.mark.parametrize("kind", ["nice", "site_factor"])
def test_only_the_priority_lever_can_hold(kind):
    with pytest.raises(ValueError, match="long_share holds jobs"):
        Config.model_validate({"lever": {"kind": kind}, "planner": {"long_share": 0.8}})


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, -2_147_483_645.0])
def test_no_value_of_a_field_is_a_hold(value):
    assert value != HELD
    ledger = Ledger()
    waits = {"state": PENDING, "submit": 1000.0, "since": 1000.0}
    ledger.remember(snapshot(1000.0, job_table(1, **waits)))
    ledger.intend(snapshot(1000.0, job_table(1, **waits)), plan(write=(0,), new=(value,)))
    stuck = job_table(1, **waits, lever=value, can_start=False)
    assert ledger.remember(snapshot(5000.0, stuck)).able.tolist() == [False]
