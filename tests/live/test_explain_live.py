"""What people see and order, on a real Slurm: explain, status, history, pause, ignore."""

from __future__ import annotations

import pytest
from daemon_bed import CALM, URGENT, Site, nice, update
from live_bed import python, run, wait_for


@pytest.mark.core
def test_explain_is_what_the_daemon_does(site: Site) -> None:
    """The value that it should have is the one that the daemon then writes."""
    blocker = site.block()
    jobs = [site.submit(), site.submit(f"--comment={URGENT}"), site.submit(f"--comment={CALM}")]
    before = {job: site.tias("explain", str(job), "--json").json for job in jobs}
    assert [before[job]["class"] for job in jobs] == ["no deadline", "urgent", "calm"]
    site.once()
    for job in jobs:
        after = site.tias("explain", str(job), "--json").json
        assert nice(job) == before[job]["lever"]["should_be"] == after["lever"]["now"]
        assert after["lever"]["state"] == "in place"
    place = site.tias("explain", str(jobs[1]), "--json").json["place"]
    assert place["startable"] == 0
    assert site.tias("explain", str(blocker), "--json").json["answer"].startswith(f"{blocker} runs")
    page = site.tias("explain", str(jobs[0])).out
    assert page.startswith(f"{jobs[0]} waits its turn: 1 job (8 GPUs) stands before it")
    assert "Slurm says" in page


def test_explain_changes_nothing(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    site.tias("explain", str(job))
    assert nice(job) == 0
    assert not site.state.exists()


def test_names_that_squeue_shows(site: Site) -> None:
    site.block()
    array = site.submit("--array=0-5")
    assert site.tias("explain", f"{array}_3", "--json").json["job_id"] == array
    held = site.submit("--hold")
    assert "because it is held" in site.tias("explain", str(held)).out
    run("scancel", str(held))
    done = site.tias("explain", str(held), status=3)
    assert "has ended: CANCELLED" in done.out


@pytest.mark.core
def test_why_a_write_is_not_done(site: Site) -> None:
    site.block()
    site.settings(scope={"not_users": ["bob"]})
    mine, theirs = site.submit(), site.submit(user="bob")
    site.once()
    update(mine, "Nice=5")
    lever = site.tias("explain", str(mine), "--json").json["lever"]
    assert lever["because"].startswith("overridden")
    assert site.tias("explain", str(theirs), "--json").json["lever"]["because"] == "out of scope"
    pinned = site.submit()
    update(pinned, "Priority=4711")
    assert site.tias("explain", str(pinned), "--json").json["lever"]["because"].startswith("pinned")


@pytest.mark.core
def test_status_and_the_hands_on_the_wheel(site: Site) -> None:
    site.block()
    jobs = [site.submit(), site.submit(f"--comment={URGENT}"), site.submit("--comment=deadline=18:00")]
    site.state.mkdir()
    site.tias("ignore", str(jobs[0]))
    daemon = site.start()
    daemon.cycles(1)
    told = site.tias("status", "--json").json
    assert told["daemon"]["pid"] == daemon.process.pid
    assert told["daemon"]["well"]
    assert (told["queue"]["waiting"], told["queue"]["running"]) == (3, 1)
    assert told["queue"]["left_alone"] == {"ignored": 1}
    assert sum(told["queue"]["refused_claims"].values()) == 1
    assert (nice(jobs[0]), nice(jobs[1]) < 0) == (0, True)
    site.tias("pause", "--reason", "looking")
    site.tias("unignore", str(jobs[0]))
    daemon.cycles(2)
    assert nice(jobs[0]) == 0
    assert "paused" in site.tias("status").out.splitlines()[0]
    site.tias("resume")
    wait_for(lambda: nice(jobs[0]) < 0)
    assert daemon.end() == 0
    assert site.tias("status", status=1).out.startswith("not running")
    actions = site.tias("history", str(jobs[0]), "--json").json["actions"]
    assert [(a["action"], a["result"], a["new"]) for a in actions] == [("nice", "ok", nice(jobs[0]))]


@pytest.mark.core
def test_users_see_their_own_jobs_and_no_others(site: Site) -> None:
    """The daemon's ledger is closed to users; what it leaves for alice only alice can read."""
    site.block()
    where = site.home / "users"
    site.settings(daemon={"user_export": str(where)})
    mine, theirs = site.submit(f"--comment={URGENT}"), site.submit(user="bob")
    site.once()
    assert site.state.stat().st_mode & 0o777 == 0o750
    told = site.tias("explain", str(mine), "--json", user="alice").json
    assert (told["lever"]["found"], told["lever"]["set"]) == (0, nice(mine))
    assert told["lever"]["state"] == "in place"
    # bob's job is as Slurm shows it to everybody, and not as the ledger knows it
    assert site.tias("explain", str(theirs), "--json", user="alice").json["lever"]["set"] is None
    uids = {user: run("id", "-u", user).strip() for user in ("alice", "bob")}
    assert run("cat", str(where / uids["alice"] / "jobs.json"), user="alice")
    for path in (where / uids["bob"] / "jobs.json", where / uids["bob"], where):
        denied = f"import os; print(any(os.access({str(path)!r}, how) for how in (os.R_OK, os.W_OK)))"
        assert python(denied, user="alice").strip() == "False", path
