"""A root that is booted: its systemd as process 1, in systemd-nspawn, and Slurm by its packages' units."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bed.layout import CHECKOUT, Layout
from bed.releases import RELEASES
from bed.roots import ensure_root
from bed.slurmconf import Settings, cgroup_conf, slurm_conf, slurmdbd_conf
from bed.venvs import INNER, INNER_CHECKOUT, ensure_venv

# settings for the daemon in it: quick cycles, in earnest
CONFIG = """[cycle]
interval_s = 5
[daemon]
mode = "enforce"
backend = "commands"
rpc_timeout_s = 20
jitter_s = 0
"""
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

    def __init__(self, release: str, top: Path, packages: tuple[str, ...] = ()) -> None:
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
        places = ("usr/lib/systemd/systemd", "lib/systemd/systemd")
        if not any((self.root / place).exists() for place in places):
            packages = ("systemd", *packages)
        if packages:
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
            sh("chroot", self.root, "apt-get", "update", "-q")
            sh("chroot", self.root, "apt-get", "install", "-qy", "--no-install-recommends", *packages)
        # a booted Debian starts and stops services, which that of the test bed forbids
        for name in ("usr/sbin/policy-rc.d", "etc/dpkg/dpkg.cfg.d/testbed"):
            (self.root / name).unlink()
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
        # by its name: a helper that sets up the namespaces comes, and goes, before it
        found = sh("pgrep", "-P", str(self.process.pid), "-x", "systemd|init", check=False).split()
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


def say(text: str) -> None:
    """One line, at once."""
    print(f"service test: {text}", flush=True)
