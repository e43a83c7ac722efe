"""The packages: what can be said without building them. `make deb` builds and tries the Debian package."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import tias_slurm
from tias_slurm.config import load_config

ROOT = Path(__file__).parents[1]
HERE = ROOT / "contrib" / "packaging"
SPEC = (HERE / "tias-slurm.spec").read_text()


def installed(root: Path) -> set[str]:
    """What install.sh puts below `root`, as paths from it."""
    script = str(HERE / "install.sh")
    done = subprocess.run(
        [script, str(root), "/unit", "/zsh", "/fish"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {f"/{p.relative_to(root)}" for p in root.rglob("*") if p.is_symlink() or p.is_file()}


def test_all_files_have_their_place(tmp_path: Path) -> None:
    found = installed(tmp_path)
    assert {
        "/etc/tias-slurm/config.toml",
        "/unit/tias-slurm.service",
        "/usr/lib/sysusers.d/tias-slurm.conf",
        "/usr/lib/tmpfiles.d/tias-slurm.conf",
        "/usr/bin/tias-slurm",
        "/usr/share/man/man1/tias-slurm.1",
        "/usr/share/man/man5/tias-slurm-config.5",
        "/usr/share/bash-completion/completions/tias-slurm",
        "/usr/share/tias-slurm/mail.conf",
        "/usr/share/tias-slurm/tias.lua",
        "/usr/share/tias-slurm/config.example.toml",
        "/usr/share/doc/tias-slurm/install.md",
    } <= found
    files = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_symlink()]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o644}


def test_the_unit_finds_what_the_packages_bring() -> None:
    unit = (ROOT / "systemd" / "tias-slurm.service").read_text()
    assert "ExecStart=/usr/bin/tias-slurm run --config /etc/tias-slurm/config.toml\n" in unit
    assert "ConditionPathExists=/etc/tias-slurm/config.toml\n" in unit
    assert "ln -s ../lib/tias-slurm/bin/tias-slurm" in (HERE / "install.sh").read_text()
    assert "home=/usr/lib/tias-slurm\n" in (HERE / "environment.sh").read_text()


def test_what_is_installed_is_a_dry_run() -> None:
    config = load_config(str(HERE / "config.toml"))
    assert config.daemon.mode == "dry-run"
    assert [row.key for row in config.show() if row.origin != "default"] == ["daemon.mode"]
    # without the last a daemon that runs would be stopped by an upgrade, and stay so
    rules = (HERE / "debian" / "rules").read_text()
    assert "dh_installsystemd --no-enable --no-start --restart-after-upgrade\n" in rules
    enable = [line for line in SPEC.splitlines() if "systemctl" in line and "enable" in line]
    assert all("disable" in line for line in enable)


def test_the_spec_lists_every_file(tmp_path: Path) -> None:
    listed = SPEC.partition("%files\n")[2].partition("%changelog")[0]
    for macro, place in {"%{_unitdir}": "/unit", "%{_sysusersdir}": "/usr/lib/sysusers.d",
                         "%{_tmpfilesdir}": "/usr/lib/tmpfiles.d", "/usr/share/zsh/site-functions": "/zsh",
                         "/usr/share/fish/vendor_completions.d": "/fish"}.items():  # fmt: skip
        listed = listed.replace(macro, place)
    names = [line.split()[-1].rstrip("*") for line in listed.splitlines() if line.strip()]
    for path in installed(tmp_path):
        assert any(path == n or path.startswith((f"{n}/", f"{n}.")) for n in names), path
    assert "%config(noreplace) /etc/tias-slurm/config.toml" in SPEC
    newest = re.search(r"^\* .* - (\S+)-1$", SPEC, re.MULTILINE)
    assert newest
    assert newest[1] == tias_slurm.__version__


def test_the_scripts_are_good_shell() -> None:
    scripts = [*HERE.glob("*.sh"), *(HERE / "debian").glob("tias-slurm.p*")]
    assert len(scripts) >= 7
    for script in scripts:
        done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), script
    for script in (HERE / "debian").glob("tias-slurm.p*"):
        text = script.read_text()
        assert text.startswith("#!/bin/sh\nset -e\n")
        assert text.count("\n#DEBHELPER#\n") == 1


def test_the_build_tools_are_pinned_by_hash() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "build_tools.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"setuptools==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", done.stdout)


def test_rpm_reads_the_spec() -> None:
    if not shutil.which("rpmspec"):
        assert SPEC.count("%files") == 1
        return
    define = f"tias_version {tias_slurm.__version__}"
    done = subprocess.run(
        ["rpmspec", "-P", "--define", define, str(HERE / "tias-slurm.spec")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Version:        {tias_slurm.__version__}\n" in done.stdout
