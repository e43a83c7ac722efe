#!/bin/sh
# environment.sh DESTDIR WHEELS: the virtual environment below DESTDIR, offline, out of WHEELS and the sources here.
# Both packages are filled by it.
set -eu
destdir=$1 wheels=$2
home=/usr/lib/tias-slurm
/usr/bin/python3 -m venv "$wheels/tools"
tools="$wheels/tools/bin/python -m pip --disable-pip-version-check -q"
offline="--no-index --find-links $wheels"
$tools install $offline --require-hashes -r "$wheels/build.txt"
$tools wheel $offline --no-deps --no-build-isolation -w "$wheels" .

/usr/bin/python3 -m venv --without-pip --system-site-packages "$destdir$home"
$tools --python "$destdir$home/bin/python" install $offline --no-compile --no-warn-script-location \
    --ignore-installed --require-hashes -r requirements/daemon.txt
$tools --python "$destdir$home/bin/python" install $offline --no-compile --no-deps --ignore-installed \
    "$wheels"/tias_slurm-*.whl

# the places where it was made, and other packages' commands, are of no use
find "$destdir$home/bin" -type f -delete
find "$destdir$home/bin" -type l ! -name 'python*' -delete
sed -i '/^command/d' "$destdir$home/pyvenv.cfg"
rm -rf "$destdir$home"/lib/python3*/site-packages/pandas/tests
find "$destdir$home/lib" -name direct_url.json -delete
printf '#!%s/bin/python -sP\nimport sys\n\nfrom tias_slurm.cli import main\n\nsys.exit(main())\n' "$home" \
    > "$destdir$home/bin/tias-slurm"
chmod 755 "$destdir$home/bin/tias-slurm"
# never written at run time, so never looked at for their age
/usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -s "$destdir" -p / "$destdir$home/lib"
