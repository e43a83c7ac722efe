"""What explain and history say of one job. tests/live has the real Slurm."""

import command_desk
import pytest
from command_desk import EVIL
from raw_queue import NOW, queue, running, waiting

from tias_slurm.cli.lookup import find
from tias_slurm.cli.words import span
from tias_slurm.errors import InputError
from tias_slurm.slurm.live import AdapterError

desk = command_desk.desk


def test_explain_a_waiting_job(desk):
    desk.show(queue({}, {"comment": "deadline=+3h", "user": EVIL, "account": EVIL}))
    told = desk.json("explain", "101")
    assert (told["job"], told["class"], told["level"]) == ("101", "urgent", 0)
    assert told["lever"]["state"] == "not written"
    assert told["lever"]["because"] == "no daemon runs"
    assert (told["lever"]["set"], told["lever"]["now"]) == (None, 0)
    assert told["place"]["startable"] == 1
    assert told["place"]["startable_planned"] == 0
    assert "101 waits its turn: 1 job (1 GPU) stands before it" in told["answer"]
    page = desk.run("explain", "101").out
    assert page.startswith(told["answer"][:60])
    assert len(page.splitlines()) < 40
    assert "becomes hopeless" in page
    assert not desk.state.exists(), "to look changes nothing"


def test_explain_while_a_daemon_enforces(desk):
    desk.show(waiting(2))
    daemon = desk.daemon()
    assert desk.json("explain", "100")["lever"]["state"] == "to be written by the next cycle"
    desk.run("pause")
    assert desk.json("explain", "100")["lever"]["because"] == "the daemon is paused"
    desk.run("resume")
    daemon.cycle()
    told = desk.json("explain", "100")["lever"]
    assert (told["state"], told["found"]) == ("in place", 0)
    assert told["set"] == told["now"] == told["should_be"] < 0
    assert desk.json("explain", "100")["answer"].startswith("100 is first in line")


@pytest.mark.parametrize(
    ("job", "because"),
    [
        ({"priority": 0, "reason": "JobHeldUser"}, "held"),
        ({"user": "bob"}, "out of scope"),
        ({"reason": "Dependency"}, "waits for what priority cannot give"),
        ({"reason": "AssocGrpGRES"}, "waits for what priority cannot give"),
        ({"cron": True}, "cron job"),
    ],
)
def test_why_a_job_is_not_written(desk, job, because):
    desk.write(scope={"not_users": ["bob"]})
    desk.show(queue({}, job))
    told = desk.json("explain", "101")
    assert (told["lever"]["state"], told["lever"]["because"]) == ("left alone", because)
    if because == "held":
        assert "because it is held" in told["answer"]
    if "reason" in job and because != "held":
        assert f"Slurm says {job['reason']}" in told["answer"]


def test_values_of_other_people(desk):
    desk.show(waiting(3), answers={102: "refused"})
    daemon = desk.daemon()
    daemon.cycle()
    desk.adapter.values[100, "nice"] = 77
    assert desk.json("explain", "100")["lever"]["because"].startswith("overridden")
    assert desk.json("explain", "102")["lever"]["because"] == "Slurm refused it"
    desk.adapter.pinned = lambda: {101: True}
    assert desk.json("explain", "101")["lever"]["because"].startswith("pinned")


def test_a_running_job_whose_value_a_person_changed(desk):
    desk.show(waiting(2), queue(running(), running(job_id=101)))
    desk.daemon().cycle()
    desk.adapter.values[100, "nice"] = 77
    assert desk.json("explain", "100")["lever"]["because"] == (
        "it runs; overridden: somebody changed what we had set"
    )
    assert desk.json("explain", "101")["lever"]["because"] == "it runs"
    assert "overridden" in desk.run("explain", "100").out


def test_in_a_dry_run_nothing_was_set(desk):
    desk.write(mode="dry-run")
    desk.show(waiting(2, comment="deadline=+3h"))
    desk.daemon().cycle()
    lever = desk.json("explain", "100")["lever"]
    assert (lever["dry_run"], lever["set"], lever["now"]) == (True, None, 0)
    page = " ".join(desk.run("explain", "100").out.split())
    assert f"nice 0, would be {lever['should_be']:.0f}: not written (a dry run)" in page
    assert ", set " not in page
    desk.adapter.values[100, "nice"] = 77
    assert desk.json("explain", "100")["lever"]["because"] == "overridden: somebody changed it meanwhile"
    # once it was earnest, what the ledger has was set
    desk.write(mode="enforce")
    for daemon in desk.daemons:
        daemon.close()
    desk.daemon().cycle()
    lever = desk.json("explain", "101")["lever"]
    assert (lever["dry_run"], lever["set"]) == (False, lever["should_be"])


def test_what_the_next_cycle_writes_and_what_it_only_would(desk):
    desk.show(queue({}, {"comment": "deadline=+3h"}))
    before = "1 waiting job (1 GPU) before it in its partitions; 0 jobs"

    def page():
        return " ".join(desk.run("explain", "101").out.split())

    assert f"{before} if what is planned were written" in page()  # no daemon runs
    daemon = desk.daemon()
    assert f"{before} once the next cycle has written" in page()
    daemon.close()
    desk.write("dry-run")
    desk.daemon()
    assert f"{before} if what is planned were written" in page()


def test_one_is_not_many(desk):
    desk.show(queue({}, {"comment": "deadline=+3h"}))
    page = " ".join(desk.run("explain", "101").out.split())
    assert "1 waiting job (1 GPU) before it in its partitions; 0 jobs if what is planned were written" in page
    desk.show(queue({}))
    daemon = desk.daemon()
    desk.adapter.answers[100] = "refused"
    daemon.cycle()
    daemon.cycle()
    page = desk.run("status").out
    assert "1 job waits (1 GPU), 0 run" in page
    assert "1 jobs" not in page
    assert desk.run("once", code=2).err.count("holds the lock") == 1
    daemon.close()
    desk.daemons.clear()
    assert desk.run("once").out.startswith("ok: 1 job, 1 waiting")


def test_claims_that_are_not_taken(desk):
    desk.write(deadlines={"accounts": ["physics"]})
    desk.show(queue({"comment": "deadline=18:00"}, {"comment": "deadline=+3h"}))
    told = desk.json("explain", "100")
    assert (told["class"], len(told["claim_refused"])) == ("no deadline", 1)
    assert "write the date too" in told["claim_refused"][0]["text"]
    told = desk.json("explain", "101")
    assert "account" in told["claim_refused"][0]["text"]
    assert "refused" in desk.run("explain", "101").out


def test_a_claim_that_had_passed_when_first_seen(desk):
    desk.show(queue({"comment": "deadline=+1s"}))
    told = desk.json("explain", "100")
    assert told["class"] == "no deadline"
    assert told["claim_unaccepted"] == "the deadline had passed when it was first seen"


def test_explain_a_running_job(desk):
    desk.show(queue(running(comment="deadline=+3h,requeue=yes,checkpoint=15m", start=NOW - 600)))
    told = desk.json("explain", "100")
    assert told["answer"] == "100 runs, level 0 (urgent)"
    assert told["place"] is None
    assert (told["requeue"]["possible"], told["requeue"]["checkpoint_s"]) == (True, 900.0)
    assert told["executed_s"] == 600.0
    desk.run("explain", "100")


def test_a_job_without_gpus(desk):
    desk.show(queue({"gpus": 0}, {}))
    assert "asks for no GPUs" in desk.run("explain", "100").out


def test_no_such_job_and_what_is_remembered(desk):
    desk.show(waiting(2))
    daemon = desk.daemon()
    daemon.cycle()
    desk.show(waiting(1))
    told = desk.json("explain", "101", code=3)
    assert "no job 101 waits or runs" in told["answer"]
    assert told["remembered"]["first_submit"] == NOW - 600
    out = desk.run("explain", "101", code=3).out
    assert "The ledger remembers: first submitted" in out
    assert desk.json("explain", "999", code=3)["remembered"] is None


def test_a_job_that_has_ended(desk):
    desk.show(queue(running(state="COMPLETED", end=NOW - 1), {}))
    assert "100 has ended: COMPLETED" in desk.run("explain", "100", code=3).out


def test_no_answer_is_one_line(desk):
    desk.show(AdapterError("squeue: no answer", retry=True))
    done = desk.run("explain", "100", code=1)
    assert done.err.strip().splitlines() == ["tias-slurm: error: squeue: no answer"]
    assert done.out == ""


def test_tasks_and_components():
    shown = queue(
        {"job_id": 10, "array_id": 10, "array_task": "5-9:2,12%4"},
        {"job_id": 11, "array_id": 10, "array_task": "0", **running()},
        {"job_id": 20, "het_id": 20},
        {"job_id": 21, "het_id": 20, "het_offset": 1},
        {"job_id": 30, "array_id": 31, "array_task": "4", **running()},
    )
    rows = {"10": 0, "10_0": 1, "10_7": 0, "10_12": 0, "20": 2, "20+1": 3, "31": 4, "31_4": 4}
    for name, at in rows.items():
        assert find(shown, name) == (at, ""), name
    for name in ("10_6", "10_4", "20+2", "99"):
        assert find(shown, name)[0] is None, name
    many = queue(*({"job_id": 40 + i, "array_id": 50, "array_task": str(i), **running()} for i in range(3)))
    with pytest.raises(InputError, match="3 tasks wait or run; name one: 50_0"):
        find(many, "50")


def test_history_needs_no_slurm(desk):
    desk.show(waiting(2))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.close()
    desk.show(AdapterError("no Slurm here", retry=True))
    told = desk.json("history", "100")
    assert [(a["action"], a["result"]) for a in told["actions"]] == [("nice", "ok")]
    assert told["actions"][0]["reason"].startswith("level 1: no deadline")
    assert told["remembered"]["gone"] is None
    out = desk.run("history", "100").out
    assert "Job 100: first submitted" in out
    assert "level 1: no deadline" in out
    assert "knows nothing of job 999" in desk.run("history", "999", code=3).out


def test_history_of_a_task_asks_slurm(desk):
    shown = queue({"job_id": 11, "array_id": 10, "array_task": "0"})
    desk.show(shown)
    desk.daemon().cycle()
    assert desk.json("history", "10_0")["job_id"] == 11
    assert "squeue -o %A" in desk.run("history", "10_7", code=2).err


def test_history_without_a_ledger(desk):
    assert "knows nothing" in desk.run("history", "1", code=3).out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (45.4, "45 s"),
        (600, "10 min"),
        (12_000, "3 h 20 min"),
        (3_601, "1 h"),
        (86_400 * 2 + 3_600 * 4, "2 d 4 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_durations(seconds, words):
    assert span(seconds) == words
