"""Requeues by Slurm's own preemption: told from all others by accounting alone, counted, and told once."""

import dataclasses
import json
import stat
import time

import numpy as np
import pytest
from command_desk import desk  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import FACTS, NOW, queue, running
from test_past_runs import T, record, text

from tias_slurm.doings import doings
from tias_slurm.ledger import reruns, tally
from tias_slurm.ledger.reruns import GIVE_UP_S, PREEMPTED, WHOLE_S, Answer, Reruns, Run
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.notify import messenger
from tias_slurm.notify import words as notice_words
from tias_slurm.notify.senders import Sent
from tias_slurm.service import slurm_guards, start
from tias_slurm.slurm import backfill
from tias_slurm.slurm.checks_preempt import Qos

IDS = np.array([7, 8, 9])
GOOD = dataclasses.replace(
    FACTS, preempt_type="preempt/qos", preempt_mode="REQUEUE,WITHIN,PRIORITY", preempt_exempt_time_s=3600.0
)


@pytest.fixture
def store(tmp_path):
    made = SqliteStore(str(tmp_path / "ledger.sqlite"))
    yield made
    made.close()


def asked(store, before=0):
    """Job 7 came back with more restarts than that."""
    made = Reruns(store)
    made.began_again(np.array([7]), np.array([float(before)]), NOW)
    return made


def run(state, end=NOW - 10, ran_s=500.0):
    return Run(state, end, ran_s)


RUNS_ON = run("RUNNING", np.nan)


def answer(*runs, restarts=1, checkpoint_s=0.0):
    return [Answer(7, restarts, runs, checkpoint_s)]


# ---- what accounting says


@pytest.mark.parametrize(
    "state", ["REQUEUED", "NODE_FAIL", "COMPLETED", "FAILED", "CANCELLED", "BOOT_FAIL", "SPECIAL_EXIT"]
)
def test_only_what_accounting_calls_preempted_counts(store, state):
    made = asked(store)
    assert made.answered(answer(run(state)), NOW) == []
    assert not made.due(IDS, NOW).any()
    assert not made.preempted(IDS, np.zeros(3)).any()
    assert store.actions(PREEMPTED, 0.0) == []


@pytest.mark.parametrize(("checkpoint_s", "lost"), [(0.0, 500.0), (200.0, 100.0), (500.0, 0.0)])
def test_a_preempted_run_is_kept_with_what_it_lost(store, checkpoint_s, lost):
    made = asked(store)
    [found] = made.answered(answer(run("PREEMPTED"), checkpoint_s=checkpoint_s), NOW)
    assert found == (7, NOW - 10, 500.0, lost)
    assert made.preempted(IDS, np.zeros(3)).tolist() == [True, False, False]
    [entry] = store.history(7)
    assert (entry.action, entry.time, entry.old, entry.new, entry.result) == (
        PREEMPTED, NOW - 10, 500.0, lost, "ok",
    )  # fmt: skip
    assert (made.news(), made.news()) == (1, 0)


def test_an_end_that_slurmdbd_does_not_know_yet_is_asked_for_again_and_less_and_less_often(store):
    made, now, asks = asked(store), NOW, []
    while now < NOW + WHOLE_S - 1:
        if made.due(IDS, now).any():
            asks.append(now - NOW)
            assert made.answered(answer(RUNS_ON), now) == []
        now += 5.0
    assert asks[:4] == [0.0, 10.0, 30.0, 70.0]
    assert len(asks) < 15
    assert len(made.answered(answer(run("PREEMPTED")), now)) == 1


@pytest.mark.parametrize("runs", [(), (RUNS_ON,), (RUNS_ON, run("REQUEUED")), (run("REQUEUED"),)])
def test_what_is_never_known_is_never_said(store, runs):
    made = asked(store)
    assert made.answered(answer(*runs, restarts=2), NOW + WHOLE_S) == []
    assert not made.due(IDS, NOW + 2 * WHOLE_S).any()
    assert not made.preempted(IDS, np.zeros(3)).any()


def test_of_what_is_known_in_part_that_part_is_taken(store):
    made = asked(store)
    runs = (RUNS_ON, run("PREEMPTED", NOW - 900))
    assert made.answered(answer(*runs, restarts=2), NOW) == []
    assert [x.end for x in made.answered(answer(*runs, restarts=2), NOW + WHOLE_S)] == [NOW - 900]


def test_two_restarts_between_two_looks_of_which_one_was_slurms(store):
    made = asked(store, before=1)
    runs = (run("REQUEUED"), run("PREEMPTED", NOW - 600, 60.0), run("PREEMPTED", NOW - 9000))
    # what was before we knew the job is no news
    assert [x.end for x in made.answered(answer(*runs, restarts=3), NOW)] == [NOW - 600]


def test_without_an_answer_it_is_given_up_and_a_job_that_left_is_forgotten(store):
    made = asked(store)
    assert made.due(IDS, NOW + GIVE_UP_S - 1).tolist() == [True, False, False]
    assert not made.due(IDS, NOW + GIVE_UP_S).any()
    made = asked(store)
    assert not made.due(np.array([8, 9]), NOW).any()
    assert not made.due(IDS, NOW).any()


def test_over_restarts_of_the_daemon(store):
    asked(store)
    made = Reruns(store)
    assert made.due(IDS, NOW).tolist() == [True, False, False]
    made.answered(answer(run("PREEMPTED")), NOW)
    made = Reruns(store)
    assert not made.due(IDS, NOW).any()
    assert made.preempted(IDS, np.zeros(3)).tolist() == [True, False, False]
    # another job that got the id
    assert not made.preempted(IDS, np.full(3, NOW)).any()


def test_killed_between_the_record_and_the_note_it_is_not_counted_twice(store):
    asked(store)
    kept = store.get("reruns")
    Reruns(store).answered(answer(run("PREEMPTED")), NOW)
    store.put("reruns", kept)
    made = Reruns(store)
    assert made.answered(answer(run("PREEMPTED")), NOW + 60) == []
    assert (len(store.actions(PREEMPTED, 0.0)), made.news()) == (1, 0)
    assert made.preempted(IDS, np.zeros(3))[0]


@pytest.mark.parametrize("text_", ["", "[]", "{", '{"open": 1}', '{"open": [[1]], "done": []}', "null"])
def test_a_note_that_cannot_be_read(store, text_):
    store.put("reruns", text_)
    assert not Reruns(store).due(IDS, NOW).any()


STATES = ("PREEMPTED", "REQUEUED", "NODE_FAIL", "RUNNING")


@settings(max_examples=60)
@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=6), st.integers(0, 5), st.data())
def test_any_course_counts_each_preempted_run_once(states, before, data):
    """Records of slurmdbd become final at any time; the daemon starts anew at any time."""
    before = min(before, len(states) - 1)
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        store = SqliteStore(f"{home}/ledger.sqlite")
        made, now = asked(store, before), NOW
        for _ in range(4):
            known = data.draw(st.integers(0, len(states)))
            runs = [run(s, NOW - 100 * i) if i >= len(states) - known and s != "RUNNING" else RUNS_ON
                    for i, s in enumerate(states)]  # fmt: skip
            if data.draw(st.booleans()):
                made = Reruns(store)
            made.answered(answer(*runs, restarts=len(states)), now)
            now += data.draw(st.sampled_from((10.0, WHOLE_S)))
        final = [run(s, NOW - 100 * i) for i, s in enumerate(states)]
        made.answered(answer(*final, restarts=len(states)), now)
        new = states[: len(states) - before]
        times = [e.time for e in store.actions(PREEMPTED, 0.0)]
        truth = {NOW - 100 * i for i, s in enumerate(new) if s == "PREEMPTED"}
        assert len(times) == len(set(times))
        assert set(times) <= truth
        if now < NOW + WHOLE_S and "RUNNING" not in new:
            assert set(times) == truth
        store.close()


# ---- words


def test_the_message_says_what_is_known_and_names_nobody():
    told = notice_words.requeue("4711", by_slurm=True)
    assert told.subject == "Slurm Job_id=4711 tias-slurm: requeued"
    assert told.lines[0] == (
        "job 4711 was requeued by Slurm: stopped and put back into the queue, in favour of jobs with higher "
        "priority."
    )
    assert "requeue=no in its comment" in told.line
    assert "by Slurm" not in notice_words.requeue("4711", by_slurm=False).line


# ---- the daemon


class Site:
    """A daemon in requeue mode "slurm", with a sacct and a mail program of the test's."""

    def __init__(self, desk, monkeypatch, tmp_path, mode="enforce"):  # noqa: F811
        self.desk, self.bin, self.mails = desk, tmp_path / "bin", []
        self.bin.mkdir()
        for where in (start, slurm_guards):
            monkeypatch.setattr(where, "look_at_qos", lambda _: (Qos("normal", "", "cluster", 0.0),))
        monkeypatch.setattr(start, "mode_in_file", lambda _: "")
        monkeypatch.setattr(backfill, "REST_S", 0.0)
        monkeypatch.setattr(messenger, "Mail", lambda *_: self.send)
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        desk.write(
            mode=mode, requeue={"mode": "slurm"}, lever={"kind": "priority"}, notify={"how": "mail"},
            metrics={"textfile": str(tmp_path / "t.prom")},
        )  # fmt: skip
        self.prom = tmp_path / "t.prom"
        self.sacct()

    def send(self, letter):
        self.mails.append(letter)
        return Sent(letter, "sent")

    def sacct(self, *lines):
        (self.bin / "out").write_bytes(text(*lines))
        script = self.bin / "sacct"
        script.write_text(f'#!/bin/sh\necho "$*" >> {self.bin}/calls\ncat {self.bin}/out\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def calls(self):
        path = self.bin / "calls"
        return path.read_text().count("\n") if path.exists() else 0

    def daemon(self, *queues):
        self.desk.show(*queues, facts=GOOD)
        self.made = self.desk.daemon()
        return self

    def cycle(self, n=1):
        for _ in range(n):
            assert self.made.cycle().result == "ok"
            until = time.monotonic() + 10
            while self.made._messenger._courier._letters.unfinished_tasks and time.monotonic() < until:
                time.sleep(0.01)
        return self

    def log(self, event):
        return [e for e in self.desk.log.entries if e["event"] == event]


@pytest.fixture
def site(desk, monkeypatch, tmp_path):  # noqa: F811
    return Site(desk, monkeypatch, tmp_path)


WAS = running(submit=T, start=T + 100, gpus=2, comment="requeue=yes,checkpoint=200s")
AGAIN = {"submit": T + 600, "restarts": 1, "reason": "BeginTime", "gpus": 2, "comment": WAS["comment"]}
SHOWN = queue(WAS, time=T + 590), queue(AGAIN, time=T + 605)
SLURM = record(0, 100, 600, state="PREEMPTED"), record(600, state="PENDING")


def test_a_requeue_by_slurm_is_told_once_counted_and_shown(site):
    site.daemon(*SHOWN).cycle()
    assert site.calls() == 0
    site.sacct(*SLURM)
    site.cycle(3)
    assert site.calls() == 1
    [letter] = site.mails
    assert (letter.key, letter.user) == ((100, "requeue"), "ann")
    assert letter.body.startswith("job 100 was requeued by Slurm: ")
    [line] = site.log("requeued by Slurm")
    assert (line["job"], line["ran_s"], line["lost_s"]) == (100, 500, 100)
    assert "tias_slurm_requeues_by_slurm_total 1.0" in site.prom.read_text()
    told = site.desk.json("history", "100")
    assert [(a["action"], a["old"], a["new"]) for a in told["actions"] if a["action"] == PREEMPTED] == [
        (PREEMPTED, 500.0, 100.0)
    ]
    assert [m["reason"] for m in told["messages"]] == ["requeue"]
    flat = " ".join(site.desk.run("history", "100").out.split())
    assert (
        "in favour of jobs with higher priority; it had run 8 min 20 s, 1 min 40 s of that not saved" in flat
    )
    # a second time: counted, not told; also by a daemon that starts anew
    site.made.close()
    site.sacct(SLURM[0], record(600, 700, 900, state="PREEMPTED"), record(900, state="PENDING"))
    site.daemon(queue({**AGAIN, "submit": T + 900, "restarts": 2}, time=T + 905)).cycle(2)
    assert len(site.mails) == 1
    assert [(e["job"], e["ran_s"]) for e in site.log("requeued by Slurm")] == [(100, 200)]


def test_a_requeue_by_anybody_else_is_not(site):
    site.daemon(*SHOWN).cycle()
    site.sacct(record(0, 100, 600, state="REQUEUED"), SLURM[1])
    site.cycle(3)
    assert (site.calls(), site.mails, site.log("requeued by Slurm")) == (1, [], [])


def test_nothing_is_said_before_accounting_has_told(site):
    site.daemon(SHOWN[0], *(queue(AGAIN, time=T + 605 + 15 * i) for i in range(4))).cycle()
    (site.bin / "sacct").write_text("#!/bin/sh\necho slurmdbd is down >&2\nexit 1\n")
    site.cycle()
    assert [e["message"] for e in site.log("earlier runs are not known")] == ["sacct: slurmdbd is down"]
    site.sacct(record(0, 100, None, state="RUNNING", ran=480))
    site.cycle()
    assert site.mails == []
    site.sacct(*SLURM)
    site.cycle()
    assert [x.key for x in site.mails] == [(100, "requeue")]


def test_what_was_before_the_daemon_knew_the_job_is_not_told(site):
    site.sacct(*SLURM)
    site.daemon(SHOWN[1]).cycle(2)
    assert site.calls() == 1  # for its first submit
    assert (site.mails, site.log("requeued by Slurm")) == ([], [])


def test_an_hour_without_the_daemon(site):
    site.daemon(SHOWN[0]).cycle()
    site.made.close()
    site.sacct(record(0, 100, 3000, state="PREEMPTED"), record(3000, state="PENDING"))
    site.daemon(queue({**AGAIN, "submit": T + 3000}, time=T + 3700)).cycle(2)
    assert [x.key for x in site.mails] == [(100, "requeue")]
    # the same answer told what the run had come to
    assert (site.calls(), float(site.made._made.ledger.table[1][0, 3])) == (1, 2900 * 2.0)


def test_a_job_out_of_scope_is_told_nothing(site):
    path = site.desk.path
    path.write_text(path.read_text() + '[scope]\nnot_users = ["ann"]\n')
    site.sacct(*SLURM)
    site.daemon(*SHOWN).cycle(3)
    assert site.mails == []


def test_in_the_other_modes_nobody_asks(site):
    for mode in ("on", "off"):
        path = site.desk.path
        path.write_text(path.read_text().replace('mode = "slurm"', f'mode = "{mode}"'))
        site.sacct(*SLURM)
        site.daemon(*SHOWN).cycle(3)
        site.made.close()
        path.write_text(path.read_text().replace(f'mode = "{mode}"', 'mode = "slurm"'))
        (site.desk.state / "ledger.sqlite").unlink()
    assert (site.calls(), site.mails) == (0, [])


def test_a_dry_run_says_that_it_would_tell(desk, monkeypatch, tmp_path):  # noqa: F811
    site = Site(desk, monkeypatch, tmp_path, mode="dry-run")
    site.sacct(*SLURM)
    site.daemon(*SHOWN).cycle(3)
    assert site.mails == []
    assert [(e["job"], e["reason"]) for e in site.log("would notify")] == [(100, "requeue")]


def test_status_tells_of_the_last_week(site):
    now = round(time.time())
    site.daemon(queue(WAS, time=float(now))).cycle()
    told = site.desk.json("status")["requeues"]["by_slurm"]
    assert told == {"requeues": 0, "jobs": 0, "lost_s": 0, "last": []}
    assert "requeued by Slurm" not in site.desk.run("status").out
    made = Reruns(site.made.store)
    made.began_again(np.array([7]), np.array([0.0]), now)
    runs = (run("PREEMPTED", now - 60.0), run("PREEMPTED", now - 900.0), run("PREEMPTED", now - 8 * 86400.0))
    made.answered(answer(*runs, restarts=3, checkpoint_s=300.0), now)
    told = site.desk.json("status")["requeues"]["by_slurm"]
    assert (told["requeues"], told["jobs"], told["lost_s"]) == (2, 1, 400.0)
    assert [x["time"] for x in told["last"]] == [now - 900.0, now - 60.0]
    flat = " ".join(site.desk.run("status").out.split())
    assert "requeued by Slurm 2 in 7 days, of 1 job; 6 min 40 s of work not saved" in flat
    assert "job 7: had run 8 min 20 s, 3 min 20 s of that not saved" in flat


def test_the_report_counts_them_apart_from_ours(store):
    class Jobs:
        def gpu_s(self, job, seconds):
            return 4 * seconds if job == 7 else None

    made = asked(store)
    made.began_again(np.array([8]), np.array([0.0]), NOW)
    made.answered([*answer(run("PREEMPTED", ran_s=1800.0)), Answer(8, 1, [run("PREEMPTED")], 0.0)], NOW)
    entries = store.actions(PREEMPTED, 0.0)
    done = doings(entries, tally.read(store, NOW - 60, NOW), Jobs(), dry=False)
    assert done["by_slurm"] == {"requeues": 2, "jobs": 2, "lost_gpu_hours": 2.0, "lost_not_known": 1}
    assert (done["requeues"], done["requeued_jobs"]) == ({}, 0)
    assert json.loads(json.dumps(reruns.summary(entries)))["jobs"] == 2
