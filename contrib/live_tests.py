#!/usr/bin/env python3
"""Run the live tests on real Slurms of the testbed: `contrib/live_tests.py core` or `full`.

core: the marked core on Slurm 26.05 through both adapters, and a smoke test on 24.11 and 22.05. full:
everything on all three. Needs root and Debian's packages; where that is not given it says which tests did not
run, and with TIAS_SLURM_NO_SKIP set that is a failure. Exit codes: 0 passed (or could not run), 1 failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTBED = HERE / "testbed" / "testbed"
# release, options of `testbed up`, marker of the core run
PLAN = (
    ("26.05", ("--accounting", "--nodes", "4"), "core or smoke"),
    ("24.11", ("--accounting", "--nodes", "4"), "smoke"),
    ("22.05", ("--accounting", "--nodes", "4"), "smoke"),
)


def say(text: str) -> None:
    """One line, at once."""
    print(f"live tests: {text}", flush=True)


def testbed(*arguments: str) -> int:
    """Run a command of the testbed; its exit status."""
    return subprocess.run([sys.executable, str(TESTBED), *arguments], check=False).returncode


def run(release: str, options: tuple[str, ...], marker: str | None) -> str:
    """Tests of one release: "passed", "failed", or "not run"."""
    # two runs at once must not end each other's clusters
    name = f"tests{release.replace('.', '')}-{os.getpid()}"
    began = time.monotonic()
    if testbed("up", "--slurm", release, "--name", name, *options) != 0:
        testbed("down", "--name", name)
        return "not run"
    say(f"Slurm {release} is up after {time.monotonic() - began:.0f} s")
    chosen = ("-m", marker) if marker else ()
    try:
        status = testbed(
            "exec",
            "--name",
            name,
            "--",
            "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/live",
            *chosen,
        )
    finally:
        testbed("down", "--name", name)
    say(f"Slurm {release}: exit status {status} after {time.monotonic() - began:.0f} s")
    return "passed" if status == 0 else "failed"


def main() -> int:
    """Run the plan."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "core"
    if kind not in ("core", "full") or len(sys.argv) > 2:
        print("usage: live_tests.py [core|full]", file=sys.stderr)
        return 2
    owed = bool(os.environ.get("TIAS_SLURM_NO_SKIP"))
    if os.geteuid() != 0:
        say("NONE of them ran (tests/live on Slurm 26.05, 24.11 and 22.05): a test cluster needs root")
        return int(owed)
    results = {
        release: run(release, options, marker if kind == "core" else None)
        for release, options, marker in PLAN
    }
    for release, result in results.items():
        words = (
            "DID NOT RUN: the test cluster did not come up (no network?)" if result == "not run" else result
        )
        say(f"Slurm {release}: {words}")
    if "failed" in results.values():
        return 1
    return int(owed and "not run" in results.values())


if __name__ == "__main__":
    sys.exit(main())
