"""Requeue mode "slurm": who is written what, in which order, and what the site needs for it."""

import dataclasses
import random

import pytest
from raw_queue import FACTS, NOW, config, queue, running
from test_live_cluster import World

from tias_slurm import assemble
from tias_slurm.levers import PRIORITY_BASE
from tias_slurm.preemption.by_slurm import SHIELD, SlurmPreempts
from tias_slurm.slurm.checks_live import judge
from tias_slurm.slurm.checks_preempt import Qos, mode_of, parse_qos, problems
from tias_slurm.slurm.probes import Probes

SETTINGS = config(requeue={"mode": "slurm"}, lever={"kind": "priority"})
YES = "requeue=yes"
OLD = {"start": NOW - 5000, "submit": NOW - 9000, "gpus": 8, "comment": YES}


class Slurms(World):
    """A cycle whose victims Slurm takes."""

    def __init__(self, *queues, settings=SETTINGS, **more):
        super().__init__(*queues, settings=settings, field="priority", **more)
        lever = self.controller.planner.lever
        self.controller.planner = SlurmPreempts(lever, assemble.limits(settings, requeue=False))
        written, shown = self.adapter.pinned, self.adapter.queues[0]
        # as sprio: waiting jobs only
        waits = [j for j, s in zip(shown.job_id.tolist(), shown.state, strict=True) if s == "PENDING"]
        self.adapter.pinned = lambda: {job: job in written() for job in waits}

    def values(self):
        """What one cycle sends, by job, in order."""
        before = len(self.adapter.sent)
        self.controller.cycle()
        return {job: value for job, _, value in self.adapter.sent[before:]}


def test_running_jobs_stand_on_top_of_their_level_and_others_above_all():
    jobs = [
        running(**OLD, job_id=1),  # consents
        running(**{**OLD, "comment": ""}, job_id=2),
        running(**OLD, job_id=3, requeue=False),
        running(**OLD, job_id=4, batch=False),
        running(**{**OLD, "start": NOW - 10}, job_id=5),  # too young
        running(**OLD, job_id=6, restarts=8),
        running(**{**OLD, "gpus": 0}, job_id=7),
        running(**OLD, job_id=8, state="SUSPENDED"),
        running(**OLD, job_id=9, user="out"),
    ]
    waits = [{"job_id": 20, "gpus": 8, "comment": "deadline=+3h"}, {"job_id": 21, "gpus": 8}]
    settings = config(requeue={"mode": "slurm"}, lever={"kind": "priority"}, scope={"not_users": ["out"]})
    sent = Slurms(queue(*jobs, *waits), settings=settings).values()
    assert {job for job, value in sent.items() if value == SHIELD} == set(range(2, 10))
    assert SHIELD > sent[20] > sent[1] > PRIORITY_BASE
    # 1 has received 40,000 GPU-seconds, so it stands a queue below a new job
    assert sent[21] > sent[1]
    assert list(sent)[-2:] == [20, 21]


def test_no_waiting_job_of_the_same_level_stands_above_a_running_one():
    dice = random.Random(1)
    for _ in range(30):
        jobs = [
            running(
                job_id=i, gpus=dice.choice([1, 8]), comment=f"{YES} deadline=+{dice.randint(6, 300)}h",
                start=NOW - dice.randint(600, 90_000), submit=NOW - 100_000,
            )
            for i in range(1, 6)
        ]  # fmt: skip
        jobs += [
            {"job_id": i, "gpus": dice.choice([1, 8]), "comment": f"deadline=+{dice.randint(1, 300)}h",
             "submit": NOW - dice.randint(0, 3000)}
            for i in range(10, 20)
        ]  # fmt: skip
        world = Slurms(queue(*jobs))
        sent = world.values()
        ids = world.cluster.observed.snapshot.jobs.job_id.tolist()
        level = dict(zip(ids, world.controller.seen.ranking.level.tolist(), strict=True))
        for held in range(1, 6):
            for waits in range(10, 20):
                # strictly better level, and only then, more priority
                assert (sent[waits] > sent[held]) == (level[waits] < level[held])


def test_nobody_waits_and_running_jobs_are_written_all_the_same():
    assert Slurms(queue(running(**{**OLD, "comment": ""}, job_id=1))).values() == {1: SHIELD}


def test_a_running_job_that_could_not_be_written_holds_everybody_back():
    jobs = [running(**OLD, job_id=1), {"job_id": 20, "comment": "deadline=+3h"}]
    world = Slurms(queue(*jobs), answers={1: "retry"})
    assert world.values() == {1: world.adapter.sent[0][2]}
    assert world.told == [(0, "retry"), (1, "retry")]
    # one that has ended is in nobody's way
    world = Slurms(queue(*jobs), answers={1: "gone"})
    assert list(world.values()) == [1, 20]


def test_within_a_budget_running_jobs_come_first():
    jobs = [running(**OLD, job_id=i) for i in (1, 2, 3)] + [{"job_id": 20}, {"job_id": 21}]
    settings = config(
        requeue={"mode": "slurm"}, lever={"kind": "priority"}, planner={"max_writes_per_cycle": 2}
    )
    world = Slurms(queue(*jobs), settings=settings)
    assert [list(world.values()) for _ in range(4)] == [[1, 2], [3, 20], [21], []]


def test_values_in_place_are_not_written_again():
    jobs = [running(**OLD, job_id=1), running(**{**OLD, "comment": ""}, job_id=2), {"job_id": 20}]
    world = Slurms(queue(*jobs))
    assert sorted(world.values()) == [1, 2, 20]
    assert world.values() == {}
    assert world.ledger.found.tolist() == [0.0, 0.0, 0.0]


# ---- what the site needs ----

GOOD = dataclasses.replace(
    FACTS, preempt_type="preempt/qos", preempt_mode="WITHIN,REQUEUE", preempt_exempt_time_s=600.0
)
QOS = (Qos("normal", "", "cluster", 0.0), Qos("high", "", "cluster", 0.0))


def said(settings=SETTINGS, qos=QOS, mode="", **differs):
    facts = dataclasses.replace(GOOD, **differs)
    return [f"{what}: {do}" for what, do in problems(settings, facts, qos, mode)]


def test_a_site_that_has_it_all():
    assert said() == []
    assert said(preempt_mode="WITHIN,UNKNOWN", mode="REQUEUE,WITHIN,PRIORITY") == []
    assert said(version="22.05.8") == []


@pytest.mark.parametrize(
    ("differs", "needs"),
    [
        ({"settings": config(requeue={"mode": "slurm"})}, 'kind = "priority"'),
        ({"priority_type": "priority/basic"}, "PriorityType=priority/multifactor"),
        ({"preempt_type": "preempt/none"}, "PreemptType=preempt/qos"),
        ({"preempt_type": "preempt/partition_prio"}, "PreemptType=preempt/qos"),
        ({"preempt_mode": "OFF"}, "PreemptMode=REQUEUE,WITHIN,PRIORITY"),
        ({"preempt_mode": "REQUEUE"}, "PreemptMode=REQUEUE,WITHIN,PRIORITY"),
        ({"preempt_mode": "REQUEUE", "version": "24.11.5"}, "PreemptMode=REQUEUE,WITHIN in"),
        ({"preempt_mode": "WITHIN,CANCEL"}, "PreemptMode=REQUEUE,WITHIN,PRIORITY"),
        ({"preempt_mode": "WITHIN,UNKNOWN"}, "where slurm.conf can be read"),
        ({"preempt_mode": "WITHIN,UNKNOWN", "mode": "CANCEL,WITHIN,PRIORITY"}, "PreemptMode=REQUEUE"),
        ({"preempt_exempt_time_s": 599.0}, "PreemptExemptTime of 600 s"),
        ({"qos": None}, "slurmdbd"),
        ({"qos": (Qos("high", "normal", "cluster", 0.0),)}, "PRIORITY in PreemptMode"),
        ({"qos": (Qos("hi", "low", "cluster", 0.0),), "version": "24.11.5"}, "modify qos hi set preempt="),
        ({"qos": (Qos("high", "", "cancel", 0.0),)}, "modify qos high set preemptmode=requeue"),
        ({"qos": (Qos("high", "", "requeue", 30.0),)}, "modify qos high set preemptexempttime=-1"),
    ],
)  # fmt: skip
def test_what_is_missing(differs, needs):
    [problem] = said(**differs)
    assert needs in problem


def test_the_exempt_time_covers_two_cycles():
    settings = config(
        requeue={"mode": "slurm", "min_run_s": 10}, lever={"kind": "priority"}, cycle={"interval_s": 60.0}
    )
    [problem] = said(settings, preempt_exempt_time_s=100.0)
    assert "PreemptExemptTime of 120 s" in problem
    assert said(settings, preempt_exempt_time_s=120.0) == []


def test_qos_as_sacctmgr_prints_them():
    text = "normal||cluster|\nhigh|normal,low|REQUEUE|1-00:00:00\nbroken\n"
    assert parse_qos(text) == (
        Qos("normal", "", "cluster", 0.0),
        Qos("high", "normal,low", "requeue", 86_400.0),
    )


def test_the_mode_in_a_slurm_conf():
    assert mode_of("# PreemptMode=CANCEL\npreemptmode = Requeue,Within # as we like it\n") == "REQUEUE,WITHIN"
    assert mode_of("PreemptType=preempt/qos\n") == ""


def test_check_config_says_the_same():
    probes = Probes(user="tias", rights="yes", qos=QOS)
    found = [f for f in judge(SETTINGS, FACTS, probes) if f.check == "preemption"]
    assert {f.severity for f in found} == {"error"}
    assert [f.do for f in found if "PreemptType" in f.do]
    [fine] = [f for f in judge(SETTINGS, GOOD, probes) if f.check == "preemption"]
    assert fine.severity == "warning"
    assert "PreemptExemptTime" in fine.why
