"""Jobs a second of a whole replay of TIAS with preemption, compile time apart.

python bench/replay_trace.py [TRACE.csv]: default MIX1 of the shared data (30,756 jobs, 139 nodes of 8 GPUs,
60 s cycles); where that is absent, a made-up trace of the same size. Stated beside it: the same replay under
least attained service, and under Slurm's multifactor priority without a daemon, so that a ratio holds where
the machine is slow.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import numpy as np

from tias_slurm.config import load_config
from tias_slurm.replay.dry_run import Options, dry_run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.traces import read_trace
from tias_slurm.slurm.node_set import uniform

GPUS = 1112
POLICIES = "tias,las,multifactor"


def made_up(path: Path, jobs: int = 30_756) -> None:
    """A trace of about the size and load of MIX1."""
    rng = np.random.Generator(np.random.PCG64(1))
    submit = np.sort(rng.integers(0, 14 * 24 * 60, jobs))
    duration = np.maximum(rng.lognormal(4.0, 1.4, jobs), 10).astype(np.int64)
    gpus = rng.choice([1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8], jobs)
    slack = (duration * rng.uniform(1.3, 3.0, jobs)).astype(np.int64)
    best_effort = (rng.random(jobs) < 0.3).astype(np.int64)
    with path.open("w") as out:
        out.write("job_id,submit_time,duration,num_gpu,expect_time_list,best_effort\n")
        for row in zip(range(jobs), submit, duration, gpus, slack, best_effort, strict=True):
            out.write(",".join(map(str, row)) + "\n")


def main() -> None:
    """Measure and print."""
    shared = Path(os.environ.get("TIAS_SLURM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "traces" / "chronus" / "MIX1.csv"
    if not path.is_file():
        print(f"{path} is absent: a made-up trace instead")
        path = Path(os.environ.get("TMPDIR", "/tmp")) / "tias-slurm-bench-trace.csv"
        made_up(path)
    work = read_trace([str(path)], columns="deadline=+expect_time_list", time_unit="min")
    nodes = uniform(GPUS, 8)
    wanted = {w.name: w for w in parse(POLICIES, is_trace=True, preemption=None)}
    config = load_config(None)
    dry_run(work, nodes, [wanted["tias"]], config, Options())  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(3):
        for name, one in wanted.items():
            began = time.perf_counter()
            dry_run(work, nodes, [one], config, Options())
            seconds[name].append(time.perf_counter() - began)
    base = min(seconds["multifactor"])
    out = io.StringIO()
    for name, took in seconds.items():
        best = min(took)
        out.write(
            f"{name:12s} {best:6.2f} s (best of {len(took)}, worst {max(took):.2f})"
            f"  {len(work.jobs) / best:7.0f} jobs/s  {best / base:4.1f} x multifactor\n"
        )
    print(f"replay of {path.name}: {len(work.jobs)} jobs, {len(nodes)} nodes, one core")
    print(out.getvalue(), end="")


if __name__ == "__main__":
    main()
