"""What the tests of a reload share. Test files take the fixtures by name: `sprio = reloading.sprio`."""

import json
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from raw_queue import FACTS, Scripted

from tias_slurm.service import slurm_guards, start
from tias_slurm.slurm.checks_preempt import Qos


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


def left(desk):
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


def rewrite(daemon, old, new):
    path = Path(daemon._path)
    path.write_text(path.read_text().replace(old, new))
    daemon._on_reload()
