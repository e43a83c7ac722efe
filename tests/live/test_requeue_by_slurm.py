"""Requeue mode "slurm" on a real Slurm, whose own preemption takes the victims."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_bed import CALM, URGENT, Site, priority, update
from live_bed import configured, run, shown, wait_for
from requeue_bed import YES, old_enough, on, restarts, state, waiting

from tias_slurm.levers import PRIORITY_BASE

LOW = PRIORITY_BASE + 5
EXEMPT = 10  # two intervals of the daemon


def restart() -> None:
    pid = int(Path("/run/slurmctld.pid").read_text())
    run("scontrol", "shutdown", "slurmctld")
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
    run("slurmctld")

    def answers() -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], capture_output=True, check=False, timeout=60, text=True
        )
        return done.returncode == 0 and "idle" in done.stdout

    wait_for(answers, 60)


@pytest.fixture(scope="module", autouse=True)
def slurm_preempts() -> Iterator[None]:
    with configured(
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE,WITHIN",
        f"PreemptExemptTime=00:00:{EXEMPT:02d}",
        # preemption is taken up at a start only
        take_up=restart,
    ):
        yield


def by_slurm(site: Site, **more: object) -> None:
    site.lever("priority")
    site.settings(requeue={"mode": "slurm", "min_run_s": 1, **more})


def test_slurm_takes_the_right_victim_and_nobody_else(site: Site) -> None:
    by_slurm(site)
    no_consent = on(site, "n1")
    cannot = on(site, "n2", YES, "--no-requeue")
    same_level = on(site, "n3", f"{YES} {URGENT}")
    victim = on(site, "n4", YES)
    cpus = int(run("sbatch", "--parsable", "-o", "/dev/null", "-w", "n4", "--wrap", "sleep 900"))
    site.jobs.append(cpus)
    wait_for(lambda: state(cpus) == "RUNNING")
    others = [no_consent, cannot, same_level, cpus]
    # nobody waits yet; who comes next must find them all in their places
    seen = site.once().json
    assert (seen["writes"], seen["failed"]) == (5, 0)
    old_enough(victim, *others, seconds=EXEMPT + 2)
    job = waiting(site, f"--comment={URGENT}", user="bob")
    time.sleep(5)
    assert [(state(j), restarts(j)) for j in (victim, *others)] == [("RUNNING", 0)] * 5
    done = site.once()
    # who may not be requeued stands above every waiting job, the others on top of their level
    assert done.json["failed"] == 0
    assert min(priority(j) for j in (no_consent, cannot, cpus)) > priority(job) > priority(victim)
    assert priority(same_level) >= priority(job)
    order = [line["job"] for line in done.log if line["event"] == "write"]
    assert order[-1] == str(job)
    wait_for(lambda: state(job) == "RUNNING", 40)
    assert shown(job, "NodeList") == "n4"
    assert restarts(victim) == 1
    time.sleep(10)
    assert [(state(j), restarts(j)) for j in others] == [("RUNNING", 0)] * 4
    # restore unpins them all, running ones too
    site.tias("restore")
    assert max(priority(j) for j in (job, *others)) < 1_000_000


def test_a_job_of_the_same_level_waits(site: Site) -> None:
    by_slurm(site)
    holds = [on(site, f"n{i}", f"{YES} {CALM}") for i in range(1, 5)]
    site.once()
    old_enough(*holds, seconds=EXEMPT + 2)
    job = waiting(site, f"--comment={CALM}", user="bob")
    assert site.once().json["failed"] == 0
    time.sleep(15)
    assert state(job) == "PENDING"
    assert [restarts(j) for j in holds] == [0] * 4


def test_an_administrators_value_of_a_running_job_holds_everybody_back(site: Site) -> None:
    by_slurm(site)
    cannot = on(site, "n1", YES, "--no-requeue")
    others = [on(site, f"n{i}") for i in range(2, 5)]
    assert site.once().json["failed"] == 0
    old_enough(cannot, *others, seconds=EXEMPT + 2)
    shielded = priority(cannot)
    # so low a value looks like none, and is raised again
    run("scontrol", "update", f"JobId={cannot}", "Priority=5")
    site.once()
    assert priority(cannot) == shielded
    run("scontrol", "update", f"JobId={cannot}", f"Priority={LOW}")
    job = waiting(site, f"--comment={URGENT}", user="bob")
    for _ in range(4):
        done = site.once()
        assert priority(job) <= priority(cannot) == LOW
    assert list(done.json["no_requeue_for"].values()) == [1]
    time.sleep(12)
    assert [(state(j), restarts(j)) for j in (cannot, *others)] == [("RUNNING", 0)] * 4
    assert state(job) == "PENDING"
    # theirs again: all is as it should be
    run("scontrol", "update", f"JobId={cannot}", f"Priority={shielded}")
    assert site.once().json["no_requeue_for"] == {}
    assert LOW < priority(job) < shielded
    time.sleep(12)
    assert state(cannot) == "RUNNING"


def test_owners_are_told_of_slurms_requeues_and_of_no_others(site: Site) -> None:
    by_slurm(site)
    site.settings(notify={"how": "output"}, metrics={"textfile": str(site.home / "t.prom")})
    mine = ("-o", f"{site.home}/out", "-e", f"{site.home}/err")
    victim = on(site, "n1", f"{YES},checkpoint=8s", *mine)
    by_hand = on(site, "n2", YES, "-e", f"{site.home}/err-by-hand")
    others = [on(site, f"n{i}") for i in (3, 4)]
    site.once()
    old_enough(victim, *others, seconds=EXEMPT + 2)
    # one goes back by hand, and Slurm takes the other for a job that the daemon raises
    run("scontrol", "requeue", str(by_hand))
    wait_for(lambda: restarts(by_hand) == 1)
    job = waiting(site, f"--comment={URGENT}", "-w", "n1", user="bob")
    site.once()
    wait_for(lambda: state(job) == "RUNNING" and restarts(victim) == 1, 60)

    def told() -> list[tuple[int, str, str | None]]:
        return site.query("SELECT job_id, reason, result FROM notice")

    def found() -> bool:
        site.once()
        return bool(told())

    wait_for(found, 60)
    # it waits to begin again; then it is told once, in the output of its next run
    assert told() == [(victim, "requeue", None)]
    run("scancel", str(job))
    update(victim, "StartTime=now")
    wait_for(lambda: state(victim) == "RUNNING")
    old_enough(victim, seconds=1)
    for _ in range(3):
        site.once()
    assert told() == [(victim, "requeue", "sent")]
    text = (site.home / "err").read_text()
    assert text.count("tias-slurm: ") == 1
    assert f"tias-slurm: job {victim} was requeued by Slurm: stopped and put back into the queue" in text
    assert "bob" not in text
    # counted, with what accounting says of the run
    [record] = [
        a for a in site.tias("history", str(victim), "--json").json["actions"] if a["action"] == "preempted"
    ]
    rows = run("sacct", "-DXnP", "-j", str(victim), "-o", "State,ElapsedRaw,End").splitlines()
    [(ran, end)] = [(int(r.split("|")[1]), r.split("|")[2]) for r in rows if r.startswith("PREEMPTED|")]
    assert (record["old"], record["new"]) == (ran, ran % 8)
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record["time"])) == end
    week = site.tias("status", "--json", status=None).json["requeues"]["by_slurm"]
    assert (week["requeues"], [x["job_id"] for x in week["last"]]) == (1, [victim])
    assert "requeued by Slurm" in site.tias("status", status=None).out
    assert not [
        a for a in site.tias("history", str(by_hand), "--json").json["actions"] if a["action"] == "preempted"
    ]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"lever": {"kind": "nice"}}, '[lever] kind = "priority"'),
        ({"requeue": {"min_run_s": 600}}, "PreemptExemptTime of 600 s or more"),
    ],
)
def test_settings_that_do_not_fit(site: Site, sections: dict[str, dict[str, object]], said: str) -> None:
    by_slurm(site)
    site.settings(**sections)
    done = site.tias("once", "--mode", "enforce", status=None)
    assert done.status != 0
    assert said in done.err
    checked = site.tias("check-config", "--live", status=None)
    assert said in checked.out
