#!/bin/sh
# Inside a clean root: what an administrator does to the package, and what must be there after each step.
set -eu
package=$1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
rm -f /etc/dpkg/dpkg.cfg.d/testbed
fail() { echo "FAILED: $*"; exit 1; }
there() { for f in "$@"; do [ -e "$f" ] || fail "$f is not there"; done; }
gone() { for f in "$@"; do [ ! -e "$f" ] || fail "$f is still there"; done; }
ledger=/var/lib/tias-slurm/ledger.sqlite

apt-get update -q || true
version=$(dpkg-deb -f "$package" Version)
dpkg-deb -R "$package" /tmp/older
sed -i "s/^Version: .*/Version: 0~older/" /tmp/older/DEBIAN/control
dpkg-deb -Znone -b /tmp/older /tmp/older.deb >/dev/null

echo "== install a lower version"
apt-get install -qy --no-install-recommends systemd-standalone-sysusers systemd-standalone-tmpfiles /tmp/older.deb || fail install
getent passwd tias-slurm || fail "no account"
[ "$(stat -c '%U %a' /var/lib/tias-slurm)" = "tias-slurm 750" ] || fail "whose is /var/lib/tias-slurm?"
there /etc/tias-slurm/config.toml /lib/systemd/system/tias-slurm.service /usr/share/man/man1/tias-slurm.1.gz \
    /usr/share/man/man5/tias-slurm-config.5.gz /usr/share/bash-completion/completions/tias-slurm \
    /usr/share/tias-slurm/tias.lua
gone /etc/systemd/system/multi-user.target.wants/tias-slurm.service
tias-slurm --version
cd /
runuser -u tias-slurm -- tias-slurm check-config || fail "check-config"
tias-slurm show-config | grep -q '^daemon.mode *"dry-run"' || fail "not a dry run"
grep -r -l -e /build/ /usr/lib/tias-slurm/bin /usr/lib/tias-slurm/pyvenv.cfg && fail "names the place of its build"
status=0; runuser -u tias-slurm -- tias-slurm once || status=$?
[ "$status" = 1 ] || fail "once without a controller ended with $status"

echo "== upgrade: settings and ledger stay"
echo 'rpc_timeout_s = 31' >> /etc/tias-slurm/config.toml
install -o tias-slurm -g tias-slurm -m 0640 /dev/null "$ledger"
dpkg -i "$package" </dev/null || fail upgrade
[ "$(dpkg-query -W -f '${Version}' tias-slurm)" = "$version" ] || fail "not upgraded"
tias-slurm show-config | grep -q 'daemon.rpc_timeout_s *31' || fail "settings lost"
there "$ledger"

echo "== remove, without restore"
dpkg -r tias-slurm </dev/null || fail remove
gone /usr/bin/tias-slurm /usr/lib/tias-slurm
there /etc/tias-slurm/config.toml "$ledger"

echo "== remove, with restore: no controller answers, so it stays"
dpkg -i "$package" </dev/null || fail "install again"
echo tias-slurm tias-slurm/restore boolean true | debconf-set-selections
dpkg -r tias-slurm </dev/null && fail "removed although nothing could be restored"
there /usr/bin/tias-slurm
echo tias-slurm tias-slurm/restore boolean false | debconf-set-selections
dpkg -r tias-slurm </dev/null || fail "remove without restore"

echo "== purge"
dpkg -P tias-slurm </dev/null || fail purge
gone /etc/tias-slurm /var/lib/tias-slurm /var/log/tias-slurm
echo "== all is well"
