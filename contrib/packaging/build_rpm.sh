#!/bin/sh
# build_rpm.sh DIRECTORY: an RPM for this machine's Python, from the last commit. Needs git, rpmbuild, python3-pip and PyPI.
set -eu
out=$1
cd "$(dirname "$0")/../.."
command -v rpmbuild >/dev/null || { echo "rpmbuild is missing: dnf install rpm-build, apt install rpm" >&2; exit 1; }
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' tias_slurm/__init__.py)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir -p "$top/SOURCES/wheels" "$out"
git archive --prefix="tias-slurm-$version/" -o "$top/SOURCES/tias-slurm-$version.tar.gz" HEAD
python3 contrib/packaging/build_tools.py > "$top/SOURCES/wheels/build.txt"
for file in requirements/daemon.txt "$top/SOURCES/wheels/build.txt"; do
    /usr/bin/python3 -m pip download -q --disable-pip-version-check --require-hashes --only-binary=:all: \
        -d "$top/SOURCES/wheels" -r "$file"
done
tar -C "$top/SOURCES" -czf "$top/SOURCES/wheels.tar.gz" wheels
rpmbuild -bb --quiet --define "_topdir $top" --define "tias_version $version" \
    --define "tias_release ${RPM_RELEASE:-1}" ${RPMBUILD_FLAGS:-} \
    contrib/packaging/tias-slurm.spec
cp -v "$top"/RPMS/*/*.rpm "$out/"
