"""What becomes of the requeues of a plan, where Slurm, users or the clock get in between. tests/live has the
real ones."""

import numpy as np
import pytest
from raw_queue import NOW, config, nodes, queue, running
from test_live_cluster import World
from test_live_nodes import EIGHT, asked

from tias_slurm import assemble
from tias_slurm.planner import Planner
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.live_requeue import Watch

YES = "requeue=yes"
VICTIM = running(job_id=10, gpus=8, comment=YES, start=NOW - 5000, submit=NOW - 9000, node_list="n1")
URGENT = {"job_id": 20, "gpus": 8, "comment": "deadline=+3h", "submit": NOW - 600, "reason": "Resources"}
FULL = nodes({"gpus_used": 8, "cpus_used": 1}, {"state": "DOWN"})


class Requeueing(World):
    """A cycle with requeues over a scripted adapter: an urgent job waits for the nodes of others."""

    def __init__(self, *queues, place=FULL, settings=None, told=None, **more):
        settings = settings or config(requeue={"mode": "on", "cooldown_s": 120.0})
        super().__init__(*queues, settings=settings, **more)
        self.adapter.place = place
        self.adapter.asked = {20: asked(**EIGHT)}
        lever = self.controller.planner.lever
        self.controller.planner = Planner(lever, assemble.limits(settings, requeue=True))

    def requeues(self, times=1):
        """The jobs that were requeued in so many cycles."""
        before = len(self.adapter.sent)
        for _ in range(times):
            self.controller.cycle()
        return [job for job, what, _ in self.adapter.sent[before:] if what == "requeue"]

    def known(self, job):
        """How often the ledger says that the job was requeued, and whether it says when."""
        at = int(np.searchsorted(self.ledger._ids, job))
        history = self.ledger.history()
        return int(history.requeues[at]), bool(np.isfinite(history.requeued_at[at]))


def both(**changes):
    return queue(VICTIM, {**URGENT, **changes})


def test_writes_go_first_and_what_was_done_is_remembered():
    world = Requeueing(both())
    assert world.requeues() == [10]
    assert [(job, what) for job, what, _ in world.adapter.sent] == [(20, "nice"), (10, "requeue")]
    assert world.told == [(0, "ok"), (1, "ok")]
    assert world.known(10) == (1, True)


def test_whoever_cools_down_has_nobody_requeued():
    world = Requeueing(both())
    assert world.requeues(3) == [10]


@pytest.mark.parametrize("answer", ["refused", "no rights", "retry"])
def test_no_requeue_without_the_write(answer):
    world = Requeueing(both(), answers={20: answer})
    assert world.requeues() == []
    assert world.told[1][1] in ("refused", "no rights", "retry")
    assert world.known(10) == (0, False)


def test_a_write_that_does_not_show():
    world = Requeueing(both(), obeys=False)
    assert world.requeues() == []
    assert world.known(10) == (0, False)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "COMPLETED", "end": NOW},
        {"state": "RUNNING", "flags": "COMPLETING"},
        {"state": "SUSPENDED"},
        {"start": NOW - 3},  # another run of it
        {"comment": "requeue=no"},
        {"comment": ""},
        {"requeue": False},
        {"node_list": "n3"},
        {"state": "PENDING", "start": np.nan, "node_list": "", "restarts": 1},
    ],
)
def test_a_victim_that_has_changed_since(change):
    world = Requeueing(both(), queue({**VICTIM, **change}, URGENT))
    assert world.requeues() == []
    assert world.known(10) == (0, False)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "RUNNING", "start": NOW, "node_list": "n1"},
        {"reason": "QOSMaxGRESPerUser"},
        {"reason": "JobHeldUser", "priority": 0},
        {"state": "CANCELLED", "end": NOW},
    ],
)
def test_a_beneficiary_that_needs_no_room_any_more(change):
    world = Requeueing(both(), both(**change))
    assert world.requeues() == []
    assert world.known(10) == (0, False)


def test_a_controller_that_does_not_answer_the_second_look():
    world = Requeueing(both(), AdapterError("no answer", retry=True))
    assert world.requeues() == []
    assert world.told == [(0, "ok"), (1, "refused")]
    assert world.known(10) == (0, False)


PAIR = [dict(VICTIM, gpus=4), dict(VICTIM, job_id=11, gpus=4)]


def test_who_ends_by_himself_has_made_room():
    over = {"state": "COMPLETED", "end": NOW}
    world = Requeueing(queue(*PAIR, URGENT), queue(PAIR[0], {**PAIR[1], **over}, URGENT))
    assert world.requeues() == [10]
    assert world.known(10) == (1, True)


def test_the_others_are_spared_when_one_cannot_be_requeued():
    world = Requeueing(queue(*PAIR, URGENT), answers={10: "refused"})
    assert world.requeues() == [10]
    assert [result for _, result in world.told] == ["ok", "refused", "refused"]
    assert (world.known(10), world.known(11)) == ((0, False), (0, False))


def test_one_of_which_nobody_knows_counts_as_requeued():
    world = Requeueing(queue(*PAIR, URGENT), answers={10: "retry"})
    assert world.requeues() == [10]
    assert (world.known(10), world.known(11)) == ((1, True), (0, False))


def test_an_adapter_that_fails_is_none_of_the_ledgers_business(monkeypatch):
    world = Requeueing(both())

    def fails(job):
        raise AdapterError("scontrol: cannot be started", retry=False)

    monkeypatch.setattr(world.adapter, "requeue", fails)
    world.controller.cycle()
    assert world.told[1] == (1, "refused")
    assert world.known(10) == (0, False)


def test_told_to_stop_between_a_write_and_the_requeue(monkeypatch):
    world = Requeueing(both())
    world.adapter.before_write = lambda *_: setattr(world.cluster, "stop", True)
    assert world.requeues() == []
    assert world.known(10) == (0, False)


def test_in_a_dry_run_nothing_is_sent_and_nothing_counted():
    world = Requeueing(both(), enforce=False)
    assert world.requeues(3) == world.adapter.sent == []
    assert [len(plan.victims) for plan in world.plans] == [1, 1, 1]
    assert world.known(10) == (0, False)


def test_a_job_whose_start_is_not_certain_has_nobody_requeued():
    world = Requeueing(both())
    world.adapter.asked = {20: asked(**EIGHT, Licenses="matlab:1")}
    assert world.requeues() == []
    assert world.cluster.observed.unsure == {"asks for licences": 1}


def test_nodes_are_asked_for_only_where_a_requeue_is_possible(monkeypatch):
    def calls(settings, *jobs):
        world = Requeueing(queue(*jobs), settings=settings)
        asked_for = []
        for name in ("nodes", "requests", "shares", "reservations"):
            real = getattr(world.adapter, name)
            monkeypatch.setattr(world.adapter, name, lambda *a, n=name, r=real: asked_for.append(n) or r(*a))
        world.cluster.observe()
        world.cluster.observe()
        return asked_for

    on, off = config(requeue={"mode": "on"}), config()
    once = ["nodes"]  # how many GPUs there are has to be known
    both_looks = ["requests", "nodes", "reservations", "nodes", "reservations"]
    assert calls(off, VICTIM, URGENT) == once
    assert calls(on, VICTIM) == once
    assert calls(on, URGENT) == once
    assert calls(on, VICTIM, {**URGENT, "reason": "Dependency"}) == once
    assert calls(on, {**VICTIM, "start": NOW - 5}, URGENT) == once
    assert calls(on, VICTIM, URGENT) == both_looks
    wide = {**VICTIM, "nodes": 2, "node_list": "n[1-2]"}
    assert calls(on, wide, URGENT) == ["requests", *["shares", "nodes", "reservations"] * 2]


# ---- the watch ----


def look(watch, *jobs, now=NOW):
    world = World(queue(*jobs, time=now))
    return [(x.job_id, x.result) for x in watch.look(world.cluster.observe(), world.cluster.raw)]


def test_what_becomes_of_a_beneficiary():
    watch = Watch(120.0)
    for job in (1, 2, 3, 4):
        watch.begin(job, NOW, 1)
    waits, runs = {"job_id": 1}, running(job_id=2)
    ended = {"job_id": 3, "state": "CANCELLED", "start": NOW, "end": NOW}
    told = look(watch, waits, runs, ended, now=NOW + 60)
    assert told == [(2, "started"), (3, "left"), (4, "left")]
    assert look(watch, waits, runs, now=NOW + 119) == []
    assert look(watch, waits, runs, now=NOW + 120) == [(1, "still waits")]
    assert look(watch, waits, runs, now=NOW + 900) == []  # said once
    assert look(watch, running(job_id=1), now=NOW + 960) == [(1, "started")]


def test_a_task_that_starts_from_an_array():
    watch = Watch(120.0)
    watch.begin(7, NOW, 1)
    rest = {"job_id": 7, "array_id": 7, "array_task": "1-3"}
    earlier = running(job_id=8, array_id=7, array_task="0", start=NOW - 5)
    assert look(watch, rest, earlier, now=NOW + 10) == []
    task = running(job_id=9, array_id=7, array_task="1", start=NOW + 15)
    assert look(watch, rest, earlier, task, now=NOW + 20) == [(7, "started")]


@pytest.mark.parametrize("often", [1, 2, 3])
def test_in_vain_too_often(often):
    watch = Watch(120.0, often)
    ids = np.array([1, 2])
    for time in range(often):
        assert not watch.hopeless(ids).any()
        watch.begin(1, NOW + time, 1)
    assert watch.hopeless(ids).tolist() == [True, False]
    # once it has started it begins anew
    assert look(watch, running(job_id=1)) == [(1, "started")]
    assert not watch.hopeless(ids).any()


@pytest.mark.parametrize("often", [1, 3])
def test_a_job_that_never_starts_stops_taking_others(often):
    settings = config(requeue={"mode": "on", "cooldown_s": 0.0, "max_in_vain": often})
    world = Requeueing(both(), settings=settings)
    assert world.requeues(10) == [10] * often
    assert world.cluster.observed.unsure == {"did not start, with others requeued for it": 1}


def test_what_a_job_asks_for_is_read_once(monkeypatch):
    said = asked(**EIGHT)
    world = Requeueing(
        queue(VICTIM, URGENT, {**URGENT, "job_id": 300}), settings=config(requeue={"mode": "on"})
    )
    world.adapter.asked = dict.fromkeys((20, 300), said)
    asked_for, real = [], world.adapter.requests
    monkeypatch.setattr(world.adapter, "requests", lambda jobs=None: asked_for.append(jobs) or real(jobs))
    world.cluster.observe()
    world.cluster.observe()
    assert asked_for == [None]
    # before somebody is requeued for a job, it is asked again what that wants
    world.adapter.asked[20] = asked(**EIGHT, Licenses="matlab")
    assert world.requeues() == []
    assert world.told[-1] == (world.told[-1][0], "refused")
    assert asked_for[1:] == [[20]]
    assert world.requeues() == []
    assert asked_for[2:] == [None]
    del asked_for[1:]
    # a new job, and one that was requeued and so was submitted anew
    world.adapter.asked[301] = said
    later = {**URGENT, "job_id": 300, "submit": NOW - 1}
    world.adapter.queues[0] = queue(VICTIM, URGENT, later, {**URGENT, "job_id": 301}, time=NOW + 60)
    world.cluster.observe()
    assert asked_for[1:] == [[300, 301]]
    # all of them in a while, for a waiting job may be changed
    world.adapter.queues[0] = queue(VICTIM, URGENT, time=NOW + 1000)
    world.cluster.observe()
    assert asked_for[2:] == [None]
