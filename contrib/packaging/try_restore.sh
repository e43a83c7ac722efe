#!/bin/sh
# try_restore.sh PACKAGE: inside a cluster of the test bed with accounting: jobs have values of the daemon when the package is
# removed. With "no" these stay, and the ledger too; with "yes" they are put back; while slurmctld is away a "yes" removes nothing.
set -eu
package=$1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
fail() { echo "FAILED: $*"; exit 1; }
there() { for f in "$@"; do [ -e "$f" ] || fail "$f is not there"; done; }
gone() { for f in "$@"; do [ ! -e "$f" ] || fail "$f is still there"; done; }
answer() { echo "tias-slurm tias-slurm/restore boolean $1" | debconf-set-selections; }
state() { dpkg-query -W -f '${db:Status-Status}' tias-slurm; }
# as systemctl stop does it where there is a systemd
stop() { kill "$daemon"; wait "$daemon" 2>/dev/null || true; }
nices() { squeue --noheader --states=PENDING --format='%i %y' | sort -n; }
ours() { nices | awk '$2 != 0 && $2 != 50 { n++ } END { exit !(n > 3) }'; }
users() { nices | awk -v odd="$odd" '{ want = $1 == odd ? 50 : 0 } $2 != want { bad = 1 } END { exit bad }'; }
# the daemon, of the account $1, until values stand
enforce() {
    setpriv --reuid="$1" --regid="$1" --init-groups -- tias-slurm run >/tmp/daemon.log 2>&1 & daemon=$!
    for _ in $(seq 60); do ours && return; sleep 1; done
    cat /tmp/daemon.log; nices; fail "no values after a minute"
}
install() {
    apt-get install -qy --no-install-recommends "$package" >/tmp/install.log 2>&1 </dev/null || { cat /tmp/install.log; fail install; }
    install_settings
}
install_settings() {
    printf '[daemon]\nmode = "enforce"\nbackend = "commands"\nstate_dir = "%s"\n[cycle]\ninterval_s = 5\n' "$state_dir" \
        > /etc/tias-slurm/config.toml
}

apt-get update -q >/dev/null 2>&1 || true
case $(. /etc/os-release; echo "${VERSION_CODENAME:-}") in
bookworm | trixie) apt-get install -qy --no-install-recommends systemd-standalone-sysusers systemd-standalone-tmpfiles >/dev/null ;;
esac
state_dir=/var/lib/tias-slurm
install
for account in tias-slurm slurm; do sacctmgr -iQ add user "$account" account=root adminlevel=Operator >/dev/null; done
sbatch_() { setpriv --reuid=alice --regid=alice --init-groups -- sbatch --parsable --chdir=/tmp "$@"; }
for _ in $(seq 8); do sbatch_ --exclusive --nodes=1 --gres=gpu:8 --wrap 'sleep 3000' >/dev/null; done
# those that wait from here on wait to the end
for _ in $(seq 60); do [ "$(squeue --noheader --states=RUNNING | wc -l)" = 8 ] && break; sleep 1; done
for hours in 3 30 300 3000; do
    sbatch_ --gres=gpu:8 --comment=deadline=+${hours}h --wrap true >/dev/null
    sbatch_ --gres=gpu:2 --wrap true >/dev/null
done
# a user's own nice comes back too
odd=$(sbatch_ --gres=gpu:4 --nice=50 --comment=deadline=+100h --wrap true)

echo "== no: the values stay, and the ledger"
enforce tias-slurm
stop
before=$(nices)
answer false
dpkg -r tias-slurm >/tmp/said 2>&1 </dev/null || { cat /tmp/said; fail "remove"; }
gone /usr/bin/tias-slurm
there "$state_dir/ledger.sqlite"
[ "$(nices)" = "$before" ] || fail "values changed though the answer was no"
grep -q "$state_dir/ledger.sqlite, which stays too" /tmp/said || { cat /tmp/said; fail "it was not said where the values lie"; }

echo "== yes, while slurmctld is away: it stays, whole, and says what to do"
install
pkill -TERM -x slurmctld
while pgrep -x slurmctld >/dev/null; do sleep 0.2; done
answer true
dpkg -r tias-slurm >/tmp/said 2>&1 </dev/null && fail "removed although nothing could be restored"
grep -q "scontrol ping" /tmp/said || { cat /tmp/said; fail "it was not said what to do"; }
grep -v "^(Reading" /tmp/said
[ "$(state)" = installed ] || fail "dpkg has it as $(state)"
[ -z "$(dpkg --audit)" ] || fail "dpkg --audit: $(dpkg --audit)"
apt-get check -q >/dev/null || fail "apt is stuck"
tias-slurm --version >/dev/null || fail "not whole"
slurmctld
for _ in $(seq 60); do scontrol ping | grep -q 'is UP' && break; sleep 1; done

echo "== yes: the values are put back"
ours || fail "the values should have stood"
dpkg -r tias-slurm >/tmp/said 2>&1 </dev/null || { cat /tmp/said; fail "remove with restore"; }
gone /usr/bin/tias-slurm
nices
users || fail "values are not what they were"
grep -qE "jobs? restored" /tmp/said || { cat /tmp/said; fail "nothing was restored"; }

echo "== a state_dir elsewhere, of another account, and a person who types yes"
state_dir="/srv/tias slurm's"
install
mkdir -p "$state_dir"
chown slurm:slurm "$state_dir"
chmod 700 "$state_dir"
rm -f /run/tias-slurm/status.json
enforce slurm
stop
rm -f /tmp/said
(until grep -q "yes/no" /tmp/said 2>/dev/null; do sleep 0.2; done; echo yes; sleep 3) |
    DEBIAN_FRONTEND=teletype script -qefc "timeout 120 apt-get remove -qy tias-slurm" /tmp/said >/dev/null || { cat /tmp/said; fail "remove with restore"; }
grep -q "Put back the values" /tmp/said || { cat /tmp/said; fail "nobody was asked"; }
gone /usr/bin/tias-slurm
users || { nices; cat /tmp/said; fail "values are not what they were"; }
there "$state_dir/ledger.sqlite"
install
[ "$(echo GET tias-slurm/restore | debconf-communicate)" = "0 false" ] || fail "a yes was kept for the next removal"
echo "== all is well"
