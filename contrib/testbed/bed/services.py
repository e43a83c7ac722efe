"""Starting a cluster's daemons, one after the other, each waited for."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bed.errors import TestbedError
from bed.namespace import PATH
from bed.proc import last_line, step
from bed.roots import DAEMON_USER, USERS
from bed.slurmconf import CONTROLLERS

if TYPE_CHECKING:
    from bed.cluster import Cluster

# runs a command as if on another host
ON_HOST = "/usr/local/lib/testbed/on-host"
_MYSQL_SOCKET = "/run/mysqld/mysqld.sock"
# who works under which accounts; the first is the default
_ACCOUNTS = {"a1": ("alice", "bob"), "a2": ("bob", "carol")}


def plain_environment(user: str = "root") -> dict[str, str]:
    """What every command inside gets. SBATCH_OUTPUT keeps jobs' output out of the checkout."""
    return {
        "PATH": PATH,
        "HOME": "/root" if user == "root" else f"/home/{user}",
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "VIRTUAL_ENV": "/opt/tias",
        "SBATCH_OUTPUT": "/tmp/slurm-%j.out",  # noqa: S108
        "TIAS_TESTBED": "1",
    }


def call(cluster: Cluster, argv: list[str], what: str, clock: bool = True, timeout: float = 60) -> str:
    """Run a command inside to its end; its output. TestbedError with its last line if it fails."""
    log = cluster.logs / "up.log"
    try:
        done = subprocess.run(
            cluster.command(argv, clock=clock),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(f"{what}: no answer within {timeout:.0f} s; logs: {cluster.logs}") from None
    text = done.stdout.decode(errors="replace")
    with log.open("a") as out:
        out.write(f"$ {' '.join(argv)}\n{text}")
    if done.returncode != 0:
        raise TestbedError(f"{what} failed: {last_line(log)}; logs: {cluster.logs}")
    return text


def launch(cluster: Cluster, argv: list[str], what: str, clock: bool = True) -> None:
    """Start a daemon inside, which goes on after this command; its output goes to its own log."""
    log = cluster.logs / f"{what}.out"
    with log.open("ab") as out:
        done = subprocess.run(
            cluster.command(argv, clock=clock),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=60,
            check=False,
        )
    if done.returncode != 0:
        raise TestbedError(f"{what} did not start: {last_line(log)}; logs: {cluster.logs}")


def wait_for(
    cluster: Cluster, ready: Callable[[], bool], process: str, log: str, what: str = "", timeout: float = 60
) -> None:
    """Poll until ready; TestbedError with the last line of the log if the process of that name has ended,
    or after `timeout` real seconds.
    """
    begin = time.monotonic()
    where = cluster.logs / log
    while not ready():
        waited = time.monotonic() - begin
        if waited > 1 and answers(cluster, ["pgrep", "-x", process], clock=False) is None:
            raise TestbedError(f"{process} ended: {last_line(where)}; log: {where}")
        if waited > timeout:
            raise TestbedError(
                f"no {what or process} after {timeout:.0f} s: {last_line(where)}; log: {where}"
            )
        time.sleep(0.1)


def answers(cluster: Cluster, argv: list[str], clock: bool = True) -> str | None:
    """What a command inside prints, None if it fails or hangs: for polling."""
    try:
        done = subprocess.run(
            cluster.command(argv, clock=clock),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=15,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def node_states(cluster: Cluster) -> dict[str, int] | None:
    """How many nodes are in each state, as sinfo names it; None if the controller does not answer."""
    text = answers(cluster, ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"])
    return None if text is None else dict(Counter(text.split()))


def start_all(cluster: Cluster) -> None:
    """munged, the clock, MariaDB and slurmdbd, slurmctld, slurmds, accounts; all nodes idle at the end."""
    with step("munge"):
        _directory(cluster, "/run/munge", "munge")
        launch(
            cluster,
            ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"],
            "munged",
            False,
        )
        wait_for(
            cluster, lambda: answers(cluster, ["munge", "-n"], False) is not None, "munged", "munged.out"
        )
    if cluster.settings.time_scale > 1:
        with step(f"a clock that runs {cluster.settings.time_scale} times as fast"):
            _start_clock(cluster)
    if cluster.settings.accounting:
        with step("MariaDB"):
            _start_mariadb(cluster)
        with step("slurmdbd"):
            launch(cluster, ["slurmdbd"], "slurmdbd")
            listed = ["sacctmgr", "-n", "list", "cluster"]
            wait_for(cluster, lambda: answers(cluster, listed) is not None, "slurmdbd", "slurmdbd.log")
            # known before the controller asks for its associations
            call(cluster, ["sacctmgr", "-i", "add", "cluster", cluster.settings.cluster_name], "sacctmgr")
            _add_accounts(cluster)
    with step("slurmctld"):
        _directory(cluster, "/var/spool/slurmctld", "root")
        if cluster.settings.backup:
            _directory(cluster, "/run/slurmctld", "root")
        if cluster.settings.backup:
            _start_controllers(cluster)
        else:
            launch(cluster, ["slurmctld"], "slurmctld")
        wait_for(cluster, lambda: node_states(cluster) is not None, "slurmctld", "slurmctld.log")
    total = cluster.settings.nodes
    with step(f"{total} nodes idle"):
        for index in range(1, total + 1):
            _directory(cluster, f"/var/spool/slurmd-n{index}", "root")
            launch(cluster, ["slurmd", "-N", f"n{index}"], "slurmd")
        wait_for(
            cluster,
            lambda: (node_states(cluster) or {}).get("idle") == total,
            "slurmd",
            "slurmctld.log",
            f"{total} idle nodes",
            90,
        )


def _start_controllers(cluster: Cluster) -> None:
    """Both; the first once more before, since a second can only take over what a first has saved, which it
    does in full every five minutes and at its end."""
    first = next(iter(CONTROLLERS))
    for host in CONTROLLERS:
        _directory(cluster, f"/run/slurmctld-{host}", "root")
    launch(cluster, [ON_HOST, first, "slurmctld"], "slurmctld")
    wait_for(cluster, lambda: node_states(cluster) is not None, "slurmctld", "slurmctld.log")
    call(cluster, ["pkill", "-TERM", "-x", "slurmctld"], "ending slurmctld", clock=False)
    deadline = time.monotonic() + 30
    while answers(cluster, ["pgrep", "-x", "slurmctld"], clock=False) is not None:
        if time.monotonic() > deadline:
            raise TestbedError(f"slurmctld does not end; logs: {cluster.logs}")
        time.sleep(0.1)
    for host in CONTROLLERS:
        launch(cluster, [ON_HOST, host, "slurmctld"], "slurmctld")


def _directory(cluster: Cluster, path: str, owner: str) -> None:
    call(
        cluster,
        ["install", "-d", "-o", owner, "-g", owner, "-m", "0755", path],
        f"making {path}",
        clock=False,
    )


def _start_mariadb(cluster: Cluster) -> None:
    _directory(cluster, "/run/mysqld", "mysql")
    words = ["setsid", "--fork", "mariadbd", "--user=mysql", "--skip-networking", f"--socket={_MYSQL_SOCKET}"]
    words += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--skip-log-bin"]
    words.append("--loose-innodb-snapshot-isolation=OFF")  # slurmdbd cannot work with it; new in MariaDB 11
    launch(cluster, words, "mariadbd", clock=False)
    ping = ["mariadb-admin", f"--socket={_MYSQL_SOCKET}", "ping"]
    wait_for(cluster, lambda: answers(cluster, ping, False) is not None, "mariadbd", "mariadbd.out")
    # slurmdbd would create it and then fail its own start-up check
    create = ["mariadb", f"--socket={_MYSQL_SOCKET}", "-e", "create database if not exists slurm_acct_db"]
    call(cluster, create, "creating the database", clock=False)


def _add_accounts(cluster: Cluster) -> None:
    def sacctmgr(*words: str) -> None:
        call(cluster, ["sacctmgr", "-i", *words], "sacctmgr")

    where = f"cluster={cluster.settings.cluster_name}"
    sacctmgr("add", "qos", "high", "priority=100")
    sacctmgr("modify", "account", "root", "set", "qos=normal,high", "defaultqos=normal")
    sacctmgr("add", "account", ",".join(_ACCOUNTS), where)
    for account, users in _ACCOUNTS.items():
        sacctmgr("add", "user", ",".join([*users, "root"]), f"account={account}", where)
    # the daemon's account: an Operator, as docs for administrators advise
    sacctmgr("add", "user", DAEMON_USER, "account=a1", where, "adminlevel=Operator")
    missing = set(USERS) - {user for users in _ACCOUNTS.values() for user in users}
    assert not missing, missing


def _start_clock(cluster: Cluster) -> None:
    """Start the process that owns the accelerated clock, and keep the environment that shares it."""
    clock = "/usr/local/lib/testbed/clock.py"
    speed = f"+0 x{cluster.settings.time_scale}"
    words = [
        "setsid",
        "--fork",
        "faketime",
        "-f",
        speed,
        "/usr/bin/python3",
        "-I",
        "-S",
        clock,
        "/run/clock.json",
    ]
    launch(cluster, words, "clock", clock=False)
    wait_for(
        cluster,
        lambda: answers(cluster, ["cat", "/run/clock.json"], False) is not None,
        "faketime",
        "clock.out",
    )
    text = call(cluster, ["cat", "/run/clock.json"], "the clock", clock=False)
    half = cluster.directory / f"clock.{os.getpid()}"
    half.write_text(json.dumps(json.loads(text)))
    half.rename(cluster.directory / "clock.json")
