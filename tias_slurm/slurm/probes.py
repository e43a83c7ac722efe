"""What `check-config --live` asks of the site and of this machine. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import stat
from dataclasses import dataclass, field
from typing import Final, Literal

from tias_slurm.config import Config
from tias_slurm.errors import InputError, printable
from tias_slurm.slurm.checks_preempt import Qos, mode_of, parse_qos
from tias_slurm.slurm.choose import choose
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import Adapter, AdapterError, SiteFacts
from tias_slurm.slurm.pyslurm_adapter import installed_pyslurm
from tias_slurm.slurm.scope import given
from tias_slurm.user_export import problem

Rights = Literal["yes", "no", "unknown"]
_PARTITION: Final = re.compile(r"(?m)^PartitionName=(\S+).*?\sPriorityTier=(\d{1,9})", re.ASCII)
_CONF: Final = re.compile(r"(?m)^SLURM_CONF\s*= (\S+)", re.ASCII)
# UID_MIN of login.defs(5) as every distribution has it, and the account that owns nothing
_FIRST_PERSON, _NOBODY = 1000, 65534
_MOST_CONF: Final = 10_000_000  # characters that are read of a slurm.conf
_HOST: Final = re.compile(r"(?m)^(?:SlurmctldHost\[\d+\]|BackupController)\s*= (\S+)", re.ASCII)


@dataclass(frozen=True)
class Probes:
    """What was seen. Texts are one line each."""

    user: str  # the account that asks
    is_root: bool = False
    # the account that the state directory belongs to, which is the daemon's; "": there is none yet, or root's
    daemon: str = ""
    is_person: bool = False  # the account that asks has a number of people's, not of system accounts
    rights: Rights = "unknown"  # of an Operator, as slurmctld has them
    rights_words: str = ""  # what it said
    admin_level: str = ""  # as slurmdbd has it; "": not known
    tiers: dict[str, int] = field(default_factory=dict)  # PriorityTier by partition
    node_partitions: tuple[frozenset[str], ...] = ()  # of each node; asked for where [scope] names something
    controllers: tuple[str, ...] = ()
    backend: str = ""  # the adapter that the daemon would use
    backend_why: str = ""
    backend_problem: str = ""  # why the one that is asked for cannot be used
    pyslurm: str = ""  # "": not installed
    state: Literal["ours", "absent, can be made", "absent, cannot be made", "not writable"] = "ours"
    state_mode: int = 0o750
    # what is wrong with [daemon] user_export, and what to do; ("", ""): nothing
    export: tuple[str, str] = ("", "")
    qos: tuple[Qos, ...] | None = None  # None: sacctmgr does not tell
    preempt_mode: str = ""  # of slurm.conf; "": it cannot be read here


def look_at_qos(timeout_s: float) -> tuple[Qos, ...] | None:
    """The QOS of the accounting database; None if it does not answer."""
    try:
        runner = Runner(timeout_s, commands=("sacctmgr",))
        words = ("sacctmgr", "-nP", "show", "qos", "format=name,preempt,preemptmode,preemptexempttime")
        status, out, _ = runner.run(words)
    except AdapterError:
        return None
    found = parse_qos(out.decode("utf-8", "replace"))
    return found if not status and found else None


def mode_in_file(timeout_s: float) -> str:
    """PreemptMode as slurm.conf has it; "" if that cannot be read here."""
    try:
        shown = _said(Runner(timeout_s), "show", "config")
        path = os.environ.get("SLURM_CONF") or _CONF.findall(shown)[0]
        with open(path, encoding="utf-8", errors="replace") as file:
            return mode_of(file.read(_MOST_CONF))
    except (AdapterError, OSError, IndexError):
        return ""


def probe(config: Config) -> tuple[SiteFacts, Probes]:
    """Ask. Raises AdapterError if the controller does not answer or Slurm's commands are not here."""
    c = config.daemon
    commands = CommandsAdapter(c.rpc_timeout_s)
    adapter: Adapter = commands
    why = problem = ""
    try:
        adapter, why = choose(
            c.backend, allow_version_mismatch=c.allow_version_mismatch, call_limit_s=c.rpc_timeout_s
        )
    except InputError as error:
        problem = str(error)
    try:
        facts = adapter.facts()
        nodes = tuple(adapter.nodes().partitions) if given(config.scope) else ()
    finally:
        adapter.close()
    runner = Runner(c.rpc_timeout_s)
    rights, words = _rights(runner)
    state, mode = look_at_state(c.state_dir)
    user = user_name()
    return facts, Probes(
        user=user,
        is_root=os.geteuid() == 0,
        daemon=_owner(c.state_dir),
        is_person=_is_person(os.geteuid()),
        rights=rights,
        rights_words=words,
        admin_level=_admin_level(c.rpc_timeout_s, user),
        tiers={
            name: int(tier) for name, tier in _PARTITION.findall(_said(runner, "-o", "show", "partition"))
        },
        node_partitions=nodes,
        controllers=tuple(_HOST.findall(_said(runner, "show", "config"))),
        backend=adapter.name,
        backend_why=why,
        backend_problem=problem,
        pyslurm=installed_pyslurm(),
        state=state,
        state_mode=mode,
        export=_look_at_export(c.user_export, c.state_dir) if c.user_export else ("", ""),
        qos=look_at_qos(c.rpc_timeout_s) if config.requeue.mode == "slurm" else None,
        preempt_mode=mode_in_file(c.rpc_timeout_s) if config.requeue.mode == "slurm" else "",
    )


def user_name() -> str:
    """The account of this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_person(uid: int) -> bool:
    return uid >= _FIRST_PERSON and uid != _NOBODY


def _owner(state_dir: str) -> str:
    """The account that a state directory belongs to; "": there is none, or it cannot be told."""
    try:
        owner = os.stat(state_dir).st_uid
        return pwd.getpwuid(owner).pw_name if owner else ""
    except OSError:
        return ""
    except KeyError:
        return str(owner)


def _rights(runner: Runner) -> tuple[Rights, str]:
    """Whether slurmctld takes us for an Operator or more.

    An update of a job that does not exist tells nothing, since the id is looked up first. The rights to
    change a reservation are looked at before its name: a name that nobody has gives one answer to Operators
    and another to all others, coordinators included (seen on 22.05, 24.11 and 26.05).
    """
    name = f"tias-slurm-{secrets.token_hex(8)}"
    status, out, err = runner.run(("scontrol", "update", f"ReservationName={name}", "Duration=1"))
    words = printable(" ".join(f"{err} {out.decode('utf-8', 'replace')}".split()), 200)
    return judge_rights(status, words), words


def judge_rights(status: int, words: str) -> Rights:
    """What the controller's answer to the question about a reservation means."""
    low = words.lower()
    if "reservation is invalid" in low:
        return "yes"
    if status and ("invalid user id" in low or "permission denied" in low):
        return "no"
    return "unknown"


def _admin_level(timeout_s: float, user: str) -> str:
    """AdminLevel in the accounting database; "" where there is none, or it does not know the account."""
    try:
        runner = Runner(timeout_s, commands=("sacctmgr",))
        status, out, _ = runner.run(("sacctmgr", "-nP", "show", "user", f"name={user}", "format=AdminLevel"))
    except AdapterError:
        return ""
    words = out.decode("utf-8", "replace").split()
    return printable(words[0], 40) if not status and words else ""


def _said(runner: Runner, *words: str) -> str:
    status, out, err = runner.run(("scontrol", *words))
    if status:
        raise AdapterError(f"scontrol {' '.join(words)}: {printable(err, 200)}", retry=True)
    return out.decode("utf-8", "replace")


def _look_at_export(directory: str, state_dir: str) -> tuple[str, str]:
    account = os.geteuid()
    if account == 0 or _is_person(account):
        # they look for the daemon, whose account that of the ledger is
        with contextlib.suppress(OSError):
            account = os.stat(state_dir).st_uid
    return problem(directory, account)


def look_at_state(
    path: str,
) -> tuple[Literal["ours", "absent, can be made", "absent, cannot be made", "not writable"], int]:
    """Whether the ledger can be kept there, and the directory's mode."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        above = os.path.dirname(os.path.abspath(path))
        while above != "/" and not os.path.exists(above):
            above = os.path.dirname(above)
        can = os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)
        return ("absent, can be made" if can else "absent, cannot be made"), 0o750
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        return "not writable", mode
    return "ours", mode
