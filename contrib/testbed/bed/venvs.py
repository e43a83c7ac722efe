"""The Python environment inside a root: the project's dependencies, the test tools, pyslurm."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from bed.layout import CHECKOUT, Layout
from bed.mounts import remove_tree
from bed.proc import locked, step
from bed.releases import Release
from bed.roots import run_in_root

_RECIPE = 1  # raise it when the steps below change what is in an environment
INNER = "/opt/tias"
INNER_CHECKOUT = "/checkout"
# what a live test imports beside the project: pytest and hypothesis with all that they need
TEST_TOOLS = (
    "hypothesis",
    "iniconfig",
    "packaging",
    "pluggy",
    "pygments",
    "pytest",
    "sortedcontainers",
)
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

_COMMAND = f"""#!{INNER}/bin/python
import sys

from tias_slurm.cli import main

sys.exit(main())
"""
_PATHS = f"{INNER_CHECKOUT}\n/opt/pyslurm\n"


def lock_entries(text: str, names: Sequence[str]) -> str:
    """The entries of a hashed lock file (pip's format, `\\` continues a line) for these packages."""
    entries = re.split(r"\n(?=\S)", text)
    wanted = {name.lower() for name in names}
    kept = [
        e for e in entries if re.split(r"[=<>!~\[; ]", e, maxsplit=1)[0].lower().replace("_", "-") in wanted
    ]
    return "\n".join(entry.rstrip("\n") for entry in kept) + "\n"


def requirement_texts() -> list[str]:
    """The two lock files to install, one after the other: the daemon's, then the test tools'."""
    daemon = (CHECKOUT / "requirements" / "daemon.txt").read_text()
    tools = lock_entries((CHECKOUT / "requirements" / "dev.txt").read_text(), TEST_TOOLS)
    return [daemon, tools]


def ensure_venv(layout: Layout, release: Release, root: Path) -> Path:
    """The cached environment for a root and the present lock files, built if it is not there.

    Mounted at /opt/tias. The project itself is not copied: a .pth file points at the checkout's place inside,
    and at pyslurm's, which is mounted or not.
    """
    texts = requirement_texts()
    parts = [str(_RECIPE), root.name, _COMMAND, _PATHS, *texts]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    venv = layout.venv(release.suite, key)
    with locked(layout.lock(f"{release.suite}-venv"), "another testbed that installs Python packages"):
        if venv.is_dir():
            return venv
        log = layout.log(f"venv-{release.suite}.log")
        log.unlink(missing_ok=True)
        half = venv.with_name(f"{venv.name}.half")
        remove_tree(half)
        half.mkdir(parents=True)
        with step("Python packages: the project's own and the test tools'"):
            binds: list[tuple[Path, str, bool]] = [(half, INNER, False)]
            run_in_root(layout, root, ["python3", "-m", "venv", INNER], log, "making a venv", binds=binds)
            lock_dir = half / "locks"
            lock_dir.mkdir()
            pip = [f"{INNER}/bin/python", "-m", "pip", "install", "-q"]
            for index, text in enumerate(texts):
                (lock_dir / f"{index}.txt").write_text(text)
                words = [*pip, "--require-hashes", "--only-binary=:all:", "-r", f"{INNER}/locks/{index}.txt"]
                pip_in_root(layout, root, words, log, "installing Python packages", binds)
            site = next((half / "lib").glob("python3*/site-packages"))
            (site / "tias_slurm_checkout.pth").write_text(_PATHS)
            (half / "bin" / "tias-slurm").write_text(_COMMAND)
            (half / "bin" / "tias-slurm").chmod(0o755)
        half.rename(venv)
    return venv


def pip_in_root(
    layout: Layout,
    root: Path,
    argv: Sequence[str],
    log: Path,
    what: str,
    binds: Sequence[tuple[Path, str, bool]],
    env: dict[str, str] | None = None,
) -> None:
    """Run pip with the network, and this machine's trusted certificates."""
    mounted = list(binds)
    settings = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_NO_CACHE_DIR": "1",
        **(env or {}),
    }
    certificates = Path(os.environ.get("PIP_CERT") or _CERTIFICATES)
    if certificates.is_file():
        mounted.append((certificates.resolve(), "/run/host-certificates.crt", True))
        settings["PIP_CERT"] = "/run/host-certificates.crt"
    run_in_root(layout, root, argv, log, what, binds=mounted, env=settings, network=True)
