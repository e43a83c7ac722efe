"""The cached Debian root of each release, and running commands in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bed import namespace
from bed.errors import TestbedError
from bed.layout import Layout
from bed.mounts import remove_tree
from bed.proc import debian_environment, last_line, locked, run, step
from bed.releases import Release

# people who submit jobs; the daemon's account, an Operator where there is accounting
USERS = ("alice", "bob", "carol")
DAEMON_USER = "tias"
_RECIPE = 1  # raise it when the steps below change what is in a root

_FILES = {
    # no daemon starts while packages are installed
    "usr/sbin/policy-rc.d": ("#!/bin/sh\nexit 101\n", 0o755),
}
_DPKG_FILES = {
    "etc/dpkg/dpkg.cfg.d/testbed": (
        "force-unsafe-io\npath-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\n"
        "path-exclude=/usr/share/locale/*\npath-exclude=/usr/share/info/*\n",
        0o644,
    ),
}


def mirror(sources: Path = Path("/etc/apt")) -> str:
    """The Debian mirror that this machine itself uses, unless TIAS_TESTBED_MIRROR names another."""
    if named := os.environ.get("TIAS_TESTBED_MIRROR"):
        return named
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for file in files:
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        for found in re.finditer(r"^(?:URIs:|deb\s(?:\s*\[[^]]*\])?)\s*(\S+)", text, re.MULTILINE):
            if "security" not in found[1] and "debian" in found[1]:
                return found[1].rstrip("/")
    raise TestbedError("no Debian mirror in /etc/apt; name one in TIAS_TESTBED_MIRROR")


def root_key(release: Release) -> str:
    """What a cached root depends on, as a short hash."""
    recipe = json.dumps(
        [_RECIPE, release.suite, release.packages, mirror(), USERS, {**_FILES, **_DPKG_FILES}]
    )
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def ensure_root(layout: Layout, release: Release) -> Path:
    """The cached root of a release, built if it is not there (needs the network; one build at a time)."""
    root = layout.root(release.suite, root_key(release))
    with locked(layout.lock(release.suite), f"another testbed that builds Debian {release.suite}"):
        if not root.is_dir():
            _build(layout, release, root)
    return root


def _build(layout: Layout, release: Release, root: Path) -> None:
    log = layout.log(f"root-{release.suite}.log")
    log.unlink(missing_ok=True)
    half = root.with_name(f"{root.name}.half")
    remove_tree(half)
    half.mkdir(parents=True)
    try:
        # several testbeds may build roots at once, and apt-get waits for nobody
        with locked(layout.lock("debootstrap"), "another testbed that installs debootstrap"):
            _ensure_debootstrap(log)
        _fill(layout, release, half, log)
    except BaseException:
        remove_tree(half)
        raise
    half.rename(root)


def _fill(layout: Layout, release: Release, half: Path, log: Path) -> None:
    # before anything else, for debootstrap's own dpkg reads it too
    _write_files(half, _DPKG_FILES)
    with step(f"Debian {release.suite} from its archive"):
        scripts = Path("/usr/share/debootstrap/scripts")
        script = scripts / release.suite if (scripts / release.suite).exists() else scripts / "sid"
        # in a mount namespace of its own: what debootstrap mounts ends with it, whatever happens
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
        words += ["debootstrap", "--variant=minbase", release.suite, str(half), mirror(), str(script)]
        run(words, log, f"debootstrap of Debian {release.suite}", debian_environment())
    _write_files(half, _FILES)
    with step(f"Slurm {release.slurm} and what it needs, as Debian's packages"):
        packages = ["apt-get", "install", "-qy", "--no-install-recommends", *release.packages]
        run_in_root(layout, half, packages, log, "installing packages", overlay=False, network=True)
        run_in_root(layout, half, ["apt-get", "clean"], log, "cleaning apt's cache", overlay=False)
        for user in USERS:
            words = ["useradd", "--create-home", "--shell", "/bin/bash", user]
            run_in_root(layout, half, words, log, f"creating {user}", overlay=False)
        words = ["useradd", "--system", "--create-home", "--user-group", "--shell", "/bin/sh", DAEMON_USER]
        run_in_root(layout, half, words, log, f"creating {DAEMON_USER}", overlay=False)
    have = slurm_version(half)
    if not have.startswith(f"{release.slurm}."):
        raise TestbedError(
            f"Debian {release.suite} has Slurm {have}, not {release.slurm}: "
            "change the release table in contrib/testbed/bed/releases.py"
        )


def _write_files(root: Path, files: Mapping[str, tuple[str, int]]) -> None:
    for name, (text, mode) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(mode)


def slurm_version(root: Path) -> str:
    """The version of the slurmctld package in a root, without Debian's revision: 26.05.5."""
    return package_version((root / "var" / "lib" / "dpkg" / "status").read_text(), "slurmctld")


def package_version(status: str, package: str) -> str:
    """A package's upstream version by the text of dpkg's status file; empty if it is not installed."""
    for block in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") == package:
            return fields.get("Version", "").rpartition(":")[2].rpartition("-")[0]
    return ""


def _ensure_debootstrap(log: Path) -> None:
    search = ["/usr/sbin/debootstrap", "/usr/bin/debootstrap", "/sbin/debootstrap"]
    if any(Path(path).exists() for path in search):
        return
    with step("debootstrap installed on this machine"):
        run(["apt-get", "update", "-q"], log, "apt-get update", _host_environment())
        run(["apt-get", "install", "-qy", "debootstrap"], log, "installing debootstrap", _host_environment())


def _host_environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


def run_in_root(
    layout: Layout,
    root: Path,
    argv: Sequence[str],
    log: Path,
    what: str,
    overlay: bool = True,
    network: bool = False,
    binds: Sequence[tuple[Path, str, bool]] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> None:
    """Run a command in a cached root, in namespaces of its own that end with it or with this process.

    overlay: whether what it writes outside `binds` is thrown away. network: give it the host's resolver.
    """
    build = layout.cache / "build"
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="run-") as scratch:
        top = Path(scratch, "top")
        spec: dict[str, Any] = {
            "root": str(root),
            "overlay": overlay,
            "top": str(top),
            "binds": [[str(source), target, ro] for source, target, ro in binds],
            "gpus": 0,
            "hostname": "testbed",
            "argv": ["/usr/bin/env", *argv],
            "env": {**debian_environment(), **(env or {})},
        }
        if network:
            resolver = Path(scratch, "resolv.conf")
            resolver.write_bytes(read_or_empty("/etc/resolv.conf"))
            spec["binds"].append([str(resolver), "/etc/resolv.conf", True])
        with log.open("ab") as out:
            out.write(f"\n[{root.name}] $ {' '.join(argv)}\n".encode())
        started = namespace.start(spec, Path(scratch, "spec.json"), str(top), log, bound=True)
        try:
            status = started.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{what}: not done after {timeout:.0f} s; log: {log}") from None
        finally:
            namespace.end(str(top))
            started.wait()
        if status != 0:
            raise TestbedError(f"{what} failed: {last_line(log)}; log: {log}")


def read_or_empty(path: str) -> bytes:
    """A file's bytes; none if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
