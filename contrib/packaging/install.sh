#!/bin/sh
# install.sh DESTDIR UNITDIR ZSHDIR FISHDIR: all but the environment, out of the sources here.
set -eu
destdir=$1 unitdir=$2 zshdir=$3 fishdir=$4
put() { install -D -m 0644 "$1" "$destdir$2"; }
install -d "$destdir/usr/bin"
ln -s ../lib/tias-slurm/bin/tias-slurm "$destdir/usr/bin/tias-slurm"
put contrib/packaging/config.toml /etc/tias-slurm/config.toml
put systemd/tias-slurm.service "$unitdir/tias-slurm.service"
put systemd/sysusers.d/tias-slurm.conf /usr/lib/sysusers.d/tias-slurm.conf
put systemd/tmpfiles.d/tias-slurm.conf /usr/lib/tmpfiles.d/tias-slurm.conf
put systemd/mail.conf /usr/share/tias-slurm/mail.conf
put contrib/packaging/removal.sh /usr/share/tias-slurm/removal.sh
put contrib/job_submit/tias.lua /usr/share/tias-slurm/tias.lua
put contrib/config.example.toml /usr/share/tias-slurm/config.example.toml
put contrib/man/tias-slurm.1 /usr/share/man/man1/tias-slurm.1
put contrib/man/tias-slurm-config.5 /usr/share/man/man5/tias-slurm-config.5
put contrib/completions/tias-slurm.bash /usr/share/bash-completion/completions/tias-slurm
put contrib/completions/_tias-slurm "$zshdir/_tias-slurm"
put contrib/completions/tias-slurm.fish "$fishdir/tias-slurm.fish"
for page in README.md CHANGELOG.md docs/*.md; do
    put "$page" "/usr/share/doc/tias-slurm/$(basename "$page")"
done
