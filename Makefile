# make dry-run   set everything up and replay the bundled history; ends with the table and the report's path
# make test      set everything up and pass the tests: test-host, those that need nothing else, and test-live, the
#                core of those on real Slurms, which it brings up (root on Debian; else it says what did not run)
# make test-full the host's tests, and all tests on real Slurms
# make lint      ruff, mypy --strict, and the documentation's links
# make docs      the documentation as a site, in build/docs
# make bench     speed and memory, as ratios against something known
# make man completions   after a change of options or settings
# make deb, rpm  packages; see contrib/packaging/README.md
# make lock      renew requirements/*.txt from pyproject.toml (needs uv)

PYTHON ?= python3
BIN := .venv/bin
OUT ?= dry-run-report

.PHONY: dry-run test test-host test-live test-full lint docs bench bench-live man completions deb rpm lock clean
.DEFAULT_GOAL := dry-run

# a Debian without python3-venv gets it where we may install it, and a clear word where we may not
.venv/ready: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy python3-venv; } || \
	  { echo "Python's venv module is missing: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

dry-run: .venv/ready
	$(BIN)/tias-slurm dry-run examples/cluster-export.txt.gz --nodes examples/nodes.txt \
	  --timezone Europe/Berlin --out $(OUT)

test: test-host test-live

test-host: .venv/ready
	$(BIN)/python -m pytest -q

# the core on Slurm 26.05 with both adapters, and a smoke test on 24.11 and 22.05
test-live: .venv/ready
	$(BIN)/python contrib/live_tests.py core

# everything on all three
test-full: test-host
	$(BIN)/python contrib/live_tests.py full

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory docs

# --strict: a broken link or heading fails (not with --quiet, which takes the warnings away before they count)
docs: .venv/ready
	$(BIN)/mkdocs build --strict --site-dir build/docs

bench: .venv/ready
	$(BIN)/python bench/read_export.py
	$(BIN)/python bench/replay_trace.py
	$(BIN)/python bench/plan.py
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory bench-live; else \
	  echo "live queue: not measured, a test cluster needs root"; fi

# a queue of 20,000 jobs on a real Slurm, read, ranked and planned, against bare pyslurm
bench-live:
	contrib/testbed/testbed up --slurm 26.05 --accounting --name bench --conf MaxJobCount=50000
	contrib/testbed/testbed exec --name bench -- python bench/live_queue.py; status=$$?; \
	  contrib/testbed/testbed down --name bench; exit $$status

# from --help and the settings' own schema; they lie in the repository, and tests/test_man.py compares
man: .venv/ready
	$(BIN)/python contrib/man/generate.py contrib/man

completions: .venv/ready
	$(BIN)/python contrib/completions/generate.py contrib/completions

# a Debian package, made in a clean root of the test bed and tried in another; SUITE=bookworm, trixie or testing
SUITE ?= bookworm
deb:
	$(PYTHON) contrib/packaging/build_deb.py $(SUITE) dist

# an RPM, on a machine that has rpmbuild and python3
rpm:
	contrib/packaging/build_rpm.sh dist

lock:
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url pyproject.toml -o requirements/daemon.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --extra replay pyproject.toml -o requirements/replay.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --extra replay --extra dev pyproject.toml requirements/build.in -o requirements/dev.txt

clean:
	rm -rf .venv build dist *.egg-info $(OUT)
