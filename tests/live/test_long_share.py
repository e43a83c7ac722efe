"""The cap on long work on a real Slurm: what is over it is held, and let go again; holds of people stay."""

from __future__ import annotations

import re
import signal

import pytest
from daemon_bed import URGENT, Done, Site, nice, priority, update
from live_bed import run, shown, wait_for
from requeue_bed import reason_of, state, waiting

US, THEM = "JobHeldAdmin", "JobHeldUser"


def capped(site: Site, share: float = 0.5) -> None:
    """Settings with a cap: 16 of the 32 GPUs."""
    site.settings(lever={"kind": "priority"}, planner={"long_share": share})


def runs(job: int) -> None:
    """Wait until it does."""
    wait_for(lambda: state(job) == "RUNNING")


def full(site: Site) -> list[int]:
    """Two jobs that run and have the whole share; the other two nodes are idle."""
    jobs = [waiting(site, "-w", node, gpus=8) for node in ("n1", "n2")]
    for job in jobs:
        runs(job)
    return jobs


def kept_waiting(site: Site, *words: str, node: str = "n3") -> int:
    """A long job that waits, as all CPUs of its node are taken. One to a node: of the next Slurm may say that
    its node is planned for another, and it is not held before that ends."""
    job = waiting(site, "-w", node, *words)
    wait_for(lambda: reason_of(job) in ("Resources", "Priority"))
    return job


def blocker(site: Site, node: str = "n3") -> int:
    """A job without GPUs that holds all CPUs of a node."""
    cpus = re.search(r"CPUTot=(\d+)", run("scontrol", "show", "node", node))
    assert cpus
    job = waiting(site, "-w", node, f"--ntasks={cpus[1]}", gpus=0, user="root")
    runs(job)
    return job


def all_held(site: Site, *jobs: int) -> None:
    """Cycles until all are held and seen to be."""
    wait_for(lambda: site.once().json["writes"] == 0 and all(reason_of(job) == US for job in jobs))


def writes(done: Done) -> dict[str, tuple[object, object]]:
    """Old and new values by job, of the log."""
    return {line["job"]: (line["old"], line["new"]) for line in done.log if line["event"] == "write"}


@pytest.mark.core
@pytest.mark.smoke
def test_what_is_over_the_share_is_held_short_jobs_start_and_room_lets_go(site: Site) -> None:
    capped(site)
    block, one = blocker(site), full(site)[0]
    long = kept_waiting(site, "--nice=70")
    done = site.once()
    assert writes(done) == {str(long): (0, "held")}
    assert [e["reason"] for e in done.log if e["event"] == "write"] == [
        "held: long jobs have their share of the GPUs"
    ]
    assert (reason_of(long), priority(long), nice(long)) == (US, 0, 70)
    # the nodes are free now, and the job stays held; one with a near deadline goes past it
    run("scancel", str(block))
    near = waiting(site, f"--comment={URGENT}", "-w", "n3")
    runs(near)
    assert site.once().json["writes"] == 0
    assert reason_of(long) == US
    told = site.tias("explain", str(long), "--json").json
    assert told["lever"]["now"] == told["lever"]["should_be"] == "held"
    assert "held: long jobs have their share of the GPUs" in told["answer"]
    assert "-2147483648" not in site.tias("explain", str(long)).out
    assert "-2147483648" not in site.tias("history", str(long)).out
    # room in the share
    run("scancel", str(one), str(near))
    wait_for(lambda: state(one) == "CANCELLED" and state(near) == "CANCELLED")
    done = site.once()
    assert list(writes(done)) == [str(long)]
    assert writes(done)[str(long)][0] == "held"
    assert done.json["failed"] == 0
    runs(long)
    assert site.once().json["overridden"] == 0


def test_who_waits_for_his_turn_in_a_hold_of_ours_does_not_begin_anew(site: Site) -> None:
    capped(site)
    blocker(site)
    one = full(site)[0]
    long = kept_waiting(site)
    site.once()
    since = site.known(long, "since")
    site.once()
    assert reason_of(long) == US
    run("scancel", str(one))
    wait_for(lambda: state(one) == "CANCELLED")
    assert list(writes(site.once())) == [str(long)]
    wait_for(lambda: shown(long, "EligibleTime") != "Unknown")
    site.once()
    assert site.known(long, "since") == since
    assert priority(long) > 10**9


@pytest.mark.core
def test_a_person_who_releases_a_job_is_not_overruled(site: Site) -> None:
    capped(site)
    blocker(site)
    blocker(site, "n4")
    full(site)
    long, other = kept_waiting(site), kept_waiting(site, node="n4")
    all_held(site, long, other)
    run("scontrol", "release", str(long))
    wait_for(lambda: shown(long, "EligibleTime") != "Unknown")
    done = site.once()
    assert list(writes(done)) == [str(long)]  # an ordinary place
    assert priority(long) > 10**9
    assert site.once().json["writes"] == 0
    assert (reason_of(long) in ("Resources", "Priority"), reason_of(other)) == (True, US)


def test_holds_of_people_stay_and_are_not_taken_for_ours(site: Site) -> None:
    capped(site)
    blocker(site)
    one = full(site)[0]
    by_user = kept_waiting(site)
    run("scontrol", "hold", str(by_user), user="alice")
    by_root = kept_waiting(site)
    update(by_root, "Priority=0")
    ours = kept_waiting(site)
    done = site.once()
    assert list(writes(done)) == [str(ours)]
    assert (reason_of(by_user), reason_of(by_root), reason_of(ours)) == (THEM, US, US)
    # one that we hold, taken over by a person
    run("scontrol", "uhold", str(ours))
    run("scancel", str(one))
    wait_for(lambda: state(one) == "CANCELLED")
    assert site.once().json["writes"] == 0
    assert (reason_of(by_user), reason_of(by_root), reason_of(ours)) == (THEM, US, THEM)
    results = {x["job"]: x["outcome"] for x in site.tias("restore", "--json").json["jobs"]}
    assert set(results.values()) <= {"restored"}
    assert (reason_of(by_user), reason_of(by_root), reason_of(ours)) == (THEM, US, THEM)


def test_tasks_of_an_array_are_held_and_let_go(site: Site) -> None:
    capped(site)
    blocker(site)
    full(site)
    array = kept_waiting(site, "--array=0-2")
    assert writes(site.once()) == {f"{array}_0-2": (0, "held")}
    assert site.once().json["writes"] == 0
    run("scontrol", "release", f"{array}_1")
    wait_for(lambda: "1 Resources" in tasks(array) or "1 Priority" in tasks(array))
    site.once()
    assert sorted(row.split()[1] == US for row in tasks(array)) == [False, True, True]
    site.tias("restore")
    assert all(row.split()[1] != US for row in tasks(array))


def tasks(array: int) -> list[str]:
    """Each task of an array with the reason why it waits."""
    return [line.strip() for line in run("squeue", "-h", "-r", "-j", str(array), "-o", "%K %r").splitlines()]


@pytest.mark.core
@pytest.mark.smoke
def test_restore_lets_go_of_all_after_a_kill(site: Site) -> None:
    capped(site)
    blocker(site)
    blocker(site, "n4")
    full(site)
    jobs = [kept_waiting(site), kept_waiting(site, "--nice=10", node="n4")]
    daemon = site.start()
    wait_for(lambda: all(reason_of(job) == US for job in jobs))
    daemon.end(signal.SIGKILL)
    outcomes = {x["job"]: (x["old"], x["outcome"]) for x in site.tias("restore", "--json").json["jobs"]}
    assert outcomes == dict.fromkeys(jobs, ("held", "restored"))
    assert all(reason_of(job) != US and priority(job) < 10**6 for job in jobs)
    assert [nice(job) for job in jobs] == [0, 10]
    assert site.tias("restore", "--json").json["jobs"] == []


def test_without_the_setting_all_that_we_held_are_let_go(site: Site) -> None:
    capped(site)
    blocker(site)
    full(site)
    long = kept_waiting(site)
    site.once()
    assert reason_of(long) == US
    site.settings(planner={"long_share": 1.0})
    site.once()
    assert reason_of(long) != US
    assert priority(long) > 10**9


def test_status_and_a_dry_run_tell_of_holds(site: Site) -> None:
    capped(site)
    blocker(site)
    full(site)
    long = kept_waiting(site)
    dry = site.once("dry-run")
    assert [e["new"] for e in dry.log if e["event"] == "would write"] == ["held"]
    assert reason_of(long) != US
    assert [row["new"] for row in site.tias("plan", "--json").json["writes"]] == ["held"]
    site.once()
    site.once()
    assert "1 waiting, 8 GPUs: long jobs have their share" in site.tias("status", status=None).out
