"""What people see and order: status, explain, history, pause, ignore. tests/live has the real Slurm."""

import importlib
import json
import os
import pwd
import stat
import time
from dataclasses import replace

import numpy as np
import pytest
import structlog
from raw_queue import FACTS, NOW, Scripted, config, nodes, queue, running, waiting
from worlds import HOUR, job_table, rank_input, snapshot

from tias_slurm import hands, status, user_export
from tias_slurm.cli import look as look_module
from tias_slurm.cli.lookup import find
from tias_slurm.cli.words import span
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import COLUMNS
from tias_slurm.policy.learning import Learner
from tias_slurm.policy.tias import Tias, preset
from tias_slurm.service import daemon as daemon_module
from tias_slurm.service import start
from tias_slurm.service.daemon import Daemon
from tias_slurm.service.state_lock import take_lock
from tias_slurm.slurm.live import AdapterError

status_module = importlib.import_module("tias_slurm.cli.status")
EVIL = "al\x1b[2J\x07ice[bold]"


class Desk:
    """One state directory, a daemon over a scripted adapter, and the commands."""

    def __init__(self, tmp_path, monkeypatch, cli):
        self.path, self.state = tmp_path / "config.toml", tmp_path / "state"
        self.monkeypatch, self.cli, self.daemons = monkeypatch, cli, []
        self.write()

    def write(self, mode="enforce", **settings):
        lines = ["[daemon]", f'mode = "{mode}"', f'state_dir = "{self.state}"', "writes_per_second = 1e6"]
        for section, values in settings.items():
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
        self.path.write_text("\n".join(lines) + "\n")

    def show(self, *queues, **script):
        """Slurm shows these queues from now on."""
        self.adapter = Scripted(*queues, **script)
        for module in (daemon_module, look_module):
            self.monkeypatch.setattr(module, "choose", lambda *_, **__: (self.adapter, "as scripted"))

    def daemon(self):
        self.log = structlog.testing.LogCapture()
        logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        made = Daemon(str(self.path), {}, logger)
        self.daemons.append(made)
        made.open()
        return made

    def run(self, *words, code=0):
        done = self.cli(words[0], "--config", self.path, *words[1:])
        assert done.code == code, done
        assert "Traceback" not in done.err
        assert not set(done.out) & {"\x1b", "\x07"}, "raw text of a user"
        return done

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "--json", code=code).out)

    def close(self):
        for made in self.daemons:
            made.close()


@pytest.fixture
def desk(tmp_path, monkeypatch, cli):
    made = Desk(tmp_path, monkeypatch, cli)
    yield made
    made.close()


# ---- the summary


def test_the_summary_counts_as_the_policy_book_defines():
    t = 100 * HOUR
    deadline = [np.nan, t + 40 * HOUR, t + 3 * HOUR, t + 0.01 * HOUR, t - 1, t + 40 * HOUR]
    known = rank_input(
        gpus=[1, 2, 4, 8, 16, 32],
        deadline=deadline,
        first_submit=[t, t, t - 9 * HOUR, t - 9 * HOUR, t - 9 * HOUR, t - HOUR],
        running=[False, False, False, False, True, True],
        executed=[0, 0, 0, 0, 9 * HOUR, HOUR],
    )
    policy = Tias(preset("jct-first"))
    ranking = policy.rank(t, known, Learner().survival())
    jobs = job_table(6, gpus=known.gpus, weight=known.gpus / 4, state=known.running)
    nobody = snapshot(t, job_table(0))
    seen = status.queue_summary(type(nobody)(**{**vars(nobody), "jobs": jobs}), known, ranking, policy)
    assert (seen["jobs"], seen["waiting"], seen["running"], seen["gpus_waiting"]) == (6, 4, 2, 15)
    assert (seen["weight_waiting"], seen["weight_running"]) == (15 / 4, jobs.weight[4:].sum())
    assert seen["deadlines"] == {
        "on_time": {"waiting": 1, "running": 1, "gpus": 34, "weight": 8.5},
        "at_risk": {"waiting": 1, "running": 0, "gpus": 4, "weight": 1.0},
        "impossible": {"waiting": 1, "running": 0, "gpus": 8, "weight": 2.0},
        "missed": {"waiting": 0, "running": 1, "gpus": 16, "weight": 4.0},
    }
    assert sum(c["waiting"] + c["running"] for c in seen["classes"]) == 6
    new = {"class": "no deadline", "queue": 0, "waiting": 1, "running": 0, "gpus": 1, "weight": 0.25}
    late = {"class": "overdue", "queue": None, "waiting": 0, "running": 1, "gpus": 16, "weight": 4.0}
    assert new in seen["classes"]
    assert late in seen["classes"]


def test_deadlines_over_quota_are_counted_as_they_stand():
    """Those that count stand as they did, those that do not by their own deadlines."""
    t = 100 * HOUR
    due = np.array([np.nan, t + 40 * HOUR, t + 3 * HOUR, t + 0.01 * HOUR, t - 1, t + 40 * HOUR])
    counts = np.array([True, True, False, False, False, False])
    columns = {
        "gpus": [1, 2, 4, 8, 16, 32],
        "first_submit": [t, t, t - 9 * HOUR, t - 9 * HOUR, t - 9 * HOUR, t - HOUR],
        "running": [False, False, False, False, True, True],
        "executed": [0, 0, 0, 0, 9 * HOUR, HOUR],
    }
    policy, survival = Tias(preset("jct-first")), Learner().survival()
    jobs = job_table(6, gpus=columns["gpus"], weight=columns["gpus"], state=columns["running"])
    shown = type(nobody := snapshot(t, job_table(0)))(**{**vars(nobody), "jobs": jobs})

    def summary(deadline, uncounted):
        known = rank_input(deadline=deadline, **columns)
        ranking = policy.rank(t, known, survival)
        return status.queue_summary(shown, known, ranking, policy, uncounted, survival)

    all_count = summary(due, np.full(6, np.nan))
    seen = summary(np.where(counts, due, np.nan), np.where(counts, np.nan, due))
    assert seen["deadlines"] == all_count["deadlines"]
    assert [v["waiting"] + v["running"] for v in seen["deadlines"].values()] == [2, 1, 1, 1]
    assert seen["over_quota"] == {"waiting": 2, "running": 2, "gpus": 60, "weight": 60.0}
    assert all_count["over_quota"]["gpus"] == 0
    # they are served as jobs without a deadline
    assert sum(c["gpus"] for c in seen["classes"] if c["class"] == "no deadline") == 61


# ---- status


def test_what_is_left_of_quotas_and_budgets(desk):
    desk.write(deadlines={"quota_rate": 0.0001, "quota_burst_s": 1.0}, requeue={"max_per_user_per_hour": 3})
    job = {"gpus": 8, "comment": "deadline=+3h"}
    desk.show(queue(*[job] * 3, {**job, "account": "geheim"}))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.store.put("requeues", json.dumps([[time.time() - 60, {"zacharias": 2, "eve": 4}]]))
    told = desk.json("status")
    assert sum(v["waiting"] for v in told["queue"]["deadlines"].values()) == 4
    assert told["queue"]["over_quota"]["waiting"] == 4
    budgets = told["budgets"]
    assert (
        budgets["writes_left_of_last_cycle"]
        == budgets["writes_per_cycle"] - told["daemon"]["cycle"]["writes"]
    )
    assert budgets["requeued_this_hour"] == 6
    assert budgets["requeues_by_user"] == [
        {"user": "eve", "this_hour": 4, "left": 0},
        {"user": "zacharias", "this_hour": 2, "left": 1},
    ]
    assert [a["account"] for a in budgets["quota_by_account"]] == ["geheim", "lab"]
    assert all(a["left_gpu_s"] <= a["of_gpu_s"] for a in budgets["quota_by_account"])
    page = " ".join(desk.run("status").out.split())
    assert "over quota 4 of these (4 waiting), which do not count" in page
    assert "eve 4 (0 left), zacharias 2 (1 left)" in page
    assert "quota left" in page
    hidden = desk.run("status", "--anonymise", "--json").out
    assert "zacharias" not in hidden
    assert "geheim" not in hidden
    assert "user1" in hidden
    assert "zacharias" not in (desk.state / "status.json").read_text()


def test_status_of_a_daemon_at_work(desk):
    over = running(state="COMPLETED", end=NOW - 1, comment="deadline=soon")
    desk.show(
        queue({"comment": "deadline=+3h"}, {"comment": "deadline=soon"}, {"priority": 0}, running(), over)
    )
    daemon = desk.daemon()
    daemon.cycle()
    told = desk.json("status")
    assert told["daemon"]["running"]
    assert told["daemon"]["well"]
    assert (told["daemon"]["pid"], told["daemon"]["mode"]) == (os.getpid(), "enforce")
    assert told["daemon"]["cycle"]["writes"] == 2
    assert (told["queue"]["waiting"], told["queue"]["running"]) == (3, 1)
    assert told["queue"]["left_alone"] == {"held": 1}
    assert sum(told["queue"]["refused_claims"].values()) == 1
    assert told["budgets"]["requeue_mode"] == "off"
    page = desk.run("status").out
    assert page.startswith(f"running (process {os.getpid()}), mode enforce")
    assert "on time 1" in page
    assert "nothing yet" in page


def test_status_names_nobody(desk):
    """The file is for whoever may read the directory: counts, no users, no jobs."""
    desk.show(queue({"user": "zacharias", "account": "geheim", "comment": "deadline=soon"}))
    desk.daemon().cycle()
    text = (desk.state / "status.json").read_text()
    assert "zacharias" not in text
    assert "geheim" not in text
    assert stat.S_IMODE((desk.state / "status.json").stat().st_mode) == 0o640


def test_status_without_a_daemon(desk):
    assert "has the daemon run?" in desk.run("status", code=2).err
    desk.state.mkdir()
    assert desk.run("status", code=1).out.startswith("not running")
    desk.show(waiting(2))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.close()
    told = desk.json("status", code=1)
    assert (told["daemon"]["running"], told["queue"]["waiting"]) == (False, 2)
    assert desk.run("status", code=1).out.startswith("not running; last cycle 0 s ago")


def test_status_when_slurm_does_not_answer(desk):
    desk.show(waiting(2), AdapterError("squeue: no \x1b[2Janswer", retry=True))
    daemon = desk.daemon()
    daemon.cycle()
    time.sleep(0.01)
    daemon.cycle()
    told = desk.json("status")
    assert told["daemon"]["cycle"]["result"] == "no answer"
    assert told["queue"]["waiting"] == 2  # as it was last seen
    assert told["daemon"]["last_ok"] < told["daemon"]["time"]
    assert "no answer" in desk.run("status").out
    late = json.loads((desk.state / "status.json").read_text())
    (desk.state / "status.json").write_text(json.dumps({**late, "last_ok": time.time() - 1000}))
    assert "but no good cycle for 16 min" in desk.run("status", code=1).out


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_status_again_and_again(desk, monkeypatch, words):
    desk.show(waiting(2), waiting(3))
    daemon = desk.daemon()
    daemon.cycle()
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt
        daemon.cycle()

    monkeypatch.setattr(status_module, "sleep", nap)
    done = desk.cli("status", "--config", desk.path, "--watch", *words)
    assert (done.code, naps) == (130, [60.0, 60.0])
    if words:
        assert [json.loads(line)["queue"]["waiting"] for line in done.out.splitlines()] == [2, 3]
    else:
        assert "3 jobs wait" in done.out


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"version": 99}', "\x00\xff"])
def test_status_with_a_file_that_is_none(desk, text):
    desk.state.mkdir()
    (desk.state / "status.json").write_text(text)
    assert desk.json("status", code=1)["queue"] is None


def test_the_lock_can_be_looked_at_and_taken(desk):
    desk.state.mkdir()
    path = str(desk.state / "lock")
    assert status.holder(str(desk.state)) == (False, None)
    held = take_lock(path)
    assert status.holder(str(desk.state)) == (True, os.getpid())
    held.close()
    assert status.holder(str(desk.state)) == (False, None)
    take_lock(path).close()


def test_a_status_that_cannot_be_left_ends_no_cycle(desk):
    desk.show(waiting(1))
    daemon = desk.daemon()
    (desk.state / "status.json").mkdir()
    assert daemon.cycle().result == "ok"


# ---- pause


def test_pause_and_resume_without_a_daemon(desk):
    assert "no such directory" in desk.run("pause", code=2).err
    assert "no such directory" in desk.run("resume", code=2).err
    desk.state.mkdir()
    desk.run("pause", "--reason", EVIL)
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


# ---- ignore


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


# ---- explain


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


def test_one_is_not_many(desk):
    desk.show(queue({}, {"comment": "deadline=+3h"}))
    page = " ".join(desk.run("explain", "101").out.split())
    assert "1 waiting job (1 GPU) before it in its partitions; 0 jobs once the next cycle has written" in page
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


# ---- history


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


# ---- words


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


# ---- the scope


def _on(*places):
    return nodes(*({"partitions": frozenset(p.split())} for p in places))


def test_a_plan_tells_of_jobs_out_of_scope_that_compete(desk):
    desk.write(scope={"only_partitions": ["gpu"]})
    desk.show(queue({}, {"partition": "debug"}))
    desk.adapter.place = _on("gpu debug", "gpu")
    told = desk.json("plan")
    assert [row["job"] for row in told["writes"]] == ["100"]
    assert told["in_scope"] == 1
    assert len(told["scope"]) == 1
    for words in ("1 node is in partitions in scope (gpu)", "(debug)", "keep their places", "up to"):
        assert words in told["scope"][0]
    assert "keep their places" in " ".join(desk.run("plan").out.split())
    desk.adapter.place = _on("debug", "gpu")
    assert desk.json("plan")["scope"] == []
    desk.write(scope={"not_accounts": ["x"]})
    assert "not_accounts" in desk.json("plan")["scope"][0]
    desk.write()
    assert desk.json("plan")["scope"] == []


@pytest.mark.parametrize(
    ("jobs", "scope", "words"),
    [
        ([{}], {"only_partitions": ["gpuu", "gpu-b"]}, "none of the 1 jobs that ask for GPUs is in scope"),
        ([{}], {"only_partitions": ["gpuu"]}, "[scope] only_partitions = gpuu"),
        ([{}], {"only_partitions": ["gpuu"]}, "partitions that no node is in: gpuu"),
        ([{}, running(account="x")], {"not_accounts": ["lab"]}, "no job in scope waits"),
        ([], {"not_accounts": ["lab"]}, "no job that asks for GPUs waits or runs"),
        ([{"priority": 0, "reason": "JobHeldUser"}], {}, "no waiting job may be written"),
        ([running()], {}, "no job in scope waits"),
    ],
)
def test_a_plan_says_why_there_is_nothing_to_write(desk, jobs, scope, words):
    desk.write(scope=scope)
    desk.show(queue(*jobs))
    desk.adapter.place = _on("gpu", "debug")
    said = " ".join(desk.run("plan").out.split())
    assert said.startswith("Nothing to write:")
    assert words in said
    assert "stands where it should" not in said


def _rows(out):
    """The page's rows by their names."""
    found = {}
    for line in out.splitlines():
        name, _, rest = line.strip().partition("  ")
        found.setdefault(name, rest.strip())
    return found


def test_what_is_zero_is_said_where_values_are_written(desk):
    desk.show(queue({}, {"account": "x"}))
    desk.daemon().cycle()
    rows = _rows(desk.run("status").out)
    assert (rows["overridden"], rows["writes refused"]) == ("0 jobs", "0 jobs")
    assert (rows["written"], rows["scope"]) == ("2 values since it started", "every job")
    told = desk.json("status")["daemon"]
    assert (told["written"], told["scope"], told["user_export"]) == (2, {}, "")
    assert "users' files" not in rows


def test_a_dry_run_has_written_nothing(desk):
    desk.write("dry-run")
    desk.show(queue({}))
    desk.daemon().cycle()
    rows = _rows(desk.run("status").out)
    assert not {"overridden", "writes refused", "written"} & rows.keys()
    assert desk.json("status")["daemon"]["written"] == 0


def test_what_slurm_refuses_is_not_counted_as_written(desk):
    desk.show(queue({}, {}), answers={100: "refused"})
    daemon = desk.daemon()
    daemon.cycle()
    daemon.cycle()
    rows = _rows(desk.run("status").out)
    assert (rows["written"], rows["writes refused"]) == ("1 value since it started", "1 job")


def test_the_scope_in_force_is_the_daemons(desk):
    desk.write(scope={"only_partitions": ["gpu"], "not_users": ["ann", EVIL]})
    desk.show(queue({}))
    daemon = desk.daemon()
    daemon.cycle()
    desk.write(scope={"only_partitions": ["other"]})  # not read yet
    assert _rows(desk.run("status").out)["scope"].startswith("only_partitions = gpu; not_users = ann, al")
    told = desk.json("status", "--anonymise")["daemon"]["scope"]
    assert told == {"only_partitions": ["gpu"], "not_users": ["user1", "user2"]}
    daemon._on_reload()
    daemon.cycle()
    assert _rows(desk.run("status").out)["scope"] == "only_partitions = other"


def test_files_for_users_that_cannot_be_left_are_seen(desk, tmp_path):
    where = tmp_path / "users"
    where.write_text("in the way")
    text = desk.path.read_text()
    desk.path.write_text(text.replace("[daemon]", f'[daemon]\nuser_export = "{where}"'))
    desk.show(queue({}))
    daemon = desk.daemon()
    daemon.cycle()
    assert str(where) in desk.json("status")["daemon"]["user_export"]
    assert _rows(desk.run("status").out)["users' files"].startswith("are not left: ")
    assert desk.json("status", "--anonymise")["daemon"]["user_export"] == "see the log"
    where.unlink()
    daemon.cycle()
    assert desk.json("status")["daemon"]["user_export"] == ""


@pytest.mark.parametrize(
    ("uid", "mode", "slurm_user", "told"),
    [
        (0, "enforce", "slurm", True),
        (0, "enforce", "root", False),
        (0, "dry-run", "slurm", False),
        (1000, "enforce", "slurm", False),
    ],
)
def test_root_is_told_that_it_is_not_needed(monkeypatch, uid, mode, slurm_user, told):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    said = start.root_needless(config(daemon={"mode": mode}), replace(FACTS, slurm_user=slurm_user))
    assert bool(said) == told
    assert ("AdminLevel=Operator" in said) == told


def test_the_log_says_that_this_is_root(desk, monkeypatch):
    monkeypatch.setattr(start, "root_needless", lambda *_: "this is root")
    desk.show(queue({}))
    desk.daemon()
    assert {"event": "runs as root", "message": "this is root", "log_level": "warning"} in desk.log.entries


# ---- what users may see


def test_explain_without_the_ledger_by_what_was_left_for_the_user(desk, tmp_path):
    """A user sees the first submit that only the ledger knows, and nothing of other users' jobs."""
    me = pwd.getpwuid(os.getuid()).pw_name
    text = desk.path.read_text()
    desk.path.write_text(text.replace("[daemon]", f'[daemon]\nuser_export = "{tmp_path / "users"}"'))
    early, late = {"user": me, "submit": NOW - 9000, "eligible": NOW - 9000}, {"user": me, "restarts": 1}
    others = {"user": "no-such-user"}
    desk.show(queue(early, others), queue({**early, **late}, others))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.cycle()
    daemon.close()
    left = tmp_path / "users" / str(os.getuid())
    assert [p.name for p in (tmp_path / "users").iterdir()] == [str(os.getuid())]
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert stat.S_IMODE((left / "jobs.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(left.parent.stat().st_mode) == 0o711
    assert [row[0] for row in json.loads((left / "jobs.json").read_text())["jobs"]] == [100]
    desk.path.write_text(desk.path.read_text().replace(str(desk.state), str(tmp_path / "unseen")))
    told = desk.json("explain", "100")
    assert told["first_submit"] == NOW - 9000
    assert told["lever"]["set"] < 0


def test_a_user_whose_jobs_are_gone_has_an_empty_file(tmp_path):
    me = pwd.getpwuid(os.getuid()).pw_name
    where = str(tmp_path / "users")
    table = np.full((2, len(COLUMNS)), np.nan)
    user_export.export(where, (me,), np.array([0, 0]), np.array([7, 8]), table)
    assert user_export.UserStore(where).load()[0].tolist() == [7, 8]
    assert np.isnan(user_export.UserStore(where).load()[1]).all()
    user_export.export(where, (), np.array([], dtype=int), np.array([], dtype=int), table[:0])
    assert user_export.UserStore(where).load()[0].tolist() == []
    assert user_export.UserStore(str(tmp_path / "none")).load()[0].tolist() == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1, "columns": [], "jobs": []}', "{}", '{"version": 9}']
)
def test_a_users_file_that_is_none(tmp_path, text):
    (tmp_path / str(os.getuid())).mkdir()
    (tmp_path / str(os.getuid()) / "jobs.json").write_text(text)
    with pytest.raises(InputError, match="cannot be used"):
        user_export.UserStore(str(tmp_path))


def test_an_export_that_cannot_be_made(tmp_path):
    (tmp_path / "users").write_text("a file")
    with pytest.raises(InputError, match="user_export"):
        user_export.export(str(tmp_path / "users"), (), np.array([]), np.array([]), np.empty((0, 1)))
