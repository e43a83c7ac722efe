"""A reload that changes the listener, the adapter, the log, or files that others read."""

import json
import logging
import os
import socket

import daemon_desk
import pytest
import reloading
import structlog
from raw_queue import Scripted, waiting
from reloading import free_port, hup, ready

from tias_slurm import logs
from tias_slurm.service import daemon as module

desk = daemon_desk.desk
sprio = reloading.sprio


# ---- listener, adapter, log


def test_the_listener_moves(desk):
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


def test_a_listener_of_a_refused_file_is_gone(desk):
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
def test_another_adapter(desk, line):
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


def test_level_and_form_of_the_log(desk, capfd):
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


# ---- files that are left no longer


def test_no_stale_textfile(desk, tmp_path):
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


def test_no_stale_files_of_users(desk, tmp_path):
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
