"""The daemon under a supervisor that speaks systemd's protocol, on a real Slurm.

contrib/service_test.py has a real systemd; here are the states that are hard to bring about there.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_bed import TIAS, URGENT, Site, nice
from live_bed import frozen_controller, run, wait_for

sys.path.insert(0, str(Path(__file__).parents[1]))  # for supervisor.py
from supervisor import Supervisor

WATCHDOG_S = 4.0


class Service(Supervisor):
    """`tias-slurm run` as the unit starts it: as the account of the daemon, watched."""

    def __init__(self, site: Site) -> None:
        user = ("setpriv", "--reuid=tias", "--regid=tias", "--init-groups")
        argv = [*user, TIAS, "run", "--config", str(site.config), "--mode", "enforce"]
        super().__init__(argv, site.home, WATCHDOG_S)

    @property
    def status(self) -> str:
        """The last STATUS=."""
        return ["", *self.values("STATUS")][-1]


@pytest.fixture
def service(site: Site) -> Iterator[Service]:
    site.settings(daemon={"rpc_timeout_s": 20.0})
    made = Service(site)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.core
def test_ready_then_cycles_then_an_end(site: Site, service: Service) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    service.started()
    service.wait(lambda: "1 wait" in service.status)
    # the job that blocks the node counts if Slurm has told of its GPUs by then
    assert re.match(r"enforce: (1 job|2 jobs), 1 wait; last cycle", service.status)
    wait_for(lambda: nice(job) < 0)
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 20
    assert service.values("STOPPING") == ["1"]
    assert service.values("READY") == ["1"]
    assert not service.barked


@pytest.mark.core
def test_a_reload_is_done_at_once_and_told(site: Site, service: Service) -> None:
    site.settings(cycle={"interval_s": 300})
    service.started()
    service.wait(lambda: "last cycle" in service.status)
    good = site.config.read_text()
    site.config.write_text(good.replace("interval_s", "interval_z"))
    assert service.reload() < 30
    service.wait(lambda: any("reload refused" in line for line in service.values("STATUS")))
    site.config.write_text(good)
    assert service.reload() < 30
    usec = [int(value) / 1e6 for value in service.values("MONOTONIC_USEC")]
    assert len(usec) == len(service.values("RELOADING")) == 2
    assert usec == sorted(usec)
    assert service.stop() == 0


def test_a_controller_that_hangs_is_not_a_stuck_daemon(site: Site, service: Service) -> None:
    """The watchdog is petted all the time that an RPC takes, and a stop need not wait for more than one."""
    service.started()
    service.wait(lambda: "last cycle" in service.status)
    with frozen_controller():
        petted = len(service.values("WATCHDOG"))
        time.sleep(3 * WATCHDOG_S)
        assert len(service.values("WATCHDOG")) >= petted + 6
        service.wait(lambda: "no answer" in service.status, 120)
        time.sleep(1)  # in the midst of the next one, as likely as not
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 45
    assert not service.barked


def test_a_frozen_daemon_is_ended_by_the_watchdog(site: Site, service: Service) -> None:
    service.started()
    service.process.send_signal(signal.SIGSTOP)
    service.wait(lambda: service.barked, 60)
    service.process.send_signal(signal.SIGCONT)
    assert service.process.wait(30) == -signal.SIGABRT
    # nothing of it is in the way of the next
    assert site.once(user="tias").json["result"] == "ok"


def test_it_is_not_ready_before_the_controller_answers(site: Site) -> None:
    site.settings(daemon={"rpc_timeout_s": 3.0})
    with frozen_controller():
        service = Service(site)
        try:
            assert service.process.wait(60) == 1  # so systemd tries again
        finally:
            service.close()
    assert service.values("READY") == []
    assert run("scontrol", "ping").strip()
