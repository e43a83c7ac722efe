"""What the daemon leaves alone on a real Slurm: people's decisions, what priority cannot cure, and noes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_bed import URGENT, Site, lever_value, nice, priority, reason, site_factor, update, updates
from live_bed import configured, run, shown, wait_for

LEVERS = ("nice", "site_factor", "priority")


@pytest.mark.parametrize("kind", [pytest.param("nice", marks=pytest.mark.core), "site_factor", "priority"])
def test_held_jobs_stay_held(site: Site, kind: str) -> None:
    site.lever(kind)
    site.block()
    by_user = site.submit("--hold", f"--comment={URGENT}")
    by_admin, later = site.submit(f"--comment={URGENT}"), site.submit(f"--comment={URGENT}")
    run("scontrol", "hold", str(by_admin))
    seen = site.once().json
    assert (seen["writes"], seen["barred"]["held"]) == (1, 2)
    run("scontrol", "uhold", str(later))
    assert site.once().json["writes"] == 0
    for job in (by_user, by_admin, later):
        assert (shown(job, "JobState"), priority(job)) == ("PENDING", 0)
    assert (nice(by_user), nice(by_admin)) == (0, 0)
    # released, they are jobs like others
    for job in (by_user, by_admin, later):
        run("scontrol", "release", str(job))
    released = (by_user, by_admin, later)
    wait_for(lambda: bool(site.once()) and len({lever_value(kind, job) for job in released}) == 1)
    assert lever_value(kind, later) != 0


@pytest.mark.parametrize(
    ("kind", "pin"),
    [
        pytest.param("nice", 1, marks=pytest.mark.core),
        *((kind, pin) for kind in LEVERS for pin in (1, 7_000_000) if (kind, pin) != ("nice", 1)),
    ],
)
def test_a_job_pinned_by_an_administrator_is_left_alone(site: Site, kind: str, pin: int) -> None:
    site.lever(kind)
    site.block()
    early, late, other = site.submit(), site.submit(f"--comment={URGENT}"), site.submit()
    update(early, f"Priority={pin}")
    assert site.once().json["writes"] == 2
    assert priority(early) == pin
    update(late, f"Priority={pin}")
    before = updates()
    for _ in range(2):
        seen = site.once().json
        assert (seen["writes"], seen["failed"]) == (0, 0)
    assert updates() == before
    assert (priority(early), priority(late)) == (pin, pin)
    # restore undoes ours and nothing else
    site.tias("restore")
    assert (priority(early), priority(late)) == (pin, pin)
    assert (nice(other), nice(early), nice(late)) == (0, 0, 0)
    for job in (early, late):
        run("scontrol", "release", str(job))
    wait_for(lambda: site_factor(early) == site_factor(late) == 0 != priority(late) != pin)
    # and is no longer, once it is released
    assert site.once().json["writes"] == 3


@contextlib.contextmanager
def no_jobs_of(user: str) -> Iterator[None]:
    """An association limit that keeps a user's jobs waiting."""
    run("sacctmgr", "-i", "modify", "user", user, "set", "MaxJobs=0")
    try:
        yield
    finally:
        run("sacctmgr", "-i", "modify", "user", user, "set", "MaxJobs=-1")


@contextlib.contextmanager
def no_gpus_in_qos(qos: str) -> Iterator[None]:
    """A QOS limit that keeps its jobs waiting."""
    run("sacctmgr", "-i", "modify", "qos", qos, "set", "GrpJobs=0")
    try:
        yield
    finally:
        run("sacctmgr", "-i", "modify", "qos", qos, "set", "GrpJobs=-1")


@contextlib.contextmanager
def reserved(name: str) -> Iterator[None]:
    """A reservation that begins in an hour."""
    run(
        "scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now+1hour", "Duration=10",
        "Users=root,alice", "Nodes=n2",
    )  # fmt: skip
    try:
        yield
    finally:
        # it counts as in use until the last job that names it is gone
        run("scancel", f"--reservation={name}")
        delete = ("scontrol", "delete", f"ReservationName={name}")
        wait_for(lambda: subprocess.run(delete, capture_output=True, check=False).returncode == 0)


@pytest.mark.parametrize("kind", [pytest.param("nice", marks=pytest.mark.core), "site_factor", "priority"])
def test_what_priority_cannot_cure_is_not_raised(site: Site, kind: str) -> None:
    site.lever(kind)
    blocker = site.block()
    with no_jobs_of("carol"), no_gpus_in_qos("high"), reserved("tias_test"):
        claim = f"--comment={URGENT}"
        blocked = {
            "Dependency": site.submit(claim, f"--dependency=afterok:{blocker}"),
            "AssocMaxJobsLimit": site.submit(claim, user="carol"),
            "QOSGrpJobsLimit": site.submit(claim, "--qos=high"),
            "Reservation": site.submit(claim, "-w", "n2", "--reservation=tias_test"),
        }
        free = site.submit(claim)
        for why, job in blocked.items():
            wait_for(lambda job=job, why=why: reason(job) == why)  # type: ignore[misc]
        before = {job: priority(job) for job in blocked.values()}
        sent = updates()
        assert site.once().json["writes"] == 1
        assert site.once().json["writes"] == 0
        assert updates() == sent + 1
        assert lever_value(kind, free) != 0
        for job in blocked.values():
            assert (nice(job), priority(job)) == (0, before[job])
        site.clean()


@pytest.mark.core
def test_a_site_that_refuses_changes_is_asked_once(site: Site) -> None:
    site.block()
    jobs = [site.submit(), site.submit(f"--comment={URGENT}")]
    Path("/etc/slurm/job_submit.lua").write_text(
        "function slurm_job_submit(d, p, u) return slurm.SUCCESS end\n"
        'function slurm_job_modify(d, r, p, u) slurm.log_user("not\\nhere") return slurm.ERROR end\n'
    )
    with configured("JobSubmitPlugins=lua"):
        seen = site.once().json
        assert (seen["result"], seen["writes"], seen["failed"]) == ("ok", 0, 2)
        results = site.query("SELECT job_id, result, message FROM audit ORDER BY job_id")
        assert [(job, result) for job, result, _ in results] == [(job, "refused") for job in jobs]
        assert all(message for _, _, message in results)
        before = updates()
        for _ in range(2):
            seen = site.once().json
            assert (seen["writes"], seen["failed"]) == (0, 0)
        assert (updates(), site.audit()) == (before, 2)
    assert [nice(job) for job in jobs] == [0, 0]


@pytest.mark.core
def test_an_operator_may_do_all_of_it(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    seen = site.once(user="tias").json
    assert (seen["writes"], seen["failed"]) == (1, 0)
    assert nice(job) < 0
    assert site.tias("restore", "--json", user="tias").json["outcomes"] == {"restored": 1}
    assert nice(job) == 0


@pytest.mark.core
def test_without_rights_nothing_is_written_and_it_is_said_once(site: Site) -> None:
    site.block()
    jobs = [site.submit(), site.submit(f"--comment={URGENT}")]
    daemon = site.start(user="carol")
    daemon.cycles(2)
    assert daemon.end() == 0
    assert len(daemon.said("no rights")) == 1
    assert daemon.said("no rights")[0]["level"] == "error"
    assert [nice(job) for job in jobs] == [0, 0]
    assert site.query("SELECT DISTINCT result FROM audit") == [("no rights",)]
    assert site.audit() <= 2


def test_each_lever_without_rights(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    before = priority(job)
    for kind in LEVERS:
        site.lever(kind)
        site.settings(daemon={"state_dir": str(site.home / kind)})
        seen = site.once(user="bob").json
        assert (seen["writes"], seen["failed"]) == (0, 1)
        assert (nice(job), abs(priority(job) - before) <= 1) == (0, True)
