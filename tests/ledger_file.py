"""A ledger on disk, and what a new process would load of it."""

import numpy as np
import pytest

from tias_slurm.ledger.book import COLUMNS
from tias_slurm.ledger.store import SqliteStore

NOBODY = np.empty(0, dtype=np.int64)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger.sqlite")


def again(path):
    """What a new process would load."""
    store = SqliteStore(path)
    try:
        return store.load()
    finally:
        store.close()


def rows(n, value=1.0):
    return np.full((n, len(COLUMNS)), value)
