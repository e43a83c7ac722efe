"""Daemons on two hosts, over one scripted Slurm."""

import pytest
import structlog
from daemon_desk import Opened
from raw_queue import Scripted, waiting

from tias_slurm.service import daemon as daemon_module


class Pair(Opened):
    """Daemons on two hosts, over one scripted Slurm."""

    def __init__(self, tmp_path, monkeypatch):
        super().__init__()
        self.path, self.monkeypatch = tmp_path, monkeypatch
        self.slurm = Scripted(waiting(3, nice=7))
        self.in_charge = "ctl1"
        self.log = structlog.testing.LogCapture()
        monkeypatch.setattr(daemon_module, "choose", lambda *_, **__: (self.slurm, "as scripted"))

    def daemon(self, host, state="state", mode="enforce", *lines):
        config = self.path / f"{host}.toml"
        config.write_text(
            f'[cycle]\ninterval_s = 10\n[daemon]\nmode = "{mode}"\nstate_dir = "{self.path / state}"\n'
            f'lease_path = "{self.path / "lease"}"\nrpc_timeout_s = 2\nwrites_per_second = 1e6\n'
            + "\n".join(lines)
        )
        for name in ("leadership", "start"):
            self.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: host)
        self.monkeypatch.setattr(
            "tias_slurm.service.start.InCharge",
            lambda host, *_: lambda: None if not self.in_charge else host == self.in_charge,
        )
        return self.opened(config)


@pytest.fixture
def pair(tmp_path, monkeypatch):
    made = Pair(tmp_path, monkeypatch)
    yield made
    made.close()


def turn(*daemons):
    """A look of each keeper and a cycle of each daemon."""
    results = []
    for one in daemons:
        one._keeper.look()
        results.append(one.cycle().result)
    return results
