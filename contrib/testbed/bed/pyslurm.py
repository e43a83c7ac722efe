"""pyslurm built from PyPI against a root's libslurm, kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bed.layout import Layout
from bed.mounts import remove_tree
from bed.proc import locked, step
from bed.releases import Release
from bed.roots import root_key
from bed.venvs import INNER, pip_in_root

INNER_PYSLURM = "/opt/pyslurm"
JOBS = 2
_FILES = Path(__file__).parents[1] / "pyslurm"
_RECIPE = 1  # raise it when the steps below change what is built


def pyslurm_key(release: Release) -> str:
    """What a build depends on, as a short hash: the root, pyslurm, its build tools, our two headers."""
    files = sorted(path for path in _FILES.rglob("*") if path.is_file())
    parts = [str(_RECIPE), root_key(release), *(path.read_text() for path in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def ensure_pyslurm(layout: Layout, release: Release, root: Path, venv: Path) -> Path:
    """The directory that holds pyslurm for this root, mounted at /opt/pyslurm; built if it is not there."""
    built = layout.pyslurm(release.suite, pyslurm_key(release))
    with locked(layout.lock(f"{release.suite}-pyslurm"), "another testbed that builds pyslurm"):
        if not built.is_dir():
            with step(f"pyslurm {release.pyslurm} built against Slurm {release.slurm}"):
                _build(layout, release, root, venv, built)
    return built


def _build(layout: Layout, release: Release, root: Path, venv: Path, built: Path) -> None:
    log = layout.log(f"pyslurm-{release.suite}.log")
    log.unlink(missing_ok=True)
    half = built.with_name(f"{built.name}.half")
    tools = built.with_name(f"{built.name}.tools")
    for path in (half, tools):
        remove_tree(path)
        path.mkdir(parents=True)
    (tools / "distutils.cfg").write_text(f"[build_ext]\nparallel = {JOBS}\n")
    binds = [
        (venv, INNER, True),
        (_FILES, "/build", True),
        (tools, "/tools", False),
        (half, INNER_PYSLURM, False),
    ]
    pip = [f"{INNER}/bin/python", "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    words = [*pip, "--target", "/tools", "-r", "/build/build-tools.txt"]
    pip_in_root(layout, root, words, log, "installing pyslurm's build tools", binds)
    words = [*pip, "-v", "--no-build-isolation", "--target", INNER_PYSLURM, "-r", "/build/pyslurm.txt"]
    env = {
        "PYTHONPATH": "/tools",
        "SLURM_INCLUDE_DIR": "/build/include",
        "SLURM_LIB_DIR": next((root / "usr" / "lib").glob("*/slurm-wlm")).as_posix().removeprefix(str(root)),
        "PYSLURM_BUILD_JOBS": str(JOBS),
        "DIST_EXTRA_CONFIG": "/tools/distutils.cfg",
    }
    pip_in_root(layout, root, words, log, "building pyslurm", binds, env)
    remove_tree(tools)
    half.rename(built)
