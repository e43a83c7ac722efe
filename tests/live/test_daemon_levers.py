"""Each lever brings about the planned order on a real Slurm, and what users set survives it."""

from __future__ import annotations

import time

import pytest
from daemon_bed import CALM, URGENT, Site, in_slurms_order, lever_value, nice, priority, update, updates
from live_bed import epoch, run, wait_for


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("nice", marks=pytest.mark.core),
        "site_factor",
        pytest.param("priority", marks=pytest.mark.core),
    ],
)
def test_slurm_starts_the_jobs_in_the_order_planned(site: Site, kind: str) -> None:
    site.lever(kind)
    blocker, order = site.block(), site.order()
    past = site.submit("--comment=deadline=+1s", script=site.tell)
    calm = site.submit(f"--comment={CALM}", script=site.tell)
    first = site.submit(script=site.tell)
    second = site.submit("--comment=no claim at all", script=site.tell)
    urgent = site.submit(f"--comment={URGENT}", script=site.tell)
    # a claim that has passed at its first sight is none
    planned = [urgent, past, first, second, calm]
    wait_for(lambda: time.time() > epoch(past, "SubmitTime") + 2)
    assert in_slurms_order(planned) != planned
    seen = site.once().json
    assert (seen["result"], seen["writes"], seen["failed"]) == ("ok", 5, 0)
    assert in_slurms_order(planned) == planned
    run("scancel", str(blocker))
    wait_for(lambda: len(order()) == 5)
    assert order() == planned


@pytest.mark.parametrize(
    "kind", [pytest.param("nice", marks=(pytest.mark.core, pytest.mark.smoke)), "site_factor", "priority"]
)
def test_a_deadline_added_to_a_waiting_job_moves_it_in_the_next_cycle(site: Site, kind: str) -> None:
    site.lever(kind)
    site.block()
    first, second = site.submit(), site.submit()
    assert site.once().json["writes"] == 2
    assert in_slurms_order([first, second]) == [first, second]
    update(second, f"Comment=please {URGENT}", user="alice")
    done = site.once()
    assert (done.json["writes"], done.json["failed"]) == (1, 0)
    [write] = [e for e in done.log if e["event"] == "write"]
    assert (write["job"], write["field"], write["reason"][:15]) == (str(second), kind, "level 0: urgent")
    assert lever_value(kind, second) == write["new"]
    assert in_slurms_order([first, second]) == [second, first]
    # and back again once the claim is gone
    update(second, "Comment=never mind", user="alice")
    assert site.once().json["writes"] == 1
    assert in_slurms_order([first, second]) == [first, second]
    assert site.once().json["writes"] == 0


@pytest.mark.core
def test_a_plan_says_what_the_next_cycle_does(site: Site) -> None:
    site.block()
    jobs = [site.submit(f"--comment={URGENT}"), site.submit(), site.submit(f"--comment={CALM}", "--nice=7")]
    before = updates()
    table = site.tias("plan").out
    planned = {int(row["job"]): row for row in site.tias("plan", "--json").json["writes"]}
    assert updates() == before
    assert [nice(job) for job in jobs] == [0, 0, 7]
    assert sorted(planned) == jobs
    assert all(str(job) in table for job in jobs)
    site.once()
    assert [nice(job) for job in jobs] == [planned[job]["new"] for job in jobs]
    # the plan now knows what was written, whatever mode the settings name
    assert site.tias("plan", "--json").json["writes"] == []


@pytest.mark.core
def test_a_users_nice_stays_an_offset_under_nice(site: Site) -> None:
    site.block()
    plain, polite = site.submit(), site.submit("--nice=100")
    site.once()
    assert nice(plain) < 0
    assert nice(polite) == nice(plain) + 100
    assert site.once().json["writes"] == 0
    # what its owner sets later is a decision, and stands
    update(plain, "Nice=5", user="alice")
    seen = site.once().json
    assert (seen["writes"], seen["overridden"], nice(plain)) == (0, 1, 5)
    outcomes = site.tias("restore", "--json").json["outcomes"]
    assert outcomes == {"restored": 1, "changed by somebody else: left alone": 1}
    assert (nice(plain), nice(polite)) == (5, 100)


@pytest.mark.parametrize("kind", ["site_factor", "priority"])
def test_a_users_nice_is_kept_or_put_back_under_other_levers(site: Site, kind: str) -> None:
    site.lever(kind)
    site.block()
    job = site.submit("--nice=100")
    before = priority(job)
    site.once()
    assert nice(job) == (100 if kind == "site_factor" else 0)
    assert site.tias("restore", "--json").json["outcomes"] == {"restored": 1}
    assert nice(job) == 100
    assert abs(priority(job) - before) <= 1
