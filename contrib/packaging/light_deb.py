"""A Debian package whose program is the test bed's environment: all but that is as in the real one.

What Debian's tools make of debian/ (the scripts that dpkg runs, above all) is then had in seconds and without
PyPI.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "testbed"))

from bed.layout import Layout  # noqa: E402
from bed.roots import run_in_root  # noqa: E402
from bed.venvs import INNER  # noqa: E402

from build_deb import arrange  # noqa: E402

# instead of environment.sh
ENVIRONMENT = f"""#!/bin/sh
set -eu
install -d "$1/usr/lib/tias-slurm/bin"
ln -s {INNER}/bin/tias-slurm "$1/usr/lib/tias-slurm/bin/tias-slurm"
"""
SOURCES = ("README.md", "CHANGELOG.md", "LICENSE", "contrib", "docs", "systemd", "tias_slurm/__init__.py")


def light_deb(layout: Layout, root: Path, scratch: Path, log: Path) -> Path:
    """The package of the checkout as it stands, made in a copy of `root`, in `scratch`. TestbedError."""
    source = scratch / "tias-slurm"
    for name in SOURCES:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, target)
    (source / "contrib" / "packaging" / "environment.sh").write_text(ENVIRONMENT)
    arrange(source, "Mon, 30 Nov 2026 00:00:00 +0000")
    script = "/build/tias-slurm/contrib/packaging/in_root.sh"
    binds = [(scratch, "/build", False)]
    run_in_root(layout, root, ["sh", script], log, "building", binds=binds, network=True)
    (made,) = scratch.glob("tias-slurm_*.deb")
    return made
