#!/bin/sh
# removal.sh ledger | restore | words: what the packages do before the program is removed. Run as root, and never asks.
#   ledger   print the path of the ledger of the configured state_dir; exit code 1: the daemon never wrote, nothing to undo
#   restore  `tias-slurm restore` as the account that the ledger belongs to; its exit code
#   words    say that values stay, and how to put them back
set -u
program=${TIAS_SLURM:-/usr/bin/tias-slurm}

# where the settings cannot be read, the place that the packages make
state_dir=$("$program" show-config --json 2>/dev/null | /usr/bin/python3 -c '
import json, sys
print({row["key"]: row["value"] for row in json.load(sys.stdin)["settings"]}["daemon.state_dir"])' 2>/dev/null)
ledger=${state_dir:-/var/lib/tias-slurm}/ledger.sqlite

# a shared file system may hide from root what it shows to the owner
owner=$(stat -c %u "$ledger" 2>/dev/null || stat -c %u "${ledger%/*}" 2>/dev/null || echo 0)
name=$(id -un "$owner" 2>/dev/null || echo "#$owner")
as_owner() {
    if [ "$owner" = "$(id -u)" ]; then "$@"
    elif [ "$name" = "#$owner" ]; then
        setpriv --reuid="$owner" --regid="$(stat -c %g "${ledger%/*}")" --clear-groups -- "$@"
    else setpriv --reuid="$owner" --regid="$(id -g "$owner")" --init-groups -- "$@"; fi
}

case ${1:-} in
ledger)
    as_owner test -e "$ledger" || exit 1
    printf '%s\n' "$ledger"
    ;;
restore)
    cd /
    as_owner "$program" restore
    ;;
words)
    as_owner test -e "$ledger" || exit 0
    echo "tias-slurm: values (nice, priority or site factor) that it gave to jobs stay in Slurm. What they were before is in"
    echo "  $ledger, which stays too. To put them back: install tias-slurm again, with the settings of now,"
    echo "  start no daemon, and run: runuser -u $name -- tias-slurm restore"
    ;;
*)
    echo "removal.sh: 'ledger', 'restore' or 'words', not '${1:-}'" >&2
    exit 2
    ;;
esac
