"""Two slurmctlds, two daemons that share a state directory and a lease: exactly one acts.

Needs a cluster with a second controller: contrib/testbed/testbed up --accounting --backup
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_bed import BACKENDS, TIAS, URGENT, Running, Site, nice, saved, updates
from live_bed import nodes_answer, run, wait_for

ON_HOST = "/usr/local/lib/testbed/on-host"
INTERVAL_S = 10.0
# what a busy machine adds to three intervals, s
SLACK_S = 5.0
HOSTS = ("ctl1", "ctl2")
PORTS = {"ctl1": 19418, "ctl2": 19419}


class Pair:
    """A daemon on each controller's host."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.daemons: dict[str, Running] = {}
        self.configs = {host: site.home / f"{host}.toml" for host in HOSTS}
        self.settings()

    def settings(self, **daemon: object) -> None:
        self.site.settings(
            cycle={"interval_s": INTERVAL_S},
            daemon={"rpc_timeout_s": 5.0, "lease_path": str(self.site.home / "lease"), **daemon},
        )
        for host, path in self.configs.items():
            self.site.settings(
                metrics={
                    "listen": f"127.0.0.1:{PORTS[host]}",
                    "textfile": str(self.site.home / f"{host}.prom"),
                }
            )
            path.write_text(self.site.config.read_text())

    def start(self, host: str) -> Running:
        user = ("setpriv", "--reuid=tias", "--regid=tias", "--init-groups")
        argv = [ON_HOST, host, *user, TIAS, "run", "--config", str(self.configs[host]), "--mode", "enforce"]
        number = len(self.site.daemons)
        self.daemons[host] = Running(argv, self.site.home / f"log{number}-{host}")
        self.site.daemons.append(self.daemons[host])
        return self.daemons[host]

    def leads(self, host: str) -> bool:
        """Whether that daemon says so itself."""
        return (self.left(host).get("leadership") or {}).get("leads", False) and self.alive(host)

    def alive(self, host: str) -> bool:
        return host in self.daemons and self.daemons[host].process.poll() is None

    def left(self, host: str) -> dict[str, Any]:
        try:
            text = (self.site.state / f"status.{host}.json").read_text()
        except FileNotFoundError:
            return {}
        return dict(json.loads(text))

    def ready(self, host: str) -> tuple[int, str]:
        """The answer of /readyz."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[host]}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, host: str, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[host]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def sent(self) -> dict[int, int]:
        """How often the nice of each job was sent, by all daemons together."""
        rows = self.site.query("SELECT job_id, count(*) FROM audit WHERE action = 'nice' GROUP BY job_id")
        return {int(job): int(n) for job, n in rows}


def in_charge() -> list[bool]:
    """Which controllers answer."""
    done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False, timeout=60)
    return [f"at {host} is UP" in done.stdout for host in HOSTS]


def controller(host: str) -> int:
    return int(Path(f"/run/slurmctld-{host}/slurmctld.pid").read_text())


def start_controller(host: str) -> None:
    run(ON_HOST, host, "slurmctld")


@contextlib.contextmanager
def both_again() -> Iterator[None]:
    """ctl1 and ctl2 run, and ctl1 is in charge, before and after."""

    def restore() -> None:
        for host in HOSTS:
            try:
                os.kill(controller(host), 0)
            except (OSError, ValueError):
                start_controller(host)
        wait_for(lambda: in_charge() == [True, True] and nodes_answer())

    restore()
    try:
        yield
    finally:
        restore()


@pytest.fixture(params=BACKENDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with both_again():
        site = Site(Path(tempfile.mkdtemp(prefix="tias-")), request.param)
        try:
            yield Pair(site)
        finally:
            site.clean()
            shutil.rmtree(site.home, ignore_errors=True)


def wait_until(what: Any, since: float, seconds: float) -> float:
    """Wait until it is so; how long after `since` it was. A failure if that is later than `seconds`."""
    wait_for(what, seconds + 120)
    took = time.monotonic() - since
    assert took <= seconds, f"{took:.1f} s, more than {seconds:g}"
    return took


@pytest.mark.core
def test_the_daemon_follows_the_controller(pair: Pair) -> None:
    """A controller's host dies with all that is on it; the other's daemon goes on; then it comes back."""
    site = pair.site
    blocker = site.block()
    jobs = [site.submit(f"--comment={URGENT}", "--nice=7") for _ in range(3)]
    for host in HOSTS:
        pair.start(host)
    wait_for(lambda: pair.leads("ctl1") and all(nice(job) < 0 for job in jobs))
    pair.daemons["ctl2"].cycles(0)
    wait_for(lambda: pair.left("ctl2") != {})
    assert not pair.leads("ctl2")
    assert pair.sent() == dict.fromkeys(jobs, 1)
    assert (pair.ready("ctl1")[0], pair.ready("ctl2")[0]) == (200, 503)
    assert "not in charge" in pair.ready("ctl2")[1]
    assert (pair.metric("ctl1", "tias_slurm_leading "), pair.metric("ctl2", "tias_slurm_leading ")) == (1, 0)
    assert pair.metric("ctl2", "tias_slurm_writes_total") == 0
    values = {job: nice(job) for job in jobs}

    # ctl1 is gone, daemon and controller; what slurmctld has not saved goes with it
    saved(blocker)
    os.kill(controller("ctl1"), signal.SIGKILL)
    subprocess.run(["pkill", "-KILL", "-f", str(pair.configs["ctl1"])], check=False)
    wait_for(lambda: in_charge() == [False, True] and nodes_answer())
    began = time.monotonic()
    more = site.submit(f"--comment={URGENT}", "--nice=9")
    took = wait_until(lambda: nice(more) < 0, began, 3 * INTERVAL_S + SLACK_S)
    print(f"failover: {took:.1f} s after the second controller took over, interval {INTERVAL_S:g} s")
    # that its cycle was good it says when this ends
    wait_for(lambda: pair.leads("ctl2") and pair.ready("ctl2")[0] == 200)
    # what the first wrote is known to be ours, and is not written again
    assert {job: nice(job) for job in jobs} == values
    assert pair.sent() == dict.fromkeys([*jobs, more], 1)
    assert [site.known(job, "found") for job in (*jobs, more)] == [7, 7, 7, 9]

    # ctl1 is back: its controller takes over, and its daemon leads again
    saved(blocker)
    start_controller("ctl1")
    wait_for(lambda: in_charge() == [True, True] and nodes_answer())
    began = time.monotonic()
    pair.start("ctl1")
    last = site.submit(f"--comment={URGENT}")
    took = wait_until(lambda: nice(last) < 0, began, 3 * INTERVAL_S + SLACK_S)
    print(f"and back: {took:.1f} s")
    wait_for(lambda: pair.leads("ctl1") and not pair.leads("ctl2"))
    assert pair.sent() == dict.fromkeys([*jobs, more, last], 1)
    for host in HOSTS:
        assert pair.daemons[host].end() == 0
    # nothing of ours is left on any job
    done = site.tias("restore", user="tias")
    assert "restored" in done.out
    assert [nice(job) for job in (*jobs, more, last)] == [7, 7, 7, 9, 0]


def reload(daemon: Running) -> dict[str, Any]:
    """SIGHUP; the log's line that answers it."""
    known = len(daemon.said("reload"))
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(daemon.said("reload")) > known, 60)
    return daemon.said("reload")[known]


@pytest.mark.core
def test_lease_and_directory_of_both_move_by_reload(pair: Pair) -> None:
    site = pair.site
    blocker = site.block()
    job = site.submit(f"--comment={URGENT}", "--nice=7")
    one, two = (pair.start(host) for host in HOSTS)
    wait_for(lambda: pair.leads("ctl1") and nice(job) < 0 and pair.left("ctl2") != {})
    value, lease, state = nice(job), site.home / "lease2", site.home / "state2"
    pair.settings(lease_path=str(lease), state_dir=str(state))
    assert "reload the one that leads first" in reload(two)["message"]
    assert not state.exists()
    assert reload(one)["event"] == "reloaded"
    # the other one does not take what was left
    old, site.state = site.state, state
    wait_for(
        lambda: (
            "went from this lease" in json.loads((old / "status.ctl2.json").read_text())["leadership"]["why"]
        )
    )
    wait_for(lambda: pair.leads("ctl1"))
    assert reload(two)["event"] == "reloaded"
    wait_for(lambda: pair.left("ctl2") != {} and not pair.leads("ctl2"))
    saved(blocker)
    os.kill(controller("ctl1"), signal.SIGKILL)
    one.end()
    wait_for(lambda: in_charge() == [False, True] and nodes_answer())
    more = site.submit(f"--comment={URGENT}", "--nice=9")
    wait_for(lambda: nice(more) < 0 and pair.leads("ctl2"))
    assert nice(job) == value
    assert pair.sent() == {job: 1, more: 1}
    assert [site.known(number, "found") for number in (job, more)] == [7, 9]
    for daemon in (one, two):
        assert not any(line.get("overridden") for line in daemon.said("cycle"))
        assert not daemon.said("cycle failed")


def test_a_daemon_that_dies_alone_comes_back_within_three_intervals(pair: Pair) -> None:
    site = pair.site
    site.block()
    pair.start("ctl1")
    wait_for(lambda: pair.leads("ctl1"))
    subprocess.run(["pkill", "-KILL", "-f", str(pair.configs["ctl1"])], check=False)
    began = time.monotonic()
    pair.start("ctl1")
    job = site.submit(f"--comment={URGENT}")
    took = wait_until(lambda: nice(job) < 0, began, 3 * INTERVAL_S + SLACK_S)
    print(f"a daemon restarted after SIGKILL writes after {took:.1f} s")
    assert pair.sent() == {job: 1}


def test_a_frozen_leader_sends_nothing_when_it_thaws(pair: Pair) -> None:
    """Stopped in the midst of its writes; the other takes over; then it goes on."""
    site = pair.site
    site.block()
    pair.settings(writes_per_second=1.0)
    jobs = [site.submit(f"--comment={URGENT}") for _ in range(12)]
    for host in HOSTS:
        pair.start(host)
    wait_for(lambda: sum(nice(job) < 0 for job in jobs) >= 3)
    subprocess.run(["pkill", "-STOP", "-f", str(pair.configs["ctl1"])], check=True)
    assert 3 <= sum(nice(job) < 0 for job in jobs) < 12
    run("scontrol", "takeover")
    wait_for(lambda: nodes_answer() and in_charge()[1])
    wait_for(lambda: all(nice(job) < 0 for job in jobs))
    wait_for(lambda: pair.leads("ctl2"))
    known = pair.daemons["ctl2"]
    known.cycles(1)
    sent, noted = updates(), site.audit()
    subprocess.run(["pkill", "-CONT", "-f", str(pair.configs["ctl1"])], check=True)
    wait_for(lambda: bool(pair.daemons["ctl1"].said("leads no more")))
    known.cycles(2)
    # the one write that was under way when it froze may have been on the wire
    assert updates() <= sent + 1
    assert site.audit() == noted
    assert max(pair.sent().values()) <= 2
    assert not (pair.left("ctl1")["leadership"] or {})["leads"]


def test_a_standby_without_the_ledger_does_not_act(pair: Pair) -> None:
    """State directories of their own: values of the first would pass for the users'."""
    site = pair.site
    blocker = site.block()
    jobs = [site.submit(f"--comment={URGENT}", "--nice=7") for _ in range(2)]
    pair.start("ctl1")
    wait_for(lambda: all(nice(job) < 0 for job in jobs))
    other = site.home / "state2"
    text = pair.configs["ctl2"].read_text()
    pair.configs["ctl2"].write_text(text.replace(str(site.state), str(other)))
    standby = pair.start("ctl2")
    saved(blocker)
    os.kill(controller("ctl1"), signal.SIGKILL)
    subprocess.run(["pkill", "-KILL", "-f", str(pair.configs["ctl1"])], check=False)
    wait_for(lambda: in_charge() == [False, True] and nodes_answer())
    wait_for(lambda: bool(standby.said("lease")))
    assert "the ledger here is not the one that ctl1 kept" in standby.said("lease")[0]["message"]
    more = site.submit(f"--comment={URGENT}")
    standby.cycles(0)
    time.sleep(INTERVAL_S)
    assert nice(more) == 0
    # copied over, as the message says
    run(
        "install", "-o", "tias", "-m", "0640", str(site.state / "ledger.sqlite"), str(other / "ledger.sqlite")
    )
    wait_for(lambda: nice(more) < 0)
    assert standby.end() == 0
