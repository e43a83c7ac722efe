"""Packages whose program is the test bed's environment: all but that is as in the real ones.

What Debian's tools make of debian/ (the scripts that dpkg runs, above all) is then had in seconds and without
PyPI, and so is what rpmbuild makes of the spec.
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


# what build_rpm.sh does, without wheels: releases 1 and 2 of one version. Debian has no rpm of RHEL's python3
RPMS = """set -eu
apt-get update -q || true
apt-get install -qy --no-install-recommends rpm gzip
cd /build
version=$(sed -n 's/^__version__ = "\\(.*\\)"/\\1/p' tias-slurm/tias_slurm/__init__.py)
mkdir -p top/SOURCES wheels
mv tias-slurm "tias-slurm-$version"
tar -czf "top/SOURCES/tias-slurm-$version.tar.gz" "tias-slurm-$version"
tar -czf top/SOURCES/wheels.tar.gz wheels
for release in 1 2; do
    rpmbuild -bb --quiet --nodeps --define "_topdir /build/top" --define "tias_version $version" \\
        --define "tias_release $release" "tias-slurm-$version/contrib/packaging/tias-slurm.spec"
done
"""


def light_deb(layout: Layout, root: Path, scratch: Path, log: Path) -> Path:
    """The package of the checkout as it stands, made in a copy of `root`, in `scratch`. TestbedError."""
    source = _sources(scratch)
    arrange(source, "Mon, 30 Nov 2026 00:00:00 +0000")
    script = "/build/tias-slurm/contrib/packaging/in_root.sh"
    binds = [(scratch, "/build", False)]
    run_in_root(layout, root, ["sh", script], log, "building", binds=binds, network=True)
    (made,) = scratch.glob("tias-slurm_*.deb")
    return made


def light_rpms(layout: Layout, root: Path, scratch: Path, log: Path) -> list[Path]:
    """The same as two RPMs, older and newer, by Debian's rpmbuild."""
    _sources(scratch)
    binds = [(scratch, "/build", False)]
    run_in_root(layout, root, ["sh", "-c", RPMS], log, "building", binds=binds, network=True)
    older, newer = sorted(scratch.glob("top/RPMS/*/*.rpm"))
    return [older, newer]


def _sources(scratch: Path) -> Path:
    source = scratch / "tias-slurm"
    for name in SOURCES:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, target)
    (source / "contrib" / "packaging" / "environment.sh").write_text(ENVIRONMENT)
    return source
