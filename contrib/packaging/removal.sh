#!/bin/sh
# removal.sh ledger | restore | words: what the packages do before the program is removed. Run as root, and never asks.
#   ledger   print the path of the ledger of the configured state_dir; exit code 1: the daemon never wrote, nothing to undo
#   restore  `tias-slurm restore` as the account that the ledger belongs to; its exit code, and after a failure what it means
#   words    say that values stay, and how to put them back
set -u
program=${TIAS_SLURM:-/usr/bin/tias-slurm}

# by the settings or, where these are broken, by what the daemon left of those in use; else the place that the packages make
settings=
why=
state_dir=$("$(dirname "$(readlink -f "$program")")/python" -sP -c '
import sys
from tias_slurm.errors import InputError
from tias_slurm.in_use import settings
try:
    print(settings(None)[0].daemon.state_dir)
except InputError as error:
    print(error)
    sys.exit(1)' 2>/dev/null </dev/null) || { why=$state_dir state_dir=/var/lib/tias-slurm settings="--config /dev/null"; }
ledger=$state_dir/ledger.sqlite
lock=${ledger%/*}/lock

# a shared file system may hide from root what it shows to the owner
owner=$(stat -c %u "$ledger" 2>/dev/null || stat -c %u "${ledger%/*}" 2>/dev/null || echo 0)
name=$(id -un "$owner" 2>/dev/null || echo "#$owner")
as_owner() {
    if [ "$owner" = "$(id -u)" ]; then "$@"
    elif [ "$name" = "#$owner" ]; then
        setpriv --reuid="$owner" --regid="$(stat -c %g "${ledger%/*}")" --clear-groups -- "$@"
    else setpriv --reuid="$owner" --regid="$(id -g "$owner")" --init-groups -- "$@"; fi
}
# the daemon that still works with this ledger; exit code 1: none
at_work() {
    as_owner test -e "$lock" || return 1
    as_owner flock --nonblock --conflict-exit-code 9 "$lock" true 2>/dev/null
    [ $? = 9 ] || return 1
    pid=$(as_owner head -c 20 "$lock")
    echo "${pid:+process }${pid:-on another host}"
}

guessed() {
    [ -z "$settings" ] || printf 'tias-slurm: %s\n  so the ledger is looked for in %s\n' "${why:-the program cannot be run}" "$state_dir" >&2
}
# where it was only guessed at that may mean anything
none() {
    [ -z "$settings" ] || echo "  and is not there. If the daemon ever wrote: its values stay in Slurm, and what they were before in the state_dir that it had" >&2
}

case ${1:-} in
ledger)
    guessed
    as_owner test -e "$ledger" || { none; exit 1; }
    printf '%s\n' "$ledger"
    ;;
restore)
    cd / || exit 1
    as_owner "$program" restore $settings </dev/null
    status=$?
    if [ "$status" != 0 ]; then
        echo "tias-slurm: not every value was put back; the reason stands above. Those values stay in Slurm, and what they were"
        echo "  before stays in $ledger. To put them back, mend what it says, then:"
        echo "  runuser -u $name -- tias-slurm restore${settings:+ $settings}"
    fi
    exit "$status"
    ;;
words)
    as_owner test -e "$ledger" || { guessed; none; exit 0; }
    echo "tias-slurm: values (nice, priority or site factor) that it gave to jobs stay in Slurm. What they were before is in"
    echo "  $ledger, which stays too. To put them back: install tias-slurm again, with the settings of now,"
    echo "  start no daemon, and run: runuser -u $name -- tias-slurm restore"
    if which=$(at_work); then
        echo "  A daemon that is not this service ($which) goes on with that ledger."
    fi
    ;;
*)
    echo "removal.sh: 'ledger', 'restore' or 'words', not '${1:-}'" >&2
    exit 2
    ;;
esac
