"""`tias-slurm report` on a real Slurm with a real slurmdbd: its figures are what the test knows."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from daemon_bed import URGENT, Site
from live_bed import epoch, has_accounting, left_out, run, shown, wait_for
from requeue_bed import YES, on, requeues_on, restarts, urgent, waiting

HOUR_S = 3600.0


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def a_clean_start() -> float:
    """A time, epoch s, after all that was there before."""
    began = int(time.time()) + 1
    time.sleep(max(0.0, began + 1 - time.time()))
    return float(began)


def in_accounting(job: int) -> bool:
    """Whether slurmdbd knows how a job ended."""
    states = run("sacct", "-n", "-X", "-j", str(job), "-o", "State").split()
    return bool(states) and states[-1] not in ("RUNNING", "PENDING")


@pytest.mark.core
def test_what_is_told_is_what_happened(site: Site) -> None:
    if not has_accounting():
        left_out("the cluster has no slurmdbd")
    requeues_on(site)
    began = a_clean_start()
    victim = on(site, "n1", YES)
    daemon = site.start()
    daemon.cycles(1)
    # takes the victim's node, and meets its deadline
    met = urgent(site, "-w", "n1", gpus=8)
    run("scontrol", "update", f"JobId={met}", "TimeLimit=10")
    # cannot meet its own, whatever anybody does
    lost = waiting(site, "--comment=deadline=+12s", "-w", "n2", script="sleep 25", user="bob")
    plain = waiting(site, "-w", "n3", script="sleep 5")
    wait_for(lambda: shown(met, "JobState") == "RUNNING")
    assert restarts(victim) == 1
    daemon.cycles(1)
    run("scancel", str(met))  # it has done what it had to
    for job in (met, lost, plain):
        wait_for(lambda job=job: in_accounting(job))
    daemon.cycles(1)
    assert daemon.end() == 0
    cycles, writes = len(daemon.said("cycle", result="ok")), len(daemon.said("write"))

    told = site.tias("report", "--since", iso(began), "--json").json
    done, out = told["done"], told["outcome"]
    assert done["cycles"] == {"ok": cycles}
    assert sum(sum(n.values()) for n in done["writes"].values()) == writes >= 1
    assert done["requeues"] == {"ok": 1}
    [one] = done["requeue_list"]
    assert (one["job"], one["user"], one["gpus"]) == (str(victim), "alice", 8)
    assert (one["for"]["job"], one["for"]["user"], one["for"]["deadline"]) == (str(met), "bob", True)
    assert done["lost_gpu_hours"] == pytest.approx(8 * site.known(victim, "redone") / HOUR_S)
    assert done["lost_gpu_hours"] > 0

    assert (out["deadline_jobs"], out["met"], out["missed"]) == (2, 1, 1)
    assert out["impossible_jobs"] == [str(lost)]
    assert out["non_deadline_jobs"] == 1
    assert out["jct_mean_s"] == epoch(plain, "EndTime") - epoch(plain, "SubmitTime")
    ran = {job: epoch(job, "EndTime") - epoch(job, "StartTime") for job in (met, lost)}
    assert out["deadline_miss_rate_gpu_weighted"] == pytest.approx(ran[lost] / sum(ran.values()), abs=0.01)

    worth = told["worth"]
    assert worth["cluster"]["gpus"] == 32
    assert worth["without"]["deadline_jobs"] == worth["model"]["deadline_jobs"] == 2
    # nobody could have met that one
    assert {p["missed"] for p in worth["policies"].values()} == {1}

    page = site.tias("report", "--since", iso(began)).out
    assert "1 met, 1 missed of 2 that ended" in page
    hidden = site.tias("report", "--since", iso(began), "--json", "--anonymise").out
    assert "user1" in hidden
    for name in ("alice", "bob", URGENT):
        assert name not in hidden


def test_a_time_in_which_nothing_was(site: Site) -> None:
    if not has_accounting():
        left_out("the cluster has no slurmdbd")
    site.once()
    words = ("report", "--since", "2001-01-01", "--until", "2001-01-02")
    done = site.tias(*words, status=3)
    assert "the ledger has no record of that time" in done.out
    assert "sacct knows of no job in that time" in done.out
    assert site.tias(*words, "--json", status=3).json["outcome"] is None
