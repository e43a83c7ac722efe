"""`[deadlines]` for contrib/job_submit/tias.lua, so that users are told at submit what the daemon will do."""

from __future__ import annotations

from tias_slurm.errors import printable
from tias_slurm.settings import Deadlines

# where tias.lua looks for them
PLACE = "/etc/slurm/tias_settings.lua"
# slurmctld reads both anew at the next submit once this one is newer; `scontrol reconfigure` does not have it
# do so on 22.05
SCRIPT = "/etc/slurm/job_submit.lua"


def lua_settings(deadlines: Deadlines, machine_zone: str) -> str:
    """Lua code that sets tias_slurm.settings, all but `refuse`, which is no business of the daemon's.

    `machine_zone`: IANA name of the zone of slurmctld's machine, the only one that Lua knows.
    """
    values = {
        "key": _string(deadlines.key),
        "accounts": _list(deadlines.accounts),
        "qos": _list(deadlines.qos),
        "partitions": _list(deadlines.partitions),
        "users": _list(deadlines.users),
        "min_window_s": repr(float(deadlines.min_window_s)),
        "max_window_s": "nil" if deadlines.max_window_s is None else repr(float(deadlines.max_window_s)),
        "machine_zone": "true" if deadlines.timezone in ("", machine_zone) else "false",
    }
    lines = [f"tias_slurm.settings.{name} = {value}" for name, value in values.items()]
    return "\n".join(("-- from tias-slurm show-config --lua", *lines, ""))


def lua_differs(deadlines: Deadlines, machine_zone: str, place: str | None = None) -> str:
    """What to do where the settings of the submit script on this machine are not these; empty: nothing."""
    path = PLACE if place is None else place
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = file.read()
    except OSError:
        return ""  # no submit script here, or one without settings of ours
    if found == lua_settings(deadlines, machine_zone):
        return ""
    shown = printable(path, 300)
    how = f"tias-slurm show-config --lua > {shown}; touch {SCRIPT}"
    return f"{shown} is not what [deadlines] says here: {how}"


def _list(names: tuple[str, ...]) -> str:
    return "{ " + ", ".join(map(_string, names)) + " }" if names else "{}"


def _string(text: str) -> str:
    """A literal for every Lua: whatever is not plain ASCII, a quote or a backslash goes by its number."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in text.encode())
    return '"' + "".join(plain) + '"'
