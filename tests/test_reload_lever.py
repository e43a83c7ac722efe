"""A reload that changes the lever or who preempts: what has to go back first, guards that go on to hold."""

import daemon_desk
import pytest
import reloading
from raw_queue import FACTS, queue, running, waiting
from reloading import PREEMPTS, SLURM, facts, hup, left

from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.service import reload, start
from tias_slurm.slurm.checks_preempt import Qos

desk = daemon_desk.desk
sprio = reloading.sprio
guards = reloading.guards


# ---- lever, and what has to go back first


def test_the_lever_changes_and_the_old_values_go_back(desk):
    daemon = desk.daemon(waiting(3, nice=5))
    daemon.cycle()
    sent = len(daemon.adapter.sent)
    desk.write(lever="priority")
    seen = hup(daemon)
    assert (seen.result, seen.writes) == ("ok", 3)
    back, after = daemon.adapter.sent[sent : sent + 3], daemon.adapter.sent[sent + 3 :]
    assert [(field, value) for _, field, value in back] == [("nice", 5)] * 3
    assert {field for _, field, _ in after} == {"priority"}
    [line] = desk.said("values put back")
    assert (line["lever"], line["restored"]) == ("nice", 3)
    assert daemon.store.get("lever") == "priority"
    assert [e.action for e in daemon.store.history(100)] == ["nice", "restore", "priority"]


def test_values_that_do_not_go_back(desk):
    daemon = desk.daemon(waiting(3, nice=5))
    daemon.cycle()
    set_values = dict(daemon.adapter.values)
    daemon.adapter.answers = {101: "refused"}
    desk.write(lever="priority")
    hup(daemon)
    [line] = desk.said("reload refused")
    assert (
        'the values of the lever "nice" have to go back first, and 1 of 3 jobs keep theirs' in line["message"]
    )
    assert "refused (said refused)" in line["message"]
    assert daemon.config.lever.kind == "nice"
    # the old settings hold: those that had gone back are set again, and the ledger knows it
    assert daemon.adapter.values == set_values
    assert not any(field == "priority" for _, field, _ in daemon.adapter.sent)
    assert daemon.store.get("lever") == "nice"
    other = SqliteStore(daemon.store.path, older="leave")
    table = other.load()[1]
    other.close()
    assert table[:, FOUND].tolist() == [5.0] * 3
    assert sorted(table[:, SET].tolist()) == sorted(float(v) for v in set_values.values())
    daemon.adapter.answers = {}
    assert hup(daemon).writes == 3
    assert daemon.config.lever.kind == "priority"


def test_a_ledger_that_fails_after_they_went_back(desk, monkeypatch):
    """It is not forgotten whose the values are that the next cycle sets again."""
    daemon = desk.daemon(waiting(2, nice=5))
    daemon.cycle()
    set_values = dict(daemon.adapter.values)
    own = start.own

    def full(config, store):
        if config.lever.kind == "priority":
            raise reload.InputError("the disk is full")
        own(config, store)

    monkeypatch.setattr(start, "own", full)
    desk.write(lever="priority")
    hup(daemon)
    assert "the disk is full" in desk.said("reload refused")[0]["message"]
    assert daemon.adapter.values == set_values
    assert daemon.store.get("lever") == "nice"
    assert daemon.store.load()[1][:, [FOUND, SET]].tolist() == [[5.0, v] for v in set_values.values()]


def test_nothing_goes_back_while_nothing_may_be_written(desk):
    daemon = desk.daemon(waiting(2))
    daemon.cycle()
    sent = len(daemon.adapter.sent)
    (desk.state / "paused").touch()
    desk.write(lever="priority")
    hup(daemon)
    assert "the daemon is paused" in desk.said("reload refused")[0]["message"]
    assert len(daemon.adapter.sent) == sent
    (desk.state / "paused").unlink()
    assert hup(daemon).writes == 2


def test_to_enforce_where_the_ledger_is_of_another_lever(desk):
    daemon = desk.daemon(waiting(2, nice=5))
    daemon.cycle()
    desk.write(mode="dry-run", lever="priority")
    hup(daemon)
    assert daemon.store.get("lever") == "priority"
    assert len(daemon.adapter.sent) == 2  # a dry run puts nothing back
    desk.write(lever="priority")
    assert hup(daemon).writes == 2
    assert [s[1:] for s in daemon.adapter.sent[2:4]] == [("nice", 5)] * 2


def test_site_factor_where_it_cannot_work(desk):
    daemon = desk.daemon(waiting(1), facts=facts(site_factor_plugin="site_factor/example"))
    daemon.cycle()
    desk.write(lever="site_factor")
    hup(daemon)
    assert 'lever "site_factor" needs' in desk.said("reload refused")[0]["message"]
    assert daemon.adapter.values == {(100, "nice"): daemon.adapter.sent[0][2]}


# ---- requeue mode "slurm"


def both():
    return queue(running(job_id=10, gpus=8), {"job_id": 20, "gpus": 8, "comment": "deadline=+3h"})


def test_to_and_from_slurms_preemption(desk, guards):
    desk.write(lever="priority")
    daemon = desk.daemon(both(), facts=guards.facts)
    daemon.cycle()
    assert {job for job, _ in daemon.adapter.values} == {20}
    desk.write(lever="priority", extra=SLURM)
    hup(daemon)
    daemon.cycle()
    assert {job for job, _ in daemon.adapter.values} == {10, 20}
    desk.write(lever="priority")
    hup(daemon)
    assert "Slurm goes on to preempt by priority" in desk.said("reload refused")[0]["message"]
    assert {job for job, _ in daemon.adapter.values} == {10, 20}
    daemon.adapter.said = FACTS
    hup(daemon)
    assert daemon.config.requeue.mode == "off"
    assert {job for job, _ in daemon.adapter.values} == {20}
    assert desk.said("values put back")


def test_a_reload_gets_round_no_guard(desk, guards):
    guards.facts = facts(**{**PREEMPTS, "preempt_exempt_time_s": 600.0})
    desk.write(lever="priority", extra=SLURM)
    daemon = desk.daemon(both(), facts=guards.facts)
    desk.write(lever="priority", extra=f"{SLURM}min_run_s = 7200.0")
    hup(daemon)
    assert "PreemptExemptTime" in desk.said("reload refused")[0]["message"]
    assert daemon.config.requeue.min_run_s == 600.0


@pytest.mark.parametrize("how", ["slurm.conf", "a QOS"])
def test_guards_that_fail_later_raise_nobody(desk, guards, how):
    desk.write(lever="priority", extra=SLURM)
    later = queue(
        running(job_id=10, gpus=8),
        {"job_id": 20, "gpus": 8, "comment": "deadline=+3h"},
        {"job_id": 30, "gpus": 8, "comment": "deadline=+3h"},
    )
    daemon = desk.daemon(both(), facts=guards.facts)
    daemon.cycle()
    daemon.cycle()
    daemon.adapter.queues[0] = later
    if how == "slurm.conf":
        daemon.adapter.said = facts(**{**PREEMPTS, "preempt_mode": "CANCEL"})
    else:
        daemon._guards._looked = -1e9
        guards.qos = (Qos("normal", "", "cancel", 0.0),)
    seen = daemon.cycle()
    assert {job for job, _ in daemon.adapter.values} == {10, 20}
    assert seen.held_back == 1
    assert "needs" in left(desk)["no_raise"]
    daemon.cycle()
    assert len(desk.said('requeue mode "slurm": nobody is raised')) == 1
    daemon.adapter.said, guards.qos = guards.facts, (Qos("normal", "", "cluster", 0.0),)
    daemon.cycle()
    daemon.cycle()
    assert {job for job, _ in daemon.adapter.values} == {10, 20, 30}
    assert left(desk)["no_raise"] == ""


def test_a_dry_run_shows_what_would_be(desk, guards):
    guards.qos = None
    desk.write(lever="priority", extra=SLURM, mode="dry-run")
    daemon = desk.daemon(both())
    daemon.cycle()
    assert {line["job"] for line in desk.said("would write")} == {"10", "20"}
    assert daemon._guards.problem == ""


def test_systemd_hears_that_a_reload_goes_on(heard, desk, monkeypatch):
    monkeypatch.setattr(reload, "TELL_S", 0.0)
    daemon = desk.daemon(waiting(3))
    daemon.cycle()
    desk.write(lever="priority")
    hup(daemon)
    heard.wait(lambda: heard.values("EXTEND_TIMEOUT_USEC") == ["60000000"] * 3)


def test_a_database_that_is_away_changes_nothing(desk, guards):
    desk.write(lever="priority", extra=SLURM)
    daemon = desk.daemon(both(), facts=guards.facts)
    daemon.cycle()
    guards.qos, daemon._guards._looked = None, -1e9
    daemon.cycle()
    assert daemon._guards.problem == ""
