"""From a raw queue to a snapshot: which jobs count, which may be written, and why not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_queue import NOW, claims, config, queue, running

from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN
from tias_slurm.slurm.observer import BUSY, HELPED, STARTABLE, observe

HELD = {"priority": 0, "reason": "JobHeldUser"}


def seen(*jobs, settings=None, told=None, **options):
    raw = queue(*jobs)
    return observe(raw, told or claims(len(raw)), settings or config(), **options)


def barred(*jobs, **options):
    """Why the jobs are not writable."""
    return dict(seen(*jobs, **options).barred)


def test_an_ordinary_waiting_job():
    made = seen({"nice": 50, "gpus": 4, "restarts": 2, "array_id": 90, "array_task": "7"})
    jobs, snapshot = made.snapshot.jobs, made.snapshot
    assert (jobs.job_id.tolist(), jobs.state.tolist(), jobs.gpus.tolist()) == ([100], [PENDING], [4])
    assert (jobs.lever.tolist(), jobs.nice.tolist()) == ([50.0], [50.0])
    assert (jobs.array_id.tolist(), jobs.restarts.tolist()) == ([90], [2])
    assert (jobs.submit.tolist(), jobs.run_time.tolist()) == ([NOW - 600], [0.0])
    assert jobs.writable.tolist() == jobs.can_start.tolist() == [True]
    assert (snapshot.now, snapshot.order.tolist(), snapshot.tie.tolist()) == (NOW, [1050.0], [100])
    assert not made.barred


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (HELD, "held"),
        ({"priority": 0, "reason": "None"}, "held"),
        ({"priority": PRIORITY_UNKNOWN}, "priority unknown"),
        ({"nice": NICE_UNKNOWN}, "nice unknown"),
        ({"cron": True}, "cron job"),
        ({"het_id": 99, "het_offset": 1}, "component of a het job"),
        *[({"flags": flag}, "busy") for flag in sorted(BUSY)],
        ({"flags": "CONFIGURING,SPECIAL_EXIT"}, "busy"),
        ({"reason": "Dependency"}, "waits for what priority cannot give"),
        ({"reason": "AssocGrpGRES"}, "waits for what priority cannot give"),
        ({"reason": "QOSMaxGRESPerUser"}, "waits for what priority cannot give"),
        ({"reason": "Reservation"}, "waits for what priority cannot give"),
        ({"reason": "JobArrayTaskLimit"}, "waits for what priority cannot give"),
        ({"reason": "a reason that a later Slurm invents"}, "waits for what priority cannot give"),
        ({"reason": "ReqNodeNotAvail, Reserved for maintenance"}, "waits for what priority cannot give"),
        ({"reason": "None", "eligible": np.nan}, "not eligible yet"),
    ],
)
def test_not_writable(job, why):
    made = seen(job, {"job_id": 5})
    assert dict(made.barred) == {why: 1}
    assert made.snapshot.jobs.job_id.tolist() == [5, 100]
    assert made.snapshot.jobs.writable.tolist() == made.snapshot.jobs.can_start.tolist() == [True, False]


@pytest.mark.parametrize("reason", sorted(HELPED))
def test_reasons_that_priority_helps(reason):
    made = seen({"reason": reason})
    assert made.snapshot.jobs.writable.tolist() == [True]
    assert made.snapshot.jobs.can_start.tolist() == [reason in STARTABLE]


@pytest.mark.parametrize(
    "reason",
    [
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
        "ReqNodeNotAvail, May be reserved for other job",
        "ReqNodeNotAvail, UnavailableNodes:n1",
    ],
)
def test_texts_in_place_of_a_reason(reason):
    assert seen({"reason": reason}).snapshot.jobs.writable.tolist() == [True]


@pytest.mark.parametrize("flags", ["CONFIGURING", "SIGNALING", "REQUEUED", "POWER_UP_NODE"])
def test_flags_that_do_not_matter(flags):
    assert seen({"flags": flags}).snapshot.jobs.writable.tolist() == [True]


def test_the_leader_of_a_het_job_is_writable():
    assert seen({"het_id": 100, "het_offset": 0}).snapshot.jobs.writable.tolist() == [True]


def test_one_reason_for_each_job():
    assert barred({**HELD, "cron": True, "flags": "SPECIAL_EXIT", "nice": NICE_UNKNOWN}) == {"held": 1}


def test_jobs_without_gpus_or_without_a_submit_time_are_not_ours():
    made = seen({"gpus": 0}, {"submit": np.nan}, running(gpus=0), {})
    assert made.snapshot.jobs.job_id.tolist() == [103]
    assert made.rows.tolist() == [3]


def test_an_unknown_nice_counts_as_none():
    jobs = seen({"nice": NICE_UNKNOWN}).snapshot.jobs
    assert (jobs.nice.tolist(), jobs.lever.tolist()) == ([0.0], [0.0])


def test_running_and_suspended():
    made = seen(running(), running(state="SUSPENDED", suspended_s=100.0), running(suspended_s=np.nan))
    jobs = made.snapshot.jobs
    assert jobs.state.tolist() == [RUNNING] * 3
    assert jobs.run_time.tolist() == [300.0, 200.0, 300.0]
    assert not jobs.writable.any()
    assert not made.barred  # they do not wait, so nothing is kept from them


@pytest.mark.parametrize("start", [np.nan, NOW + 50])
def test_no_run_time_without_a_start_in_the_past(start):
    assert seen(running(start=start)).snapshot.jobs.run_time.tolist() == [0.0]


@pytest.mark.parametrize(
    ("said", "site", "job", "may"),
    [
        (-1, False, {}, False),
        (-1, True, {}, True),
        (1, False, {}, True),
        (0, True, {}, False),
        (1, False, {"requeue": False}, False),
        (1, False, {"batch": False}, False),
        (1, False, {"state": "SUSPENDED"}, False),
    ],
)
def test_consent_to_a_requeue(said, site, job, may):
    made = seen(
        running(**job), settings=config(requeue={"consent_default": site}), told=claims(1, consent=said)
    )
    assert made.snapshot.jobs.requeueable.tolist() == [may]


def test_what_the_job_claims():
    told = claims(2, deadline=[np.nan, NOW + 5], checkpoint=[np.nan, 60.0])
    jobs = seen({}, {}, told=told, settings=config(requeue={"checkpoint_s": 900.0})).snapshot.jobs
    assert jobs.deadline[1] == NOW + 5
    assert np.isnan(jobs.deadline[0])
    assert jobs.checkpoint.tolist() == [900.0, 60.0]


@pytest.mark.parametrize(
    ("scope", "job", "inside"),
    [
        ({"only_partitions": ["gpu"]}, {}, True),
        ({"only_partitions": ["a100"]}, {}, False),
        ({"only_partitions": ["gpu"]}, {"partition": "gpu,a100"}, False),
        ({"only_partitions": ["gpu", "a100"]}, {"partition": "gpu,a100"}, True),
        ({"not_partitions": ["a100"]}, {"partition": "gpu,a100"}, False),
        ({"only_partitions": ["gpu"], "not_partitions": ["gpu"]}, {}, False),
        ({"only_accounts": ["lab"]}, {}, True),
        ({"only_accounts": ["La"]}, {}, False),
        ({"not_accounts": ["lab"]}, {}, False),
        ({"only_users": ["ann"], "not_accounts": ["lab"]}, {}, False),
        ({"not_users": ["bob"]}, {}, True),
        ({"only_qos": ["high"]}, {}, False),
        ({"not_qos": ["normal"]}, {}, False),
        ({"only_users": ["ann"]}, {"user": ""}, False),
    ],
)
def test_scope(scope, job, inside):
    made = seen(job, settings=config(scope=scope))
    assert made.snapshot.jobs.writable.tolist() == [inside]
    assert dict(made.barred) == ({} if inside else {"out of scope": 1})


def test_another_field_than_nice():
    made = seen({"nice": 7}, {}, lever=np.array([500.0, 600.0]), hidden=np.array([False, True]))
    assert made.snapshot.jobs.lever.tolist() == [500.0, 600.0]
    assert made.snapshot.jobs.nice.tolist() == [7.0, 0.0]
    assert made.snapshot.jobs.writable.tolist() == [True, False]
    assert dict(made.barred) == {"value not shown now": 1}


def test_ended_jobs():
    over = {"start": NOW - 900, "end": NOW - 100, "reason": "None", "suspended_s": 50.0}
    made = seen(
        {**over, "state": "COMPLETED"},
        {**over, "state": "FAILED"},
        {**over, "state": "CANCELLED", "start": np.nan},  # never ran
        {**over, "state": "COMPLETED", "gpus": 0},
        {**over, "state": "COMPLETED", "submit": np.nan},
        {**over, "state": "COMPLETED", "flags": "COMPLETING"},  # how it ended is not known yet
        told=claims(6, deadline=NOW),
    )
    ended = made.snapshot.ended
    assert ended.job_id.tolist() == [100, 101]
    assert ended.completed.tolist() == [True, False]
    assert ended.run_time.tolist() == [750.0, 750.0]
    assert ended.deadline.tolist() == [NOW, NOW]
    assert len(made.snapshot.jobs) == 0


def test_nobody():
    made = seen()
    assert len(made.snapshot.jobs) == len(made.snapshot.ended.job_id) == len(made.rows) == 0


# ---- on any queue ----

STATES = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "FAILED", "CANCELLED")
REASONS = (
    "None",
    "Priority",
    "Resources",
    "Dependency",
    "JobHeldAdmin",
    "BeginTime",
    "QOSMaxGRESPerUser",
    "",
)
JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "state": st.sampled_from(STATES),
            "flags": st.sampled_from(("", "COMPLETING", "SPECIAL_EXIT", "CONFIGURING,REQUEUE_HOLD")),
            "reason": st.sampled_from(REASONS),
            "priority": st.sampled_from((0, 1, 5000, 2**32 - 1, PRIORITY_UNKNOWN)),
            "nice": st.sampled_from((0, -50, 100, NICE_UNKNOWN)),
            "gpus": st.integers(0, 3),
            "cron": st.booleans(),
            "het_offset": st.integers(0, 1),
            "account": st.sampled_from(("lab", "out", "")),
            "partition": st.sampled_from(("gpu", "gpu,a100", "a100")),
            "start": st.sampled_from((np.nan, NOW - 10, NOW + 10)),
            "end": st.sampled_from((np.nan, NOW)),
            "suspended_s": st.sampled_from((0.0, 5.0, np.nan)),
            "submit": st.sampled_from((NOW - 60, NOW - 20, np.nan)),
            "requeue": st.booleans(),
            "batch": st.booleans(),
        }
    ),
    max_size=8,
)


@given(JOBS)
def test_never_writable(jobs):
    raw = queue(*jobs)
    made = observe(raw, claims(len(raw)), config(scope={"not_accounts": ["out"], "only_partitions": ["gpu"]}))
    shown = made.snapshot.jobs
    active = [
        i for i, s in enumerate(raw.state) if s in STATES[:3] and raw.gpus[i] and np.isfinite(raw.submit[i])
    ]
    assert made.rows.tolist() == active
    assert shown.job_id.tolist() == raw.job_id[active].tolist()
    for i, r in enumerate(active):
        if shown.writable[i]:
            job = jobs[r]
            assert job["state"] == "PENDING"
            assert job["priority"] > 0
            assert job["nice"] != NICE_UNKNOWN
            assert not job["cron"]
            assert job["het_offset"] == 0
            assert not BUSY & set(job["flags"].split(","))
            assert (job["account"], job["partition"]) in (("lab", "gpu"), ("", "gpu"))
            assert job["reason"] in HELPED
        if shown.can_start[i]:
            assert shown.writable[i]
            assert jobs[r]["reason"] in STARTABLE
        if shown.requeueable[i]:
            assert jobs[r]["state"] == "RUNNING"
            assert jobs[r]["batch"]
            assert jobs[r]["requeue"]
    waits = shown.state == PENDING
    assert sum(made.barred.values()) == waits.sum() - shown.writable.sum()
    assert (shown.run_time >= 0).all()
    assert not shown.run_time[waits].any()
    assert np.isfinite(shown.lever).all()
    assert (made.snapshot.ended.run_time >= 0).all()
    assert not set(made.snapshot.ended.job_id.tolist()) & set(shown.job_id.tolist())
