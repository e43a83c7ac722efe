"""A live queue, read, and read, ranked and planned, against a bare pyslurm.Jobs.load() plus reading the same
attributes of the same jobs.

    contrib/testbed/testbed up --slurm 26.05 --accounting --name bench --conf MaxJobCount=50000
    contrib/testbed/testbed exec --name bench -- \\
        python bench/live_queue.py [--jobs 20000] [--repeat 4] [--rounds 4]
    contrib/testbed/testbed down --name bench

Run inside a test cluster of its own: it fills the queue with jobs that wait and leaves them there. The bare
reading runs in a process of its own. Prints the best times and their ratios; ends with 1 if reading is over
1.5, the whole cycle over 2, or with requeues over 3. The first cycle, which reads every comment (and, with
requeues, every request), is told apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from tias_slurm import assemble
from tias_slurm.config import load_config
from tias_slurm.controller import Controller
from tias_slurm.ledger.book import Ledger
from tias_slurm.planner import Planner
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live_cluster import LiveCluster
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter

MOST_RATIO = 1.5
MOST_CYCLE = 2.0
MOST_REQUEUES = 3.0

# any job that runs may be requeued
REQUEUES = {"requeue.mode": "on", "requeue.consent_default": True, "requeue.min_run_s": 1.0}

SUBMIT = """
import random, sys
import pyslurm
dice = random.Random(1)
here = {"environment": {"PATH": "/usr/bin:/bin"}, "working_directory": "/tmp"}
for number in range(int(sys.argv[1])):
    text = dice.choice(["", f"deadline=+{dice.randint(1, 99)}h", f"run {number}, lr={dice.random():.4f}"])
    pyslurm.JobSubmitDescription(
        name=f"train{number}",
        script="#!/bin/sh\\nsleep 3600\\n",
        gpus=dice.choice([1, 1, 2, 4, 8]),
        time_limit=dice.choice([60, 600, 2880]),
        comment=text or None,
        standard_output="/dev/null",
        **here,
    ).submit()
"""

BARE = """
import json, sys, time
from operator import attrgetter
import pyslurm
read = attrgetter(*json.loads(sys.argv[1]))
best_load = best = 9e9
for _ in range(int(sys.argv[2])):
    begin = time.perf_counter()
    jobs = pyslurm.Jobs.load()
    loaded = time.perf_counter()
    rows = [read(job) for job in jobs.values()]
    end = time.perf_counter()
    best, best_load = min(best, end - begin), min(best_load, loaded - begin)
    del jobs
print(json.dumps({"jobs": len(rows), "seconds": best, "load": best_load}))
"""


def main() -> int:
    """Submit what is missing, read both ways, compare."""
    from tias_slurm.slurm.pyslurm_rows import ATTRIBUTES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20000)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    commands = CommandsAdapter()
    adapter = PyslurmAdapter(commands, allow_version_mismatch=True)
    missing = args.jobs - len(adapter.jobs())
    if missing > 0:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", SUBMIT, str(missing)], check=True)
        print(f"submitted {missing} jobs in {time.perf_counter() - begin:.1f} s")
    words = [sys.executable, "-c", BARE, json.dumps(ATTRIBUTES), str(args.repeat)]
    bare, best, slow = {"jobs": 0, "seconds": 9e9, "load": 9e9}, 9e9, 9e9
    for _ in range(args.rounds):  # in turns, since other work on the machine comes and goes
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        bare = min(bare, json.loads(told), key=lambda one: one["seconds"])
        best = min(best, *(_timed(adapter) for _ in range(args.repeat)))
        slow = min(slow, _timed(commands))
    table = adapter.jobs()
    first, cycle, planned = _cycles(adapter, args.repeat, {})
    first_on, cycle_on, _ = _cycles(adapter, args.repeat, REQUEUES)
    adapter.close()
    ratio = best / bare["seconds"]
    print(f"jobs {len(table)}, refused {table.refused}; bare {bare['jobs']}")
    print(
        f"bare: Jobs.load() {bare['load']:.3f} s, with {len(ATTRIBUTES)} attributes {bare['seconds']:.3f} s"
    )
    print(f"pyslurm adapter: {best:.3f} s, {ratio:.2f} times bare (at most {MOST_RATIO})")
    print(f"commands adapter: {slow:.3f} s, {slow / bare['seconds']:.2f} times bare")
    whole = cycle / bare["seconds"]
    print(
        f"whole cycle: {cycle:.3f} s, {whole:.2f} times bare (at most {MOST_CYCLE}); first {first:.3f} s, "
        f"{planned} writes planned"
    )
    with_requeues = cycle_on / bare["seconds"]
    print(
        f"with requeues: {cycle_on:.3f} s, {with_requeues:.2f} times bare (at most {MOST_REQUEUES}); first "
        f"{first_on:.3f} s"
    )
    if table.refused or len(table) != bare["jobs"]:
        print("not the same jobs")
        return 1
    return int(ratio > MOST_RATIO or whole > MOST_CYCLE or with_requeues > MOST_REQUEUES)


def _cycles(adapter: PyslurmAdapter, repeat: int, settings: Mapping[str, object]) -> tuple[float, float, int]:
    """Seconds of the first cycle of a dry run and of the best later one, and the writes of all of them."""
    config = load_config(None, settings)
    ledger = Ledger()
    cluster = LiveCluster(
        adapter, config, config.zone(), enforce=False, field="nice", first_submit=ledger.first_submit
    )
    policy = assemble.tias(config)
    planner = Planner(
        assemble.lever(config, policy.levels, 1000), assemble.limits(config, requeue=bool(settings))
    )
    planner.limits = replace(planner.limits, max_writes=1_000_000)
    controller = Controller(cluster, ledger, policy, planner)
    took = []
    for _ in range(1 + max(repeat, 2)):
        begin = time.perf_counter()
        controller.cycle()
        took.append(time.perf_counter() - begin)
    return took[0], min(took[1:]), controller.writes


def _timed(adapter: PyslurmAdapter | CommandsAdapter) -> float:
    begin = time.perf_counter()
    adapter.jobs()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
