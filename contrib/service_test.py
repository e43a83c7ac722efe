#!/usr/bin/env python3
"""Run the unit under a real systemd: `contrib/service_test.py [26.05 | 24.11 | 22.05]`.

Boots a Debian root of the test bed with systemd-nspawn (Debian testing, 13 or 12), with munge, MariaDB,
slurmdbd and slurmctld as their packages start them, installs systemd/ as the docs say, and looks whether the
daemon starts, is ready, reloads, is restarted after a kill and after a freeze, refuses a bad file, and stops.
Nothing is left behind. Needs root, Debian's systemd-container, and what the test bed needs.
Exit codes: 0 passed, 1 failed, 77 could not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "testbed"))

from bed.errors import TestbedError  # noqa: E402
from bed.layout import CHECKOUT, Layout  # noqa: E402
from bed.releases import RELEASES  # noqa: E402
from bed.roots import ensure_root  # noqa: E402
from bed.slurmconf import Settings, cgroup_conf, slurm_conf, slurmdbd_conf  # noqa: E402
from bed.venvs import INNER, INNER_CHECKOUT, ensure_venv  # noqa: E402

CONFIG = """[cycle]
interval_s = 5
[daemon]
mode = "enforce"
backend = "commands"
rpc_timeout_s = 20
jitter_s = 0
"""
MAILPROG = "/usr/local/bin/mailprog"
DROP_INS = "/etc/systemd/system/tias-slurm.service.d"
METRICS = '[metrics]\nlisten = "127.0.0.1:9418"\n'
DATABASE = (
    "create database if not exists slurm_acct_db; create user slurm@localhost identified via unix_socket; "
    "grant all on slurm_acct_db.* to slurm@localhost"
)


def sh(*argv: str | Path, check: bool = True, timeout: float = 300) -> str:
    """Run a command out here; its output."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, argv))}: {text.strip()}")
    return text


class Machine:
    """A booted Debian."""

    def __init__(self, release: str, top: Path) -> None:
        layout, self.release = Layout.from_environment(), release
        root = ensure_root(layout, RELEASES[release])
        venv = ensure_venv(layout, RELEASES[release], root)
        sh("mount", "-t", "tmpfs", "-o", "mode=755", "service-test", top)
        for name in ("root", "upper", "work"):
            (top / name).mkdir()
        self.root = top / "root"
        sh(
            "mount",
            "-t",
            "overlay",
            "-o",
            f"lowerdir={root},upperdir={top}/upper,workdir={top}/work",
            "overlay",
            self.root,
        )
        if (
            not (self.root / "usr/lib/systemd/systemd").exists()
            and not (self.root / "lib/systemd/systemd").exists()
        ):
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
            sh("chroot", self.root, "apt-get", "update", "-q")
            sh("chroot", self.root, "apt-get", "install", "-qy", "--no-install-recommends", "systemd")
        self._lay_out()
        argv = ["systemd-nspawn", "-q", "-D", str(self.root), "--register=no", "--keep-unit", "--boot"]
        argv += ["--private-network", "--hostname=testbed", f"--bind-ro={venv}:{INNER}"]
        argv += [
            f"--bind-ro={CHECKOUT}:{INNER_CHECKOUT}",
            "--resolv-conf=off",
            "--timezone=off",
            "--console=pipe",
        ]
        self.log = (top / "boot.log").open("wb")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip
        self.init = 0
        self.wait("a process 1", self._find_init)
        # the resolver wants an address beside 127.0.0.1 (AI_ADDRCONFIG of getaddrinfo(3))
        sh("nsenter", f"--target={self.init}", "--net", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
        self.wait(
            "systemd",
            lambda: self.systemctl("is-system-running", check=False).strip() in ("running", "degraded"),
        )

    def _find_init(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text(errors="replace")
        found = sh("pgrep", "-P", str(self.process.pid), check=False).split()
        self.init = int(found[0]) if found else 0
        return bool(self.init)

    def _lay_out(self) -> None:
        etc = self.root / "etc"
        (etc / "machine-id").write_text("")
        (etc / "hosts").write_text("127.0.0.1 localhost testbed\n")
        (etc / "hostname").write_text("testbed\n")
        settings = Settings("service", self.release, nodes=1, gpus=0, accounting=True, memory_mb=500)
        # nobody has to run anything: waiting jobs are enough
        conf = slurm_conf(settings).replace("SlurmUser=root", "SlurmUser=slurm")
        (etc / "slurm").mkdir(exist_ok=True)
        node = "State=UNKNOWN"
        conf = conf.replace(node, f"Gres=gpu:8 {node}", 1)
        (etc / "slurm/slurm.conf").write_text(conf)
        (etc / "slurm/gres.conf").write_text("")
        (etc / "slurm/cgroup.conf").write_text(cgroup_conf(settings))
        (etc / "slurm/slurmdbd.conf").touch(mode=0o600)
        text = slurmdbd_conf(settings).replace("SlurmUser=root", "SlurmUser=slurm")
        (etc / "slurm/slurmdbd.conf").write_text(text.replace("StorageUser=root", "StorageUser=slurm"))
        (etc / "mysql/conf.d").mkdir(parents=True, exist_ok=True)
        (etc / "mysql/conf.d/slurm.cnf").write_text(
            "[mariadbd]\nloose-innodb-snapshot-isolation=OFF\nskip-networking\n"
        )
        for name in ("var/spool/slurmctld", "var/log/slurm"):
            (self.root / name).mkdir(exist_ok=True)
        (etc / "munge").mkdir(exist_ok=True)
        (etc / "munge/munge.key").write_bytes(os.urandom(128))
        sh(
            "chroot",
            self.root,
            "chown",
            "slurm:",
            "/var/spool/slurmctld",
            "/var/log/slurm",
            "/etc/slurm/slurmdbd.conf",
        )
        sh("chroot", self.root, "chown", "-R", "munge:", "/etc/munge")
        sh("chroot", self.root, "chmod", "0600", "/etc/munge/munge.key")

    def run(self, *argv: str, user: str = "root", check: bool = True) -> str:
        """A command inside; its output."""
        words = ["nsenter", f"--target={self.init}", "--all", "--", "/usr/bin/env", "-i"]
        words += ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        if user != "root":
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return sh(*words, *argv, check=check, timeout=120)

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.run("systemctl", *words, check=check)

    def show(self, name: str) -> str:
        """A property of our unit."""
        return self.systemctl("show", "-P", name, "tias-slurm").strip()

    def journal(self) -> str:
        return self.run("journalctl", "-u", "tias-slurm", "--no-pager", "-o", "cat", check=False)

    def wait(self, what: str, so: Callable[[], bool], seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while not so():
            assert time.monotonic() < until, f"no {what} within {seconds:g} s"
            time.sleep(0.3)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.log.close()


def slurm(m: Machine) -> None:
    """munge, MariaDB, slurmdbd and slurmctld by their own units."""
    m.systemctl("restart", "munge", "mariadb")
    m.run("mariadb", "-e", DATABASE)
    m.systemctl("restart", "slurmdbd")
    m.wait("slurmdbd", lambda: "Cluster" in m.run("sacctmgr", "list", "cluster", check=False))
    m.run("sacctmgr", "-i", "add", "cluster", "service", check=False)
    m.systemctl("restart", "slurmctld")
    m.wait("slurmctld", lambda: "is UP" in m.run("scontrol", "ping", check=False))
    m.run("sacctmgr", "-i", "add", "account", "a1", "cluster=service")
    m.run("sacctmgr", "-i", "add", "user", "alice", "account=a1", "cluster=service")


def install(m: Machine) -> None:
    """As docs/install.md says."""
    for source, target in (
        ("tias-slurm.service", "/etc/systemd/system/tias-slurm.service"),
        ("sysusers.d/tias-slurm.conf", "/usr/lib/sysusers.d/tias-slurm.conf"),
        ("tmpfiles.d/tias-slurm.conf", "/usr/lib/tmpfiles.d/tias-slurm.conf"),
    ):
        m.run("install", "-D", "-m", "0644", f"{INNER_CHECKOUT}/systemd/{source}", target)
    m.run("ln", "-s", f"{INNER}/bin/tias-slurm", "/usr/bin/tias-slurm")
    m.run("systemd-sysusers")
    m.run("systemd-tmpfiles", "--create", "tias-slurm.conf")
    m.run(
        "sacctmgr", "-i", "add", "user", "tias-slurm", "account=a1", "cluster=service", "adminlevel=Operator"
    )
    # a short patience, so that the test need not wait
    put(m, "/etc/systemd/system/tias-slurm.service.d/test.conf", "[Service]\nWatchdogSec=6\nRestartSec=1\n")
    m.systemctl("daemon-reload")


def put(m: Machine, path: str, text: str) -> None:
    """Write a file inside."""
    target = Path(f"/proc/{m.init}/root{path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(0o644)


def submit(m: Machine, comment: str = "deadline=+3h") -> str:
    """A waiting job that asks for GPUs."""
    words = ("--parsable", "--chdir=/tmp", "-o", "/dev/null", "--gpus=1", f"--comment={comment}")
    done = m.run("sbatch", *words, "--wrap", "true", user="alice")
    return done.strip()


def written(m: Machine, job: str) -> bool:
    found = re.search(r"Nice=(-?\d+)", m.run("scontrol", "show", "job", job))
    return found is not None and int(found[1]) < 0


def check(m: Machine) -> None:
    """What a service has to do."""
    # without a settings file it is not started, and that is no failure
    m.systemctl("start", "tias-slurm", check=False)
    assert m.show("ActiveState") == "inactive"
    assert m.show("ConditionResult") == "no"
    say("no settings: not started")

    # a bad one: failed at once, and not tried again
    put(m, "/etc/tias-slurm/config.toml", "[nonsense]\n")
    m.systemctl("start", "tias-slurm", check=False)
    m.wait("failure", lambda: m.show("ActiveState") == "failed")
    time.sleep(3)
    assert (m.show("NRestarts"), m.show("ExecMainStatus")) == ("0", "2")
    say("settings that cannot be used: failed, not tried again")

    put(m, "/etc/tias-slurm/config.toml", CONFIG + METRICS)
    job = submit(m)
    m.systemctl("start", "tias-slurm")
    assert m.show("ActiveState") == "active", m.journal()
    m.wait("write", lambda: written(m, job))
    m.wait("status", lambda: "1 wait" in m.show("StatusText"))
    say(f"started, ready, writes as {m.show('User')}: {m.show('StatusText')}")
    pid = m.show("MainPID")
    status = Path(f"/proc/{m.init}/root/proc/{pid}/status").read_text()
    assert re.search(r"^CapEff:\s+0{16}$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    for path, mode in (
        ("/var/lib/tias-slurm", "750"),
        ("/run/tias-slurm", "750"),
        ("/var/log/tias-slurm", "750"),
    ):
        assert m.run("stat", "-c", "%U %a", path).strip() == f"tias-slurm {mode}", path
    shown = m.run(f"{INNER}/bin/tias-slurm", "status", "--json", "--config", "/etc/tias-slurm/config.toml")
    assert json.loads(shown)["daemon"]["well"]
    say("no capabilities, no new privileges, system calls filtered, directories are its own")

    put(m, "/etc/tias-slurm/config.toml", "[nonsense]\n")
    m.systemctl("reload", "tias-slurm")
    m.wait("word", lambda: "reload refused" in m.journal())
    put(m, "/etc/tias-slurm/config.toml", CONFIG + METRICS + '[scope]\nnot_users = ["bob"]\n')
    m.systemctl("reload", "tias-slurm")
    m.wait("word", lambda: '"reloaded"' in m.journal())
    assert (m.show("MainPID"), m.show("ActiveState")) == (pid, "active")
    say("reload: a bad file refused, a good one taken, the same process")

    m.run("kill", "-KILL", pid)
    m.wait("restart", lambda: m.show("MainPID") not in (pid, "0") and m.show("ActiveState") == "active")
    say("killed: started again")
    pid = m.show("MainPID")
    m.run("kill", "-STOP", pid)
    m.wait("restart", lambda: m.show("MainPID") not in (pid, "0") and m.show("ActiveState") == "active")
    assert m.show("NRestarts") == "2"
    say("frozen: ended by the watchdog and started again")

    # slurmctld goes and comes back
    m.systemctl("stop", "slurmctld")
    m.systemctl("restart", "tias-slurm", check=False)
    m.systemctl("start", "slurmctld")
    m.wait("slurmctld", lambda: "is UP" in m.run("scontrol", "ping", check=False))
    m.wait("daemon", lambda: m.show("ActiveState") == "active")
    job = submit(m)
    m.wait("write", lambda: written(m, job))
    say("slurmctld away and back: it works again by itself")

    began = time.monotonic()
    m.systemctl("stop", "tias-slurm")
    assert (m.show("ActiveState"), m.show("Result"), m.show("ExecMainStatus")) == ("inactive", "success", "0")
    assert '"stopped"' in m.journal()
    say(f"stopped in {time.monotonic() - began:.1f} s")
    assert "Traceback" not in m.journal(), m.journal()

    # mail by a program that wants no rights; and the drop-in for one that does
    put(m, MAILPROG, '#!/bin/sh\n{ echo "$@"; cat; } >> /var/lib/tias-slurm/mails\n')
    m.run("chmod", "0755", MAILPROG)
    mail = f'[notify]\nhow = "mail"\nmail_prog = "{MAILPROG}"\nmail_domain = "example.org"\n'
    put(m, "/etc/tias-slurm/config.toml", CONFIG + mail)
    job = submit(m, "deadline=18:00")
    m.systemctl("start", "tias-slurm")
    sent = f"-s Slurm Job_id={job} tias-slurm: a key in the comment is not taken alice@example.org"
    m.wait("mail", lambda: sent in m.run("cat", "/var/lib/tias-slurm/mails", check=False))
    m.run("install", "-m", "0644", f"{INNER_CHECKOUT}/systemd/mail.conf", f"{DROP_INS}/mail.conf")
    m.systemctl("daemon-reload")
    m.systemctl("restart", "tias-slurm")
    status = Path(f"/proc/{m.init}/root/proc/{m.show('MainPID')}/status").read_text()
    assert re.search(r"^NoNewPrivs:\s+0$", status, re.MULTILINE)
    assert re.search(r"^CapBnd:\s+0{16}$", status, re.MULTILINE)
    m.run("rm", f"{DROP_INS}/mail.conf")
    m.systemctl("stop", "tias-slurm")
    say("mail goes out as the unit stands, and mail.conf lets a setgid program run")

    # as SlurmUser
    put(m, "/etc/systemd/system/tias-slurm.service.d/user.conf", "[Service]\nUser=slurm\nGroup=slurm\n")
    m.systemctl("daemon-reload")
    job = submit(m)
    m.systemctl("start", "tias-slurm")
    m.wait("write", lambda: written(m, job))
    m.systemctl("stop", "tias-slurm")
    say("the same as SlurmUser, by a drop-in")


def say(text: str) -> None:
    print(f"service test: {text}", flush=True)


def main() -> int:
    """Run it, in a mount namespace of its own."""
    release = sys.argv[1] if len(sys.argv) > 1 else "26.05"
    if release not in RELEASES or len(sys.argv) > 2:
        print(f"usage: service_test.py [{' | '.join(sorted(RELEASES))}]", file=sys.stderr)
        return 2
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        say("did not run: it needs root and systemd-nspawn (apt install systemd-container)")
        return 77
    if not os.environ.get("TIAS_SERVICE_TEST_INSIDE"):
        os.environ["TIAS_SERVICE_TEST_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation=private", "--", sys.executable, *sys.argv])
    top, machine = Path(tempfile.mkdtemp(prefix="tias-service-")), None
    try:
        machine = Machine(release, top)
        say(machine.run("systemctl", "--version").splitlines()[0])
        slurm(machine)
        install(machine)
        check(machine)
    except TestbedError as error:
        say(f"did not run: {error}")
        return 77
    except (AssertionError, subprocess.TimeoutExpired) as error:
        say(f"FAILED: {error}")
        if machine is not None:
            print(machine.run("journalctl", "-b", "--no-pager", "-n", "80", check=False)[-12000:])
        return 1
    finally:
        if machine is not None:
            machine.close()
        # all of it lay in memory; nothing is deleted through a mount
        sh("umount", "--recursive", "--lazy", str(top), check=False)
        top.rmdir()
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
