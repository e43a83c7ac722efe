"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from command import Cli, run, write_history, write_trace
from hypothesis import HealthCheck, settings
from supervisor import Socket

# a busy machine is no fault
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of public exports and traces; skips the test where it is absent.

    With TIAS_SLURM_NO_SKIP set the test fails instead: what should run may not be left out in silence.
    """
    default = Path(__file__).parents[2] / "shared" / "data"
    found = Path(os.environ.get("TIAS_SLURM_SHARED_DATA", default))
    if not found.is_dir():
        missing = f"no shared data at {found}; set TIAS_SLURM_SHARED_DATA"
        if os.environ.get("TIAS_SLURM_NO_SKIP"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command, run in a directory of its own."""
    return partial(run, tmp_path)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A small export."""
    return write_history(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A small trace."""
    return write_trace(tmp_path)


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Socket]:
    """What is said to systemd."""
    made = Socket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", made.path)
    yield made
    made.close()
