#!/usr/bin/env python3
"""Build the Debian package in a clean Debian root, and try it in another, beside a Slurm, under systemd.

`build_deb.py [SUITE] [DIRECTORY]`

SUITE: bookworm (default), trixie or testing. From the last commit, into DIRECTORY (default: dist).
Needs root, git, Debian's systemd-container, archive and PyPI. Exit codes: 0 built and tried, 1 not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "testbed"))

from bed.errors import TestbedError  # noqa: E402
from bed.layout import Layout  # noqa: E402
from bed.proc import last_line, run, say, step  # noqa: E402
from bed.releases import RELEASES  # noqa: E402
from bed.roots import ensure_root, run_in_root  # noqa: E402
from bed.venvs import pip_in_root  # noqa: E402

from build_tools import build_tools  # noqa: E402


def main(words: list[str]) -> int:
    """Build and try."""
    suites = {release.suite: release for release in RELEASES.values()}
    suite = words[0] if words else "bookworm"
    if suite not in suites or len(words) > 2:
        print(__doc__, file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        say("a clean Debian root needs root")
        return 1
    out = Path(words[1] if len(words) > 1 else CHECKOUT / "dist").absolute()
    out.mkdir(parents=True, exist_ok=True)
    layout = Layout.from_environment()
    log = layout.log(f"deb-{suite}.log")
    try:
        root = ensure_root(layout, suites[suite])
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="tias-deb-") as scratch:
            package = build(layout, root, Path(scratch), out, log)
        with step(f"{package.name} installed, upgraded, removed, purged"):
            binds = [(out, "/out", True), (HERE, "/packaging", True)]
            words = ["/packaging/try_deb.sh", f"/out/{package.name}"]
            run_in_root(layout, root, words, log, "trying the package", binds=binds, network=True)
        try_restore(suites[suite].slurm, package, log)
        with step(f"{package.name} upgraded, removed and purged under systemd"):
            words = [sys.executable, str(HERE.parent / "service_test.py"), suites[suite].slurm]
            run([*words, "--full", "--package", str(package)], log, "the package under systemd")
    except TestbedError as error:
        say(str(error))
        return 1
    print(package)
    return 0


def build(layout: Layout, root: Path, scratch: Path, out: Path, log: Path) -> Path:
    """The package, made below `scratch` and put into `out`."""
    source = scratch / "tias-slurm"
    unpack(source)
    wheels = source / "wheels"
    wheels.mkdir()
    locked = (source / "requirements" / "dev.txt").read_text()
    (wheels / "build.txt").write_text(build_tools(locked))
    binds = [(scratch, "/build", False)]
    with step("wheels"):
        pip = ["python3", "-m", "venv", "/build/pip"]
        run_in_root(layout, root, pip, log, "making a venv", binds=binds)
        for file in ("requirements/daemon.txt", "wheels/build.txt"):
            words = ["/build/pip/bin/python", "-m", "pip", "download", "-q", "--require-hashes"]
            words += ["--only-binary=:all:", "-d", "/build/tias-slurm/wheels"]
            words += ["-r", f"/build/tias-slurm/{file}"]
            pip_in_root(layout, root, words, log, "fetching wheels", binds)
    with step("package"):
        script = "/build/tias-slurm/contrib/packaging/in_root.sh"
        run_in_root(layout, root, ["sh", script], log, "building", binds=binds, network=True)
    (made,) = scratch.glob("tias-slurm_*.deb")
    target = out / made.name.replace("_", f"_{root.name.partition('-')[0]}_", 1)
    target.write_bytes(made.read_bytes())
    return target


def try_restore(slurm: str, package: Path, log: Path) -> None:
    """Remove the package on a cluster where jobs have its daemon's values (try_restore.sh)."""
    testbed, name = [sys.executable, HERE.parent / "testbed" / "testbed"], f"deb-{os.getpid()}"
    options = ["--slurm", slurm, "--name", name]
    try:
        run([*testbed, "up", *options, "--accounting", "--no-pyslurm"], log, f"a cluster of Slurm {slurm}")
        with step(f"{package.name} removed beside Slurm {slurm}"), package.open("rb") as content:
            # dist/ may lie outside of what a cluster sees
            words = [
                "sh",
                "-c",
                "cat > /tmp/package.deb; exec sh contrib/packaging/try_restore.sh /tmp/package.deb",
            ]
            with log.open("ab") as out:
                done = subprocess.run(
                    [*testbed, "exec", "--name", name, "--", *words],
                    stdin=content,
                    stdout=out,
                    stderr=out,
                    check=False,
                )
            if done.returncode:
                raise TestbedError(f"removing the package beside Slurm failed: {last_line(log)}; log: {log}")
    finally:
        run([*testbed, "down", "--name", name], log, "ending the cluster")


def unpack(source: Path) -> None:
    """The last commit, arranged for Debian's tools."""
    source.mkdir()
    git = ["git", "-C", str(CHECKOUT)]
    try:
        archive = subprocess.run([*git, "archive", "HEAD"], capture_output=True, check=True).stdout
        date = subprocess.run([*git, "log", "-1", "--format=%cD"], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise TestbedError(f"the sources come from a git checkout: {error}") from None
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    arrange(source, date.stdout.strip())


def arrange(source: Path, date: str) -> None:
    """debian/ where Debian's tools look for it, with a changelog of this version. `date`: as in a mail."""
    (source / "contrib" / "packaging" / "debian").rename(source / "debian")
    text = (source / "tias_slurm" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    if not found:
        raise TestbedError("tias_slurm/__init__.py: no __version__")
    (source / "debian" / "changelog").write_text(
        f"tias-slurm ({found[1]}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
        f" -- The tias-slurm authors <tias-slurm@localhost>  {date}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
