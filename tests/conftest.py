"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of public exports and traces; skips the test where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    found = Path(os.environ.get("TIAS_SLURM_SHARED_DATA", default))
    if not found.is_dir():
        pytest.skip(f"no shared data at {found}; set TIAS_SLURM_SHARED_DATA")
    return found
