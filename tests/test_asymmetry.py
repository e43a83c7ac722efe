"""Nobody preempts a job that it would be preempted by in turn, and who waits for nodes that are there may."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import NOW, config, nodes, queue, running
from test_live_nodes import asked
from test_live_requeue import Requeueing

from tias_slurm.policy.tias import PRESETS
from tias_slurm.slurm.command_places import parse_partitions
from tias_slurm.slurm.live import Partition, Reservation

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
STEP_S = 5.0
WEIGHTS = {"a100": 1.0, "h100": 6.0}


class Pair:
    """Two jobs that want the same node of eight GPUs; whoever is requeued waits for it again."""

    def __init__(self, jobs, *, weights=None, types="", ran=5000.0, **policy):
        made = config(
            requeue={"mode": "on", "min_run_s": 1, "cooldown_s": 0.0}, policy=policy,
            gpus={"weights": weights or {}}, deadlines={"max_window_s": 1e9},
        )  # fmt: skip
        self.jobs, self.now, self.types = jobs, NOW, types
        self.starts, self.waits_since, self.restarts = {1: NOW - ran}, {}, {1: 0, 2: 0}
        busy = {"gpus_used": 8, "cpus_used": 16, "gpu_types": types}
        self.world = Requeueing(queue(), settings=made, place=nodes(busy))
        self.world.adapter.asked = {
            job: asked(
                tres_per_node=f"gres/gpu:{said['gpus']}", Exclusive="NODE" if said["exclusive"] else "NO"
            )
            for job, said in jobs.items()
        }

    def queue(self):
        rows = []
        for job, said in self.jobs.items():
            fixed = {
                "job_id": job, "submit": self.waits_since.get(job, NOW - 20_000.0),
                "comment": said["comment"], "restarts": self.restarts[job],
                "exclusive": said["exclusive"], "gpus": said["gpus"],
            }  # fmt: skip
            if job in self.starts:
                # a second one beside it fills the node, which nobody may take
                held = 8 if said["exclusive"] else said["gpus"]
                place = {"start": self.starts[job], "node_list": "n1", "gpu_type": self.types}
                rows.append(running(**fixed | place | {"gpus": held}))
            else:
                rows.append({**fixed, "reason": "Resources"})
        return queue(*rows, time=self.now)

    def swaps(self, looks):
        """How often one was requeued for the other."""
        count = 0
        for _ in range(looks):
            self.world.adapter.queues = deque([self.queue()])
            gone = self.world.requeues()
            self.now += STEP_S
            for job in gone:
                count += 1
                self.starts = {3 - job: self.now}
                self.waits_since[job] = self.now
                self.restarts[job] += 1
            self.world.adapter.values = {
                key: value for key, value in self.world.adapter.values.items() if key[0] not in gone
            }
        return count


SAYS = st.fixed_dictionaries({
    "gpus": st.just(8) | st.integers(1, 8),
    "exclusive": st.booleans(),
    "comment": st.builds(
        "requeue=yes{}{}".format,
        st.sampled_from(["", *(f" deadline=+{h}h" for h in (7, 9, 12, 20, 30, 48, 72, 120, 300, 900))]),
        st.sampled_from(["", " checkpoint=1s", " checkpoint=20m"]),
    ),
})  # fmt: skip


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("more", [{}, {"weights": WEIGHTS, "types": "h100"}], ids=["plain", "weights"])
def test_no_pair_of_jobs_requeues_each_other_in_turn(preset, more):
    seen = []

    @given(SAYS, SAYS, st.sampled_from([20.0, 600.0, 5000.0, 19_000.0]))
    @settings(max_examples=80)
    def check(first, second, ran):
        swaps = Pair({1: first, 2: second}, preset=preset, ran=ran, **more).swaps(6)
        seen.append(swaps)
        assert swaps <= 1

    check()
    assert 1 in seen  # some do preempt


def test_the_pair_that_did():
    """Small while it waits, eight GPUs once it runs."""
    small = {"gpus": 1, "exclusive": True, "comment": "requeue=yes deadline=+30h"}
    large = {"gpus": 8, "exclusive": False, "comment": "requeue=yes"}
    pair = Pair({1: large, 2: small})
    assert pair.swaps(8) <= 1
    weight = pair.world.cluster.observed.snapshot.jobs.weight
    assert weight.tolist() == [8.0, 8.0]


def test_a_pair_of_which_the_gpus_weigh_more_than_it_asks_for():
    """It waits with eight GPUs of an open type, and runs with eight that count six each."""
    first = {"gpus": 8, "exclusive": False, "comment": "requeue=yes"}
    second = {**first, "comment": "requeue=yes deadline=+20h"}
    # of 28,800 GPU-seconds of service either way
    plain = Pair({1: first, 2: second}, weights=WEIGHTS, types="a100", ran=3600.0)
    heavy = Pair({1: first, 2: second}, weights=WEIGHTS, types="h100", ran=600.0)
    assert (plain.swaps(6), heavy.swaps(6)) == (1, 0)


def test_service_counts_as_what_it_was_received_on():
    """Not as what the job asks for now that it waits again."""
    first = {"gpus": 8, "exclusive": False, "comment": "requeue=yes"}
    pair = Pair({1: first, 2: {**first, "comment": "deadline=+7h"}}, weights=WEIGHTS, types="h100")
    assert pair.swaps(1) == 1
    pair.swaps(1)
    assert pair.world.controller.seen.known.attained[0] == 5000 * 48


def test_an_exclusive_job_counts_the_nodes_that_it_would_get():
    def weight(*place, weights=None, **job):
        world = Requeueing(
            queue({"job_id": 20, "exclusive": True, "gpus": 1, **job}), place=nodes(*place),
            settings=config(gpus={"weights": weights or {}}),
        )  # fmt: skip
        world.cluster.observe()
        snapshot = world.cluster.observed.snapshot
        return snapshot.jobs.weight.tolist(), snapshot.allocated.tolist(), snapshot.jobs.gpus.tolist()

    eight, four = {}, {"gpus": 4}
    assert weight(eight) == ([8.0], [8.0], [1])
    assert weight(eight, nodes=3) == ([24.0], [24.0], [1])
    # the largest that it may get; not those of other partitions, nor without the type that it asks for
    assert weight(four, eight) == ([8.0], [8.0], [1])
    assert weight(four, {"partitions": frozenset({"x"})}) == ([4.0], [4.0], [1])
    types = {"gpu_types": "a100"}, {"gpu_types": "h100", "gpus": 4}
    assert weight(*types, gpu_type="a100", weights=WEIGHTS) == ([8.0], [8.0], [1])
    assert weight(*types, weights=WEIGHTS) == ([24.0], [24.0], [1])
    assert weight({"gpus": 0}, gpus=3) == ([3.0], [3.0], [3])
    assert weight(eight, exclusive=False, gpus=2) == ([2.0], [2.0], [2])
    # which GPUs it will get is open: it ranks as before, but may preempt only as what counts the most
    assert weight(*types, exclusive=False, gpus=2, weights=WEIGHTS) == ([2.0], [12.0], [2])


def test_one_of_several_partitions_gives_whole_nodes():
    job = {"job_id": 20, "partition": "gpu,whole", "gpus": 1, "reason": "Resources"}
    world = Requeueing(queue(job), place=nodes({"partitions": frozenset({"gpu", "whole"})}))
    world.adapter.parts = {"gpu": Partition(1, False), "whole": Partition(1, True)}
    world.cluster.observe()
    snapshot = world.cluster.observed.snapshot
    assert (snapshot.jobs.weight.tolist(), snapshot.allocated.tolist()) == ([1.0], [8.0])


# ---- partitions that overlap ----

BOTH = frozenset({"gpu", "debug"})
VICTIM = running(
    job_id=10, gpus=8, comment="requeue=yes", start=NOW - 5000, submit=NOW - 9000, node_list="n1"
)
WAITS = {
    "job_id": 20, "gpus": 8, "comment": "deadline=+3h", "submit": NOW - 600, "partition": "gpu,debug",
    "reason": DOWN,
}  # fmt: skip
FULL = {"gpus_used": 8, "cpus_used": 1, "partitions": BOTH}


def overlapping(*place, mode="on", parts=None, more=(), reserved=(), asks=None, **job):
    """Whom one cycle requeues, and whether the wait counts."""
    made = config(requeue={"mode": mode})
    world = Requeueing(queue(VICTIM, {**WAITS, **job}, *more), place=nodes(*place), settings=made)
    world.adapter.asked = {20: asked(**{"tres_per_job": "gres/gpu:8", **(asks or {})})}
    world.adapter.parts = parts or {}
    world.adapter.reserved = list(reserved)
    got = world.requeues()
    at = int(np.searchsorted(world.cluster.observed.snapshot.jobs.job_id, 20))
    return got, bool(world.cluster.observed.snapshot.jobs.can_start[at])


@pytest.mark.parametrize(
    "reason", [DOWN, DOWN.replace(" ", "_"), "ReqNodeNotAvail, May be reserved for other job"]
)
def test_words_of_down_nodes_while_none_is(reason):
    assert overlapping(FULL, reason=reason) == ([10], True)
    assert overlapping(FULL, {"state": "DOWN", "partitions": BOTH}, reason=reason) == ([10], True)


@pytest.mark.parametrize(
    "state", ["DOWN", "IDLE+DRAIN", "ALLOCATED+DRAIN", "MAINT", "ALLOCATED+POWERING_DOWN"]
)
def test_nodes_that_are_down(state):
    assert overlapping({**FULL, "state": state}) == ([], False)
    # one that is not would do for a smaller job, not for this one
    assert overlapping({**FULL, "state": state}, {**FULL, "gpus": 4, "gpus_used": 4}) == ([], False)


def test_what_else_keeps_nodes_from_it():
    assert overlapping(FULL, reserved=[Reservation(NOW - 10, NOW + 9e5, "n1")]) == ([], False)
    assert overlapping(FULL, asks={"Licenses": "matlab:1"}) == ([], False)
    assert overlapping(FULL, reason="ReqNodeNotAvail, Reserved for maintenance") == ([], False)
    assert overlapping(FULL, asks={"Feature": "big"}) == ([], False)


def test_nodes_that_a_higher_partition_waits_for():
    tiers = {"gpu": Partition(1, False), "debug": Partition(1, False), "first": Partition(9, False)}
    place = {**FULL, "partitions": BOTH | {"first"}}
    higher = {"job_id": 30, "gpus": 1, "partition": "first", "reason": "Resources"}
    assert overlapping(place, parts=tiers) == ([10], True)
    assert overlapping(place, parts=tiers, more=[higher]) == ([], False)
    # held, or in the higher one itself
    assert overlapping(place, parts=tiers, more=[{**higher, "priority": 0}]) == ([10], True)
    assert overlapping(place, parts=tiers, more=[higher], partition="gpu,first") == ([10], True)


def test_the_wait_counts_without_requeues_too():
    assert overlapping(FULL, mode="off") == ([], True)
    assert overlapping({**FULL, "state": "DOWN"}, mode="off") == ([], False)


def test_partitions_as_scontrol_prints_them():
    text = (
        "PartitionName=gpu AllowGroups=ALL Default=YES OverSubscribe=NO PriorityTier=1 State=UP\n"
        "PartitionName=w OverSubscribe=EXCLUSIVE PriorityTier=20\n"
        "PartitionName=x Exclusive=NODE OverSubscribe=NO PriorityTier=2\n"
        "PartitionName=odd PriorityTier=x\n\nbroken\n"
    )
    assert parse_partitions(text) == {
        "gpu": Partition(1, False), "w": Partition(20, True), "x": Partition(2, True),
        "odd": Partition(1, False),
    }  # fmt: skip
