"""What `explain` says: the first line, why nobody is requeued, and what it leaves out without the ledger."""

import os
import pwd

import numpy as np
import pytest
from raw_queue import NOW, nodes, queue, running, waiting
from test_live_nodes import EIGHT, asked
from test_status import desk  # noqa: F401

from tias_slurm.cli import look as look_module
from tias_slurm.cli.explain_page import _when
from tias_slurm.cli.words import span

ON = {"mode": "on"}
YES = "requeue=yes"
VICTIM = running(job_id=10, gpus=8, comment=YES, start=NOW - 5000, submit=NOW - 9000, node_list="n1")
URGENT = {"job_id": 20, "gpus": 8, "comment": "deadline=+3h", "reason": "Resources"}
FULL = {"gpus_used": 8, "cpus_used": 1}


def line(desk, *jobs, job=100):  # noqa: F811
    desk.show(queue(*jobs))
    return desk.json("explain", str(job))["answer"]


# ---- the first line


def test_a_job_that_waits_for_its_begin_time(desk):  # noqa: F811
    later = {"reason": "BeginTime", "eligible": NOW + 3600, "start": NOW + 3600}
    desk.write(deadlines={"timezone": "UTC"})
    said = line(desk, later, {}, {})
    assert said.startswith("100 waits for its begin time, 2027-01-15 09:00:00: until then it waits for no")
    # even with nobody before it
    assert "waits for its begin time" in line(desk, later)


def test_a_requeued_job_in_its_delay(desk):  # noqa: F811
    desk.write(deadlines={"timezone": "UTC"})
    said = line(desk, {"reason": "BeginTime", "eligible": NOW + 110, "restarts": 1})
    assert said.startswith("100 was requeued, and may start again at 2027-01-15 08:01:50: until then")
    # its date may have passed by the time it is looked at
    assert "was requeued, and may start again soon" in line(
        desk, {"reason": "BeginTime", "eligible": NOW - 1, "restarts": 1}
    )


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:n1",
        "ReqNodeNotAvail,_May_be_reserved_for_other_job",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ],
)
def test_nodes_that_are_not_there(desk, reason):  # noqa: F811
    desk.show(queue({"reason": reason, "gpus": 8}))
    desk.adapter.place = nodes({"state": "IDLE+DRAIN"})
    desk.adapter.asked = {100: asked(**EIGHT)}
    said = desk.json("explain", "100")["answer"]
    assert said.startswith(
        f"100 waits for nodes that are down, drained, reserved or kept for others: Slurm says {reason}"
    )
    # the nodes are there, whatever Slurm says
    desk.adapter.place = nodes(FULL)
    assert desk.json("explain", "100")["answer"].startswith("100 is first in line and waits for free nodes")


def test_a_further_component_of_a_het_job(desk):  # noqa: F811
    part = {"het_id": 100, "het_offset": 1}
    said = line(desk, {"het_id": 100}, part, job="100+1")
    assert said.startswith("100+1 starts together with all of het job 100")
    assert "tias-slurm explain 100" in said


@pytest.mark.parametrize("reason", ["Cleaning", "NodeDown", "Prolog"])
def test_other_reasons_are_told(desk, reason):  # noqa: F811
    assert f"Slurm says {reason}" in line(desk, {"reason": reason}, {})
    assert "waits its turn" not in line(desk, {}, {"reason": reason}, job=101)


def test_a_job_that_slurm_has_not_looked_at(desk):  # noqa: F811
    assert "Slurm has not looked at it yet" in line(desk, {"reason": "None"})


def test_a_held_job_that_is_a_component_is_held(desk):  # noqa: F811
    held = {"het_id": 100, "het_offset": 1, "priority": 0, "reason": "JobHeldUser"}
    assert "because it is held" in line(desk, {"het_id": 100}, held, job="100+1")


def test_no_time_is_less_than_nothing(desk):  # noqa: F811
    assert (span(-0.4), span(-0.0), span(-0.6)) == ("0 s", "0 s", "-1 s")
    desk.show(queue({"reason": "BeginTime", "eligible": NOW + 3600}))
    assert desk.json("explain", "100")["front"]["waited_s"] == 0.0


def test_changes_that_look_alike_are_told_apart():
    day = 86_400
    made = [{"after_s": x, "if_it": "waits"} for x in (day + 18_000, day + 18_060, day + 18_061, 3 * day)]
    made.append({"after_s": 3 * day, "if_it": "runs"})
    told = [_when(made, at) for at in range(5)]
    assert told == ["1 d 5 h", "1 d 5 h 1 min", "1 d 5 h 1 min 1 s", "3 d", "3 d"]


# ---- why nobody is requeued


class Site:
    """A full node, and an urgent job that waits."""

    def __init__(self, desk, *jobs, **settings):  # noqa: F811
        self.desk = desk
        desk.write(requeue={**ON, **settings})
        desk.show(queue(*jobs, URGENT))
        desk.adapter.place = nodes(FULL, {"state": "DOWN"})
        desk.adapter.asked = {20: asked(**EIGHT)}

    def why(self, job=20):
        told = self.desk.json("explain", str(job))["requeue"]["nobody_for_it"]
        page = self.desk.run("explain", str(job)).out
        flat = " ".join(page.split())
        assert told["planned"] or f"nobody is requeued for it: {told['why']}" in flat
        return told["why"], told["worse"]


def test_requeue_off(desk):  # noqa: F811
    desk.show(queue(VICTIM, URGENT))
    assert desk.json("explain", "20")["requeue"]["nobody_for_it"] is None
    assert "is off here" in desk.run("explain", "20").out


def test_somebody_is_requeued(desk):  # noqa: F811
    site = Site(desk, VICTIM)
    assert site.why() == ("", {"": 1})
    assert "1 job to be requeued or warned for it in the next cycle" in desk.run("explain", "20").out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"comment": ""}, "without consent"),
        ({"comment": "requeue=no"}, "without consent"),
        ({"start": NOW - 599}, "younger than 600 s"),
        ({"requeue": False}, "Requeue=0"),
        ({"batch": False}, "no batch job"),
        ({"het_id": 10}, "part of a het job"),
        ({"cron": True}, "scrontab job"),
        ({"native_deadline": NOW + 9000}, "with a deadline of Slurm's own"),
        ({"flags": "COMPLETING"}, "busy"),
        ({"user": "bob"}, "out of scope"),
        ({"state": "SUSPENDED"}, "not running"),
    ],
)
def test_those_that_stand_worse_may_not_be(desk, change, reason):  # noqa: F811
    desk.path.write_text("")
    site = Site(desk, {**VICTIM, **change})
    desk.path.write_text(desk.path.read_text() + '[scope]\nnot_users = ["bob"]\n')
    assert site.why() == ("those that stand worse may not be requeued", {reason: 1})
    told = desk.json("explain", "10")["requeue"]
    assert (told["possible"], told["spared"]) == (False, reason)


def test_an_ignored_job_is_spared(desk):  # noqa: F811
    site = Site(desk, VICTIM)
    desk.state.mkdir()
    desk.run("ignore", "10")
    assert site.why() == ("those that stand worse may not be requeued", {"ignored": 1})


def test_reasons_are_counted(desk):  # noqa: F811
    others = [{**VICTIM, "job_id": n, "gpus": 1, "comment": c, "start": NOW - s} for n, c, s in
              ((11, "", 9000), (12, "", 9000), (13, YES, 10))]  # fmt: skip
    site = Site(desk, *others)
    assert site.why()[1] == {"without consent": 2, "younger than 600 s": 1}
    assert "2 without consent, 1 younger than 600 s" in desk.run("explain", "20").out


def test_nobody_stands_worse(desk):  # noqa: F811
    site = Site(
        desk, {**VICTIM, "comment": "deadline=+4h,requeue=yes", "start": NOW - 700, "submit": NOW - 800}
    )
    why, worse = site.why()
    assert (why.startswith("nobody runs who"), worse) == (True, {})


def test_not_while_its_own_value_is_not_in_place(desk):  # noqa: F811
    """Somebody has changed it, so it is left as it is."""
    site = Site(desk, VICTIM, max_per_hour=0)
    daemon = desk.daemon()
    daemon.cycle()
    daemon.close()
    desk.adapter.values[20, "nice"] = 77
    assert site.why() == ("its own value is not as it should be", {"": 1})


def test_not_for_a_job_that_is_left_alone(desk):  # noqa: F811
    site = Site(desk, VICTIM)
    desk.state.mkdir()
    desk.run("ignore", "20")
    assert site.why()[0] == "it is left alone: ignored"


def test_what_is_planned_and_not_sent(desk):  # noqa: F811
    Site(desk, VICTIM)
    assert "for it in the next cycle, but not sent: no daemon runs" in " ".join(
        desk.run("explain", "20").out.split()
    )
    desk.write("dry-run", requeue=ON)
    assert desk.json("explain", "20")["requeue"]["nobody_for_it"]["idle"] == "a dry run"


def test_not_for_a_job_that_waits_for_something_else(desk):  # noqa: F811
    Site(desk, VICTIM)
    desk.show(queue(VICTIM, {**URGENT, "reason": "QOSMaxGRESPerUser"}))
    told = desk.json("explain", "20")["requeue"]["nobody_for_it"]
    assert told["why"] == "it does not wait for nodes alone: Slurm says QOSMaxGRESPerUser"


def test_the_nodes_are_not_sure(desk):  # noqa: F811
    site = Site(desk, VICTIM)
    desk.adapter.asked = {20: asked(**EIGHT, Licenses="matlab:1")}
    why, worse = site.why()
    assert why.startswith("where it would start is not sure: ")
    assert worse == {"": 1}


def test_too_little_would_be_freed(desk):  # noqa: F811
    site = Site(desk, {**VICTIM, "gpus": 2}, {**VICTIM, "job_id": 11, "gpus": 6, "comment": ""})
    why, worse = site.why()
    assert why == "they would not free enough on its nodes, or somebody before it takes the room"
    assert worse == {"": 1, "without consent": 1}


@pytest.mark.parametrize("kept", ["max_per_hour", "max_per_user_per_hour", "cooldown_s"])
def test_budgets_and_the_cool_down(desk, kept):  # noqa: F811
    """Others were requeued for it by a daemon, whose ledger is looked at."""
    limits = {"max_per_hour": 100, "max_per_user_per_hour": 100, "cooldown_s": 0.0}
    limits[kept] = 500.0 if kept == "cooldown_s" else 1
    site = Site(desk, VICTIM, **limits)
    daemon = desk.daemon()
    daemon.cycle()
    assert daemon.cycle().requeues == 0
    daemon.close()
    why, worse = site.why()
    assert worse == {"": 1}
    said = {
        "max_per_hour": "1 job was requeued in the last hour, as many as may be",
        "max_per_user_per_hour": "what the users of those that stand worse have left",
        "cooldown_s": "others were requeued for it lately",
    }
    assert why.startswith(said[kept])
    told = desk.json("explain", "20")["requeue"]["nobody_for_it"]
    assert told["cool_down_until"] == (NOW + 500.0 if kept == "cooldown_s" else None)


def test_in_vain_is_known_after_a_restart(desk):  # noqa: F811
    """Three times others were requeued for it, and it never started."""
    site = Site(desk, VICTIM, cooldown_s=0.0, max_in_vain=2)
    daemon = desk.daemon()
    for n in range(3):
        desk.adapter.queues.clear()
        desk.adapter.queues.append(queue(VICTIM, URGENT, time=NOW + n))
        daemon.cycle()
    daemon.close()
    assert sum(what == "requeue" for _, what, _ in desk.adapter.sent) == 2
    assert site.why()[0] == "where it would start is not sure: did not start, with others requeued for it"
    again = desk.daemon()
    assert again.cycle().requeues == 0
    assert again.cluster.watch.vain == {20: 1}


# ---- without the ledger


@pytest.fixture
def closed(desk, monkeypatch):  # noqa: F811
    """A daemon has run, and its directory is closed to us."""
    me = pwd.getpwuid(os.getuid()).pw_name
    desk.write(requeue=ON)
    desk.show(queue({"user": me, "comment": "deadline=+30h", "submit": NOW - 9000}, {"user": "no-such-user"}))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.close()
    desk.show(queue({"user": me, "comment": "deadline=+30h", "restarts": 1}, {"user": "no-such-user"}))
    real, state = os.access, str(desk.state)
    monkeypatch.setattr(
        look_module.os, "access", lambda path, how: real(path, how) and not str(path).startswith(state)
    )
    return desk


def test_explain_says_what_is_not_known(closed):
    told = closed.json("explain", "100")
    assert not told["ledger"]["known"]
    assert "may not read the ledger" in told["ledger"]["why"]
    lever, requeue = told["lever"], told["requeue"]
    assert (lever["should_be"], lever["set"], lever["found"], lever["state"]) == (
        None,
        None,
        None,
        "not known",
    )
    assert (requeue["by_us"], requeue["work_redone_s"], requeue["nobody_for_it"]) == (None, None, None)
    assert told["place"]["startable_planned"] is None
    assert told["first_submit_guessed"]
    assert "as far as Slurm alone tells" in told["answer"]
    page = closed.run("explain", "100").out
    assert "to be written" not in page
    assert "should be -" not in page
    assert "may not read the ledger" in page
    assert "passed" not in page


def test_a_deadline_that_has_passed_is_not_left_out_where_the_ledger_is_closed(closed):
    late = {"comment": "deadline=+2h", "submit": NOW - 9000}
    closed.show(queue({"user": "no-such-user", **late}, {"user": "no-such-user"}))
    told = closed.json("explain", "100")
    assert (told["claim"], told["claim_said"], told["claim_unaccepted"]) == (None, NOW - 1800, None)
    page = " ".join(closed.run("explain", "100").out.split())
    assert "by its comment; whether that counts the daemon alone knows" in page
    assert closed.json("explain", "101")["claim_said"] is None


def test_a_job_that_was_left_for_the_user_is_known(closed, tmp_path):
    text = closed.path.read_text()
    closed.path.write_text(text.replace("[daemon]", f'[daemon]\nuser_export = "{tmp_path / "users"}"'))
    # as the daemon would
    daemon = closed.daemon()
    daemon.cycle()
    daemon.close()
    told = closed.json("explain", "100")
    assert (told["ledger"]["known"], told["ledger"]["all"]) == (True, False)
    assert told["first_submit"] == NOW - 9000
    assert told["lever"]["should_be"] is not None
    assert told["requeue"]["by_us"] == 0
    told = closed.json("explain", "101")
    assert not told["ledger"]["known"]
    assert "has no such job" in told["ledger"]["why"]
    assert told["lever"]["should_be"] is None


@pytest.mark.parametrize("words", [("plan",), ("history", "100")])
def test_plan_and_history_refuse(closed, words):
    done = closed.run(*words, code=2)
    assert len(done.err.strip().splitlines()) == 1
    assert "may not read the ledger" in done.err
    assert "sudo" in done.err
    assert "user_export" in done.err


def test_of_a_job_that_is_gone_it_says_what_it_may_not_read(closed):
    closed.show(waiting(1))
    done = closed.run("explain", "101", code=3)
    assert "What the ledger remembers of it is not told" in done.out
    assert closed.json("explain", "101", code=3)["ledger_unread"]


def test_a_site_whose_daemon_has_never_run_is_no_such_case(desk):  # noqa: F811
    desk.show(queue({"comment": "deadline=+3h"}))
    told = desk.json("explain", "100")
    assert told["ledger"] == {"known": True, "all": True, "why": None}
    assert told["lever"]["should_be"] < 0
    assert desk.run("plan").code == 0
    assert np.isfinite(told["first_submit"])
