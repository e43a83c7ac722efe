#!/usr/bin/env python3
"""Run the unit and the Debian package under a real systemd: `contrib/service_test.py [--full] [RELEASE]`.

RELEASE: 26.05 (the default), 24.11 or 22.05. Boots a Debian root of the test bed with systemd-nspawn (Debian
testing, 13 or 12), with munge, MariaDB, slurmdbd and slurmctld as their packages start them, installs
systemd/ as the docs say, and looks whether the daemon starts, is ready, reloads, is restarted after a kill
and after a freeze, refuses a bad file, and stops. Then it takes that away, and installs, upgrades, removes
and purges a package with the daemon running and stopped (packaging/under_systemd.py): one that Debian's tools
make of the checkout, with the test bed's environment in it; --package FILE: that one, and nothing else.
Nothing is left behind. Needs root, Debian's systemd-container, and what the test bed needs.
Exit codes: 0 passed, 1 failed, 2 used wrongly, 77 could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "testbed"), str(HERE / "packaging")]

import under_systemd  # noqa: E402
from bed.booted import CONFIG, Machine, put, say, sh, slurm, submit, written  # noqa: E402
from bed.errors import TestbedError  # noqa: E402
from bed.layout import Layout  # noqa: E402
from bed.releases import RELEASES  # noqa: E402
from bed.roots import ensure_root  # noqa: E402
from bed.venvs import INNER, INNER_CHECKOUT  # noqa: E402
from light import light_deb, light_rpms  # noqa: E402

MAILPROG = "/usr/local/bin/mailprog"
DROP_INS = "/etc/systemd/system/tias-slurm.service.d"
USERS = "/var/lib/tias-slurm-users"
METRICS = '[metrics]\nlisten = "127.0.0.1:9418"\n'


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

    put(m, "/etc/tias-slurm/config.toml", CONFIG + f'user_export = "{USERS}"\n' + METRICS)
    m.run("install", "-d", "-m", "0711", "-o", "tias-slurm", USERS)
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
    uid = m.run("id", "-u", "alice").strip()
    m.wait("users' files", lambda: bool(m.run("find", f"{USERS}/{uid}", "-type", "f", check=False)))
    say("no capabilities, no new privileges, system calls filtered, its directories are its own, and users'")

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


def remove(m: Machine) -> None:
    """Take away what `install` and `check` brought, by hand as they did."""
    m.run("rm", "-r", "/etc/systemd/system/tias-slurm.service", DROP_INS, "/usr/bin/tias-slurm", MAILPROG)
    m.run("rm", "-r", "/usr/lib/sysusers.d/tias-slurm.conf", "/usr/lib/tmpfiles.d/tias-slurm.conf")
    m.run("rm", "-r", "/etc/tias-slurm", "/var/lib/tias-slurm", "/var/log/tias-slurm", USERS)
    m.run("userdel", "tias-slurm")
    m.systemctl("daemon-reload")


def packages(m: Machine, *, full: bool) -> None:
    """Those of the checkout as it stands."""
    layout, release = Layout.from_environment(), RELEASES[m.release]
    root, log = ensure_root(layout, release), layout.log(f"light-{release.suite}.log")
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tias-light-") as scratch:
        under_systemd.check(m, light_deb(layout, root, Path(scratch), log), full=full)
    if full:
        with tempfile.TemporaryDirectory(prefix="tias-light-") as scratch:
            under_systemd.check_rpms(m, *light_rpms(layout, root, Path(scratch), log))


def main() -> int:
    """Run it, in a mount namespace of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="?", default="26.05", choices=sorted(RELEASES), metavar="RELEASE")
    parser.add_argument("--package", type=Path, help="only this .deb")
    parser.add_argument("--full", action="store_true", help="what takes its time too")
    words = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        say("did not run: it needs root and systemd-nspawn (apt install systemd-container)")
        return 77
    if not os.environ.get("TIAS_SERVICE_TEST_INSIDE"):
        os.environ["TIAS_SERVICE_TEST_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation=private", "--", sys.executable, *sys.argv])
    top, machine = Path(tempfile.mkdtemp(prefix="tias-service-")), None
    try:
        machine = Machine(words.release, top, ("rpm",) if words.full and not words.package else ())
        say(machine.run("systemctl", "--version").splitlines()[0])
        slurm(machine)
        if words.package is None:
            install(machine)
            check(machine)
            remove(machine)
            packages(machine, full=words.full)
        else:
            under_systemd.check(machine, words.package, full=words.full)
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
