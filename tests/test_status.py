"""What status tells of the daemon and of the queue. tests/live has the real Slurm."""

import importlib
import json
import os
import stat
import time

import command_desk
import numpy as np
import pytest
from command_desk import EVIL
from raw_queue import NOW, queue, running, waiting
from worlds import HOUR, job_table, rank_input, snapshot

from tias_slurm import status
from tias_slurm.policy.learning import Learner
from tias_slurm.policy.tias import Tias, preset
from tias_slurm.service.state_lock import take_lock
from tias_slurm.slurm.live import AdapterError

desk = command_desk.desk

status_module = importlib.import_module("tias_slurm.cli.status")


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


def test_written_and_would_be_written(desk):
    for mode, verb in (("dry-run", "would be written"), ("enforce", "written")):
        desk.write(mode)
        desk.show(queue({}, {}))
        daemon = desk.daemon()
        daemon.cycle()
        assert _rows(desk.run("status").out)["last cycle"].endswith(f", 2 {verb}")
        done = "dry run" if mode == "dry-run" else "ok"
        (line,) = (x for x in desk.run("history", "100").out.splitlines() if " nice " in x)
        assert f" {done} " in line
        assert line.count("dry run") == (mode == "dry-run")
        daemon.close()
        said = desk.run("once").out
        assert said.endswith(f" {verb}\n"), said


def test_a_deadline_that_had_passed_at_first_sight_is_told(desk):
    late = {"comment": "deadline=+5m", "submit": NOW - 900, "eligible": NOW - 900}
    desk.show(queue(late, late, {"comment": "deadline=soon"}))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.cycle()
    told = desk.json("status")["queue"]["refused_claims"]
    assert told.pop("the deadline had passed when it was first seen") == 2
    assert sum(told.values()) == 1
    page = " ".join(desk.run("status").out.split())
    assert "the deadline had passed when it was first seen 2" in page


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
