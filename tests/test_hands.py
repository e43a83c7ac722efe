"""What people order: pause, ignore. tests/live has the real Slurm."""

import os
import time

import command_desk
import pytest
from command_desk import EVIL
from raw_queue import NOW, queue, running, waiting

from tias_slurm import hands
from tias_slurm.errors import InputError
from tias_slurm.slurm.live import AdapterError

desk = command_desk.desk


def test_pause_and_resume_without_a_daemon(desk):
    assert "no such directory" in desk.run("pause", code=2).err
    assert "no such directory" in desk.run("resume", code=2).err
    desk.state.mkdir()
    said = desk.run("pause", "--reason", EVIL).out
    assert said.startswith("paused: nothing is written until tias-slurm resume; new jobs wait behind")
    assert "tias-slurm restore" in said
    assert hands.paused(str(desk.state))
    assert hands.why_paused(str(desk.state))["reason"] == EVIL
    assert desk.json("status", code=1)["daemon"]["pause"]["reason"] == EVIL
    desk.run("status", code=1)
    assert desk.json("resume") == {"paused": False, "was_paused": True}
    assert desk.json("resume") == {"paused": False, "was_paused": False}
    assert not hands.paused(str(desk.state))


def test_a_pause_by_hand_counts(desk):
    desk.show(waiting(2))
    daemon = desk.daemon()
    (desk.state / "paused").touch()
    assert daemon.cycle().paused
    assert "paused" in desk.run("status").out.splitlines()[0]
    assert hands.why_paused(str(desk.state)) == {}


def test_a_pause_stops_a_cycle_at_work(desk):
    desk.show(waiting(5))
    daemon = desk.daemon()
    desk.adapter.before_write = lambda job, *_: desk.run("pause") if job == 101 else None
    daemon.cycle()
    assert [job for job, *_ in desk.adapter.sent] == [100, 101]
    desk.run("resume")
    daemon.cycle()
    assert [job for job, *_ in desk.adapter.sent] == [100, 101, 102, 103, 104]


def test_an_order_follows_no_link(desk, tmp_path):
    desk.state.mkdir()
    other = tmp_path / "other"
    other.write_text("precious")
    (desk.state / "paused").symlink_to(other)
    desk.run("pause", "--reason", "x")
    assert other.read_text() == "precious"
    (desk.state / "ignored").symlink_to(tmp_path)
    assert "a link" in desk.run("ignore", "7", code=2).err


@pytest.mark.parametrize(
    "name", ["x", "0", "-1", "4711_", "4711_3_4", "../4711", "12345678901", "4711.batch"]
)
def test_what_is_no_job(desk, name):
    for command in ("explain", "history", "ignore", "unignore"):
        done = desk.cli(command, "--config", desk.path, "--", name)
        assert (done.code, "is no job" in done.err) == (2, True)


def test_an_ignored_job_is_left_alone(desk):
    desk.show(waiting(3))
    daemon = desk.daemon()
    told = desk.json("ignore", "101", "--reason", "a test of ours")
    assert told == {"job": "101", "ignored": True, "all": ["101"], "in_queue": True}
    seen = daemon.cycle()
    assert (seen.writes, seen.barred) == (2, {"ignored": 1})
    assert [job for job, *_ in desk.adapter.sent] == [100, 102]
    assert desk.json("status")["daemon"]["ignored"] == ["101"]
    assert desk.json("explain", "101")["lever"]["because"] == "ignored"
    assert desk.json("unignore", "101")["was_ignored"]
    assert not desk.json("unignore", "101")["was_ignored"]
    assert daemon.cycle().writes == 1


SHOWN = queue(
    {"job_id": 20}, {"job_id": 21, "state": "COMPLETED", "end": NOW - 9},
    {"job_id": 30, "array_id": 30, "array_task": "4-9"},
    {"job_id": 31, "array_id": 30, "array_task": "3", **running()},
    {"job_id": 40, "het_id": 40}, {"job_id": 41, "het_id": 40, "het_offset": 1},
)  # fmt: skip


@pytest.mark.parametrize("command", ["ignore", "unignore"])
@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("20", True), ("21", False), ("22", False), ("30", True), ("30_3", True), ("30_5", True),
        ("30_1", False), ("40+1", True), ("40+2", False), ("41", True),
    ],
)  # fmt: skip
def test_an_order_for_a_job_that_is_not_there(desk, command, name, there):
    desk.show(SHOWN)
    desk.daemon()
    done = desk.run(command, name)
    assert (f"note: no job {name} waits or runs now" in done.out) is not there
    told = desk.json(command, name)
    assert (told["in_queue"], told["all"]) == (there, [name] if command == "ignore" else [])


def test_an_order_while_slurm_does_not_answer(desk):
    desk.show(AdapterError("squeue: no answer within 5 s", retry=True))
    desk.state.mkdir()
    assert desk.run("ignore", "7").out == "7 is ignored from now on\n"
    assert desk.json("unignore", "7") == {
        "job": "7", "ignored": False, "was_ignored": True, "all": [], "in_queue": None,
    }  # fmt: skip


def test_an_ignored_job_keeps_what_it_has_and_is_not_requeued(desk):
    desk.show(queue({}, running(comment="requeue=yes"), running(comment="requeue=yes")))
    daemon = desk.daemon()
    daemon.cycle()
    sent = list(desk.adapter.sent)
    desk.run("ignore", "100")
    desk.run("ignore", "101")
    daemon.cycle()
    assert desk.adapter.sent == sent
    assert daemon.cluster.observed.snapshot.jobs.requeueable.tolist() == [False, False, True]


def test_which_records_a_name_means():
    shown = queue(
        {"job_id": 10, "array_id": 10, "array_task": "2-9"},
        {"job_id": 11, "array_id": 10, "array_task": "0"},
        {"job_id": 12, "array_id": 10, "array_task": "1"},
        {"job_id": 20, "het_id": 20},
        {"job_id": 21, "het_id": 20, "het_offset": 1},
        {"job_id": 30},
    )
    means = {
        "10": [10, 11, 12], "10_1": [12], "11": [11], "20": [20, 21], "20+1": [21], "30": [30], "31": [],
    }  # fmt: skip
    for name, ids in means.items():
        assert shown.job_id[hands.named((name,), shown)].tolist() == ids, name
    assert shown.job_id[hands.named(("30", "10_0"), shown)].tolist() == [11, 30]


def test_marks_of_jobs_that_are_gone_are_dropped(desk):
    desk.state.mkdir()
    for name in ("100", "555", "556"):
        desk.run("ignore", name)
    for name in ("100", "555"):
        os.utime(desk.state / "ignored" / name, (1, 1))
    hands.forget_ignored(str(desk.state), waiting(1), time.time() - 60)
    assert hands.ignored(str(desk.state)) == ("100", "556")  # one is there, one is young


def test_marks_that_cannot_be_read_stop_the_cycle(desk):
    desk.show(waiting(1))
    daemon = desk.daemon()
    (desk.state / "ignored").write_text("a file")
    with pytest.raises(InputError, match="ignored"):
        daemon.cycle()
    assert desk.adapter.sent == []
