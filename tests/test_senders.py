"""MailProg and the courier: what is called, what comes of it, and that nobody waits. tests/live has Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.notify.senders import (
    MOST_WAITING,
    SURELY_NOT,
    Courier,
    Letter,
    Mail,
    MailFacts,
    Sent,
    mail_facts,
    mail_user,
    recipient,
    run,
)

LETTER = Letter((7, "refused"), 7, "ann", "Slurm Job_id=7 tias-slurm: x", "line", "first\nsecond\n")


@pytest.fixture
def program(tmp_path):
    """A MailProg of Python text, and where it may leave something."""

    def make(text):
        path = tmp_path / "mailprog"
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time\nleft = {str(tmp_path / 'left')!r}\n{text}\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


def mail(program, timeout_s=20.0):
    return run(program, LETTER.subject, "ann@example.org", LETTER.body, {"SLURM_JOB_ID": "7"}, timeout_s)


def test_it_is_called_as_slurmctld_calls_it_with_the_text_on_standard_input(program, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    made = program("json.dump([sys.argv[1:], sys.stdin.read(), dict(os.environ)], open(left, 'w'))")
    assert mail(made) == ("sent", "")
    argv, body, env = json.loads((tmp_path / "left").read_text())
    assert argv == ["-s", LETTER.subject, "ann@example.org"]
    assert body == LETTER.body
    assert env["SLURM_JOB_ID"] == "7"
    assert "PATH" in env
    assert "SECRET" not in env


def test_one_that_fails(program):
    result, why = mail(program("print('no\\x1b such host', file=sys.stderr); sys.exit(1)"))
    assert result == "failed"
    assert "exit status 1: no\\x1b such host" in why


def test_one_that_hangs_is_ended_with_all_that_it_started(program, tmp_path):
    made = program(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "open(left, 'w').write(str(child.pid))\n"
        "time.sleep(300)"
    )
    began = time.monotonic()
    result, why = mail(made, 3.0)
    assert (result, "not done within 3 s" in why) == ("timed out", True)
    assert time.monotonic() - began < 20
    child = int((tmp_path / "left").read_text())
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            break
        if "Z" in subprocess.run(["ps", "-o", "stat=", str(child)], capture_output=True, text=True).stdout:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child lives on")


def test_one_that_is_deaf_or_never_stops_talking(program):
    assert mail(program("os.close(0)"))[0] == "sent"
    result, why = mail(program("while True: sys.stdout.write('x' * 100_000)"))
    assert (result, "says too much" in why) == ("failed", True)


def test_one_that_leaves_something_behind_makes_nobody_wait(program):
    began = time.monotonic()
    made = program("import subprocess; subprocess.Popen(['sleep', '20'], start_new_session=True)")
    assert mail(made)[0] == "sent"
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("path", ["/nonexistent/mail", "", "mail", "/etc/passwd", "/tmp", "/a\0b"])
def test_one_that_is_not_there(path):
    result, why = mail(path)
    assert result == "no program"
    assert "MailProg" in why
    assert "\n" not in why


# ---- who gets it


@pytest.mark.parametrize(
    "wanted",
    [
        "", "-oops", "-s x", "a b", "a@x,b@y", "a@x\nBcc: c@z", "a\0b", "|/bin/sh", "/etc/passwd", "a@-x",
        "a@x-", "a" * 70, "a@" + "x" * 300, "ä@x", "a@x;b", "$(id)", "`id`", "a@@x", "@x", "!a", "a%b@c",
        "\x1b[2J", "~root",
    ],
)  # fmt: skip
def test_what_is_no_mailbox_falls_back_to_the_owner(wanted):
    assert recipient(wanted, "ann", "example.org") == "ann@example.org"
    assert recipient(wanted, "ann", "") == "ann"


def test_recipients():
    assert recipient("bob@lab.example.org", "ann", "x.org") == "bob@lab.example.org"
    assert recipient("bob", "ann", "x.org") == "bob@x.org"
    assert recipient("b.o+b_1@x", "ann", "") == "b.o+b_1@x"
    assert recipient("-x", "-ann", "x.org") == ""
    assert recipient("", "ann", "not a domain") == ""


@given(st.text(max_size=400), st.text(max_size=80), st.text(max_size=300))
def test_a_recipient_is_never_an_option_nor_several(wanted, user, domain):
    found = recipient(wanted, user, domain)
    assert not found.startswith(("-", "@", "/"))
    assert found.isascii()
    assert not set(found) & set(" \t\r\n,;|<>'\"`$\\/!%&()")
    assert found.count("@") <= 1
    assert len(found) <= 255


RECORD = """JobId=2 JobName=wrap
   StdOut=/tmp/o-2
   {}
   MailUser={} MailType=BEGIN
"""


def test_mail_user_as_slurm_shows_it():
    assert mail_user(RECORD.format("", "bob@x.org")) == "bob@x.org"
    assert mail_user("   MailUser=alice\n") == "alice"
    assert mail_user("JobId=2\n   StdOut=/tmp\n") == ""
    assert mail_user("   MailUser=(null) MailType=NONE\n") == ""
    assert mail_user(RECORD.format("", "-oops foo@bar,x")) == "-oops foo@bar,x"


def test_facts_of_the_site():
    text = "ClusterName     = c1\nMailDomain      = (null)\nMailProg        = /bin/mail\n"
    assert mail_facts(text) == MailFacts("/bin/mail", "", "c1")
    assert mail_facts("") == MailFacts("", "", "")


def test_no_scontrol_is_no_mail(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sent = Mail("", "", 5.0, 5.0)(LETTER)
    assert sent.result in SURELY_NOT
    assert "scontrol" in sent.message


# ---- the courier


def finish(courier, n):
    found = []
    until = time.monotonic() + 20
    while len(found) < n and time.monotonic() < until:
        found += courier.results()
        time.sleep(0.01)
    return found


def test_letters_go_one_by_one_and_nobody_waits():
    go, seen = threading.Event(), []

    def slow(letter):
        go.wait(20)
        seen.append(letter.job_id)
        return Sent(letter, "sent")

    courier = Courier(lambda: "")
    began = time.monotonic()
    for number in range(3):
        courier.hand(slow, LETTER._replace(job_id=number))
    assert time.monotonic() - began < 1
    assert courier.results() == []
    go.set()
    assert [s.result for s in finish(courier, 3)] == ["sent"] * 3
    assert seen == [0, 1, 2]
    courier.stop()


def test_it_is_bounded_and_what_was_not_begun_comes_back_when_it_ends():
    started, go = threading.Event(), threading.Event()

    def hangs(letter):
        started.set()
        go.wait(20)
        return Sent(letter, "sent")

    courier = Courier(lambda: "")
    courier.hand(hangs, LETTER)
    assert started.wait(10)
    for _ in range(MOST_WAITING):
        courier.hand(hangs, LETTER)
    assert courier.room == 0
    threading.Timer(0.3, go.set).start()
    courier.stop()
    results = [s.result for s in courier.results()]
    assert results.count("not sent") == MOST_WAITING
    assert results.count("sent") == 1


def test_a_fault_in_a_sender_ends_no_courier():
    def broken(letter):
        raise RuntimeError("a\nb")

    courier = Courier(lambda: "")
    courier.hand(broken, LETTER)
    courier.hand(lambda letter: Sent(letter, "sent"), LETTER)
    assert [s.result for s in finish(courier, 2)] == ["failed", "sent"]
    courier.stop()


def test_pause_and_lost_lead_hold_for_what_was_handed_over():
    why = ["the daemon is paused"]
    courier = Courier(lambda: why[0])
    courier.hand(lambda letter: pytest.fail("sent"), LETTER)
    assert [(s.result, s.message) for s in finish(courier, 1)] == [("not sent", "the daemon is paused")]
    courier.stop()


def test_trouble_holds_the_rest_back_until_a_reload():
    tried = []

    def sends(letter):
        tried.append(1)
        return Sent(letter, "no rights", "Invalid user id")

    courier = Courier(lambda: "")
    for _ in range(5):
        courier.hand(sends, LETTER)
    assert [s.result for s in finish(courier, 5)] == ["no rights"] + ["not sent"] * 4
    assert (len(tried), courier.blocked) == (1, True)
    courier.unblock()
    courier.hand(sends, LETTER)
    assert [s.result for s in finish(courier, 1)] == ["no rights"]
    courier.stop()
