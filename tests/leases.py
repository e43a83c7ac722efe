"""The lease as several daemons see it, each on a clock of its own; a log that tells what was said."""

import os
import random

import pytest

from tias_slurm.service.leadership import Knowledge, LeaseFile, Timing

TIMING = Timing(hold_s=10.0, lasts_s=15.0)
NEW = Knowledge("a", 0)


class Clock:
    """A host's clock, which starts anywhere."""

    def __init__(self, at):
        self.at = at

    def __call__(self):
        return self.at


@pytest.fixture
def lease(tmp_path, monkeypatch):
    """Makes the lease as another daemon sees it, on a clock of its own."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here
    made = []

    def make(enforce=True, timing=TIMING):
        clock = Clock(random.Random(len(made)).uniform(0, 1e6))
        one = LeaseFile(str(tmp_path / "lease"), timing, enforce=enforce, now=clock)
        one.host = f"ctl{len(made) + 1}"
        one.me = f"{one.host}:{one.me}"
        one.clock = clock
        made.append(one)
        return one

    return make


def pass_time(seconds, *leases):
    for one in leases:
        one.clock.at += seconds


class Log:
    """What was said, as (event, fields)."""

    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        return lambda event, **fields: self.lines.append((event, fields))
