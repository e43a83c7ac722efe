"""What a daemon does in a cycle: audit trail, budgets, pause, requeues. tests/live has the real Slurm."""

import sqlite3
import time
from pathlib import Path

import daemon_desk
import pytest
from daemon_desk import REQUEUE, full
from raw_queue import NOW, queue, waiting

from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.service import deeds
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.live import AdapterError

desk = daemon_desk.desk


def test_a_cycle(desk):
    daemon = desk.daemon(queue({}, {"priority": 0, "reason": "JobHeldUser"}))
    seen = daemon.cycle()
    assert (seen.result, seen.jobs, seen.waiting, seen.writes, seen.failed) == ("ok", 2, 2, 1, 0)
    assert seen.barred == {"held": 1}
    (line,) = desk.said("write")
    assert (line["job"], line["field"], line["old"]) == ("100", "nice", 0)
    assert line["new"] == daemon.adapter.sent[0][2]
    assert line["reason"]
    assert daemon.cycle().writes == 0


def test_the_audit_record_is_there_before_the_write(desk):
    daemon = desk.daemon(waiting(2))
    stages = []

    def look(job, field, value):
        other = sqlite3.connect(ledger_path(daemon.config))
        audit = other.execute("SELECT action, new, result FROM audit WHERE job_id = ?", (job,)).fetchall()
        kept = other.execute('SELECT "set", "before" FROM job WHERE job_id = ?', (job,)).fetchall()
        other.close()
        stages.append((audit, kept, float(value)))

    daemon.adapter.before_write = look
    daemon.cycle()
    assert len(stages) == 2
    for audit, kept, value in stages:
        assert audit == [("nice", value, None)]
        assert kept == [(value, 0.0)]
    assert [e.result for e in daemon.store.history(100)] == ["ok"]


def test_outcomes_are_kept_with_the_controllers_words(desk):
    daemon = desk.daemon(waiting(3), answers={100: "refused", 101: "gone"})
    seen = daemon.cycle()
    assert (seen.writes, seen.failed, seen.refused) == (1, 2, 1)
    assert [
        (daemon.store.history(j)[0].result, daemon.store.history(j)[0].message) for j in (100, 101, 102)
    ] == [
        ("refused", "said refused"),
        ("gone", "said gone"),
        ("ok", "said ok"),
    ]
    assert [entry["result"] for entry in desk.said("write failed")] == ["refused"]


def test_outcomes_are_kept_when_the_cycle_breaks(desk):
    daemon = desk.daemon(waiting(2))

    def fail(job, field, value):
        if job == 101:
            raise AdapterError("gone away", retry=True)

    daemon.adapter.before_write = fail
    assert daemon.cycle().result == "no answer"
    assert [daemon.store.history(j)[0].result for j in (100, 101)] == ["ok", None]


def test_a_requeue_is_in_the_audit_trail_before_it_is_sent(desk, monkeypatch):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    stages = []
    requeue = daemon.adapter.requeue

    def look(job):
        stages.append([(e.action, e.new, e.result) for e in daemon.store.history(job)])
        return requeue(job)

    monkeypatch.setattr(daemon.adapter, "requeue", look)
    seen = daemon.cycle()
    assert (seen.requeues, seen.writes, seen.failed) == (1, 1, 0)
    assert stages == [[("requeue", 20.0, None)]]
    assert [e.result for e in daemon.store.history(10)] == ["ok"]
    [line] = desk.said("requeue")
    assert (line["job"], line["beneficiary"], line["run_s"]) == ("10", "20", 5000)
    assert "level 0: urgent" in line["reason"]
    assert daemon.cycle().requeues == 0


def test_a_pause_and_a_dry_run_requeue_nobody(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    (desk.state / "paused").touch()
    assert daemon.cycle().requeues == 0
    assert daemon.adapter.sent == []
    daemon.close()
    desk.write(extra=REQUEUE, mode="dry-run")
    daemon = full(desk)
    (desk.state / "paused").unlink()
    seen = daemon.cycle()
    assert (seen.requeues, seen.failed, daemon.adapter.sent) == (0, 0, [])
    assert [line["job"] for line in desk.said("would requeue")] == ["10"]
    assert not desk.said("requeue failed")


def test_a_cycle_that_breaks_before_its_requeues_counts_none(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)

    def fail(job, field, value):
        raise AdapterError("gone away", retry=True)

    daemon.adapter.before_write = fail
    assert daemon.cycle().result == "no answer"
    assert daemon.controller.ledger.history().requeues.tolist() == [0, 0]


def test_why_nobody_is_requeued_for_a_job_is_said(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    daemon.adapter.asked = {}
    seen = daemon.cycle()
    assert (seen.requeues, seen.no_requeue_for) == (0, {"its request was not seen": 1})


@pytest.mark.parametrize(
    ("queues", "results"),
    [
        ((AdapterError("squeue: no answer", retry=True), waiting(1)), ["no answer", "ok"]),
        ((waiting(1), waiting(1, time=NOW - 9)), ["ok", "stale"]),
    ],
)
def test_a_cycle_without_an_answer(desk, queues, results):
    daemon = desk.daemon(*queues)
    assert [daemon.cycle().result for _ in results] == results
    assert [line["result"] for line in desk.said("cycle")] == results


def test_a_pause_file_stops_writing(desk):
    daemon = desk.daemon(waiting(3))
    (desk.state / "paused").touch()
    seen = daemon.cycle()
    assert (seen.paused, seen.writes, seen.held_back, daemon.adapter.sent) == (True, 0, 3, [])
    (desk.state / "paused").unlink()
    seen = daemon.cycle()
    assert (seen.paused, seen.writes, seen.held_back) == (False, 3, 0)


def test_the_budget_of_a_cycle(desk):
    desk.write(extra="[planner]\nmax_writes_per_cycle = 2")
    daemon = desk.daemon(waiting(5))
    assert [(c.writes, c.held_back) for c in (daemon.cycle(), daemon.cycle(), daemon.cycle())] == [
        (2, 3),
        (2, 1),
        (1, 0),
    ]


def test_no_rights_is_said_once_and_tried_again_later(desk, monkeypatch):
    daemon = desk.daemon(waiting(3), answers=dict.fromkeys((100, 101, 102), "no rights"))
    assert daemon.cycle().failed == 3
    assert [daemon.cycle().held_back for _ in range(3)] == [3, 3, 3]
    assert len(daemon.adapter.sent) == 1
    assert len(desk.said("no rights")) == 1
    assert desk.said("write failed") == []
    later = time.monotonic() + deeds.NO_RIGHTS_PAUSE_S + 1
    monkeypatch.setattr(deeds.time, "monotonic", lambda: later)
    daemon.adapter.answers = {}
    assert daemon.cycle().writes == 3


def test_what_is_old_is_dropped_once_a_day(desk, monkeypatch):
    daemon = desk.daemon(waiting(1))
    looked, trim = [], daemon.store.trim
    monkeypatch.setattr(daemon.store, "trim", lambda *w, age: looked.append((*w, age)) or trim(*w, age=age))
    daemon.cycle()
    daemon.cycle()
    assert [age for *_, age in looked] == [True, False]
    assert abs(time.time() - 90 * 86400 - looked[0][0].before) < 60


def test_a_daemon_that_comes_back_writes_nothing_twice(desk):
    daemon = desk.daemon(waiting(3))
    daemon.cycle()
    values = dict(daemon.adapter.values)
    daemon.close()
    daemon = desk.daemon(waiting(3))
    daemon.adapter.values = values
    assert daemon.cycle().writes == 0
    assert daemon.controller.ledger.found.tolist() == [0.0, 0.0, 0.0]


def test_claims_that_are_refused_are_said_once(desk):
    daemon = desk.daemon(queue({"comment": "deadline=soon"}, {"comment": "deadline=+3h"}))
    daemon.cycle()
    daemon.cycle()
    (line,) = desk.said("claims refused")
    assert sum(line["reasons"].values()) == 1


def test_paths_are_not_made_of_what_users_write(desk):
    daemon = desk.daemon(queue({"user": "../../x", "comment": "deadline=../../y\n\x1b[2J"}))
    daemon.cycle()
    assert {f.parent for f in Path(desk.state).rglob("*")} == {desk.state}


def test_a_dry_run_after_an_enforcing_daemon_knows_what_it_set(desk):
    made = desk.daemon(waiting(1, comment="deadline=+3h"))
    made.cycle()
    (job,) = made.store.load()[0].tolist()
    set_value = float(made.store.load()[1][0, SET])
    made.close()
    assert set_value < 0
    desk.write(mode="dry-run")
    dry = desk.daemon(waiting(1, comment="deadline=+3h", nice=int(set_value)))
    dry.cycle()
    assert dry.store.load()[0].tolist() == [job]
    assert dry.store.load()[1][0, FOUND] == 0.0  # the user's own, not ours
    assert desk.said("would write") == []
