#!/bin/sh
# Inside a clean root: Debian's build tools, then the package, offline, out of the sources and wheels here.
set -eu
export DEBIAN_FRONTEND=noninteractive
rm -f /etc/dpkg/dpkg.cfg.d/testbed
# lists that cannot be renewed (a clock that is off) are no reason to stop: the root has some
apt-get update -q || true
apt-get install -qy --no-install-recommends debhelper dpkg-dev fakeroot python3-pip python3-venv
cd /build/tias-slurm
# -d: nothing is compiled, so no build-essential
unshare --net -- dpkg-buildpackage -d --build=binary --no-sign
