"""What a requeue bought: kept, over restarts, and shown beside it."""

import json
import time

import numpy as np
import pytest
from command_desk import desk  # noqa: F401
from raw_queue import NOW, nodes, queue, running
from test_live_nodes import EIGHT, asked

from tias_slurm.ledger import gains
from tias_slurm.ledger.store import Entry, SqliteStore
from tias_slurm.slurm.live_requeue import Watched

YES = "requeue=yes"


@pytest.fixture
def clock(monkeypatch):
    """This machine's clock is Slurm's."""
    at = [NOW]
    monkeypatch.setattr(time, "time", lambda: at[0])
    return at


VICTIM = running(job_id=10, gpus=8, comment=YES, start=NOW - 5000, submit=NOW - 9000, node_list="n1")
BACK = {"job_id": 10, "gpus": 8, "comment": YES, "submit": NOW, "restarts": 1, "reason": "BeginTime"}
URGENT = {"job_id": 20, "gpus": 8, "comment": "deadline=+3h", "reason": "Resources"}


class Life:
    """Job 20 waits for the node of job 10; what Slurm shows next is up to the test."""

    def __init__(self, desk, clock):  # noqa: F811
        self.desk, self.clock = desk, clock
        desk.write(requeue={"mode": "on", "cooldown_s": 60.0})
        self.show(0, VICTIM, URGENT)
        assert self.cycle().requeues == 1

    def show(self, after, *jobs):
        self.clock[0] = NOW + after
        self.desk.show(queue(*jobs, time=NOW + after))
        self.desk.adapter.place = nodes({"gpus_used": 8, "cpus_used": 1}, {"state": "DOWN"})
        self.desk.adapter.asked = {20: asked(**EIGHT)}

    def cycle(self):
        """One of a daemon that has just begun."""
        daemon = self.desk.daemon()
        seen = daemon.cycle()
        daemon.close()
        return seen

    def told(self):
        [last] = self.desk.json("status", code=1)["requeues"]["last"]
        return last["for"]

    def page(self, *words, code=0):
        return " ".join(self.desk.run(*words, code=code).out.split())


@pytest.fixture
def life(desk, clock):  # noqa: F811
    return Life(desk, clock)


def test_before_anything_is_known(life):
    assert (life.told()["became"], life.told()["job_id"], life.told()["met"]) == (None, 20, None)
    assert "job 20 was not seen to start yet" in life.page("status", code=1)


def test_it_started_and_met_its_deadline(life):
    runs = {**running(job_id=20, gpus=8, comment="deadline=+3h", node_list="n1"), "start": NOW + 12}
    life.show(60, BACK, runs)
    life.cycle()
    told = life.told()
    assert (told["became"], told["after_s"], told["met"]) == ("started", 12.0, None)
    life.show(600, BACK)
    life.cycle()
    assert life.told()["met"] is True
    assert "job 20 started 12 s later, its deadline was met" in life.page("status", code=1)
    assert "1 in 7 days; of 1 wanted start 1 came (median 12 s later)" in life.page("status", code=1)
    assert "job 20 started 12 s later" in life.page("history", "10")
    assert "job 10 was requeued for it: job 20 started 12 s later" in life.page("history", "20")
    [row] = life.desk.json("history", "20")["made_room"]
    assert (row["requeued"], row["became"], row["met"]) == (10, "started", True)


def test_it_started_and_missed_it_all_the_same(life):
    runs = {**running(job_id=20, gpus=8, comment="deadline=+3h", node_list="n1"), "start": NOW + 12}
    life.show(60, BACK, runs)
    life.cycle()
    life.show(4 * 3600, BACK, runs)
    life.cycle()
    assert life.told()["met"] is False
    assert life.desk.json("status", code=1)["requeues"]["bought"]["deadlines_missed"] == 1


def test_it_ran_and_ended_between_two_looks(life):
    over = {"job_id": 20, "gpus": 8, "state": "COMPLETED", "start": NOW + 5, "end": NOW + 40}
    life.show(60, BACK, over)
    life.cycle()
    assert (life.told()["became"], life.told()["after_s"]) == ("started", 5.0)


def test_it_was_cancelled_while_it_waited(life):
    over = {"job_id": 20, "gpus": 8, "state": "CANCELLED", "start": NOW + 30, "end": NOW + 30}
    life.show(60, BACK, over)
    life.cycle()
    assert (life.told()["became"], life.told()["met"]) == ("left", None)
    assert "job 20 left without being seen to start" in life.page("status", code=1)
    assert life.desk.json("status", code=1)["requeues"]["bought"]["never"] == 1


def test_it_still_waits_and_then_starts(life):
    life.show(70, BACK, URGENT)
    life.cycle()
    assert (life.told()["became"], life.told()["after_s"]) == ("still waits", 70.0)
    # said once, also after a restart
    life.show(90, BACK, URGENT)
    life.cycle()
    assert life.told()["after_s"] == 70.0
    runs = {**running(job_id=20, gpus=8, comment="deadline=+3h", node_list="n1"), "start": NOW + 100}
    life.show(120, BACK, runs)
    life.cycle()
    assert (life.told()["became"], life.told()["after_s"]) == ("started", 100.0)


def test_a_victim_that_was_not_requeued_bought_nothing(desk, clock):  # noqa: F811
    desk.write(requeue={"mode": "on"}, mode="dry-run")
    desk.show(queue(VICTIM, URGENT))
    desk.adapter.place = nodes({"gpus_used": 8, "cpus_used": 1})
    desk.adapter.asked = {20: asked(**EIGHT)}
    daemon = desk.daemon()
    daemon.cycle()
    daemon.close()
    told = desk.json("status", code=1)["requeues"]
    assert (told["week"], told["bought"]["times"]) == (0, 0)


# ---- the table


@pytest.fixture
def store(tmp_path):
    made = SqliteStore(str(tmp_path / "ledger.sqlite"), shared=False)
    yield made
    made.close()


def requeue(at, victim, job, result="ok"):
    return Entry(at, victim, "requeue", None, float(job), "level 9", result)


def became(store, *entries):
    return [what and (what["became"], what["ran_as"]) for what in gains.bought(store, entries, NOW)]


def test_what_was_before_was_in_vain(store):
    first, second = requeue(NOW, 1, 9), requeue(NOW + 60, 2, 9)
    store.record([first, second, requeue(NOW + 60, 3, 8)])
    assert gains.watched(store, NOW + 70) == [
        (9, NOW, 1, False),
        (8, NOW + 60, 1, False),
        (9, NOW + 60, 1, False),
    ]
    gains.keep(store, [Watched(9, "started", 4.0, 1, NOW + 60, 99)])
    assert became(store, first, second) == [("in vain", 9), ("started", 99)]
    assert gains.watched(store, NOW + 70) == [(8, NOW + 60, 1, False)]
    # a task tells it under its own id as well
    assert [e.job_id for e in gains.for_job(store, 99)] == [2]
    assert [e.job_id for e in gains.for_job(store, 9)] == [1, 2]


def test_only_what_was_sent_counts(store):
    rows = [requeue(NOW, 1, 9, "refused"), requeue(NOW, 2, 9, "gone"), requeue(NOW, 3, 9, None)]
    store.record(rows)
    assert gains.watched(store, NOW) == [(9, NOW, 1, False)]
    gains.keep(store, [Watched(9, "left", 4.0, 1, NOW, 9)])
    assert became(store, *rows) == [(None, 9), (None, 9), ("left", 9)]


def test_it_is_not_watched_for_ever(store):
    store.record([requeue(NOW, 1, 9)])
    assert gains.watched(store, NOW + gains.WATCH_S + 1) == []


def test_it_goes_with_its_record(store):
    store.record([requeue(NOW - 9e6, 1, 9), requeue(NOW, 2, 9)])
    gains.keep(store, [Watched(9, "started", 4.0, 1, NOW, 9)])
    gains.keep(store, [Watched(9, "left", 4.0, 1, NOW - 9e6, 9)])
    from tias_slurm.ledger.trim import Bounds

    store.trim(Bounds(NOW - 1e6, 1e12, NOW), 10.0)
    assert store.ask("SELECT count(*) FROM audit") == [(1,)]
    assert store.ask("SELECT record, became FROM gain") == [(2, "started")]


def test_a_summary_counts_jobs_and_times(store):
    def one(job, at, became, after=None, met=None):
        return {"job_id": job, "time": at, "ran_as": job, "became": became, "after_s": after, "met": met}

    two = [one(9, 1, "started", 5.0, True)] * 2
    told = gains.summary([*two, None, one(9, 2, "started", 7.0, True), one(8, 1, "in vain"), one(7, 1, None)])
    assert told == {"times": 4, "started": 2, "never": 1, "after_s_median": 7.0,
                    "deadlines_met": 1, "deadlines_missed": 0}  # fmt: skip
    assert gains.summary_words(gains.summary([]), str) == ""
    json.dumps(told)
    assert np.isfinite(told["after_s_median"])
