"""A reload of the daemon: every setting is taken over, or nothing is. tests/live has the real Slurm.

The hardest inputs: a file that is good section by section and not as a whole; guards of the start; an address
in use; an adapter that does not answer; a ledger that is none; values of another lever that go back for some
jobs and not for all; a dry-run ledger that is newer than the real one and knows less; a pause; a fault of
ours; deadlines that settings take away and give back again and again.
"""

import json
import logging
import os
import socket
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from raw_queue import FACTS, Scripted, queue, running, waiting
from test_daemon import desk  # noqa: F401
from test_leadership import pair, turn  # noqa: F401
from test_restore import wrote

from tias_slurm import logs
from tias_slurm.config import load_config
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import ACCEPTED, FOUND, LOST, SET
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.restore import restore
from tias_slurm.service import daemon as module
from tias_slurm.service import reload, slurm_guards, start
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.checks_preempt import Qos
from tias_slurm.slurm.live import AdapterError


@pytest.fixture(autouse=True)
def sprio(monkeypatch):
    """Of all jobs that wait it is told whether their priority is an explicit one."""

    def pinned(self):
        shown = self.queues[0]
        waits = [j for j, s in zip(shown.job_id.tolist(), shown.state, strict=True) if s == "PENDING"]
        return {j: (j, "priority") in self.values for j in waits}

    monkeypatch.setattr(Scripted, "pinned", pinned)


def hup(daemon):
    """SIGHUP, and the cycle that comes of it."""
    daemon._on_reload()
    return daemon.cycle()


def left(desk):  # noqa: F811
    return json.loads((desk.state / "status.json").read_text())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ready(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        return answer.status == 200


def facts(**changes):
    return FACTS.__class__(**{**vars(FACTS), **changes})


PREEMPTS = {
    "preempt_type": "preempt/qos", "preempt_mode": "REQUEUE,WITHIN,PRIORITY", "preempt_exempt_time_s": 3600.0,
}  # fmt: skip
SLURM = '[requeue]\nmode = "slurm"\n'


@pytest.fixture
def guards(monkeypatch):
    """A site where Slurm may preempt."""
    qos = (Qos("normal", "", "cluster", 0.0),)
    site = SimpleNamespace(qos=qos, facts=facts(**PREEMPTS))
    for where in (start, slurm_guards):
        monkeypatch.setattr(where, "look_at_qos", lambda _: site.qos)
    monkeypatch.setattr(start, "mode_in_file", lambda _: "")
    return site


# ---- refused: all stays as it was, it is said once, and seen until another is taken


def garbage(desk):  # noqa: F811
    (desk.state / "ledger-dry-run.sqlite").write_text("no database " * 100)
    desk.write(mode="dry-run")


def taken_port(desk):  # noqa: F811
    busy = socket.create_server(("127.0.0.1", 0))
    desk.busy = busy
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{busy.getsockname()[1]}"')


def no_answer(desk):  # noqa: F811
    def facts():
        raise AdapterError("slurmctld does not answer", retry=True)

    mute = Scripted(waiting(1))
    mute.facts = facts
    desk.monkeypatch.setattr(module, "choose", lambda *_, **__: (mute, "as scripted"))
    desk.write("rpc_timeout_s = 7.0")


def no_backend(desk):  # noqa: F811
    def choose(*_, **__):
        raise InputError('backend = "pyslurm": pyslurm is not installed here')

    desk.monkeypatch.setattr(module, "choose", choose)
    desk.write('backend = "pyslurm"')


def fault(desk):  # noqa: F811
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
def test_a_refusal_leaves_all_as_it_was(heard, desk, monkeypatch, name):  # noqa: F811
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


def test_check_config_says_what_a_reload_would(desk):  # noqa: F811
    desk.write(extra="[planner]\nlong_share = 0.5")
    with pytest.raises(InputError, match=r"config\.toml: planner\.long_share holds jobs.*set lever\.kind"):
        load_config(str(desk.path))


def test_the_metrics_tell_of_it(desk):  # noqa: F811
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


def test_from_dry_run_to_enforce_and_back(desk):  # noqa: F811
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


def test_a_dry_run_knows_what_was_set_since_the_last_one(desk):  # noqa: F811
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


def test_a_mode_of_the_command_line_stays(desk):  # noqa: F811
    daemon = desk.daemon(waiting(1))
    daemon._overrides = {"daemon.mode": "dry-run"}
    hup(daemon)
    assert daemon.config.daemon.mode == "dry-run"
    desk.write(mode="enforce")
    hup(daemon)
    assert daemon.config.daemon.mode == "dry-run"


# ---- lever, and what has to go back first


def test_the_lever_changes_and_the_old_values_go_back(desk):  # noqa: F811
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


def test_values_that_do_not_go_back(desk):  # noqa: F811
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


def test_a_ledger_that_fails_after_they_went_back(desk, monkeypatch):  # noqa: F811
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


def test_nothing_goes_back_while_nothing_may_be_written(desk):  # noqa: F811
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


def test_to_enforce_where_the_ledger_is_of_another_lever(desk):  # noqa: F811
    daemon = desk.daemon(waiting(2, nice=5))
    daemon.cycle()
    desk.write(mode="dry-run", lever="priority")
    hup(daemon)
    assert daemon.store.get("lever") == "priority"
    assert len(daemon.adapter.sent) == 2  # a dry run puts nothing back
    desk.write(lever="priority")
    assert hup(daemon).writes == 2
    assert [s[1:] for s in daemon.adapter.sent[2:4]] == [("nice", 5)] * 2


def test_site_factor_where_it_cannot_work(desk):  # noqa: F811
    daemon = desk.daemon(waiting(1), facts=facts(site_factor_plugin="site_factor/example"))
    daemon.cycle()
    desk.write(lever="site_factor")
    hup(daemon)
    assert 'lever "site_factor" needs' in desk.said("reload refused")[0]["message"]
    assert daemon.adapter.values == {(100, "nice"): daemon.adapter.sent[0][2]}


# ---- requeue mode "slurm"


def both():
    return queue(running(job_id=10, gpus=8), {"job_id": 20, "gpus": 8, "comment": "deadline=+3h"})


def test_to_and_from_slurms_preemption(desk, guards):  # noqa: F811
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


def test_a_reload_gets_round_no_guard(desk, guards):  # noqa: F811
    guards.facts = facts(**{**PREEMPTS, "preempt_exempt_time_s": 600.0})
    desk.write(lever="priority", extra=SLURM)
    daemon = desk.daemon(both(), facts=guards.facts)
    desk.write(lever="priority", extra=f"{SLURM}min_run_s = 7200.0")
    hup(daemon)
    assert "PreemptExemptTime" in desk.said("reload refused")[0]["message"]
    assert daemon.config.requeue.min_run_s == 600.0


@pytest.mark.parametrize("how", ["slurm.conf", "a QOS"])
def test_guards_that_fail_later_raise_nobody(desk, guards, how):  # noqa: F811
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


def test_a_dry_run_shows_what_would_be(desk, guards):  # noqa: F811
    guards.qos = None
    desk.write(lever="priority", extra=SLURM, mode="dry-run")
    daemon = desk.daemon(both())
    daemon.cycle()
    assert {line["job"] for line in desk.said("would write")} == {"10", "20"}
    assert daemon._guards.problem == ""


def test_systemd_hears_that_a_reload_goes_on(heard, desk, monkeypatch):  # noqa: F811
    monkeypatch.setattr(reload, "TELL_S", 0.0)
    daemon = desk.daemon(waiting(3))
    daemon.cycle()
    desk.write(lever="priority")
    hup(daemon)
    heard.wait(lambda: heard.values("EXTEND_TIMEOUT_USEC") == ["60000000"] * 3)


def test_a_database_that_is_away_changes_nothing(desk, guards):  # noqa: F811
    desk.write(lever="priority", extra=SLURM)
    daemon = desk.daemon(both(), facts=guards.facts)
    daemon.cycle()
    guards.qos, daemon._guards._looked = None, -1e9
    daemon.cycle()
    assert daemon._guards.problem == ""


# ---- listener, adapter, log


def test_the_listener_moves(desk):  # noqa: F811
    one, two = free_port(), free_port()
    daemon = desk.daemon(waiting(1))
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{one}"')
    hup(daemon)
    assert ready(one)
    first = daemon.show._server
    hup(daemon)
    assert daemon.show._server is first
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{two}"')
    hup(daemon)
    assert ready(two)
    with pytest.raises(OSError, match="refused"):
        ready(one)
    # the same port on another address would need the old one to go first
    desk.write(extra=f'[metrics]\nlisten = "0.0.0.0:{two}"')
    hup(daemon)
    assert "Address already in use" in desk.said("reload refused")[0]["message"]
    assert ready(two)
    desk.write()
    hup(daemon)
    with pytest.raises(OSError, match="refused"):
        ready(two)


def test_a_listener_of_a_refused_file_is_gone(desk):  # noqa: F811
    port = free_port()
    desk.write()
    daemon = desk.daemon(waiting(1))
    (desk.state / "ledger-dry-run.sqlite").write_text("no database " * 100)
    desk.write(mode="dry-run", extra=f'[metrics]\nlisten = "127.0.0.1:{port}"')
    hup(daemon)
    assert desk.said("reload refused")
    with socket.create_server(("127.0.0.1", port)) as free:
        assert free.getsockname()[1] == port


@pytest.mark.parametrize(
    "line", ['backend = "commands"', "allow_version_mismatch = true", "rpc_timeout_s = 9.0"]
)
def test_another_adapter(desk, line):  # noqa: F811
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    old, new, asked = daemon.adapter, Scripted(waiting(2)), []

    def choose(backend, **how):
        asked.append((backend, how))
        return new, "as scripted"

    desk.monkeypatch.setattr(module, "choose", choose)
    desk.write(line)
    assert hup(daemon).jobs == 2
    assert (old.closed, new.closed, len(asked)) == (1, 0, 1)
    assert daemon.adapter is new
    c = daemon.config.daemon
    assert asked[0] == (
        c.backend,
        {"allow_version_mismatch": c.allow_version_mismatch, "call_limit_s": c.rpc_timeout_s},
    )


def test_level_and_form_of_the_log(desk, capfd):  # noqa: F811
    daemon = desk.daemon(waiting(1))
    daemon._log = logs.setup("json", "info")
    try:
        desk.write('log_level = "warning"')
        hup(daemon)
        capfd.readouterr()
        daemon.cycle()
        assert capfd.readouterr().err == ""
        desk.write('log_format = "console"')
        hup(daemon)
        daemon.cycle()
        out = capfd.readouterr().err
        assert "cycle" in out
        assert not out.startswith("{")
    finally:
        structlog.reset_defaults()


def test_journald_gets_priorities(monkeypatch, capfd):
    import sys

    at = os.fstat(sys.stderr.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{at.st_dev}:{at.st_ino}")
    try:
        log = logs.setup("json", "debug")
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(log, level)("x", about="y")
        lines = capfd.readouterr().err.splitlines()
        assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
        assert json.loads(lines[3][3:])["level"] == "error"
        log = logs.setup("console", "info")
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            log.exception("failed")
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) > 3
        assert {line[:3] for line in lines} == {"<3>"}
        # a stream of somebody else's: stderr was redirected
        monkeypatch.setenv("JOURNAL_STREAM", f"{at.st_dev}:{at.st_ino + 1}")
        logs.setup("json", "info").info("x")
        assert capfd.readouterr().err.startswith("{")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()


# ---- what is known survives


def test_refused_claims_are_counted_and_said_once(desk):  # noqa: F811
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


def test_a_dry_run_s_would_be_values_survive(desk):  # noqa: F811
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
def test_settings_use_up_no_changes_of_users(desk, how):  # noqa: F811
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


# ---- files that are left no longer


def test_no_stale_textfile(desk, tmp_path):  # noqa: F811
    one, two = tmp_path / "one.prom", tmp_path / "two.prom"
    desk.write(extra=f'[metrics]\ntextfile = "{one}"')
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    assert one.exists()
    desk.write(extra=f'[metrics]\ntextfile = "{two}"')
    hup(daemon)
    assert (one.exists(), two.exists()) == (False, True)
    desk.write(extra=f'[metrics]\ntextfile = "{tmp_path}/./two.prom"')
    hup(daemon)
    assert two.exists()
    desk.write()
    hup(daemon)
    assert not two.exists()


def test_no_stale_files_of_users(desk, tmp_path):  # noqa: F811
    old, new = tmp_path / "old", tmp_path / "new"
    desk.write(f'user_export = "{old}"')
    daemon = desk.daemon(waiting(1, user="root"))
    daemon.cycle()
    assert [p.name for p in old.glob("*/*")] == ["jobs.json"]
    (old / "0" / "mine").write_text("not the daemon's")
    (old / "7").symlink_to(tmp_path)
    desk.write(f'user_export = "{new}"')
    hup(daemon)
    assert sorted(p.name for p in old.rglob("*")) == ["0", "7", "mine"]
    assert [p.name for p in new.glob("*/*")] == ["jobs.json"]


# ---- two controllers


def rewrite(daemon, old, new):
    path = Path(daemon._path)
    path.write_text(path.read_text().replace(old, new))
    daemon._on_reload()


def test_mode_of_a_pair(pair):  # noqa: F811
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


def test_a_leader_that_does_not_know_what_was_written_goes_on_dry(pair):  # noqa: F811
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


def test_the_lease_needs_its_room_in_a_reload_too(pair):  # noqa: F811
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


def test_a_lease_lost_in_the_midst(pair):  # noqa: F811
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


def test_a_ledger_of_a_crash_is_newer_than_its_file(desk):  # noqa: F811
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


def test_status_shows_a_refused_reload(desk, cli):  # noqa: F811
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
