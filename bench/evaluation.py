"""The figures of docs/evaluation.md, as Markdown: every policy on public traces.

python bench/evaluation.py DATA: DATA holds traces/chronus/MIX1.csv and traces/elasticflow/cluster02.csv. Each
table stands under the command that makes it, which is also the one that is run here.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

TIAS = "tias,tias:wide-fair,tias:balanced,tias:guard,tias@off"
POLICIES = f"fifo,multifactor,edf,deadline-qos,las,aemon,{TIAS},oracle-srtf,oracle-laxity"
HEAD = (
    "| policy | missed | miss rate % | by GPU-hours % | deadline JCT h | non-deadline JCT mean h | x las "
    "| requeues per job | GPU time lost % |\n|---|---|---|---|---|---|---|---|---|"
)


def nodes_for(path: Path, load: float) -> int:
    """Nodes of 8 GPUs on which the work asked for is `load` of what they give over the span of submits."""
    with path.open() as file:
        rows = [
            (float(r["submission_time"]), float(r["duration"]) * int(r["num_gpu"]))
            for r in csv.DictReader(file)
        ]
    submits = [s for s, _ in rows]
    return math.ceil(sum(w for _, w in rows) / ((max(submits) - min(submits)) * 8 * load))


def run(arguments: list[str]) -> dict[str, Any]:
    """The dry run's JSON document."""
    command = [str(Path(sys.executable).parent / "tias-slurm"), "dry-run", *arguments, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def table(document: dict[str, Any]) -> str:
    """One row a policy; x las: non-deadline mean JCT as a ratio to that of least attained service."""
    policies = document["policies"]
    las = policies["las"]["jct_mean_s"]
    lines = [HEAD]
    for name, p in policies.items():
        jobs = p["deadline_jobs"] + p["non_deadline_jobs"]
        used = p["gpu_utilisation"]
        mark = "" if p["realisable"] else " †"
        lost = 100 * p["gpu_hours_lost"] / p["gpu_hours"] if used else 0.0
        share = p["requeues"] / jobs
        lines.append(
            f"| {name}{mark} | {p['missed']:,} | {100 * p['deadline_miss_rate']:.2f} "
            f"| {100 * p['deadline_miss_rate_gpu_weighted']:.1f} | {p['deadline_jct_mean_s'] / 3600:.2f} "
            f"| {p['jct_mean_s'] / 3600:.2f} | {p['jct_mean_s'] / las:.2f} | {share:.2f} | {lost:.2f} |"
        )
    return "\n".join(lines)


def show(title: str, arguments: list[str], data: Path) -> None:
    """Run, and print the section."""
    shown = shlex.join(a.replace(str(data), "DATA") for a in arguments).replace("'", "")
    document = run(arguments)
    c, d = document["cluster"], document["deadlines"]
    print(f"### {title}\n\n    tias-slurm dry-run {shown}\n")
    deadlines = (
        f"{d['found']:,} deadlines of the trace" if d["found"] else f"{d['assumed']:,} assumed deadlines"
    )
    print(f"{document['input']['jobs']:,} jobs, {deadlines}, {c['nodes']} nodes of 8 GPUs.\n")
    print(table(document), "\n", flush=True)


def main() -> None:
    """Print all sections."""
    data = Path(sys.argv[1])
    mix1 = [str(data / "traces/chronus/MIX1.csv"), "--time-unit", "min"]
    mix1 += ["--columns", "deadline=+expect_time_list", "--policies", POLICIES]
    show("MIX1, its own deadlines", [*mix1, "--gpus", "1112", "--gpus-per-node", "8"], data)
    path = data / "traces/elasticflow/cluster02.csv"
    for load in (0.8, 1.0):
        size = 8 * nodes_for(path, load)
        arguments = [str(path), "--columns", "submit_time=submission_time", "--policies", POLICIES]
        arguments += ["--assume-deadlines", "share=0.5,slack=0.1..2,seed=1"]
        show(
            f"cluster02 at a load of {load}, assumed deadlines",
            [*arguments, "--gpus", str(size), "--gpus-per-node", "8"],
            data,
        )


if __name__ == "__main__":
    main()
