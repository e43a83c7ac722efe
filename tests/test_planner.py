"""What a planner makes of a ranking: writes, victims, warnings; and what its budgets forbid."""

from dataclasses import replace

import numpy as np
from worlds import NODE, history, job_table, occupancy, ranking, snapshot

from tias_slurm import assemble
from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.levers import ExactLever, NiceLever
from tias_slurm.planner import Limits, Planner

NOW = 100_000.0


class TestVictims:
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
        jobs = job_table(4, lever=lever.target(np.zeros(4), ranking([0, 0, 0, 0])))
        for band, written in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])):
            planner = Planner(lever, Limits(dead_band_steps=band))
            plan = planner.plan(snapshot(0.0, jobs), history(4), ranking(steps))
            assert plan.write.tolist() == written


class Pair:
    """Two nodes, on each a job of 8 GPUs at level 5; one waiting job or two of 8 GPUs at level 0."""

    def __init__(self, limits=None, waiting=1, users=(0, 0), loss=(1000.0, 2000.0), **remembered):
        n = 2 + waiting
        self.jobs = job_table(
            n,
            state=[RUNNING, RUNNING] + [PENDING] * waiting,
            gpus=8,
            run_time=[*loss] + [0.0] * waiting,
            checkpoint=0.0,
            user=[*users] + [0] * waiting,
        )
        self.room = occupancy([NODE] * 2, [(1, 8, 0, 0)] * n, {0: [0], 1: [1]})
        self.planner = Planner(ExactLever(), Limits(requeue=True, **(limits or {})))
        self.history = history(n, **remembered)
        self.ranking = ranking([5, 5] + [0] * waiting)

    def plan(self, now=NOW, barred=None, lever=None):
        jobs = self.jobs
        if lever is not None:
            jobs.lever[:] = lever
        seen = snapshot(now, jobs, room=self.room)
        return self.planner.plan(seen, self.history, self.ranking, barred)

    def victims(self, **more):
        plan = self.plan(**more)
        return list(zip(plan.victims.tolist(), plan.beneficiaries.tolist(), strict=True))


class TestCooldown:
    def test_who_preempted_a_moment_ago_does_not_again(self):
        at = [np.nan, np.nan, NOW - 299.0]
        assert Pair({"cooldown_s": 300.0}, preempted_at=at).victims() == []
        at[2] -= 1.0
        assert Pair({"cooldown_s": 300.0}, preempted_at=at).victims() == [(0, 2)]
        assert Pair({"cooldown_s": 300.0}).victims() == [(0, 2)]

    def test_nor_does_one_behind_him_for_nodes_that_he_would_get(self):
        at = [np.nan, np.nan, NOW - 10.0, np.nan]
        assert Pair({"cooldown_s": 300.0}, waiting=2, preempted_at=at).victims() == []
        assert Pair({"cooldown_s": 5.0}, waiting=2, preempted_at=at).victims() == [(0, 2), (1, 3)]


class TestValueInPlace:
    """Slurm gives freed nodes to whoever its priorities put first: so ours must be there."""

    def test_barred(self):
        barred = np.array([False, False, True])
        assert Pair().victims(barred=barred) == [(0, 2)]  # 0 is its value already
        pair = Pair()
        assert pair.victims(barred=barred, lever=[0.0, 0.0, 7.0]) == []
        assert pair.victims(lever=[0.0, 0.0, 7.0]) == [(0, 2)]

    def test_held_back_by_the_budget_of_writes(self):
        assert Pair({"max_writes": 0}).victims(lever=[0.0, 0.0, 7.0]) == []
        assert Pair({"max_writes": 0}).victims() == [(0, 2)]


class TestHourlyBudgets:
    def test_of_all(self):
        for allowed, got in ((0, []), (1, [(0, 2)]), (2, [(0, 2), (1, 3)]), (3, [(0, 2), (1, 3)])):
            assert Pair({"max_per_hour": allowed}, waiting=2).victims() == got
        assert Pair({"max_per_hour": 3}, waiting=2, last_hour={"eve": 2}).victims() == [(0, 2)]
        assert Pair({"max_per_hour": 3}, waiting=2, last_hour={"eve": 9}).victims() == []

    def test_of_a_user(self):
        pair = {"waiting": 2, "users": (0, 0)}
        assert Pair({"max_per_user_per_hour": 1}, **pair).victims() == [(0, 2)]
        assert Pair({"max_per_user_per_hour": 1}, **pair, last_hour={"ann": 1}).victims() == []
        assert Pair({"max_per_user_per_hour": 1}, **pair, last_hour={"eve": 5}).victims() == [(0, 2)]

    def test_all_victims_or_none(self):
        # one waiting job of 8 GPUs, two victims of 4 each
        jobs = job_table(3, state=[RUNNING, RUNNING, PENDING], gpus=[4, 4, 8], run_time=[9e3, 9e3, 0])
        room = occupancy([NODE], [(1, 4, 0, 0), (1, 4, 0, 0), (1, 8, 0, 0)], {0: [0], 1: [0]})
        for limits, got in (
            ({"max_per_hour": 1}, []),
            ({"max_per_hour": 2}, [0, 1]),
            ({"max_per_user_per_hour": 1}, []),
            ({"max_per_user_per_hour": 2}, [0, 1]),
        ):
            planner = Planner(ExactLever(), Limits(requeue=True, **limits))
            plan = planner.plan(snapshot(NOW, jobs, room=room), history(3), ranking([5, 5, 0]))
            assert plan.victims.tolist() == got


class TestGrace:
    LIMITS = {"grace_s": 120.0, "cooldown_s": 300.0}  # noqa: RUF012

    def actions(self, now=NOW, **remembered):
        plan = Pair(self.LIMITS, **remembered).plan(now)
        assert len(plan.warn) == len(plan.warned_for)
        return plan.warn.tolist(), plan.victims.tolist()

    def test_first_a_warning(self):
        assert self.actions() == ([0], [])
        assert Pair(self.LIMITS).plan().warned_for.tolist() == [2]

    def test_then_the_requeue_once_the_grace_is_over(self):
        for since, victims in ((1.0, []), (119.0, []), (120.0, [0]), (720.0, [0])):
            at = [NOW - since, np.nan, np.nan]
            assert self.actions(warned_at=at) == ([], victims)

    def test_an_old_warning_does_not_count(self):
        assert self.actions(warned_at=[NOW - 721.0, np.nan, np.nan]) == ([0], [])

    def test_how_long_it_counts_is_a_setting(self):
        config = Config.model_validate({"requeue": {"mode": "on", "grace_s": 120.0, "warning_lasts_s": 60.0}})
        limits = assemble.limits(config, requeue=True)
        assert limits.warning_lasts_s == 60.0
        for since, found in ((180.0, ([], [0])), (181.0, ([0], []))):
            pair = Pair(
                {**self.LIMITS, "warning_lasts_s": limits.warning_lasts_s},
                warned_at=[NOW - since, np.nan, np.nan],
            )
            plan = pair.plan()
            assert (plan.warn.tolist(), plan.victims.tolist()) == found

    def test_nor_one_of_an_earlier_run(self):
        at = [NOW - 650.0, np.nan, np.nan]
        assert self.actions(warned_at=at, loss=(649.0, 2000.0)) == ([0], [])
        assert self.actions(warned_at=at, loss=(650.0, 2000.0)) == ([], [0])

    def test_who_is_warned_stays_chosen_when_another_becomes_cheaper(self):
        at = [np.nan, NOW - 60.0, np.nan]
        assert self.actions(warned_at=at) == ([], [])
        assert self.actions(now=NOW + 60.0, warned_at=at) == ([], [1])

    def test_nobody_has_others_warned_in_each_cycle(self):
        # who was warned has become useless: another one is warned, but not within the cool-down
        remembered = {"warned_at": [NOW - 60.0, np.nan, np.nan], "requeues": [8, 0, 0]}
        assert self.actions(**remembered, warned_for=[np.nan, np.nan, NOW - 60.0]) == ([], [])
        assert self.actions(**remembered, warned_for=[np.nan, np.nan, NOW - 300.0]) == ([1], [])

    def test_a_gang_waits_for_the_last_grace(self):
        jobs = job_table(3, state=[RUNNING, RUNNING, PENDING], gpus=[8, 8, 16], run_time=[9e3, 9e3, 0])
        room = occupancy([NODE] * 2, [(1, 8, 0, 0), (1, 8, 0, 0), (2, 8, 0, 0)], {0: [0], 1: [1]})
        planner = Planner(ExactLever(), Limits(requeue=True, **self.LIMITS))
        for at, warn, victims in (
            ([np.nan, np.nan], [0, 1], []),
            ([NOW - 120.0, np.nan], [1], []),
            ([NOW - 180.0, NOW - 60.0], [], []),
            ([NOW - 240.0, NOW - 120.0], [], [0, 1]),
        ):
            known = history(3, warned_at=[*at, np.nan])
            plan = planner.plan(snapshot(NOW, jobs, room=room), known, ranking([5, 5, 0]))
            assert (sorted(plan.warn.tolist()), sorted(plan.victims.tolist())) == (warn, victims)

    def test_nobody_is_requeued_for_one_whose_room_goes_to_another(self):
        # row 2 waits out the grace of its victim and would take what row 3 has freed
        jobs = job_table(
            4, state=[RUNNING, RUNNING, PENDING, PENDING], gpus=[4, 4, 4, 4], run_time=[9e3, 9e3, 0, 0]
        )
        room = occupancy([NODE], [(1, 4, 0, 0)] * 4, {0: [0], 1: [0]})
        planner = Planner(ExactLever(), Limits(requeue=True, **self.LIMITS))
        grace = np.array([120.0, 0.0, 0.0, 0.0])
        for at, victims in ((np.nan, []), (NOW - 60.0, []), (NOW - 120.0, [0, 1])):
            known = history(4, warned_at=[at, np.nan, np.nan, np.nan])
            shown = replace(snapshot(NOW, jobs, room=room), grace=grace)
            plan = planner.plan(shown, known, ranking([5, 4, 0, 1]))
            assert sorted(plan.victims.tolist()) == victims


def test_the_settings_reach_the_planner():
    config = Config.model_validate(
        {
            "lever": {"kind": "priority"},
            "planner": {"long_share": 0.8, "long_window_s": 5.0},
            "requeue": {"cooldown_s": 1.0, "max_per_hour": 2, "max_per_user_per_hour": 3, "grace_s": 4.0},
        }
    )
    limits = assemble.limits(config, requeue=True)
    assert (limits.cooldown_s, limits.max_per_hour, limits.max_per_user_per_hour) == (1.0, 2, 3)
    assert (limits.grace_s, limits.long_share, limits.long_window_s) == (4.0, 0.8, 5.0)
