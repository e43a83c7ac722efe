"""The figures of docs/evaluation.md: policies on public traces, over loads, kinds of deadlines and consent.

python bench/evaluation.py DATA > tables.md: DATA holds traces/chronus/MIX1.csv and
traces/elasticflow/cluster02.csv, 03 and 06. Without DATA: the bundled export. `--quick`: a small cut.
`--results FILE`: one JSON line a run; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from tables import sections

from tias_slurm.config import Config
from tias_slurm.replay import metrics
from tias_slurm.replay.assumptions import assume_deadlines
from tias_slurm.replay.claims import find_deadlines
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.traces import read_trace
from tias_slurm.replay.workload import Workload
from tias_slurm.slurm.nodes import uniform

EXAMPLE = Path(__file__).resolve().parents[1] / "examples"
# deadline -> what assume_deadlines is told; "own": the trace's
KINDS = {
    "own": None,
    "proportional": "share=0.5,slack=0.1..2,seed={seed}",
    "calendar": "kind=calendar,share=0.5,seed={seed}",
}
# a cycle costs the same whether much happens or little: the long, thin traces get fewer of them
INTERVAL_S = {"MIX1": 60.0, "example": 60.0}
BLIND = ("fifo", "multifactor", "edf")  # these never requeue
SOME = (
    *("deadline-qos", "las"),
    *("tias:jct-first", "tias:steady", "tias:wide-fair", "tias:balanced", "tias:guard", "tias:slots"),
)
# with consent of everybody: all. "tias" has the default bound on waiting; the rows of the presets leave it
# out, as none of the others knows one
ALL = (*SOME, "aemon", "tias", "oracle-laxity")


@dataclass(frozen=True)
class Case:
    """One workload on one cluster, and whose jobs may be requeued."""

    trace: str
    load: float
    deadlines: str  # in KINDS
    seed: int
    consent: float
    policy: str

    def key(self) -> str:
        """Tells it from all others."""
        return "/".join(str(v) for v in asdict(self).values())


def cases(quick: bool, traces: Sequence[str]) -> Iterator[Case]:
    """All that is to be run, what matters most first."""
    loads, seeds, consents = (0.8, 0.95, 1.1), (1, 2, 3, 4, 5), (1.0, 0.0, 0.5)
    if quick:
        loads, seeds, consents = (0.95,), (1,), (1.0, 0.0)
    first = [(seed, consent) for seed in seeds for consent in consents if seed == 1 or consent == 1.0]
    last = [pair for pair in itertools.product(seeds, consents) if pair not in first]
    for (seed, consent), trace in itertools.product(first + last, traces):
        own = trace in ("MIX1", "example")
        if own and seed > 1:
            continue
        for load, deadlines in itertools.product(loads, ("own",) if own else ("proportional", "calendar")):
            for policy in (*BLIND, *ALL) if consent == 1.0 else SOME:
                yield Case(trace, load, deadlines, seed, 0.0 if policy in BLIND else consent, policy)


def read(data: Path | None, trace: str) -> Workload:
    """The jobs of a trace."""
    if data is None:
        from tias_slurm.slurm.history import read_history

        return read_history([str(EXAMPLE / "cluster-export.txt.gz")], zone=ZoneInfo("Europe/Berlin"))
    if trace == "MIX1":
        path = data / "traces/chronus/MIX1.csv"
        return read_trace([str(path)], columns="deadline=+expect_time_list", time_unit="min")
    path = data / f"traces/elasticflow/{trace}.csv"
    return read_trace([str(path)], columns="submit_time=submission_time")


def nodes_for(work: Workload, load: float) -> int:
    """Nodes of 8 GPUs on which the work asked for is `load` of what they give over the span of submits."""
    jobs = work.jobs
    demand = float((jobs["work"] * jobs["gpus"]).sum())
    span = float(jobs["first_submit"].max() - jobs["first_submit"].min())
    return max(math.ceil(demand / (span * 8 * load)), math.ceil(int(jobs["gpus"].max()) / 8))


def run(data: Path | None, case: Case) -> dict[str, Any]:
    """The measures of one case."""
    work = read(data, case.trace)
    interval = INTERVAL_S.get(case.trace, 300.0)
    settings: dict[str, Any] = {"deadlines": {"timezone": "UTC"}, "cycle": {"interval_s": interval}}
    name = case.policy
    if name.startswith("tias:"):
        settings["policy"] = {"preset": name.removeprefix("tias:"), "starving_s": 0.0}
        name = "tias"
    config = Config.model_validate(settings)
    find_deadlines(work, config, UTC)  # type: ignore[arg-type]
    spec = KINDS[case.deadlines]
    if spec is not None:
        assume_deadlines(work, spec.format(seed=case.seed), UTC)
    count = nodes_for(work, case.load)
    options = Options(consent=case.consent, consent_seed=case.seed)
    preemption = "on" if case.consent > 0 else "off"
    wanted = parse(name, is_trace=work.is_trace, preemption=preemption)
    result = Run(work, uniform(8 * count, 8), config, options, []).policy(wanted[0], None, None)
    jobs, end = work.jobs, result.outcome.end
    due = jobs["deadline"].to_numpy(float)
    service = jobs["work"].to_numpy(float) * jobs["gpus"].to_numpy(float)
    possible = np.isfinite(due) & np.isfinite(end) & metrics.possible(jobs)
    missed = possible & (end > due)
    m = result.metrics
    n = m["deadline_jobs"] + m["non_deadline_jobs"]
    return {
        **asdict(case),
        "nodes": count,
        "jobs": n,
        "claims": int(possible.sum()),
        "impossible": m["deadline_jobs"] - int(possible.sum()),
        "miss": float(missed.sum() / max(possible.sum(), 1)),
        "miss_gpu": float(service[missed].sum() / max(service[possible].sum(), 1.0)),
        "jct": m["jct_mean_s"],
        "jct_p95": m["jct_p95_s"],
        "deadline_jct": m["deadline_jct_mean_s"],
        "requeues": m["requeues"] / n,
        "lost": m["gpu_hours_lost"] / m["gpu_hours"],
        "unfinished": m["unfinished"],
    }


def known(path: Path | None) -> dict[str, dict[str, Any]]:
    """Results of earlier runs, by the key of their case."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {Case(**{k: row[k] for k in Case.__dataclass_fields__}).key(): row for row in rows}


def main() -> None:
    """Run what is not known yet, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, help="directory with traces/; none: the bundled export")
    parser.add_argument("--quick", action="store_true", help="one load, one seed")
    parser.add_argument("--results", type=Path, help="keep and reuse the results of runs")
    parser.add_argument("--known", action="store_true", help="run nothing, print what is known")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    traces = ("example",) if args.data is None else ("MIX1", "cluster02", "cluster03", "cluster06")
    results = known(args.results)
    todo = [case for case in cases(args.quick, traces) if case.key() not in results]
    if args.known:
        todo = []
    with ProcessPoolExecutor(args.processes) as pool:
        waiting = {pool.submit(run, args.data, case): case for case in todo}
        for number, done in enumerate(as_completed(waiting), 1):
            results[waiting[done].key()] = done.result()
            if args.results is not None:
                with args.results.open("a") as file:
                    file.write(json.dumps(done.result()) + "\n")
            if sys.stderr.isatty() or number % 100 == 0:
                print(f"{number} of {len(todo)} runs", file=sys.stderr, flush=True)
    wanted = [results[case.key()] for case in cases(args.quick, traces) if case.key() in results]
    for text in sections(wanted):
        print(text)


if __name__ == "__main__":
    main()
