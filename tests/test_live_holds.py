"""Holds of ours and of people, and shards of GPUs, as far as they need no Slurm."""

from __future__ import annotations

import numpy as np
import pytest
from raw_queue import NOW, claims, config, queue, running
from worlds import job_table, plan, snapshot

from tias_slurm import assemble
from tias_slurm.gpu_weights import sharded
from tias_slurm.ledger.book import Ledger
from tias_slurm.levers import HELD, shown
from tias_slurm.planner import Planner
from tias_slurm.slurm.command_queue import _asked
from tias_slurm.slurm.live_values import explicit
from tias_slurm.slurm.observer import observe

HELD_JOB = {"priority": 0, "reason": "JobHeldAdmin", "eligible": np.nan}


def test_a_hold_is_a_value_of_the_priority_lever() -> None:
    raw = queue({}, {"priority": 0}, {"priority": 5_000}, running(priority=0), {"priority": 7})
    values = explicit(raw, {100: False, 102: True}, np.nan)
    assert values[:3].tolist() == [0.0, HELD, 5_000.0]
    assert np.isnan(values[3:]).all()
    assert explicit(raw, None, np.nan).tolist() == [1000.0, HELD, 5_000.0, 0.0, 7.0]
    assert (shown(HELD), shown(-2.0)) == ("held", -2)


@pytest.mark.parametrize(
    ("job", "ours", "why"),
    [
        (HELD_JOB, True, ""),
        (HELD_JOB, False, "held"),
        ({**HELD_JOB, "reason": "JobHeldUser"}, True, "held"),
        ({**HELD_JOB, "reason": "launch_failed_requeued_held"}, True, "held"),
        ({**HELD_JOB, "partition": "cpu"}, True, "out of scope"),
    ],
)
def test_what_we_hold_may_be_let_go_and_does_not_start(job: dict[str, object], ours: bool, why: str) -> None:
    seen = observe(queue(job), claims(1), config(scope={"not_partitions": ["cpu"]}), held=np.array([ours]))
    assert (seen.why(0), bool(seen.snapshot.jobs.can_start[0])) == (why, False)
    assert bool(seen.snapshot.jobs.writable[0]) is not bool(why)


def walk(*steps: float | tuple[str, float]) -> Ledger:
    """A ledger that saw one job with these values, and was told of what was to be written."""
    ledger, number, seen = Ledger(), 0, None
    for step in steps:
        if isinstance(step, tuple):
            assert seen is not None
            ledger.intend(seen, plan([0], [step[1]]))
            continue
        number += 1
        seen = snapshot(1000.0 + 60 * number, job_table(1, job_id=[1], lever=step, submit=100.0))
        ledger.remember(seen)
    return ledger


def released(ledger: Ledger) -> bool:
    which = ledger.history().released
    assert which is not None
    return bool(which[0])


IDS = np.array([1])
HOLD, GO = ("write", HELD), ("write", 1e9)


def test_the_ledger_tells_our_release_from_a_persons() -> None:
    assert walk(0.0, HOLD).holds(IDS).tolist() == [True]
    assert walk(0.0, HOLD, HELD).holds(IDS).tolist() == [True]
    # killed between the intention to let go and the release
    assert walk(0.0, HOLD, HELD, GO, HELD).holds(IDS).tolist() == [True]
    ours = walk(0.0, HOLD, HELD, GO, 1e9)
    assert (ours.holds(IDS).tolist(), released(ours)) == ([False], False)
    theirs = walk(0.0, HOLD, HELD, 0.0)
    assert (theirs.holds(IDS).tolist(), released(theirs)) == ([False], True)
    # an ordinary place is given to it, and it is not held again
    assert released(walk(0.0, HOLD, HELD, 0.0, GO, 1e9))
    # a hold that never came about is no release, nor is one that came about later
    assert not released(walk(0.0, HOLD, 0.0))
    assert not released(walk(0.0, HOLD, 0.0, HOLD, HELD))
    assert walk(0.0).holds(np.array([1, 7])).tolist() == [False, False]


def test_shards_are_counted_as_asked() -> None:
    def shards(tres: str = "cpu=1,node=1", per_node: str = "N/A", nodes: str = "1") -> int:
        return _asked(tres, "N/A", per_node, "N/A", "N/A", nodes, "1", "1").shards

    assert shards("cpu=1,gres/shard=6") == 6
    assert shards("cpu=1,gres/shard:a100=2,gres/shard:h100=1") == 3
    assert shards(per_node="gres/shard:3", nodes="2") == 6
    assert shards(per_node="gres:shard:a100:2") == 2
    assert shards(per_node="gres/gpu:2") == 0


def test_shards_count_where_they_have_a_weight() -> None:
    raw = queue({"gpus": 0, "shards": 4}, {"gpus": 2, "shards": 0}, {"gpus": 0}, {"gpus": 1, "shards": 3})
    plain = observe(raw, claims(4), config()).snapshot.jobs
    assert plain.job_id.tolist() == [101, 103]
    jobs = observe(raw, claims(4), config(gpus={"weights": {"shard": 0.25}})).snapshot.jobs
    assert (jobs.job_id.tolist(), jobs.gpus.tolist()) == ([100, 101, 103], [0, 2, 1])
    assert jobs.weight.tolist() == [1.0, 2.0, 1.0]
    assert not sharded(raw.gpus, None, {"shard": 1.0}).any()


def test_a_job_with_shards_alone_is_requeued_for_nobody() -> None:
    settings = config(gpus={"weights": {"shard": 0.5}}, requeue={"mode": "on", "consent_default": True})
    raw = queue(running(gpus=0, shards=4, start=NOW - 9e3), running(gpus=1, start=NOW - 9e3))
    seen = observe(raw, claims(2), settings).snapshot
    policy = assemble.tias(settings)
    known = Ledger().remember(seen)
    ranking = policy.rank(seen.now, known, Ledger().learner.survival())
    planner = Planner(assemble.lever(settings, policy.levels, 0), assemble.limits(settings, requeue=True))
    assert planner.preemptible(seen, np.zeros(2), ranking).tolist() == [False, True]
