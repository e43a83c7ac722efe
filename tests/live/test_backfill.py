"""Jobs that ran and were requeued before the daemon was there: slurmdbd tells what they had.

Needs accounting: contrib/testbed/testbed up --accounting
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_bed import Site
from live_bed import epoch, has_accounting, left_out, run, shown, wait_for


@pytest.fixture(autouse=True)
def accounting() -> None:
    if not has_accounting():
        left_out("this cluster has no slurmdbd")


def runs_now(job: int | str) -> None:
    wait_for(lambda: shown(job, "JobState") == "RUNNING")


def requeue(job: int | str) -> int:
    """Requeue a job that has run for a while; how long its run was, s."""
    runs_now(job)
    start = epoch(job, "StartTime")
    wait_for(lambda: time.time() > start + 2)
    run("scontrol", "requeue", str(job))
    wait_for(lambda: shown(job, "JobState") == "PENDING")
    return epoch(job, "SubmitTime") - start


def go_on(job: int | str) -> None:
    """Have a requeued job start without its delay.

    In a later second than that of the requeue: until then slurmd takes its credential for the one that the
    requeue has revoked, and Slurm fails the job.
    """
    wait_for(
        lambda: "COMPLETING" not in run("squeue", "-h", "-j", str(job), "-O", "StateCompact:20,State:40")
    )
    requeued = epoch(job, "SubmitTime")
    wait_for(lambda: time.time() >= requeued + 2)
    run("scontrol", "update", f"JobId={job}", "StartTime=now")


def told(job: int, runs: int) -> None:
    """Wait until slurmdbd knows of all runs of a job that ended."""

    def known() -> bool:
        rows = run("sacct", "-a", "-D", "-X", "-n", "-P", "-j", str(job), "-o", "State").split()
        return rows.count("REQUEUED") == runs

    wait_for(known)


@contextlib.contextmanager
def no_slurmdbd() -> Iterator[None]:
    pid = int(subprocess.run(["pidof", "slurmdbd"], capture_output=True, check=True).stdout.split()[0])
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    try:
        yield
    finally:
        run("slurmdbd")
        wait_for(
            lambda: subprocess.run(["sacctmgr", "-n", "show", "cluster"], capture_output=True).returncode == 0
        )


@pytest.mark.core
def test_two_runs_and_a_task_before_the_daemon(site: Site) -> None:
    job = site.submit(gpus=2)
    first = epoch(job, "SubmitTime")
    ran = requeue(job)
    go_on(job)
    ran += requeue(job)
    array = site.submit("--array=3-4", gpus=1)
    runs_now(f"{array}_3")
    array_first = epoch(f"{array}_3", "SubmitTime")
    task_ran = requeue(f"{array}_3")
    task = int(shown(f"{array}_3", "JobId"))
    told(job, 2)
    told(task, 1)
    done = site.once()
    assert [e["jobs"] for e in done.log if e["event"] == "earlier runs"] == [2]
    assert site.known(job, "first_submit") == first
    assert abs(site.known(job, "attained") - 2 * ran) <= 2 * 2
    assert site.known(task, "first_submit") == array_first
    assert abs(site.known(task, "attained") - task_ran) <= 1
    assert site.known(job, "unseen") == site.known(task, "unseen") == 0
    again = site.once()
    assert [e for e in again.log if e["event"].startswith("earlier runs")] == []
    assert site.known(job, "first_submit") == first


def test_a_requeue_while_the_daemon_is_away(site: Site) -> None:
    job = site.submit("--comment=checkpoint=1s", gpus=2)
    runs_now(job)
    first = epoch(job, "SubmitTime")
    site.once()
    ran = requeue(job)
    told(job, 1)
    site.once()
    assert site.known(job, "first_submit") == first
    assert abs(site.known(job, "attained") - 2 * ran) <= 2
    assert abs(site.known(job, "kept") - ran) <= 1


def test_without_slurmdbd_it_goes_on(site: Site) -> None:
    job = site.submit(gpus=2)
    ran = requeue(job)
    told(job, 1)
    with no_slurmdbd():
        daemon = site.start()
        daemon.cycles(2)
        assert len(daemon.said("earlier runs are not known", jobs=1)) == 1
        assert daemon.said("cycle", result="ok")
        assert daemon.end() == 0
    assert site.known(job, "unseen") == 1
    site.once()
    assert site.known(job, "unseen") == 0
    assert abs(site.known(job, "attained") - 2 * ran) <= 2


def test_an_operator_may_ask(site: Site) -> None:
    job = site.submit(gpus=1)
    requeue(job)
    told(job, 1)
    done = site.once(user="tias")
    assert [e["jobs"] for e in done.log if e["event"] == "earlier runs"] == [1]
