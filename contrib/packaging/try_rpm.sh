#!/bin/sh
# try_rpm.sh OLDER NEWER: inside a clean Debian root: the RPM's scriptlets and files, by Debian's rpm. Its dependencies are names
# of RPMs, which no Debian has, so --nodeps; that they are right only Fedora or RHEL can say.
set -eu
older=$1 newer=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
fail() { echo "FAILED: $*"; exit 1; }
there() { for f in "$@"; do [ -e "$f" ] || fail "$f is not there"; done; }
gone() { for f in "$@"; do [ ! -e "$f" ] || fail "$f is still there"; done; }
ledger=/var/lib/tias-slurm/ledger.sqlite
rm -f /etc/dpkg/dpkg.cfg.d/testbed
apt-get update -q >/dev/null 2>&1 || true
apt-get install -qy --no-install-recommends rpm systemd-standalone-tmpfiles >/dev/null || fail "Debian's rpm"
rpm() { command rpm --dbpath /var/lib/rpm-tried "$@"; }

echo "== install"
rpm -i --nodeps "$older" || fail install
getent passwd tias-slurm || fail "no account"
[ "$(stat -c '%U %a' /var/lib/tias-slurm)" = "tias-slurm 750" ] || fail "whose is /var/lib/tias-slurm?"
rpm -ql tias-slurm > /tmp/files
wc -l < /tmp/files
while read -r file; do [ -e "$file" ] || [ -L "$file" ] || fail "$file is not there"; done < /tmp/files
rpm -V --nodeps tias-slurm || fail "rpm -V: something differs from what was packaged"
for wanted in /usr/lib/systemd/system/tias-slurm.service /usr/share/man/man1/tias-slurm.1.gz /usr/share/tias-slurm/mail.conf \
    /usr/share/tias-slurm/tias.lua /usr/share/tias-slurm/removal.sh /usr/share/doc/tias-slurm/install.md /usr/bin/tias-slurm; do
    grep -qx "$wanted" /tmp/files || fail "$wanted is not in the package"
done
[ "$(rpm -qc tias-slurm)" = /etc/tias-slurm/config.toml ] || fail "config files: $(rpm -qc tias-slurm)"
gone /etc/systemd/system/multi-user.target.wants/tias-slurm.service
cd /
tias-slurm --version
tias-slurm run --help >/dev/null || fail "run --help"
runuser -u tias-slurm -- tias-slurm check-config || fail "check-config"
tias-slurm show-config | grep -q '^daemon.mode *"dry-run"' || fail "not a dry run"
rpm -V --nodeps tias-slurm || fail "running it changed what was packaged"

echo "== upgrade: settings and ledger stay, nothing is said of values"
echo 'rpc_timeout_s = 31' >> /etc/tias-slurm/config.toml
install -o tias-slurm -g tias-slurm -m 0640 /dev/null "$ledger"
rpm -U --nodeps "$newer" >/tmp/said 2>&1 || { cat /tmp/said; fail upgrade; }
cat /tmp/said
grep -q "put them back" /tmp/said && fail "an upgrade is no removal"
[ "$(rpm -q tias-slurm | wc -l)" = 1 ] || fail "installed twice"
[ "$(rpm -q tias-slurm)" = "$(rpm -qp "$newer")" ] || fail "not upgraded"
tias-slurm show-config | grep -q 'daemon.rpc_timeout_s *31' || fail "settings lost"
there "$ledger"

echo "== erase: says what stays"
rpm -e --nodeps tias-slurm >/tmp/said 2>&1 </dev/null || { cat /tmp/said; fail erase; }
cat /tmp/said
grep -q "$ledger, which stays too" /tmp/said || fail "it was not said where the values lie"
gone /usr/bin/tias-slurm /usr/lib/tias-slurm /usr/lib/systemd/system/tias-slurm.service /usr/share/tias-slurm /usr/share/doc/tias-slurm
there "$ledger" /etc/tias-slurm/config.toml.rpmsave
rm "$ledger"

echo "== install and erase, of one that never wrote: silent"
rpm -i --nodeps "$newer" || fail "install again"
rpm -e --nodeps tias-slurm >/tmp/said 2>&1 </dev/null || fail erase
# Debian's rpm warns of itself
grep -v "^rpm: " /tmp/said && fail "not silent"

echo "== rpmlint"
apt-get install -qy --no-install-recommends rpmlint >/dev/null && rpmlint "$newer" >/tmp/lint 2>&1 || true
grep -E "^[^ ]+: [EW]: |packages and" /tmp/lint | sed 's/^[^:]*: //' | awk '{ print $1, $2 }' | sort | uniq -c | sort -rn | head -40
echo "== all is well"
