"""A reload of the daemon: every setting is taken over, or nothing is. tests/live has the real Slurm.

The hardest inputs: a file that is good section by section and not as a whole; guards of the start; an address
in use; an adapter that does not answer; a ledger that is none; values of another lever that go back for some
jobs and not for all; a dry-run ledger that is newer than the real one and knows less; a pause; a fault of
ours; deadlines that settings take away and give back again and again.
"""

import json
import os
import socket
import time
import urllib.request
from pathlib import Path

import daemon_desk
import pytest
import reloading
import two_daemons
from raw_queue import Scripted, queue, running, waiting
from reloading import SLURM, free_port, hup, left, rewrite
from test_restore import wrote

from tias_slurm.config import load_config
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import ACCEPTED, FOUND, LOST, SET
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.restore import restore
from tias_slurm.service import daemon as module
from tias_slurm.service import start
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.live import AdapterError

desk = daemon_desk.desk
sprio = reloading.sprio
pair = two_daemons.pair
turn = two_daemons.turn


# ---- refused: all stays as it was, it is said once, and seen until another is taken


def garbage(desk):
    (desk.state / "ledger-dry-run.sqlite").write_text("no database " * 100)
    desk.write(mode="dry-run")


def taken_port(desk):
    busy = socket.create_server(("127.0.0.1", 0))
    desk.busy = busy
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{busy.getsockname()[1]}"')


def no_answer(desk):
    def facts():
        raise AdapterError("slurmctld does not answer", retry=True)

    mute = Scripted(waiting(1))
    mute.facts = facts
    desk.monkeypatch.setattr(module, "choose", lambda *_, **__: (mute, "as scripted"))
    desk.write("rpc_timeout_s = 7.0")


def no_backend(desk):
    def choose(*_, **__):
        raise InputError('backend = "pyslurm": pyslurm is not installed here')

    desk.monkeypatch.setattr(module, "choose", choose)
    desk.write('backend = "pyslurm"')


def fault(desk):
    desk.monkeypatch.setattr(module, "LiveCycle", lambda *_, **__: 1 / 0)
    desk.write(extra="[planner]\nmax_writes_per_cycle = 1")


BAD = {
    "no settings": (lambda d: d.path.unlink(), "cannot be read"),
    "not together": (lambda d: d.write(extra="[planner]\nlong_share = 0.5"), "long_share"),
    "no site for it": (lambda d: d.write(lever="priority", extra=SLURM), "PreemptType=preempt/qos"),
    "a ledger that is none": (garbage, "file is not a database"),
    "an address in use": (taken_port, "Address already in use"),
    "an adapter that is mute": (no_answer, "does not answer"),
    "a backend that is not here": (no_backend, "not installed"),
    "a fault of ours": (fault, "internal error: ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_refusal_leaves_all_as_it_was(heard, desk, monkeypatch, name):
    monkeypatch.setattr(start, "look_at_qos", lambda _: None)
    monkeypatch.setattr(start, "mode_in_file", lambda _: "")
    daemon = desk.daemon(waiting(3))
    daemon.cycle()
    change, words = BAD[name]
    whole = vars(daemon).copy()
    good = desk.path.read_text()
    change(desk)
    assert hup(daemon).result == "ok"
    for part in ("config", "adapter", "facts", "store", "cluster", "controller", "policy", "_made"):
        assert vars(daemon)[part] is whole[part], part
    assert daemon.adapter.closed == 0
    assert [words in line["message"] for line in desk.said("reload refused")] == [True]
    assert desk.said("reloaded") == []
    assert heard.values("READY") == ["1"]
    # seen after the cycles that follow as well, until a reload is taken
    daemon.cycle()
    assert left(desk)["reload"]["problem"]
    heard.wait(lambda: len(heard.values("STATUS")) >= 3)
    assert heard.values("STATUS")[-1].startswith("reload refused, the old settings hold: ")
    assert len(desk.said("reload refused")) == 1
    desk.monkeypatch.setattr(module, "choose", lambda *_, **__: (daemon.adapter, "as scripted"))
    desk.monkeypatch.setattr(module, "LiveCycle", LiveCycle)
    desk.path.write_text(good)
    hup(daemon)
    assert left(desk)["reload"]["problem"] == ""
    assert heard.values("READY") == ["1", "1"]


def test_check_config_says_what_a_reload_would(desk):
    desk.write(extra="[planner]\nlong_share = 0.5")
    with pytest.raises(InputError, match=r"config\.toml: planner\.long_share holds jobs.*set lever\.kind"):
        load_config(str(desk.path))


def test_the_metrics_tell_of_it(desk):
    port = free_port()
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{port}"')
    daemon = desk.daemon(waiting(1))

    def success():
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        return float(text.split("\ntias_slurm_reload_success ")[1].split("\n")[0])

    good = desk.path.read_text()
    assert success() == 1.0
    desk.path.write_text(f"{good}\n[planner]\nlong_share = 0.5\n")
    hup(daemon)
    assert success() == 0.0
    desk.path.write_text(good)
    hup(daemon)
    assert success() == 1.0


# ---- mode


def test_from_dry_run_to_enforce_and_back(desk):
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(2, comment="deadline=+3h"))
    daemon.cycle()
    assert daemon.adapter.sent == []
    desk.write(mode="enforce")
    seen = hup(daemon)
    # what would have been written is forgotten: it was not there
    assert (seen.writes, len(daemon.adapter.sent)) == (2, 2)
    assert daemon.store.path == ledger_path(daemon.config, "enforce")
    assert daemon.store.load()[1][:, FOUND].tolist() == [0.0, 0.0]
    assert left(desk)["mode"] == "enforce"
    desk.write(mode="dry-run")
    seen = hup(daemon)
    assert [entry["event"].startswith("dry-run from now on: the values that were set stay") for entry in
            desk.said("dry-run from")] == [True]  # fmt: skip
    # what stands is known as ours, and stays
    assert (seen.overridden, len(daemon.adapter.sent)) == (0, 2)
    assert daemon.store.load()[1][:, FOUND].tolist() == [0.0, 0.0]
    assert daemon.cycle().writes == 0
    desk.write(mode="enforce")
    assert (hup(daemon).writes, len(daemon.adapter.sent)) == (0, 2)


def test_a_dry_run_knows_what_was_set_since_the_last_one(desk):
    """Though its ledger's file is newer than what SQLite has put into the other's."""
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(1, comment="deadline=+3h"))
    daemon.cycle()
    desk.write(mode="enforce")
    hup(daemon)
    late = time.time() + 1000
    os.utime(desk.state / "ledger-dry-run.sqlite", (late, late))
    desk.write(mode="dry-run")
    seen = hup(daemon)
    assert seen.overridden == 0
    assert daemon.store.load()[1][0, [FOUND, SET]].tolist() == [0.0, daemon.adapter.sent[0][2]]


def test_a_mode_of_the_command_line_stays(desk):
    daemon = desk.daemon(waiting(1))
    daemon._overrides = {"daemon.mode": "dry-run"}
    hup(daemon)
    assert daemon.config.daemon.mode == "dry-run"
    desk.write(mode="enforce")
    hup(daemon)
    assert daemon.config.daemon.mode == "dry-run"


# ---- what is known survives


def test_refused_claims_are_counted_and_said_once(desk):
    daemon = desk.daemon(queue({"comment": "deadline=soon"}, {"comment": "deadline=+1s"}))
    counted = []
    refused = daemon.show.refused_claims
    daemon.show.refused_claims = lambda reasons: counted.append(sum(reasons.values())) or refused(reasons)
    daemon.cycle()
    first = sum(counted)
    assert first >= 2
    for n in range(5):
        desk.write(extra=f"[planner]\nmax_writes_per_cycle = {n + 1}")
        hup(daemon)
    assert sum(counted) == first
    assert len(desk.said("claims refused")) == 1
    assert len(desk.said("claim not taken")) <= 1


def test_a_dry_run_s_would_be_values_survive(desk):
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(3, comment="deadline=+3h"))
    daemon.cycle()
    assert len(desk.said("would write")) == 3
    desk.write(mode="dry-run", extra="[planner]\nmax_writes_per_cycle = 7")
    hup(daemon)
    assert len(desk.said("would write")) == 3


KEYS = (
    '[deadlines]\nkey = "due"',
    "",
    '[deadlines]\naccounts = ["others"]',
    "",
    "[deadlines]\nmax_window_s = 5.0",
    "",
)


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_settings_use_up_no_changes_of_users(desk, how):
    daemon = desk.daemon(waiting(1, comment="deadline=+3h"))
    daemon.cycle()
    deadline = daemon.controller.ledger.view(daemon.cluster.observed.snapshot).deadline[0]
    for extra in KEYS * 2:
        desk.write(extra=extra)
        if how == "reload":
            hup(daemon)
        else:
            daemon.close()
            daemon = desk.daemon(waiting(1, comment="deadline=+3h"))
            daemon.cycle()
        table = daemon.store.load()[1]
        assert table[0, [ACCEPTED, LOST]].tolist() == [1.0, 0.0]
        now = daemon.controller.ledger.view(daemon.cluster.observed.snapshot).deadline[0]
        assert now == deadline if not extra else now != now


# ---- two controllers


def test_mode_of_a_pair(pair):
    """The leader goes on to lead, in the other ledger; the one that stands by will do likewise."""
    a, b = pair.daemon("ctl1", mode="dry-run"), pair.daemon("ctl2", mode="dry-run")
    assert turn(a, b) == ["ok", "standby"]
    assert pair.slurm.sent == []
    for one in (a, b):
        rewrite(one, '"dry-run"', '"enforce"')
    assert turn(a, b) == ["ok", "standby"]
    assert len(pair.slurm.sent) == 3
    assert (a._keeper.lease.term, b.config.daemon.mode) == (1, "enforce")
    assert a._keeper.lease.look().sent > 0
    pair.in_charge = "ctl2"
    assert turn(a, b) == ["standby", "ok"]
    assert len(pair.slurm.sent) == 3
    assert b.store.load()[1][:, FOUND].tolist() == [7.0] * 3
    # back to dry-run: what was written stays known to the lease
    rewrite(b, '"enforce"', '"dry-run"')
    assert turn(b) == ["ok"]
    assert b._keeper.lease.look().sent > 0
    assert len(pair.slurm.sent) == 3


def test_a_leader_that_does_not_know_what_was_written_goes_on_dry(pair):
    a = pair.daemon("ctl1")
    turn(a)
    a.close()
    b = pair.daemon("ctl1", state="other", mode="dry-run")
    assert turn(b) == ["ok"]
    rewrite(b, '"dry-run"', '"enforce"')
    assert turn(b) == ["ok"]
    [line] = [e for e in pair.log.entries if e["event"].startswith("reload refused")]
    assert "the ledger here is not the one" in line["message"]
    assert b.config.daemon.mode == "dry-run"
    assert len(pair.slurm.sent) == 3


def test_the_lease_needs_its_room_in_a_reload_too(pair):
    a = pair.daemon("ctl1")
    turn(a)
    rewrite(a, "rpc_timeout_s = 2", "rpc_timeout_s = 9")
    turn(a)
    [line] = [e for e in pair.log.entries if e["event"].startswith("reload refused")]
    assert "lease_path needs a daemon.rpc_timeout_s of at most half" in line["message"]
    rewrite(a, "rpc_timeout_s = 9", "rpc_timeout_s = 1")
    turn(a)
    assert a.config.daemon.rpc_timeout_s == 1.0
    assert a._keeper.leads


def test_a_lease_lost_in_the_midst(pair):
    """Settings that come while the ledger of a lost lease is still open wait for the next lead."""
    a, b = pair.daemon("ctl1", mode="dry-run"), pair.daemon("ctl2", mode="dry-run")
    turn(a, b)
    pair.in_charge = "ctl2"
    a._keeper.look()
    rewrite(a, '"dry-run"', '"enforce"')
    assert a.cycle().result == "standby"
    assert (a._term, pair.slurm.sent) == (0, [])
    assert turn(b) == ["ok"]
    pair.in_charge = "ctl1"
    assert turn(b, a) == ["standby", "ok"]
    assert len(pair.slurm.sent) == 3


# ---- what it rests on


def test_waiting_jobs_give_their_values_back_first(tmp_path):
    """One that runs and has lost its value could be preempted by one that has kept his."""
    store = SqliteStore(str(tmp_path / "ledger.sqlite"))
    wrote(store, found=[0.0, 0.0, 0.0], jobs=[10, 20, 30])
    shown = queue(running(job_id=10, nice=-300), {"job_id": 20, "nice": -300}, running(job_id=30, nice=-300))
    adapter = Scripted(shown)
    restore(adapter, store, "nice", ("RUNNING", "SUSPENDED"))
    assert [job for job, *_ in adapter.sent] == [10, 30]
    wrote(store, found=[0.0, 0.0, 0.0], jobs=[10, 20, 30])
    adapter = Scripted(shown)
    restore(adapter, store, "nice")
    assert [job for job, *_ in adapter.sent] == [20, 10, 30]
    store.close()


def test_a_ledger_of_a_crash_is_newer_than_its_file(desk):
    """What it set last is in its log alone: a dry run that starts then takes it over all the same."""
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    daemon.close()
    real = ledger_path(daemon.config, "enforce")
    SqliteStore(real).close()
    os.utime(real, (1, 1))
    Path(f"{real}-wal").write_bytes(b"what is not in the file yet")
    assert start._changed(real) > start._changed(ledger_path(daemon.config))


def test_status_shows_a_refused_reload(desk, cli):
    daemon = desk.daemon(waiting(1))
    good = desk.path.read_text()
    desk.path.write_text(f"{good}\n[planner]\nlong_share = 0.5\n")
    hup(daemon)
    desk.path.write_text(good)  # `status` reads the file as well
    page = " ".join(cli("status", "--config", desk.path).out.split())
    assert "reload refused" in page
    assert "long_share holds jobs" in page
    told = json.loads(cli("status", "--config", desk.path, "--json").out)
    assert "long_share" in told["daemon"]["reload"]["problem"]
    hidden = json.loads(cli("status", "--config", desk.path, "--json", "--anonymise").out)
    assert hidden["daemon"]["reload"]["problem"] == "see the log"
    hup(daemon)
    assert "reload refused" not in cli("status", "--config", desk.path).out
