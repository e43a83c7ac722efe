"""Which controller is in charge, as seen from one of their hosts."""

from __future__ import annotations

import os
import re
import struct
import time
from typing import NamedTuple

from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.live import AdapterError

# "Slurmctld(primary) at ctl1 is UP", "Slurmctld(backup1) at ctl2 is DOWN"
_PING = re.compile(r"^Slurmctld\(\w+\) at (\S+) is (\w+)", re.MULTILINE)
# the controller in charge writes it every 30 s or more often, where there are others
_HEARTBEAT_AGE_S = 60.0


class Controllers(NamedTuple):
    """SlurmctldHost in order, and which of them answer. A standby answers too."""

    hosts: list[str]
    up: list[bool]


def parse_ping(text: str) -> Controllers:
    """What `scontrol ping` prints."""
    found = _PING.findall(text)
    return Controllers([host for host, _ in found], [state == "UP" for _, state in found])


def heartbeat(state_save_location: str, now: float | None = None) -> int | None:
    """The index of the controller in charge, from the file that it keeps; None: not to be told from it.

    The file is SlurmUser's alone, and there only if there are several controllers.
    """
    try:
        with open(os.path.join(state_save_location, "heartbeat"), "rb") as file:
            when, index = struct.unpack(">QQ", file.read(16))
    except (OSError, struct.error):
        return None
    age = (time.time() if now is None else now) - when
    return int(index) if -_HEARTBEAT_AGE_S <= age <= _HEARTBEAT_AGE_S else None


def decide(host: str, controllers: Controllers, beating: int | None) -> bool | None:
    """Whether the controller of this host is in charge; None: nobody can tell, or the host has none.

    Without a heartbeat it is the first in the order that answers: one that comes back takes over from those
    behind it.
    """
    names = [name.partition(".")[0] for name in controllers.hosts]
    if host not in names:
        return None
    if beating is not None and beating < len(names):
        return names[beating] == host
    for name, up in zip(names, controllers.up, strict=True):
        if up:
            return name == host
    return None


class InCharge:
    """Asks Slurm whether the controller of this host is in charge."""

    def __init__(
        self, host: str, state_save_location: str, limit_s: float, slurm_bin: str | None = None
    ) -> None:
        """`limit_s`: for the question. Raises AdapterError if scontrol is missing."""
        self._host, self._where = host, state_save_location
        self._runner = Runner(limit_s, slurm_bin, commands=("scontrol",))

    def __call__(self) -> bool | None:
        """See decide; None also where there was no answer."""
        try:
            _, out, _ = self._runner.run(("scontrol", "ping"))  # its status tells only of the primary
        except AdapterError:
            return None
        return decide(self._host, parse_ping(out.decode("utf-8", "replace")), heartbeat(self._where))
