"""Requeues on a real Slurm: who is left alone, and where a requeue would be for nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from daemon_bed import Site
from live_bed import run, shown, wait_for
from requeue_bed import YES, asked, old_enough, on, reason_of, requeues_on, restarts, state, urgent, waiting


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="consent not given"),
        pytest.param(("--comment=requeue=no",), id="consent refused"),
        pytest.param((YES, "--no-requeue"), id="no-requeue", marks=pytest.mark.core),
    ],
)
def test_a_job_that_may_not_be_requeued(site: Site, words: tuple[str, ...]) -> None:
    requeues_on(site)
    victim = on(site, "n1", *words)
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    done = site.once()
    assert (asked(done), done.json["requeues"], restarts(victim)) == ([], 0, 0)
    assert (state(victim), state(job)) == ("RUNNING", "PENDING")


def test_a_run_that_is_too_young(site: Site) -> None:
    requeues_on(site, min_run_s=600)
    victim = on(site, "n1", YES)
    urgent(site, "-w", "n1")
    old_enough(victim, seconds=5)
    assert asked(site.once()) == []
    assert (restarts(victim), state(victim)) == (0, "RUNNING")


def test_an_allocation_without_a_batch_script(site: Site) -> None:
    requeues_on(site)
    run("salloc", "--no-shell", "-w", "n1", "--gpus=8", YES, user="alice")
    victim = int(run("squeue", "-h", "-w", "n1", "-o", "%A").split()[0])
    site.jobs.append(victim)
    urgent(site, "-w", "n1")
    old_enough(victim)
    assert asked(site.once()) == []
    assert (restarts(victim), state(victim)) == (0, "RUNNING")


def test_a_job_out_of_scope(site: Site) -> None:
    requeues_on(site)
    site.settings(scope={"not_users": ["alice"]})
    victim = on(site, "n1", YES)
    urgent(site, "-w", "n1")
    old_enough(victim)
    assert asked(site.once()) == []
    assert (restarts(victim), state(victim)) == (0, "RUNNING")


def test_a_job_of_no_worse_level(site: Site) -> None:
    requeues_on(site)
    victim = on(site, "n1", f"{YES} deadline=+3h")
    urgent(site, "-w", "n1")
    old_enough(victim)
    assert asked(site.once()) == []
    assert (restarts(victim), state(victim)) == (0, "RUNNING")


@contextlib.contextmanager
def drained(node: str) -> Iterator[None]:
    run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        yield
    finally:
        run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_a_job_on_a_node_that_is_drained(site: Site) -> None:
    requeues_on(site)
    here, there = on(site, "n1", YES), on(site, "n2", YES, "--time=9:00:00")
    for name in ("n3", "n4"):
        on(site, name, "--exclusive", user="root")
    job = urgent(site)
    old_enough(here, there)
    with drained("n1"):
        done = site.once()
        assert [line["job"] for line in asked(done)] == [str(there)]
        wait_for(lambda: state(job) == "RUNNING")
    assert shown(job, "NodeList") == "n2"
    assert (restarts(here), state(here)) == (0, "RUNNING")


@pytest.mark.core
def test_a_job_whose_end_would_not_be_enough(site: Site) -> None:
    requeues_on(site)
    # a job without GPUs, which is none of ours, has the CPUs
    other = int(run("sbatch", "--parsable", "-o", "/dev/null", "-w", "n1", "-n", "14", "--wrap", "sleep 900"))
    site.jobs.append(other)
    victim = on(site, "n1", YES)
    job = urgent(site, "-w", "n1", "-n", "4")
    old_enough(victim)
    assert asked(site.once()) == []
    assert (restarts(victim), state(victim), state(job)) == (0, "RUNNING", "PENDING")
    # with less to ask for, it would be
    run("scancel", str(job))
    job = urgent(site, "-w", "n1", "-n", "2")
    assert [line["job"] for line in asked(site.once())] == [str(victim)]
    wait_for(lambda: state(job) == "RUNNING")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--contiguous", "-w", "n1"), "asks for nodes side by side"),
        (("-w", "n1", "--sockets-per-node=1"), "asks for sockets or cores"),
        (("-w", "n1", "--exclusive=user"), "shares nodes with its user's jobs only"),
    ],
)
def test_a_request_that_is_not_understood(site: Site, words: tuple[str, ...], why: str) -> None:
    requeues_on(site)
    victim = on(site, "n1", YES)
    job = urgent(site, *words)
    old_enough(victim)
    done = site.once()
    assert asked(done) == []
    assert done.json["no_requeue_for"] == {why: 1}
    assert (restarts(victim), state(victim), state(job)) == (0, "RUNNING", "PENDING")


def test_paused_and_in_a_dry_run(site: Site) -> None:
    requeues_on(site)
    victim = on(site, "n1", YES)
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    for _ in range(2):
        done = site.once(mode="dry-run")
        # it is said in every cycle, since nothing has been done
        assert [line["job"] for line in asked(done, "would requeue")] == [str(victim)]
        assert (done.json["requeues"], done.json["failed"]) == (0, 0)
    counted = site.query("SELECT requeues, requeued_at FROM job WHERE job_id = ?", victim, name=DRY)
    assert counted == [(0.0, None)]
    [planned] = site.tias("plan", "--json").json["requeues"]
    assert (planned["job"], planned["beneficiary"]) == (str(victim), str(job))
    site.state.joinpath("paused").touch()
    done = site.once()
    assert (asked(done), done.json["paused"]) == ([], True)
    assert (restarts(victim), state(victim)) == (0, "RUNNING")
    site.state.joinpath("paused").unlink()
    assert site.once().json["requeues"] == 1
    wait_for(lambda: restarts(victim) == 1)


DRY = "ledger-dry-run.sqlite"


def test_without_rights_nobody_is_requeued(site: Site) -> None:
    requeues_on(site)
    victim = on(site, "n1", YES)
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    site.home.chmod(0o777)
    site.state.mkdir(mode=0o777)
    site.state.chmod(0o777)
    done = site.once(user="carol")
    assert done.json["requeues"] == 0
    assert (restarts(victim), state(victim), reason_of(job)) == (0, "RUNNING", "Resources")
    assert site.known(victim, "requeues") == 0


def test_the_rest_of_an_array_is_left_alone(site: Site) -> None:
    requeues_on(site)
    array = waiting(site, YES, "--array=0-2", "-w", "n1", gpus=4)
    wait_for(lambda: state(f"{array}_0") == state(f"{array}_1") == "RUNNING")
    job = urgent(site, "-w", "n1", gpus=4)
    old_enough(f"{array}_0", f"{array}_1")
    lines: list[dict[str, Any]] = []

    def requeued() -> bool:
        # until it has its place, Slurm says now and then that the node is planned for the third task
        lines.extend(asked(site.once()))
        return bool(lines)

    wait_for(requeued)
    [line] = lines
    assert line["job"] in (f"{array}_0", f"{array}_1")
    wait_for(lambda: state(job) == "RUNNING")
    assert sorted(restarts(f"{array}_{task}") for task in (0, 1)) == [0, 1]
    other = 1 - int(line["job"].rpartition("_")[2])
    assert (state(f"{array}_{other}"), state(f"{array}_2")) == ("RUNNING", "PENDING")
    assert restarts(f"{array}_2") == 0
