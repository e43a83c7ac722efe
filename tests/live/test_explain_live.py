"""What people see and order, on a real Slurm: explain, status, history, pause, ignore."""

from __future__ import annotations

from typing import Any

import pytest
from daemon_bed import CALM, URGENT, Site, nice, priority, update
from live_bed import python, run, shown, wait_for
from requeue_bed import YES, asked, fill, old_enough, on, reason_of, requeues_on, state, urgent, waiting


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
    rule = f"The daemon leaves {theirs} alone: user bob is in [scope] not_users. Slurm alone orders it, "
    for who in ("", "bob"):  # bob may not read the ledger, and need not
        said = site.tias("explain", str(theirs), user=who).out
        assert " ".join(said.split()).startswith(f"{rule}by priority {priority(theirs)}: ")
        assert "level" not in said
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


def test_the_first_line_of_jobs_that_no_place_helps(site: Site) -> None:
    """A date, the delay after a requeue, a node that is drained, a further component."""
    site.block()
    later = site.submit("--begin=now+1hour")
    again = waiting(site, "-w", "n2", "--requeue")
    wait_for(lambda: shown(again, "JobState") == "RUNNING")
    run("scontrol", "requeue", str(again))
    run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
    try:
        drained = waiting(site, "-w", "n3")
        leader = int(run("sbatch", "--parsable", "-o", "/dev/null", "--gpus=8", "-w", "n1", "--requeue", ":",
                         "--gpus=1", "--wrap", "sleep 900", user="alice").strip())  # fmt: skip
        site.jobs.append(leader)
        wait_for(lambda: reason_of(drained).startswith("ReqNodeNotAvail"))

        def first(job: int | str) -> str:
            line: str = site.tias("explain", str(job), "--json").json["answer"]
            assert site.tias("explain", str(job)).out.splitlines()[0].startswith(line[:60])
            return line

        assert first(later).startswith(f"{later} waits for its begin time, 20")
        assert first(again).startswith(f"{again} was requeued, and may start again at 20")
        assert "waits for nodes that are down, drained, reserved" in first(drained)
        assert "ReqNodeNotAvail" in first(drained)
        assert f"starts together with all of het job {leader}" in first(f"{leader}+1")
        assert "-0 s" not in site.tias("explain", str(later)).out
    finally:
        run("scontrol", "update", "NodeName=n3", "State=RESUME")


@pytest.mark.core
def test_why_nobody_is_requeued(site: Site) -> None:
    """No consent, too young, a cool-down; and what the planner then does."""
    requeues_on(site, min_run_s=3600)
    fill(site)
    unwilling, victim = on(site, "n1", gpus=2), on(site, "n1", YES, gpus=6)
    job = urgent(site, "-w", "n1", gpus=6)

    def nobody() -> dict[str, Any]:
        # after a write Slurm has to look at the job again
        wait_for(lambda: shown(job, "Reason") in ("Resources", "Priority"))
        page = " ".join(site.tias("explain", str(job)).out.split())
        told: dict[str, Any] = site.tias("explain", str(job), "--json").json["requeue"]["nobody_for_it"]
        assert told["planned"] or f"nobody is requeued for it: {told['why']}" in page
        return told

    told = nobody()
    assert told["why"] == "those that stand worse may not be requeued"
    assert told["worse"]["younger than 3600 s"] == 1
    assert told["worse"]["without consent"] >= 1
    assert site.tias("explain", str(unwilling), "--json").json["requeue"]["spared"] == "without consent"
    assert not site.tias("explain", str(victim), "--json").json["requeue"]["possible"]
    assert site.once().json["requeues"] == 0
    requeues_on(site, max_per_hour=0)
    old_enough(victim)
    assert "requeued in the last hour, as many as may be" in nobody()["why"]
    assert site.once().json["requeues"] == 0
    requeues_on(site, max_per_hour=20)
    assert nobody()["planned"] == 1
    assert site.tias("explain", str(victim), "--json").json["requeue"]["possible"]
    assert [line["job"] for line in asked(site.once())] == [str(victim)]


@pytest.mark.core
def test_what_a_requeue_bought(site: Site) -> None:
    """Another process than the one that requeued sees the start, and tells of it."""
    requeues_on(site)
    fill(site)
    victim = on(site, "n1", YES)
    old_enough(victim)
    job = urgent(site, "-w", "n1")
    assert site.once().json["requeues"] == 1
    [last] = site.tias("status", "--json", status=1).json["requeues"]["last"]
    assert (last["for"]["job_id"], last["for"]["became"]) == (job, None)
    wait_for(lambda: state(job) == "RUNNING")
    site.once()
    document = site.tias("status", "--json", status=1).json
    [last] = document["requeues"]["last"]
    assert (last["for"]["became"], last["for"]["met"]) == ("started", None)
    assert 0 <= last["for"]["after_s"] < 60
    assert document["requeues"]["bought"]["started"] == 1
    assert f"job {job} started" in " ".join(site.tias("status", status=1).out.split())
    [row] = site.tias("history", str(job), "--json").json["made_room"]
    assert (row["requeued"], row["became"]) == (victim, "started")
    sent = site.tias("history", str(victim), "--json").json["actions"]
    assert [a["bought"]["became"] for a in sent if a["action"] == "requeue"] == ["started"]
    run("scancel", str(job))
    wait_for(lambda: run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").split() == ["CANCELLED"])
    site.once()
    [row] = site.tias("history", str(job), "--json").json["made_room"]
    assert row["met"] is True
    assert "its deadline was met" in " ".join(site.tias("history", str(victim)).out.split())


@pytest.mark.core
def test_a_user_without_the_ledger_is_told_nothing_false(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    site.once()
    told = site.tias("explain", str(job), "--json", user="alice").json
    assert not told["ledger"]["known"]
    assert "may not read the ledger" in told["ledger"]["why"]
    lever = told["lever"]
    assert (lever["now"], lever["should_be"], lever["state"]) == (nice(job), None, "not known")
    page = site.tias("explain", str(job), user="alice").out
    assert "may not read the ledger" in page
    assert "to be written" not in page
    for words in (("history", str(job)), ("plan",)):
        refused = site.tias(*words, user="alice", status=2)
        assert "sudo" in refused.err
        assert "user_export" in refused.err
    # for root all is as it is
    assert site.tias("explain", str(job), "--json").json["lever"]["should_be"] == nice(job)
