"""The daemon as a process on a real Slurm: signals, reload, pause, lock, a dry run that writes nothing."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from daemon_bed import TIAS, URGENT, Site, nice, update, updates
from live_bed import run, wait_for


@pytest.mark.core
def test_in_steady_state_nothing_is_written(site: Site) -> None:
    site.block()
    jobs = [site.submit() for _ in range(4)] + [site.submit(f"--comment={URGENT}") for _ in range(4)]
    array = site.submit("--array=0-5", "--nice=3")
    daemon = site.start()
    daemon.cycles(1)
    assert daemon.said("cycle")[0]["writes"] == len(jobs) + 1
    sent, noted = updates(), site.audit()
    daemon.cycles(2)
    assert (updates(), site.audit()) == (sent, noted)
    # a new job is written, and nothing but the new job
    site.submit()
    wait_for(lambda: site.audit() == noted + 1)
    assert updates() == sent + 1
    assert daemon.end() == 0
    assert nice(array) < 0


def test_a_dry_run_writes_nothing(site: Site) -> None:
    site.block()
    jobs = [site.submit(), site.submit(f"--comment={URGENT}", "--nice=4"), site.submit("--hold")]
    before = updates()
    assert site.once("dry-run").json["writes"] == 2
    daemon = site.start("dry-run")
    daemon.cycles(2)
    update(jobs[0], f"Comment={URGENT}", user="alice")
    daemon.cycles(2)
    assert daemon.end() == 0
    assert updates() == before + 1
    assert [nice(job) for job in jobs] == [0, 4, 0]
    assert [e["job"] for e in daemon.said("would write")].count(str(jobs[0])) == 2
    assert daemon.said("write") == []
    assert not (site.state / "ledger.sqlite").exists()


def test_a_pause_file_stops_writing_and_nothing_else(site: Site) -> None:
    site.block()
    daemon = site.start()
    daemon.cycles(1)
    (site.state / "paused").touch()
    job = site.submit()
    sent = updates()
    daemon.cycles(2)
    assert (updates(), nice(job)) == (sent, 0)
    (site.state / "paused").unlink()
    daemon.cycles(2)
    assert (updates(), nice(job) < 0) == (sent + 1, True)
    assert daemon.end() == 0


def test_sighup_takes_a_good_file_and_refuses_a_bad_one(site: Site) -> None:
    site.block()
    site.settings(scope={"not_users": ["alice"]})
    daemon = site.start()
    job = site.submit()
    daemon.cycles(2)
    assert nice(job) == 0
    # a bad one: the old settings hold
    good = site.config.read_text()
    site.config.write_text(good.replace("not_users", "not_userz"))
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(daemon.said("reload refused")) == 1)
    assert "not_userz" in daemon.said("reload refused")[0]["message"]
    daemon.cycles(1)
    assert nice(job) == 0
    # what needs a restart is refused as well
    site.lever("priority")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(daemon.said("reload refused")) == 2)
    assert nice(job) == 0
    # a good one
    site.lever("nice")
    site.settings(scope={"not_users": ["bob"]})
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: bool(daemon.said("reloaded")))
    daemon.cycles(1)
    assert nice(job) < 0
    assert daemon.end() == 0


@pytest.mark.core
def test_a_second_daemon_refuses(site: Site) -> None:
    daemon = site.start()
    daemon.cycles(1)
    for words in (("run",), ("once", "--mode", "enforce"), ("restore",)):
        done = site.tias(*words, status=None)
        assert done.status not in (0, 1)
        assert f"process {daemon.process.pid}) holds the lock" in done.err
        assert len([line for line in done.err.splitlines() if not line.startswith("{")]) == 1
    daemon.cycles(1)
    assert daemon.end() == 0
    # the lock goes with the process
    assert site.once().json["result"] == "ok"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.core), signal.SIGINT])
def test_a_signal_ends_it_cleanly_in_the_midst_of_writing(site: Site, number: int) -> None:
    site.block()
    site.settings(daemon={"writes_per_second": 0.2})
    jobs = [site.submit() for _ in range(5)]
    daemon = site.start()
    wait_for(lambda: nice(jobs[0]) < 0)
    began = time.monotonic()
    assert daemon.end(number) == 0
    assert time.monotonic() - began < 20
    assert daemon.said("stopped")
    assert nice(jobs[-1]) == 0
    left = subprocess.run(["pgrep", "-f", str(site.home)], capture_output=True, check=False).stdout
    assert left == b""
    # what it had not sent, the next one sends
    site.settings(daemon={"writes_per_second": 50.0})
    site.once()
    assert len({nice(job) for job in jobs}) == 1
    assert nice(jobs[0]) < 0


def test_a_controller_that_is_down_at_the_start(site: Site) -> None:
    """One line and an exit status that makes systemd try again; no state is harmed."""
    pid = run("cat", "/run/slurmctld.pid").strip()
    run("kill", "-STOP", pid)
    site.settings(daemon={"rpc_timeout_s": 2.0})
    try:
        done = subprocess.run(
            [TIAS, "once", "--config", str(site.config)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        run("kill", "-CONT", pid)
    assert done.returncode != 0
    assert len([line for line in done.stderr.splitlines() if not line.startswith("{")]) == 1
    site.settings(daemon={"rpc_timeout_s": 30.0})
    assert site.once().json["result"] == "ok"
