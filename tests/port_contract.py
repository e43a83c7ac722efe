"""The contract of the Cluster port: what every adapter must show and do, in one set of checks.

A `World` is a cluster on which one job, the `blocker`, holds all GPUs and others wait, each of which needs
all GPUs. tests/test_port.py makes one in virtual time; tests/live/test_port_live.py makes one on a real
Slurm, through each live adapter.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

import numpy as np

from tias_slurm.controller import Cluster
from tias_slurm.jobs import PENDING, RUNNING, JobTable, Snapshot
from tias_slurm.levers import NiceLever
from tias_slurm.planner import Plan

NOBODY = np.empty(0, dtype=np.int64)
LEVER = NiceLever(levels=2, urgency_steps=1, site_weights=0)


class World(Protocol):
    """What a check needs to know of a cluster and to do to it."""

    cluster: Cluster
    blocker: int  # job id
    waiting: list[
        int
    ]  # job ids in the order of their submits; the first one has a deadline, the last a nice of 7
    deadline: float

    def release(self) -> None:
        """End the blocker, and let all others run one after another until all have ended."""

    def started(self) -> list[int]:
        """The waiting jobs in the order in which they started."""


def writes(snapshot: Snapshot, values: dict[int, float]) -> Plan:
    """A plan that sets the lever of jobs by id."""
    rows = np.array([int(np.searchsorted(snapshot.jobs.job_id, j)) for j in sorted(values)], dtype=np.int64)
    new = np.array([values[j] for j in sorted(values)])
    return Plan(rows, snapshot.jobs.lever[rows], new, NOBODY, NOBODY, 0)


def column(snapshot: Snapshot, name: str) -> dict[int, float]:
    """One column of the jobs, by id."""
    return dict(zip(snapshot.jobs.job_id.tolist(), getattr(snapshot.jobs, name).tolist(), strict=True))


def check_a_look(world: World) -> None:
    """A snapshot is well-formed and says what is there."""
    look = world.cluster.observe()
    jobs = look.jobs
    n = len(jobs)
    assert all(len(getattr(jobs, f.name)) == n for f in fields(JobTable))
    assert len(look.order) == len(look.tie) == n
    assert np.all(np.diff(jobs.job_id) > 0)
    assert {world.blocker, *world.waiting} == set(jobs.job_id.tolist())
    state = column(look, "state")
    assert state == {world.blocker: RUNNING} | dict.fromkeys(world.waiting, PENDING)
    running = jobs.state == RUNNING
    assert np.all(jobs.run_time[running] >= 0)
    assert np.all(jobs.run_time[~running] == 0)
    assert np.array_equal(jobs.writable, ~running)
    assert np.all(jobs.writable[jobs.can_start])
    assert column(look, "can_start")[world.waiting[0]]
    assert np.all(jobs.gpus > 0)
    assert np.all(jobs.submit <= look.now)
    due = column(look, "deadline")
    assert due[world.waiting[0]] == world.deadline
    assert all(np.isnan(due[j]) for j in (world.blocker, *world.waiting[1:]))
    assert column(look, "lever")[world.waiting[-1]] == 7.0
    assert len(look.ended.job_id) == 0
    assert world.cluster.observe().now >= look.now


def check_a_write_is_seen(world: World) -> None:
    """What is written stands there at the next look, zero too, and nothing else has changed."""
    before = world.cluster.observe()
    first, second, last = world.waiting[0], world.waiting[1], world.waiting[-1]
    done = world.cluster.apply(before, writes(before, {first: -300.0, last: 0.0}))
    assert len(done.refused) == 0
    after = world.cluster.observe()
    lever = column(after, "lever")
    assert (lever[first], lever[last]) == (-300.0, 0.0)
    assert lever[second] == column(before, "lever")[second]
    # a write moves the job's priority and not what is beneath it
    order = dict(zip(after.jobs.job_id.tolist(), after.order.tolist(), strict=True))
    was = dict(zip(before.jobs.job_id.tolist(), before.order.tolist(), strict=True))
    assert abs(order[first] - was[first]) <= 1.0
    nothing = world.cluster.apply(after, writes(after, {}))
    assert len(nothing.refused) == 0
    assert column(world.cluster.observe(), "lever") == lever


def check_jobs_start_in_the_order_written(world: World) -> None:
    """The order that the port promises is the one in which jobs start, and each end is told once."""
    look = world.cluster.observe()
    turned = list(reversed(world.waiting))
    values = {job: float(100 * place - 1000) for place, job in enumerate(turned)}
    world.cluster.apply(look, writes(look, values))
    look = world.cluster.observe()
    rows = np.searchsorted(look.jobs.job_id, world.waiting)
    priority = LEVER.priority(look.order[rows], look.jobs.lever[rows])
    promised = [world.waiting[i] for i in np.lexsort((look.tie[rows], -priority))]
    assert promised == turned
    world.release()
    told = world.cluster.observe().ended
    assert sorted(told.job_id.tolist()) == sorted([world.blocker, *world.waiting])
    assert np.all(told.run_time > 0)
    assert len(world.cluster.observe().ended.job_id) == 0
    assert world.started() == turned


CHECKS = (check_a_look, check_a_write_is_seen, check_jobs_start_in_the_order_written)
