"""What the ledger remembers of jobs on a real Slurm: requeues, array tasks, a controller that dies."""

from __future__ import annotations

import time

import pytest
from daemon_bed import URGENT, Site, controller_down, lever_value, nice, priority, saved, update
from live_bed import epoch, run, shown, wait_for


@pytest.mark.core
def test_a_requeue_keeps_first_submit_and_attained_service(site: Site) -> None:
    job = site.submit("--requeue", f"--comment={URGENT}", user="bob")
    wait_for(lambda: shown(job, "JobState") == "RUNNING")
    submitted = epoch(job, "SubmitTime")
    wait_for(lambda: time.time() > epoch(job, "StartTime") + 3)
    site.once()
    ran = site.known(job, "run_time")
    assert 3 <= ran < 60
    assert (site.known(job, "first_submit"), site.known(job, "attained")) == (submitted, 0)
    run("scontrol", "requeue", str(job), user="bob")
    wait_for(
        lambda: (shown(job, "JobState"), shown(job, "Restarts")) == ("PENDING", "1"),
    )
    assert epoch(job, "SubmitTime") > submitted
    site.once()
    assert site.known(job, "first_submit") == submitted
    assert site.known(job, "restarts") == 1
    # at least what was seen of the run
    assert 8 * ran <= site.known(job, "attained") <= 8 * (ran + 120)
    # and the deadline still counts from the first submit: the plan of another daemon's start agrees
    assert site.known(job, "first_submit") == submitted


def test_a_requeued_job_keeps_its_value_and_gets_no_other(site: Site) -> None:
    blocker = site.block()
    job = site.submit("--requeue", "--nice=3", f"--comment={URGENT}")
    site.once()
    value = nice(job)
    assert value < 0
    run("scancel", str(blocker))
    wait_for(
        lambda: shown(job, "JobState") == "RUNNING",
    )
    site.once()
    run("scontrol", "requeue", str(job))
    wait_for(
        lambda: shown(job, "JobState") == "PENDING",
    )
    for _ in range(2):
        seen = site.once().json
        assert (seen["writes"], seen["overridden"]) == (0, 0)
    assert nice(job) == value
    assert (site.known(job, "found"), site.known(job, "set")) == (3, value)
    assert site.tias("restore", "--json").json["outcomes"] == {"restored": 1}
    assert nice(job) == 3


@pytest.mark.parametrize("kind", [pytest.param("nice", marks=pytest.mark.core), "site_factor", "priority"])
def test_array_tasks_that_start_and_split(site: Site, kind: str) -> None:
    site.lever(kind)
    blocker = site.block()
    array = site.submit("--array=0-3", "--requeue", "--nice=6", f"--comment={URGENT}")
    assert site.once().json["writes"] == 1
    value = lever_value(kind, array)
    assert value == site.known(array, "set")
    run("scancel", str(blocker))
    wait_for(
        lambda: run("squeue", "-h", "-t", "R", "-j", str(array), "-o", "%i").strip() != "",
    )
    task = int(run("squeue", "-h", "-t", "R", "-j", str(array), "-o", "%A").split()[0])
    assert task != array
    seen = site.once().json
    assert (seen["writes"], seen["overridden"]) == (0, 0)
    for column in ("first_submit", "found", "set"):
        assert site.known(task, column) == site.known(array, column)
    # one waiting task is split off by its owner; it keeps what it has
    update(f"{array}_3", "TimeLimit=60")
    # the task that ran comes back
    run("scontrol", "requeue", f"{array}_0")
    wait_for(
        lambda: shown(task, "JobState") == "PENDING" and shown(task, "Restarts") == "1",
    )
    seen = site.once().json
    assert (seen["writes"], seen["overridden"]) == (0, 0)
    assert site.known(task, "found") == site.known(array, "found")
    done = site.tias("restore", "--json").json
    assert set(done["outcomes"]) == {"restored"}
    nices = {int(word) - 0 for word in run("squeue", "-h", "-r", "-j", str(array), "-O", "nice").split()}
    assert nices == {6}
    assert lever_value(kind, array) == (
        6 if kind == "nice" else 0 if kind == "site_factor" else priority(array)
    )


@pytest.mark.parametrize("down_s", [4, 30])
def test_a_controller_that_is_killed_and_comes_back(site: Site, down_s: int) -> None:
    site.settings(daemon={"rpc_timeout_s": 5.0})
    blocker = site.block()
    jobs = [site.submit(f"--comment={URGENT}"), site.submit("--nice=8"), site.submit(f"--comment={URGENT}")]
    daemon = site.start()
    daemon.cycles(1)
    values = [nice(job) for job in jobs]
    firsts = [site.known(job, "first_submit") for job in jobs]
    assert values[0] == values[2] < values[1] < 0
    saved(blocker)
    noted = site.audit()
    with controller_down(down_s):
        if down_s > 10:
            wait_for(
                lambda: bool(daemon.said("cycle", result="no answer")),
            )
    seen = len(daemon.said("cycle", result="ok"))
    wait_for(
        lambda: len(daemon.said("cycle", result="ok")) >= seen + 2,
    )
    assert daemon.process.poll() is None
    assert [nice(job) for job in jobs] == values
    assert [site.known(job, "first_submit") for job in jobs] == firsts
    assert site.audit() == noted
    # and it goes on
    late = site.submit(f"--comment={URGENT}")
    wait_for(lambda: nice(late) == values[0])
    assert site.audit() == noted + 1
    assert daemon.end() == 0
    assert set(site.tias("restore", "--json").json["outcomes"]) == {"restored"}
    assert [nice(job) for job in (*jobs, late)] == [0, 8, 0, 0]
