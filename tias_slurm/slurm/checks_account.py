"""Checks of the account, of the machine and of what talks to Slurm there. Pure; see checks_live.py.

Sources: user_permissions.html, slurm.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tias_slurm.config import Config
from tias_slurm.slurm.finding import Finding, options
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.probes import Probes

TESTED: Final = ((22, 5), (26, 5))


def other_account(p: Probes) -> str:
    """Whose this check should be instead; "": it may be the daemon's. A person must not get its rights."""
    if p.is_root or not p.is_person or p.user == p.daemon:
        return ""
    return p.daemon or "tias-slurm"


def _as_daemon(p: Probes, then: str = "") -> str:
    """What to do where this is not the daemon's account."""
    how = f"runuser -u {other_account(p)} -- tias-slurm check-config --live"
    return f"run this check as the daemon's account: {how}" + (f"; {then}" if then else "")


def account(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether this is the account that the daemon runs as."""
    if other_account(p):
        path = config.daemon.state_dir
        whose = f"{path} belongs to {p.daemon}" if p.daemon else "by its number the account of a person"
        yield Finding(
            "account",
            "warning",
            f"this is {p.user}: {whose}",
            "rights and directories are those of the account that asks; a person's must not get the daemon's",
            _as_daemon(p, "" if p.daemon else f"if this is meant to be it, make {path} its own first"),
        )


def rights(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether this account may write what the lever needs."""
    level = f", AdminLevel={p.admin_level} in the accounting database" if p.admin_level else ""
    account = f"account {p.user}{level}"
    if p.rights == "yes":
        yield Finding("rights", "ok", f"{account}: slurmctld takes it for an Operator or more")
        return
    grant = f"sacctmgr modify user {p.user} set AdminLevel=Operator"
    if not p.admin_level:
        grant = (
            f"add the account to the accounting database, then {grant}; without one, run as SlurmUser "
            f"({facts.slurm_user})"
        )
    if other_account(p):
        grant = _as_daemon(p, "that one needs AdminLevel=Operator, this one does not")
    if p.rights == "unknown":
        yield Finding(
            "rights",
            "warning",
            f"{account}: slurmctld's answer was not understood: {p.rights_words}",
            "priority, negative nice and site factor of others' jobs need AdminLevel=Operator",
            grant,
        )
        return
    if p.admin_level.lower() in ("operator", "administrator") and not other_account(p):
        grant = "slurmctld has not taken that over: is slurmdbd connected? scontrol reconfigure"
    enforce = config.daemon.mode == "enforce"
    yield Finding(
        "rights",
        "error" if enforce else "warning",
        f"{account}: slurmctld takes it for an ordinary user",
        "nothing can be written" if enforce else "a dry run works, writing will not",
        grant,
    )


def root(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether the account is root."""
    if p.is_root:
        yield Finding(
            "account",
            "warning",
            "this is root",
            "the daemon needs none of root's rights",
            "run it, and this check, as a system account of its own with AdminLevel=Operator",
        )


def private_data(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether others' jobs can be seen."""
    hidden = "jobs" in options(facts.private_data) or "all" in options(facts.private_data)
    if hidden and p.rights == "no":
        yield Finding(
            "private-data",
            "error",
            f"PrivateData={facts.private_data}",
            "others' jobs are hidden from this account: the queue would look empty",
            _as_daemon(p) if other_account(p) else "give the account AdminLevel=Operator",
        )
    else:
        yield Finding("private-data", "ok", "all jobs can be seen")


def versions(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Slurm's release, and which adapter is used."""
    release = tuple(int(n) for n in re.findall(r"\d{1,4}", facts.version)[:2])
    if TESTED[0] <= release <= TESTED[1]:
        yield Finding("version", "ok", f"Slurm {facts.version}")
    else:
        yield Finding(
            "version",
            "warning",
            f"Slurm {facts.version}",
            "tested with 22.05 to 26.05",
            'try mode = "dry-run" and tias-slurm plan first',
        )
    if p.backend_problem:
        yield Finding("backend", "error", p.backend_problem, "the daemon will not start", "see there")
    elif p.backend == "commands" and p.pyslurm and config.daemon.backend == "auto":
        yield Finding(
            "backend",
            "warning",
            p.backend_why,
            "Slurm's commands serve, but take longer to read a large queue",
            'install the pyslurm that matches, or set backend = "commands"',
        )
    elif config.daemon.allow_version_mismatch and "allow_version_mismatch" in p.backend_why:
        yield Finding(
            "backend",
            "warning",
            p.backend_why,
            "structures of two releases may differ in silence",
            'install the pyslurm that matches, or set backend = "commands"',
        )
    else:
        yield Finding("backend", "ok", p.backend_why)


def state_dir(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether the ledger's directory is there, ours and closed to others."""
    path = config.daemon.state_dir
    if p.state in ("absent, cannot be made", "not writable"):
        make = f"install -d -m 0750 -o {p.user} {path}"
        if p.daemon not in ("", p.user):  # what lies in it has to go along
            make = f"chown -R {p.user} {path}, or run this check as {p.daemon}"
        yield Finding(
            "state-dir",
            "error",
            f"{path}: {p.state} by {p.user}" + (f", belongs to {p.daemon}" if p.daemon else ""),
            "the ledger and the lock are kept there",
            _as_daemon(p) if other_account(p) else make,
        )
    elif p.state == "ours" and p.state_mode & 0o027:
        yield Finding(
            "state-dir",
            "warning",
            f"{path}: mode {p.state_mode:04o}",
            "others may read or change the ledger",
            f"chmod 0750 {path}",
        )
    else:
        yield Finding("state-dir", "ok", f"{path}: {'there' if p.state == 'ours' else p.state}")


def user_export(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether users find what `explain` needs."""
    path, (what, do) = config.daemon.user_export, p.export
    if what:
        yield Finding("user-export", "warning", what, "users could not explain their own jobs", do)
    elif path:
        yield Finding("user-export", "ok", f"{path}: the daemon's own, with ACLs")


def controllers(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether two daemons could run beside each other."""
    if len(p.controllers) > 1 and not config.daemon.lease_path:
        yield Finding(
            "controllers",
            "warning",
            f"{len(p.controllers)} SlurmctldHosts: {', '.join(p.controllers)}",
            "the lock holds on one machine only; two daemons on two machines would both write",
            "run the daemon on one machine, or set [daemon] lease_path (docs/operate.md, two controllers)",
        )


def notify(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether messages reach users' output."""
    if config.notify.how == "output" and not p.is_root and p.user != facts.slurm_user:
        yield Finding(
            "notify",
            "warning",
            f'[notify] how = "output", as account {p.user}',
            "slurmctld lets no Operator write into others' output: nobody would be told anything",
            f'run the daemon as SlurmUser ({facts.slurm_user}), or set how = "mail"',
        )
