"""A state directory, a daemon over a scripted adapter, and the commands that look at both."""

import json

import pytest
import structlog
from raw_queue import Scripted

from tias_slurm.cli import look as look_module
from tias_slurm.service import daemon as daemon_module
from tias_slurm.service.daemon import Daemon

EVIL = "al\x1b[2J\x07ice[bold]"


class Desk:
    """One state directory, a daemon over a scripted adapter, and the commands."""

    def __init__(self, tmp_path, monkeypatch, cli):
        self.path, self.state = tmp_path / "config.toml", tmp_path / "state"
        self.monkeypatch, self.cli, self.daemons = monkeypatch, cli, []
        self.write()

    def write(self, mode="enforce", **settings):
        lines = ["[daemon]", f'mode = "{mode}"', f'state_dir = "{self.state}"', "writes_per_second = 1e6"]
        for section, values in settings.items():
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
        self.path.write_text("\n".join(lines) + "\n")

    def show(self, *queues, **script):
        """Slurm shows these queues from now on."""
        self.adapter = Scripted(*queues, **script)
        for module in (daemon_module, look_module):
            self.monkeypatch.setattr(module, "choose", lambda *_, **__: (self.adapter, "as scripted"))

    def daemon(self):
        self.log = structlog.testing.LogCapture()
        logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        made = Daemon(str(self.path), {}, logger)
        self.daemons.append(made)
        made.open()
        return made

    def run(self, *words, code=0):
        done = self.cli(words[0], "--config", self.path, *words[1:])
        assert done.code == code, done
        assert "Traceback" not in done.err
        assert not set(done.out) & {"\x1b", "\x07"}, "raw text of a user"
        return done

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "--json", code=code).out)

    def close(self):
        for made in self.daemons:
            made.close()


@pytest.fixture
def desk(tmp_path, monkeypatch, cli):
    made = Desk(tmp_path, monkeypatch, cli)
    yield made
    made.close()
