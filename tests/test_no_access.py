"""Commands of an account that may not look into the state directory: "may not be read" is not "not there"."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tias_slurm.ledger.store import SqliteStore

NOBODY = 65534
# root with no more rights over files than another account, for our own files may lie where nobody else looks
PLAIN = ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can do without its rights"
)


class Place:
    """A state directory of another account."""

    def __init__(self, top):
        self.top, self.state = top, top / "lib" / "state"
        self.state.mkdir(parents=True)
        (top / "c.toml").write_text(f'[daemon]\nmode = "enforce"\nstate_dir = "{self.state}"\n')

    def ledger(self):
        """Leave one there."""
        SqliteStore(str(self.state / "ledger.sqlite")).close()

    def close(self, part, mode):
        """Give all to another account, which closes this part of it."""
        (self.top / part).chmod(mode)
        for path in (self.top / "lib", *(self.top / "lib").rglob("*")):
            os.chown(path, NOBODY, NOBODY)

    def run(self, *words):
        """A command as an account that owns nothing there."""
        code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
sys.argv = ["tias-slurm", *{words!r}, "--config", {str(self.top / "c.toml")!r}]
from tias_slurm.cli import main
main()
"""
        return subprocess.run(
            [*PLAIN, sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=self.top
        )


@pytest.fixture
def site(tmp_path):
    return Place(tmp_path)


LEDGER = "lib/state/ledger.sqlite"
COMMANDS = [
    ("restore",), ("once",), ("plan",), ("status",), ("history", "1"), ("report", "--export", "none"),
    ("pause",), ("resume",), ("ignore", "1"), ("unignore", "1"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: w[0])
def test_a_closed_directory_is_not_an_absent_ledger(site, words):
    site.close("lib/state", 0o750)
    done = site.run(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "no ledger" not in done.stderr
    assert "no such directory" not in done.stderr
    assert "may not read the ledger" in done.stderr or (
        "Permission denied; run as the account that owns the directory" in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "part", "mode"),
    [
        (("restore",), "lib", 0o750),
        (("restore",), "lib/state", 0o744),
        (("restore",), LEDGER, 0o640),
        (("report", "--export", "none"), LEDGER, 0o640),
        (("status",), LEDGER, 0o640),
    ],
)
def test_whatever_it_is_that_is_closed(site, words, part, mode):
    site.ledger()
    site.close(part, mode)
    done = site.run(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert "Permission denied; run as the account that owns the directory" in done.stderr


def test_restore_where_there_is_none(site):
    site.close("lib/state", 0o755)
    done = site.run("restore")
    assert done.returncode == 2
    assert "no ledger, so nothing of ours to restore" in done.stderr
