"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
