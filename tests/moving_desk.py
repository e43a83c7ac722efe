"""A daemon that has set values, whose settings change while it works; what lies in a directory."""

import daemon_desk
import pytest
from raw_queue import waiting
from reloading import hup

from tias_slurm import status

desk = daemon_desk.desk


@pytest.fixture
def place(desk):
    """A daemon that has set values, and a way to have its directory changed."""

    class Place:
        old, new = desk.state, desk.state.parent / "other"

        def go(self, where, *lines, **more):
            desk.state = where
            desk.write(*lines, **more)
            return hup(self.daemon)

        def refused(self):
            return [line["message"] for line in desk.said("reload refused")]

    made = Place()
    made.desk = desk
    made.daemon = desk.daemon(waiting(3, nice=5, comment="deadline=+3h"))
    made.daemon.cycle()
    return made


def locked(directory, host=""):
    return status.holder(str(directory), host).running


def names(directory):
    """Without what comes and goes."""
    return sorted(p.name for p in directory.iterdir() if not p.name.endswith(("-wal", "-shm", "in-use.json")))
