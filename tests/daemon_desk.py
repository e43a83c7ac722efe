"""Daemons of one state directory over scripted adapters, and how they are run until something holds."""

import signal
import threading
import time

import pytest
import structlog
from raw_queue import NOW, Scripted, nodes, queue, running
from test_live_nodes import EIGHT, asked

from tias_slurm.service import daemon as daemon_module
from tias_slurm.service.daemon import Daemon


class Opened:
    """Daemons that are closed in the end; what they log comes to `log`."""

    log: structlog.testing.LogCapture

    def __init__(self):
        self.open = []

    def opened(self, config):
        logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        made = Daemon(str(config), {}, logger)
        self.open.append(made)
        made.open()
        return made

    def close(self):
        for made in self.open:
            made.close()


class Desk(Opened):
    """Daemons of one state directory, over scripted adapters."""

    def __init__(self, tmp_path, monkeypatch):
        super().__init__()
        self.path = tmp_path / "config.toml"
        self.state = tmp_path / "state"
        self.monkeypatch = monkeypatch
        self.write()

    def write(self, *lines, lever="nice", mode="enforce", extra=""):
        daemon = [f'mode = "{mode}"', f'state_dir = "{self.state}"', "writes_per_second = 1e6", *lines]
        self.path.write_text("\n".join(["[daemon]", *daemon, "[lever]", f'kind = "{lever}"', extra]) + "\n")

    def daemon(self, *queues, **script):
        adapter = Scripted(*queues, **script)
        self.monkeypatch.setattr(daemon_module, "choose", lambda *_, **__: (adapter, "as scripted"))
        self.log = structlog.testing.LogCapture()
        return self.opened(self.path)

    def said(self, event):
        return [entry for entry in self.log.entries if entry["event"].startswith(event)]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    made = Desk(tmp_path, monkeypatch)
    yield made
    made.close()


VICTIM = running(job_id=10, gpus=8, comment="requeue=yes", start=NOW - 5000, submit=NOW - 9000)
URGENT = {"job_id": 20, "gpus": 8, "comment": "deadline=+3h", "reason": "Resources"}
REQUEUE = '[requeue]\nmode = "on"'


def full(desk, *queues, **script):
    """A daemon of a cluster whose only node is full, and where a job asks for all of it."""
    daemon = desk.daemon(*(queues or [queue(VICTIM, URGENT)]), **script)
    daemon.adapter.place = nodes({"gpus_used": 8, "cpus_used": 1})
    daemon.adapter.asked = {20: asked(**EIGHT)}
    return daemon


@pytest.fixture
def handlers():
    """Signals as they were before."""
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_until(daemon, what, then):
    """`run`, with `then` in another thread once `what` holds."""

    def wait():
        deadline = time.monotonic() + 20
        while not what() and time.monotonic() < deadline:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    daemon.run()
    thread.join()
