#!/usr/bin/env python3
"""Run the live tests on real Slurms of the testbed: `contrib/live_tests.py core` or `full`.

core: the marked core on Slurm 26.05 through both adapters, and a smoke test on 24.11 and 22.05. full:
everything on all three. Both: two daemons on two controllers. Each runs on a cluster of its own, all at once;
in the end the unit runs under a real systemd, on Debian testing (full: on Debian 12 as well). Needs root and
Debian's packages; where that is not given it says which did not run, and with TIAS_SLURM_NO_SKIP set that
is a failure.
Exit codes: 0 passed (or could not run), 1 failed, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
TESTBED = HERE / "testbed" / "testbed"
CONF = (
    # scrontab's jobs are among what the daemon has to leave alone
    "ScronParameters=enable",
    # on an idle cluster fair share leaps from one second to the next, and priorities with it: a constant
    # takes its place, since a priority of 1 cannot be told from one that is pinned there
    "PriorityWeightFairshare=0",
    "PriorityWeightPartition=1000",
    # Slurm looks at its queue at once
    "SchedulerParameters=bf_continue,bf_interval=1,sched_interval=1,batch_sched_delay=0",
)
OPTIONS = ("--accounting", "--nodes", "4", *(word for line in CONF for word in ("--conf", line)))
# a run that is not done by then hangs, s
MOST_S = {"core": 1800.0, "full": 5400.0}


@dataclass(frozen=True)
class Run:
    """One cluster and what runs on it: Slurm's release, the adapter, the marker of the core run."""

    release: str
    adapter: str
    marker: str
    backup: bool = False  # two controllers, and the tests that need them

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"Slurm {self.release}, {self.adapter}{', two controllers' if self.backup else ''}"

    @property
    def cluster(self) -> str:
        """Its cluster's name: two of these programs at once must not end each other's."""
        two = "-two" if self.backup else ""
        return f"tests{self.release.replace('.', '')}-{self.adapter}{two}-{os.getpid()}"


PLAN = (
    Run("26.05", "pyslurm", "core or smoke"),
    Run("26.05", "commands", "core or smoke"),
    Run("24.11", "commands", "smoke"),
    Run("22.05", "commands", "smoke"),
    Run("26.05", "commands", "core", backup=True),
)


def say(text: str) -> None:
    """One line, at once."""
    print(f"live tests: {text}", flush=True)


def testbed(log: IO[bytes], limit_s: float | None, *arguments: str) -> int:
    """Run a command of the testbed; its exit status. subprocess.TimeoutExpired after `limit_s`."""
    argv = [sys.executable, str(TESTBED), *arguments]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=limit_s, check=False
    ).returncode


def run(one: Run, kind: str, log: IO[bytes]) -> str:
    """Bring a cluster up, run its tests, end it: "passed", "failed", or "not run"."""
    began = time.monotonic()
    pyslurm = "--pyslurm" if one.adapter == "pyslurm" else "--no-pyslurm"
    more = ("--backup",) if one.backup else ()
    what = "tests/live/test_failover.py" if one.backup else "tests/live"
    try:
        if (
            testbed(log, None, "up", "--slurm", one.release, "--name", one.cluster, pyslurm, *OPTIONS, *more)
            != 0
        ):
            return "not run"
        say(f"{one.title}: up after {time.monotonic() - began:.0f} s")
        chosen = ("-m", one.marker) if kind == "core" else ()
        only = f"TIAS_LIVE_ADAPTER={one.adapter}"
        status = testbed(
            log, MOST_S[kind], "exec", "--name", one.cluster, "--env", only, "--",
            "python", "-m", "pytest", "-q", "-rs", "--durations=10", "-p", "no:cacheprovider", what,
            *chosen,
        )  # fmt: skip
        say(f"{one.title}: ended after {time.monotonic() - began:.0f} s")
    except subprocess.TimeoutExpired:
        log.write(f"not done after {MOST_S[kind]:.0f} s\n".encode())
        return "failed"
    finally:
        testbed(log, None, "down", "--name", one.cluster)
    return "passed" if status == 0 else "failed"


def service(kind: str) -> str:
    """The unit under a real systemd, one Debian after the other: "passed", "failed", or "not run"."""
    results = []
    for release in ("26.05", "22.05") if kind == "full" else ("26.05",):
        argv = [sys.executable, str(HERE / "service_test.py"), release]
        if kind == "full":
            argv.append("--full")
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=MOST_S[kind], check=False)
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 1
        results.append({0: "passed", 77: "not run"}.get(status, "failed"))
    return next((r for r in ("failed", "not run") if r in results), "passed")


def run_all(kind: str) -> dict[Run, str]:
    """The whole plan at once; what a run printed is shown when it ends."""
    results: dict[Run, str] = {}
    logs = {one: tempfile.TemporaryFile() for one in PLAN}  # noqa: SIM115  closed with the process
    with ThreadPoolExecutor(len(PLAN)) as pool:
        try:
            started = {pool.submit(run, one, kind, logs[one]): one for one in PLAN}
            for future in as_completed(started):
                one = started[future]
                results[one] = future.result()
                logs[one].seek(0)
                text = logs[one].read().decode("utf-8", "replace")
                print(f"\n==== {one.title} ====\n{text}", flush=True)
        except KeyboardInterrupt:
            # a cluster that ends takes its tests with it, and one that is being built too
            for one in PLAN:
                testbed(logs[one], None, "down", "--name", one.cluster)
            raise
    return results


def main() -> int:
    """Run the plan."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "core"
    if kind not in MOST_S or len(sys.argv) > 2:
        print("usage: live_tests.py [core|full]", file=sys.stderr)
        return 2
    owed = bool(os.environ.get("TIAS_SLURM_NO_SKIP"))
    if os.geteuid() != 0:
        say(f"NONE of them ran ({'; '.join(one.title for one in PLAN)}): a test cluster needs root")
        return int(owed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = run_all(kind)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    for one in PLAN:
        words = {"not run": "DID NOT RUN: the test cluster did not come up (no network?)"}
        say(f"{one.title}: {words.get(results[one], results[one])}")
    unit = service(kind)
    say(f"the unit under systemd: {unit}")
    results_all = {*results.values(), unit}
    if "failed" in results_all:
        return 1
    return int(owed and "not run" in results_all)


if __name__ == "__main__":
    sys.exit(main())
