"""Messages of a daemon: noted before they go, never twice, and whatever goes wrong ends no cycle."""

from __future__ import annotations

import math
import sqlite3
import time

import pytest
from daemon_desk import desk  # noqa: F401
from raw_queue import NOW, Scripted, queue, running
from two_daemons import pair, turn  # noqa: F401
from typer.testing import CliRunner

from tias_slurm import status
from tias_slurm.cli.app import app
from tias_slurm.cli.messages import line, status_line, summary, told, works_since
from tias_slurm.config import ConfigError, load_config
from tias_slurm.ledger.store import LedgerError
from tias_slurm.notify import messenger
from tias_slurm.notify.book import NoticeBook
from tias_slurm.notify.senders import MOST_WAITING, Courier, Sent

BAD = {"comment": "deadline=18:00"}
MAIL = '[notify]\nhow = "mail"\n'


@pytest.fixture
def post(desk, monkeypatch):  # noqa: F811
    """A desk whose mail comes here."""

    class Post:
        result = "sent"
        letters = ()

        def send(self, letter):
            self.letters = (*self.letters, letter)
            return Sent(letter, self.result, "said so")

        def daemon(self, *queues, extra=MAIL, mode="enforce", **script):
            desk.write(extra=extra, mode=mode)
            return desk.daemon(*queues, **script)

        def cycle(self, daemon, n=1):
            """Cycles, each after the mail of the one before is out."""
            for _ in range(n):
                assert daemon.cycle().result == "ok"
                until = time.monotonic() + 10
                while daemon._messenger._courier._letters.unfinished_tasks and time.monotonic() < until:
                    time.sleep(0.01)

        def kept(self, name="ledger.sqlite"):
            with sqlite3.connect(desk.state / name) as db:
                rows = db.execute(
                    "SELECT job_id, reason, taken_up IS NOT NULL, result FROM notice ORDER BY 1, 2"
                )
                return rows.fetchall()

    made = Post()
    monkeypatch.setattr(messenger, "Mail", lambda *_: made.send)
    made.desk = desk
    return made


def test_once_over_cycles_and_restarts(post):
    daemon = post.daemon(queue(BAD, {}))
    post.cycle(daemon, 3)
    assert [(x.key, x.user) for x in post.letters] == [((100, "refused"), "ann")]
    assert "clock time only" in post.letters[0].body
    daemon.close()
    daemon = post.daemon(queue(BAD, {}))
    post.cycle(daemon, 2)
    assert len(post.letters) == 1
    assert post.kept() == [(100, "refused", 1, "sent")]


def test_off_touches_nothing(post):
    post.cycle(post.daemon(queue(BAD), extra=""), 2)
    assert (post.letters, post.kept()) == ((), [])


def test_a_claim_that_had_passed_and_one_that_cannot_be_met(post):
    daemon = post.daemon(
        queue(
            {"comment": f"deadline=@{NOW - 10:.0f}"},
            {"comment": f"deadline=@{NOW + 5:.0f}", "submit": NOW - 9e4},
        )
    )
    post.cycle(daemon, 2)
    assert [x.key for x in post.letters] == [(100, "refused"), (101, "impossible")]
    assert "the deadline had passed when it was first seen" in post.letters[0].body
    assert "hardly be met" in post.letters[1].body


def test_a_requeue_is_told_when_it_is_seen_to_have_happened(post):
    was = running(requeue=True, submit=NOW - 600, gpus=8, node_list="n1")
    daemon = post.daemon(
        queue(was),
        queue(was),
        queue({"submit": NOW + 1, "restarts": 1, "reason": "BeginTime"}, time=NOW + 60),
    )
    post.cycle(daemon)
    # what was meant, and then a look that shows that it has not been done
    daemon.store.change("UPDATE job SET requeues = 1, requeued_at = ?", [(NOW,)])
    daemon._made.ledger._table[:, messenger.REQUEUES] = 1.0
    daemon._made.ledger._table[:, messenger.REQUEUED_AT] = NOW
    post.cycle(daemon)
    assert post.letters == ()
    post.cycle(daemon, 2)
    assert [x.key for x in post.letters] == [(100, "requeue")]


def test_killed_between_the_note_and_the_sending(post, monkeypatch):
    daemon = post.daemon(queue(BAD))
    monkeypatch.setattr(Courier, "hand", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    post.cycle(daemon)
    assert post.desk.said("messages")[0]["message"] == "internal error: RuntimeError"
    monkeypatch.undo()
    assert post.kept() == [(100, "refused", 1, None)]
    daemon.close()
    monkeypatch.setattr(messenger, "Mail", lambda *_: post.send)
    post.cycle(post.daemon(queue(BAD)), 2)
    assert post.letters == ()


def test_nothing_goes_that_could_not_be_noted_and_the_cycle_is_good(post, monkeypatch):
    daemon = post.daemon(queue(BAD))

    def full(*_):
        raise LedgerError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(NoticeBook, "keep", full)
        post.cycle(daemon, 3)
    assert post.letters == ()
    assert [e["message"] for e in post.desk.said("messages")] == ["the disk is full"]
    post.cycle(daemon)
    assert len(post.letters) == 1


def test_a_fault_of_ours_ends_no_cycle(post, monkeypatch):
    daemon = post.daemon(queue(BAD))
    monkeypatch.setattr(messenger, "due", lambda *_: 1 / 0)
    seen = daemon.cycle()
    assert (seen.result, seen.writes) == ("ok", 1)
    assert post.desk.said("messages")[0]["message"] == "internal error: ZeroDivisionError"


def test_what_surely_was_not_sent_is_tried_again_and_nothing_else(post):
    daemon = post.daemon(queue(BAD))
    post.result = "not sent"
    post.cycle(daemon, 2)
    assert len(post.letters) == 2
    post.result = "failed"
    post.cycle(daemon, 4)
    assert len(post.letters) == 3
    assert post.kept() == [(100, "refused", 1, "failed")]
    [said] = post.desk.said("notify failed")
    assert (said["result"], said["message"]) == ("failed", "said so")


def test_trouble_is_said_once_and_holds_all_back(post):
    daemon = post.daemon(queue(*[BAD] * 5))
    post.result = "no program"
    post.cycle(daemon, 4)
    assert len(post.letters) == 1
    assert [e["message"] for e in post.desk.said("messages")] == ["said so"]
    assert [row[2:] for row in post.kept()] == [(0, None)] * 5
    # a reload tries again
    post.result = "sent"
    daemon._reload = True
    post.cycle(daemon, 2)
    assert [row[2:] for row in post.kept()] == [(1, "sent")] * 5


def test_a_full_queue_and_an_hours_limit_only_hold_back(post):
    jobs = [BAD] * (MOST_WAITING + 20)
    daemon = post.daemon(queue(*jobs), extra=f"{MAIL}max_per_hour = {MOST_WAITING + 10}\n")
    post.cycle(daemon)
    assert [e["messages"] for e in post.desk.said("messages held back")] == [20]
    post.cycle(daemon, 2)
    assert len(post.letters) == len({x.key for x in post.letters}) == MOST_WAITING + 10


def test_a_pause_holds_for_what_was_handed_over_too(post):
    daemon = post.daemon(queue(BAD))
    (post.desk.state / "paused").touch()
    post.cycle(daemon)
    assert (post.letters, post.kept()) == ((), [])
    (post.desk.state / "paused").unlink()
    daemon.cycle()
    daemon.close()
    assert len(post.letters) == 1


def test_out_of_scope_and_ignored(post):
    daemon = post.daemon(queue(BAD, {**BAD, "user": "bob"}), extra=f'{MAIL}[scope]\nnot_users = ["ann"]\n')
    (post.desk.state / "ignored").mkdir()
    (post.desk.state / "ignored" / "101").touch()
    post.cycle(daemon, 2)
    assert (post.letters, post.kept()) == ((), [])


def test_a_dry_run_says_what_it_would_send_once(post):
    daemon = post.daemon(queue(BAD), mode="dry-run")
    post.cycle(daemon, 3)
    [said] = post.desk.said("would notify")
    assert (said["job"], said["reason"], said["how"]) == (100, "refused", "mail")
    assert post.letters == ()
    assert post.kept("ledger-dry-run.sqlite") == [(100, "refused", 1, "dry run")]


def test_for_the_output_it_waits_for_the_run(post, monkeypatch):
    monkeypatch.setattr(messenger, "Output", lambda *_: post.send)
    runs = running(**BAD)
    ready = {**runs, "flags": "CONFIGURING"}
    daemon = post.daemon(queue(BAD), queue(ready), queue(runs), extra='[notify]\nhow = "output"\n')
    post.cycle(daemon, 2)
    assert (post.letters, post.kept()) == ((), [(100, "refused", 0, None)])
    post.cycle(daemon, 2)
    assert [x.job_id for x in post.letters] == [100]
    assert post.letters[0].line.startswith("tias-slurm: job 100: deadline= in its comment is not taken")


def test_metrics_count_them_by_reason_and_result_alone(post):
    daemon = post.daemon(queue(BAD), extra=f'{MAIL}[metrics]\ntextfile = "{post.desk.state}/t.prom"\n')
    post.cycle(daemon, 2)
    text = (post.desk.state / "t.prom").read_text()
    assert 'tias_slurm_notices_total{how="mail",reason="refused",result="sent"} 1.0' in text
    assert "tias_slurm_waiting_notices 0.0" in text


def test_old_ones_go_but_not_of_jobs_that_are_here(post):
    daemon = post.daemon(queue(BAD))
    post.cycle(daemon)
    long_ago = time.time() - 100 * 86_400
    daemon.store.change("UPDATE notice SET time = ?", [(long_ago,)])
    daemon.store.change(
        "INSERT INTO notice SELECT 7, reason, time, about, taken_up, result, how, record, message, text "
        "FROM notice",
        [()],
    )
    daemon.store.change("UPDATE job SET first_submit = ?", [(long_ago - 9,)])
    daemon.close()
    daemon = post.daemon(queue({**BAD, "submit": long_ago - 9}))
    post.cycle(daemon)
    assert [row[0] for row in post.kept()] == [100]


def test_what_people_see_of_it(post):
    daemon = post.daemon(queue(BAD, BAD), extra=f"{MAIL}max_per_hour = 1\n")
    post.cycle(daemon, 2)
    config = daemon.config
    [first], [second] = told(config, 100), told(config, 101)
    assert line(first) == ("sent", f"mail, refused: said so: {' '.join(first['text'])}")
    assert line(first)[1].count("job 100: deadline= in its comment is not taken") == 1
    assert (line(second)[0], second["told"], second["taken_up"]) == ("waits", None, None)
    assert told(config, 100, words=False)[0]["message"] == ""
    assert told(config, 7) == []
    found = summary(daemon.store, "mail", NOW + 60, math.inf)
    assert found == {"how": "mail", "waiting": 1, "day": {"sent": 1}}
    assert status_line(found) == "mail; in the last day 1 sent; 1 wait"
    assert (
        status_line(summary(daemon.store, "mail", NOW + 9e5, math.inf))
        == "mail; none in the last day; 1 wait"
    )
    assert status_line({"how": "off", "waiting": 0, "day": {}}) == ""
    done = CliRunner().invoke(app, ["history", "100", "--config", str(post.desk.path)])
    assert "notify" in done.stdout
    assert "deadline= in its comment is not taken" in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["status", "--config", str(post.desk.path)])
    assert "messages" in done.stdout


def test_under_way_until_somebody_hears_what_became_of_it(post, monkeypatch):
    """The daemon that handed it over tells in its next cycle; once that one is gone nobody knows."""
    monkeypatch.setattr(Courier, "hand", lambda *_: None)
    daemon = post.daemon(queue(BAD))
    post.cycle(daemon)
    config = daemon.config

    def both():
        [message] = told(config, 100)
        now = NOW + 60
        return line(message)[0], summary(daemon.store, "mail", now, works_since(config))["day"]

    assert both() == ("under way", {"under way": 1})
    document = status.left(str(post.desk.state))
    status.leave(str(post.desk.state), document | {"pid": 1})  # of one that ran before
    assert both() == ("not known", {"not known": 1})
    status.leave(str(post.desk.state), document | {"started": NOW + 9})
    assert both() == ("not known", {"not known": 1})
    status.leave(str(post.desk.state), document)
    monkeypatch.setattr("tias_slurm.cli.messages.time.time", lambda: NOW + 4000)
    assert both() == ("not known", {"not known": 1})
    monkeypatch.undo()
    daemon._lock.close()
    assert both() == ("not known", {"not known": 1})
    assert told(config, 100)[0]["result"] is None


@pytest.mark.parametrize(
    "setting",
    ['how = "sms"', 'mail_prog = "mail -s"', 'mail_domain = "a b"', "max_per_hour = -1", "timeout_s = 0"],
)
def test_settings_that_are_refused(tmp_path, setting):
    path = tmp_path / "c.toml"
    path.write_text(f"[notify]\n{setting}\n")
    with pytest.raises(ConfigError, match=rf"notify\.{setting.split()[0]}"):
        load_config(str(path))


def test_the_next_leader_does_not_tell_again_and_who_lost_the_lead_tells_nothing(pair, monkeypatch):  # noqa: F811
    told_by = []

    def mail(*_):
        return lambda letter: (told_by.append(letter.key[0]), Sent(letter, "sent"))[1]

    monkeypatch.setattr(messenger, "Mail", mail)
    pair.slurm = Scripted(queue(BAD, BAD))
    first = pair.daemon("ctl1", "state", "enforce", MAIL, "max_per_hour = 1")
    second = pair.daemon("ctl2", "state", "enforce", MAIL, "max_per_hour = 9")
    assert turn(first, second) == ["ok", "standby"]
    first._messenger._courier.stop(10.0)
    assert told_by == [100]
    pair.in_charge = "ctl2"
    assert turn(first, second) == ["standby", "ok"]
    assert first._may_tell() == "this daemon no longer leads"
    second._messenger._courier.stop(10.0)
    assert told_by == [100, 101]


def test_a_dry_run_after_an_earnest_one_tells_once_over_starts(post):
    """Each start looks into the real ledger; that is no change of it, and the dry run's own stays."""
    post.cycle(post.daemon(queue(BAD)))
    post.desk.close()
    said = []
    for _ in range(3):
        post.cycle(post.daemon(queue(BAD), mode="dry-run"))
        said.append(len(post.desk.said("would notify")))
        post.desk.close()
    assert said == [0, 0, 0]  # it was told in earnest
    assert post.kept("ledger-dry-run.sqlite") == [(100, "refused", 1, "sent")]
    for _ in range(3):
        post.cycle(post.daemon(queue(BAD, BAD), mode="dry-run"))
        said.append(len(post.desk.said("would notify")))
        post.desk.close()
    assert said[3:] == [1, 0, 0]
