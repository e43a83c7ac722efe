"""Reading a large export: time and peak memory of read_history against a bare pandas.read_csv of the same
file.

    python bench/read_export.py [--rows 1000000] [--seed 1] [--repeat 3] [--keep-nodes]

Writes an export of 23 columns (with --keep-nodes a NodeList besides, which is then kept) to a temporary
directory, then reads it in a fresh process each time, on one core. Prints the best times, their ratio and
the peak memory; ends with 1 if the ratio is over 4 or the peak over 4 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MOST_RATIO = 4.0
MOST_GB = 4.0

COLUMNS = (
    "Cluster|JobID|JobIDRaw|JobName|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|Elapsed|ElapsedRaw|"
    "Timelimit|NNodes|NCPUS|ReqMem|AllocTRES|ReqTRES|Comment|SubmitLine"
)

READ_HISTORY = """
import json, resource, sys, time
from zoneinfo import ZoneInfo
from tias_slurm.slurm.history import read_history
begin = time.perf_counter()
keep = "--keep-nodes" in sys.argv[2:]
work = read_history([sys.argv[1]], zone=ZoneInfo("Europe/Berlin"), keep_nodes=keep)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak_gb": peak / 2**20, "rows": work.rows, "jobs": len(work.jobs)}))
"""

READ_CSV = """
import json, resource, sys, time
import pandas
begin = time.perf_counter()
table = pandas.read_csv(sys.argv[1], sep="|", engine="c")
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak_gb": peak / 2**20, "rows": len(table)}))
"""


def write_export(path: Path, rows: int, seed: int, node_list: bool) -> None:
    """An export of that many jobs, with no steps; one in 20 is an array task, one in 30 was never started."""
    columns = f"{COLUMNS}|NodeList" if node_list else COLUMNS
    rng = np.random.default_rng(seed)
    epoch = np.datetime64("2025-01-01T00:00:00")
    submit = np.sort(rng.integers(0, 360 * 86400, rows))
    start = submit + rng.exponential(3600, rows).astype(int)
    length = np.minimum(rng.lognormal(7.5, 2, rows).astype(int), 5 * 86400)
    gpus = rng.choice([0, 1, 2, 4, 8, 16], rows, p=[0.3, 0.35, 0.1, 0.12, 0.1, 0.03])
    user = rng.integers(0, 400, rows)
    limit = rng.choice([60, 240, 480, 1440, 2880, 7200], rows)
    state = rng.choice(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], rows, p=[0.7, 0.15, 0.05, 0.1])
    deadline = rng.random(rows) < 0.05
    kind = rng.choice(["a100", "h100", "v100"], rows)

    def stamp(seconds: np.ndarray) -> list[str]:
        summer = (seconds >= (88 * 24 + 1) * 3600) & (
            seconds < (298 * 24 + 1) * 3600
        )  # Europe/Berlin in 2025
        local = seconds + 3600 * (1 + summer)
        return (epoch + local.astype("timedelta64[s]")).astype(str).tolist()

    def clock(seconds: int) -> str:
        days, rest = divmod(int(seconds), 86400)
        text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
        return f"{days}-{text}" if days else text

    submits, starts, ends = stamp(submit), stamp(start), stamp(start + length)
    with path.open("w") as out:
        out.write(columns + "\n")
        for i in range(rows):
            raw = 1_000_000 + i
            job = f"{raw // 20 * 20}_{raw % 20}" if i % 400 < 20 else str(raw)
            g, nodes = int(gpus[i]), max(1, int(gpus[i]) // 8)
            cpus = 8 * max(1, g)
            gpu = f"gres/gpu:{kind[i]}={g},gres/gpu={g}," if g else ""
            asked = f"billing={cpus},cpu={cpus},{gpu}mem={cpus * 8}G,node={nodes}"
            what, by, given = state[i], "", asked
            first, last, ran = starts[i], ends[i], int(length[i])
            if what == "CANCELLED":
                by = f" by {10000 + user[i]}"
                if i % 3 == 0:
                    first, last, ran, given = "None", starts[i], 0, ""
            elapsed = clock(ran)
            comment = f"deadline=+{1 + i % 72}h" if deadline[i] else ""
            line = (
                "alpha", job, raw, f"train_{i % 5000}", f"user{user[i]}", f"acct{user[i] % 40}",
                "gpu", "normal",
                f"{what}{by}", submits[i], submits[i], first, last, elapsed, ran, clock(int(limit[i]) * 60),
                nodes, cpus, f"{cpus * 8}G", given, asked, comment,
                f"sbatch --gres=gpu:{g} --time={limit[i]} --array=0-19 run_{i % 977}.sh --lr 0.{i % 1000}",
            )  # fmt: skip
            if node_list:
                at = int(submit[i] * 7919 % 500)
                hosts = f"gn{at:03d}" if nodes == 1 else f"gn[{at:03d}-{at + nodes - 1:03d}]"
                line = (*line, hosts if ran else "None assigned")
            out.write("|".join(map(str, line)) + "\n")


def measure(code: str, path: Path, repeat: int, *more: str) -> dict[str, float]:
    """The best of several runs, each in a process of its own on one core."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, "1")}

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), *more],
            check=True, capture_output=True, text=True, env=environment, preexec_fn=pin,
        )  # fmt: skip
        runs.append(json.loads(done.stdout))
    best: dict[str, float] = min(runs, key=lambda run: run["seconds"])
    best["peak_gb"] = max(run["peak_gb"] for run in runs)
    return best


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep-nodes", action="store_true", help="with a column NodeList, and keep it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "export.txt"
        write_export(path, args.rows, args.seed, args.keep_nodes)
        size = path.stat().st_size / 1e6
        ours = measure(READ_HISTORY, path, args.repeat, *(["--keep-nodes"] if args.keep_nodes else []))
        bare = measure(READ_CSV, path, args.repeat)
    if ours["rows"] != args.rows or bare["rows"] != args.rows:
        print(f"rows lost: {args.rows} written, {ours['rows']} and {bare['rows']} read")
        return 1
    ratio = ours["seconds"] / bare["seconds"]
    columns = COLUMNS.count("|") + 1 + args.keep_nodes
    print(f"export             {args.rows:,} rows, {columns} columns, {size:.0f} MB")
    print(f"read_history       {ours['seconds']:.2f} s, peak {ours['peak_gb']:.2f} GB, {ours['jobs']:,} jobs")
    print(f"pandas.read_csv    {bare['seconds']:.2f} s, peak {bare['peak_gb']:.2f} GB")
    print(f"ratio              {ratio:.2f} (at most {MOST_RATIO:g})")
    return 0 if ratio <= MOST_RATIO and ours["peak_gb"] <= MOST_GB else 1


if __name__ == "__main__":
    raise SystemExit(main())
