"""The packages where a systemd is process 1: what becomes of the daemon at upgrade, removal and purge.

`contrib/service_test.py` runs it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testbed"))

from bed.booted import CONFIG, Machine, put, say, submit, written  # noqa: E402

SETTINGS = "/etc/tias-slurm/config.toml"
ELSEWHERE = CONFIG + 'state_dir = "/var/lib/tias-slurm/there"\n'
LEDGER = "/var/lib/tias-slurm/ledger.sqlite"
NOT_RUNNING = "its daemon does not run"


class Package:
    """The package on the machine: as made, and one that passes for an older version of it."""

    def __init__(self, m: Machine, package: Path) -> None:
        self.m = m
        shutil.copy(package, m.root / "root/newer.deb")
        m.run("dpkg-deb", "-R", "/root/newer.deb", "/root/older")
        m.run("sed", "-i", "s/^Version: .*/Version: 0~older/", "/root/older/DEBIAN/control")
        m.run("dpkg-deb", "-Znone", "-b", "/root/older", "/root/older.deb")

    def dpkg(self, *words: str, fails: bool = False) -> str:
        """What dpkg says, with nobody to ask."""
        script = 'DEBIAN_FRONTEND=noninteractive dpkg "$@" </dev/null; echo "status $?"'
        said = self.m.run("sh", "-c", script, "sh", *words)
        assert ("status 0" in said) != fails, said
        return said

    def install(self, version: str) -> str:
        """ "older" or "newer"."""
        return self.dpkg("-i", f"/root/{version}.deb")

    def remove(self, answer: str = "", fails: bool = False) -> str:
        """`answer`: "yes", "no", or none, as where nobody ever said anything."""
        if answer:
            line = f"tias-slurm tias-slurm/restore boolean {'true' if answer == 'yes' else 'false'}"
            self.m.run("sh", "-c", f"echo {line} | debconf-set-selections")
        return self.dpkg("-r", "tias-slurm", fails=fails)


def _start(m: Machine) -> str:
    m.systemctl("start", "tias-slurm")
    assert m.show("ActiveState") == "active", m.journal()
    return m.show("MainPID")


def _at_work(m: Machine) -> tuple[str, str]:
    """A daemon that has given a job a value: its process, and the job."""
    pid, job = _start(m), submit(m)
    m.wait("write", lambda: written(m, job))
    return pid, job


def _ended(m: Machine, pid: str) -> None:
    """Nothing is left of the daemon, and systemd has nothing against that."""
    assert not Path(f"/proc/{m.init}/root/proc/{pid}").exists(), f"process {pid} is still there"
    assert not m.run("pgrep", "-f", "tias-slurm run", check=False)
    assert m.run("systemctl", "is-failed", "tias-slurm", check=False).strip() == "inactive"


def check(m: Machine, package: Path, *, full: bool) -> None:
    """What dpkg has to do with the daemon. Slurm runs; nothing of the daemon's is there yet.

    full: what takes its time too.
    """
    p = Package(m, package)
    _upgrade(m, p)
    _answer_no(m, p)
    _answer_yes(m, p)
    if full:
        _slurmctld_away(m, p)
        _broken_and_unknown(m, p)
    _purge(m, p)


def _upgrade(m: Machine, p: Package) -> None:
    said = p.install("older")
    assert "not started" in said
    assert "Failed" not in said, said
    assert (m.show("ActiveState"), m.show("UnitFileState")) == ("inactive", "disabled")
    say("package: installed, neither started nor enabled")
    _operator(m)
    put(m, SETTINGS, CONFIG)
    pid = _start(m)
    said = p.install("newer")
    assert NOT_RUNNING not in said, said
    assert m.show("ActiveState") == "active", m.journal()
    assert m.show("MainPID") not in (pid, "0")
    assert m.show("UnitFileState") == "disabled"
    say("package: upgraded, a daemon that ran is another process")
    m.systemctl("stop", "tias-slurm")
    m.systemctl("enable", "tias-slurm")
    for version in ("older", "newer"):
        said = p.install(version)
        assert NOT_RUNNING in said, said
        assert m.show("ActiveState") == "inactive"
    say("package: up and down, a daemon that was stopped stays so, and it is said")


def _operator(m: Machine) -> None:
    words = ("account=a1", "cluster=service", "adminlevel=Operator")
    m.run("sacctmgr", "-i", "add", "user", "tias-slurm", *words, check=False)


def _answer_no(m: Machine, p: Package) -> None:
    pid, job = _at_work(m)
    said = p.remove()
    _ended(m, pid)
    assert f"{LEDGER}, which stays too" in said, said
    m.run("test", "-e", LEDGER)
    assert written(m, job)
    say("package: removed, the daemon is stopped, values and ledger stay")
    assert NOT_RUNNING in p.install("newer")
    assert m.show("UnitFileState") == "enabled"
    say("package: back again, it says that the daemon does not run")


def _answer_yes(m: Machine, p: Package) -> None:
    pid, job = _at_work(m)
    said = p.remove("yes")
    _ended(m, pid)
    assert "restored" in said, said
    assert not written(m, job)
    say("package: removed with restore, the daemon is stopped first, values put back")
    p.install("newer")
    pid = _start(m)
    m.wait("write", lambda: written(m, job))
    p.remove()
    _ended(m, pid)
    assert written(m, job)
    say("package: the yes of before is forgotten")
    # the file that no longer can be read names no place, and in the usual one lies what was in use before
    p.install("newer")
    put(m, SETTINGS, ELSEWHERE)
    pid = _start(m)
    m.run("test", "-e", "/var/lib/tias-slurm/there/in-use.json")
    job = submit(m)
    m.wait("write", lambda: written(m, job))
    put(m, SETTINGS, CONFIG + "only_partition = ['gpu']\n")
    said = p.remove("yes")
    _ended(m, pid)
    assert "only_partition" in said, said
    assert "/var/lib/tias-slurm/there/in-use.json" in said, said
    assert not written(m, job), said
    say("package: settings that cannot be read keep nothing from being put back")
    put(m, SETTINGS, CONFIG)
    p.install("newer")


def _slurmctld_away(m: Machine, p: Package) -> None:
    pid, job = _at_work(m)
    m.systemctl("stop", "slurmctld")
    said = p.remove("yes", fails=True)
    _ended(m, pid)
    _not_removed(said, "error: ")
    m.systemctl("start", "slurmctld")
    m.wait("slurmctld", lambda: "is UP" in m.run("scontrol", "ping", check=False))
    assert written(m, job)
    say("package: not removed while slurmctld is away, and why; the daemon is stopped")
    pid = _start(m)
    said = p.remove()
    _ended(m, pid)
    assert not written(m, job), said
    say("package: the yes held until it was done")
    p.install("newer")


def _broken_and_unknown(m: Machine, p: Package) -> None:
    pid, job = _at_work(m)
    put(m, SETTINGS, "[nonsense]\n")
    m.run("rm", "/var/lib/tias-slurm/in-use.json")
    said = p.remove("yes")
    _ended(m, pid)
    assert "is looked for in /var/lib/tias-slurm" in said, said
    assert not written(m, job), said
    say("package: nor do settings of which nothing is known")
    put(m, SETTINGS, CONFIG)
    p.install("newer")


def _not_removed(said: str, why: str) -> None:
    """In whose words, that the values stay, what to do."""
    rest = ("the reason stands above", "stay in Slurm", "so the package stays", "systemctl start tias-slurm")
    for words in (why, *rest):
        assert words in said, said


def _purge(m: Machine, p: Package) -> None:
    by_hand = "setsid tias-slurm run >/tmp/by-hand.log 2>&1 </dev/null &"
    m.run("sh", "-c", by_hand, user="tias-slurm")
    lock = "/var/lib/tias-slurm/lock"
    running = lambda: m.run("pgrep", "-f", "tias-slurm run", check=False).split()  # noqa: E731
    m.wait("lock", lambda: m.run("cat", lock, check=False).strip() in running())
    pid = m.run("cat", lock).strip()
    _not_removed(p.remove("yes", fails=True), f"another tias-slurm (process {pid}) holds the lock")
    m.run("sh", "-c", "echo tias-slurm tias-slurm/restore boolean false | debconf-set-selections")
    said = p.dpkg("-P", "tias-slurm")
    assert f"(process {pid}) goes on with that ledger" in said, said
    assert f"(process {pid}) works with /var/lib/tias-slurm" in said, said
    m.run("test", "-e", LEDGER)
    m.run("kill", pid)
    say("package: a daemon that was started by hand is named, and keeps its ledger at a purge")
    m.wait("end", lambda: not running())
    p.install("newer")
    put(m, SETTINGS, CONFIG)
    pid = _start(m)
    p.dpkg("-P", "tias-slurm")
    _ended(m, pid)
    for path in ("/var/lib/tias-slurm", "/run/tias-slurm", "/etc/tias-slurm", "/usr/lib/tias-slurm"):
        m.run("test", "!", "-e", path)
    assert m.show("LoadState") == "not-found"
    say("package: purged, the daemon is stopped, nothing is left")


def check_rpms(m: Machine, older: Path, newer: Path) -> None:
    """The same of the RPM's scriptlets, by Debian's rpm."""
    for package, name in ((older, "older"), (newer, "newer")):
        shutil.copy(package, m.root / f"root/{name}.rpm")
    rpm = lambda *words: m.run("rpm", "--dbpath", "/var/lib/rpm-tried", "--nodeps", *words)  # noqa: E731
    rpm("-i", "/root/older.rpm")
    assert (m.show("ActiveState"), m.show("UnitFileState")) == ("inactive", "disabled")
    _operator(m)
    put(m, SETTINGS, CONFIG)
    pid, job = _at_work(m)
    rpm("-U", "/root/newer.rpm")
    assert m.show("ActiveState") == "active", m.journal()
    assert m.show("MainPID") not in (pid, "0")
    say("RPM: upgraded, a daemon that ran is another process")
    m.systemctl("stop", "tias-slurm")
    rpm("-U", "--oldpackage", "/root/older.rpm")
    assert m.show("ActiveState") == "inactive"
    say("RPM: a daemon that was stopped stays so")
    pid = _start(m)
    said = rpm("-e", "tias-slurm")
    _ended(m, pid)
    assert f"{LEDGER}, which stays too" in said, said
    assert written(m, job)
    say("RPM: erased, the daemon is stopped, values and ledger stay")
