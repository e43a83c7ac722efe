"""Jobs that hold more once they run, and jobs in partitions that overlap, on a real Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from adapters import ADAPTERS
from daemon_bed import Site
from live_bed import configured, row, run, shown, wait_for
from requeue_bed import YES, asked, fill, old_enough, on, requeues_on, restarts, state, waiting

# with one GPU before every job without a deadline, with eight behind a new one
LONG = "deadline=+30h"
BOTH = ("-p", "gpu,debug")


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    with configured("PartitionName=whole Nodes=n[1-4] OverSubscribe=EXCLUSIVE State=UP"):
        yield


def starts(job: int) -> None:
    wait_for(lambda: state(job) == "RUNNING")


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_what_slurm_says_of_jobs_that_get_whole_nodes(site: Site, adapter: str) -> None:
    """Cases that the rule rests on: who gets more GPUs than it asks for."""
    block = [on(site, f"n{i}", user="root") for i in range(1, 5)]
    cases = {
        "exclusive": (("--exclusive",), True, 8),
        "by partition": (("-p", "whole"), True, 8),
        "all memory": (("--mem=0",), False, 1),
        "all CPUs": (("-N1", "-n", "16"), False, 1),
        "plain": ((), False, 1),
    }
    jobs = {name: waiting(site, "-w", "n1", *words, gpus=1) for name, (words, _, _) in cases.items()}
    made = ADAPTERS[adapter](30.0)
    try:
        table = made.jobs()
        assert table.exclusive is not None
        for name, (_, whole_nodes, _) in cases.items():
            seen = row(table, jobs[name])
            assert (bool(seen["exclusive"]), int(seen["gpus"])) == (whole_nodes, 1), name
        assert made.partitions()["whole"].exclusive
        assert not made.partitions()["gpu"].exclusive
        run("scancel", str(block[0]))
        for name in sorted(jobs, key=lambda n: jobs[n]):
            starts(jobs[name])
            assert int(row(made.jobs(), jobs[name])["gpus"]) == cases[name][2], name
            run("scancel", str(jobs[name]))
    finally:
        made.close()


@pytest.mark.parametrize("words", [("--exclusive",), ("-p", "whole")], ids=["exclusive", "partition"])
def test_two_jobs_do_not_requeue_each_other_in_turn(site: Site, words: tuple[str, ...]) -> None:
    requeues_on(site, cooldown_s=0)
    fill(site)
    large = on(site, "n1", YES)
    old_enough(large)
    small = waiting(site, *words, "-w", "n1", f"{YES} {LONG}", gpus=1, user="bob")
    wait_for(lambda: shown(small, "Reason") in ("Resources", "Priority"))
    # it would hold the node, and be requeued for the other in turn
    for _ in range(3):
        assert site.once().json["requeues"] == 0
    assert (state(large), restarts(large), state(small)) == ("RUNNING", 0, "PENDING")
    run("scancel", str(large))
    starts(small)
    old_enough(small)
    # the other way round: once, and then no more
    again = waiting(site, "-w", "n1", YES, user="alice")
    wait_for(lambda: shown(again, "Reason") in ("Resources", "Priority"))
    assert [line["job"] for line in asked(site.once())] == [str(small)]
    starts(again)
    old_enough(again)
    wait_for(lambda: shown(small, "Reason") in ("Resources", "Priority"), 300)
    for _ in range(3):
        assert site.once().json["requeues"] == 0
    assert (state(again), restarts(again), restarts(small)) == ("RUNNING", 0, 1)


def test_without_whole_nodes_it_has_the_place_that_its_size_gives(site: Site) -> None:
    requeues_on(site)
    fill(site)
    large = on(site, "n1", YES)
    old_enough(large)
    small = waiting(site, "-w", "n1", f"{YES} {LONG}", gpus=1, user="bob")
    wait_for(lambda: shown(small, "Reason") in ("Resources", "Priority"))
    assert site.once().json["requeues"] == 1
    starts(small)
    assert restarts(large) == 1


def reason(job: int) -> str:
    return run("squeue", "-h", "-j", str(job), "-O", "Reason:.120").strip()


def in_doubt(job: int) -> bool:
    return reason(job).replace("_", " ").startswith(("Nodes required", "ReqNodeNotAvail"))


def waits_counted(site: Site, job: int) -> bool:
    return site.known(job, "blocked_at") is None


@pytest.mark.core
def test_jobs_in_overlapping_partitions_have_others_requeued_for_them(site: Site) -> None:
    requeues_on(site)
    for name in ("n3", "n4"):
        on(site, name, "--exclusive", user="root")
    victims = [on(site, name, YES) for name in ("n1", "n2")]
    old_enough(*victims)
    jobs = [waiting(site, *BOTH, "--comment=deadline=+3h", user="bob") for _ in range(2)]
    with contextlib.suppress(AssertionError):  # not every release has these words for one of them
        wait_for(lambda: any(in_doubt(job) for job in jobs), 15)
    said = [reason(job) for job in jobs]
    done = site.once()
    assert done.json["requeues"] == 2, (said, done.json)
    assert all(waits_counted(site, job) for job in jobs)
    for job in jobs:
        starts(job)
    print("reasons:", said)


def test_jobs_whose_nodes_are_down_have_nobody_requeued_for_them(site: Site) -> None:
    requeues_on(site)
    for name in ("n3", "n4"):
        on(site, name, "--exclusive", user="root")
    victims = [on(site, name, YES) for name in ("n1", "n2")]
    old_enough(*victims)
    run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    try:
        job = waiting(site, *BOTH, "-w", "n1", "--comment=deadline=+3h", user="bob")
        wait_for(lambda: in_doubt(job))
        assert site.once().json["requeues"] == 0
        assert not waits_counted(site, job)
        # the same with one that both nodes would do for: the other one is there
        other = waiting(site, *BOTH, "--comment=deadline=+3h", user="bob")
        wait_for(lambda: shown(other, "Reason") != "None")
        assert [line["job"] for line in asked(site.once())] == [str(victims[1])]
        starts(other)
    finally:
        run("scontrol", "update", "NodeName=n1", "State=RESUME")
    # the node is there again
    assert [line["job"] for line in asked(site.once())] == [str(victims[0])]
    assert waits_counted(site, job)
    starts(job)


def test_nodes_that_are_reserved_are_not_there(site: Site) -> None:
    requeues_on(site)
    fill(site)
    victim = on(site, "n1", YES)
    old_enough(victim)
    run("scontrol", "create", "reservation", "ReservationName=kept", "StartTime=now", "Duration=60",
        "Users=root", "Nodes=n1", "Flags=IGNORE_JOBS")  # fmt: skip
    try:
        job = waiting(site, *BOTH, "-w", "n1", "--comment=deadline=+3h", user="bob")
        wait_for(lambda: shown(job, "Reason") != "None")
        assert site.once().json["requeues"] == 0
        assert restarts(victim) == 0
    finally:
        run("scontrol", "delete", "ReservationName=kept")


def test_a_higher_partition_goes_first(site: Site) -> None:
    requeues_on(site)
    with configured("PartitionName=first Nodes=n[1-2] PriorityTier=10 State=UP"):
        fill(site)
        victim = on(site, "n1", YES)
        old_enough(victim)
        low = waiting(site, *BOTH, "-w", "n1", "--comment=deadline=+3h", user="bob")
        held = waiting(site, "-p", "first", "-w", "n1", gpus=8, user="alice")
        wait_for(lambda: in_doubt(low))
        site.once()
        assert (restarts(victim), state(held)) == (0, "PENDING")
        assert not waits_counted(site, low)
