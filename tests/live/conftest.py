"""Tests on a real Slurm. They run inside a test cluster and nowhere else:

contrib/testbed/testbed exec -- python -m pytest tests/live
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for live_bed.py, adapters.py and daemon_bed.py
from adapters import ADAPTERS
from daemon_bed import BACKENDS, Site

HERE = Path(__file__).parent
IN_TESTBED = bool(os.environ.get("TIAS_TESTBED"))
# there is none for the older releases
collect_ignore = [] if "pyslurm" in ADAPTERS or not IN_TESTBED else ["test_pyslurm.py"]
if IN_TESTBED and not Path("/run/slurmctld-ctl2").is_dir():
    collect_ignore.append("test_failover.py")  # testbed up --backup
_left_out: list[pytest.Item] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "core: the quick part of the live tests, for `make test`")
    config.addinivalue_line("markers", "smoke: a few of them, for the older releases in `make test`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Outside a test cluster the tests of this directory are taken out; the summary says so."""
    if IN_TESTBED:
        return
    live = [item for item in items if item.path.is_relative_to(HERE)]
    if live:
        config.hook.pytest_deselected(items=live)
        items[:] = [item for item in items if not item.path.is_relative_to(HERE)]
        _left_out.extend(live)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(
            f"tests/live: {len(_left_out)} tests need a real Slurm and did not run here: "
            "make test-live, or contrib/testbed/testbed exec -- python -m pytest tests/live"
        )


@pytest.fixture(params=BACKENDS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A daemon of this test's own, through either adapter, with a directory that its jobs may write to."""
    made = Site(Path(tempfile.mkdtemp(prefix="tias-")), request.param)
    try:
        yield made
    finally:
        made.clean()
        shutil.rmtree(made.home, ignore_errors=True)
