"""A small made-up dry run for the tests of the output: plausible numbers, no engine."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
import pandas as pd

from tias_slurm.replay.results import DryRun, Outcome, PolicyResult, Series
from tias_slurm.replay.workload import Refusals, Refused, Workload

START = 1_740_000_000.0
GPUS = 64
POLICIES = (
    "recorded",
    "fifo",
    "multifactor",
    "edf",
    "deadline-qos",
    "las",
    "aemon",
    "tias@off",
    "tias@on",
    "oracle-srtf",
    "oracle-laxity",
)
NASTY = '<script>alert("x")</script> [bold red]&'


def make_jobs(n: int, seed: int = 1, share: float = 0.35) -> pd.DataFrame:
    """Columns that the output reads, of n jobs over three weeks."""
    rng = np.random.default_rng(seed)
    work = np.round(np.clip(rng.lognormal(8.3, 1.5, n), 30, 5 * 86400))
    gpus = rng.choice([0, 1, 2, 4, 8, 16], n, p=[0.04, 0.5, 0.16, 0.14, 0.12, 0.04])
    span = float((work * gpus).sum()) / GPUS / 1.05
    submit = np.sort(START + np.round(rng.random(n) * span))
    claims = (rng.random(n) < share) & (gpus > 0)
    deadline = np.where(claims, submit + np.round(work * (1 + rng.uniform(0.1, 2, n))), np.nan)
    users = np.array([f"user{i:02d}" for i in rng.integers(0, 40, n)], dtype=object)
    if n:
        users[0] = NASTY
    return pd.DataFrame(
        {
            "job_id": np.array([str(40_000 + i) for i in range(n)], dtype=object),
            "user": users,
            "partition": np.array(["gpu"] * n, dtype=object),
            "gpus": gpus,
            "first_submit": submit,
            "deadline": deadline,
            "work": work,
        }
    )


def _pool(jobs: pd.DataFrame, key: np.ndarray) -> np.ndarray:
    """Starts on one pool of GPUs: at each event the waiting jobs in order of key, what fits."""
    submit, work, gpus = (jobs[k].to_numpy() for k in ("first_submit", "work", "gpus"))
    start, waiting, running, free, i = np.full(len(jobs), np.nan), [], [], GPUS, 0
    while i < len(jobs) or running:
        now = min(submit[i] if i < len(jobs) else np.inf, running[0][0] if running else np.inf)
        while running and running[0][0] <= now:
            free += heapq.heappop(running)[1]
        while i < len(jobs) and submit[i] <= now:
            waiting.append(i)
            i += 1
        for j in sorted(waiting, key=lambda j: (key[j], j)):
            if gpus[j] <= free:
                start[j] = now
                free -= gpus[j]
                heapq.heappush(running, (now + work[j], gpus[j]))
                waiting.remove(j)
    return start


def _series(jobs: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> Series:
    submit, gpus = jobs["first_submit"].to_numpy(), jobs["gpus"].to_numpy()
    t = np.unique(np.concatenate([submit, start[np.isfinite(start)], end[np.isfinite(end)]]))

    def held(when: np.ndarray, weight: np.ndarray) -> np.ndarray:
        order = np.argsort(when)
        total = np.concatenate([[0], np.cumsum(weight[order])])
        return total[np.searchsorted(when[order], t, side="right")]

    begin, stop = np.where(np.isnan(start), np.inf, start), np.where(np.isnan(end), np.inf, end)
    gpu_job = (gpus > 0).astype(np.int64)
    return Series(
        t,
        held(submit, gpu_job) - held(begin, gpu_job),
        held(submit, gpus) - held(begin, gpus),
        held(begin, gpus) - held(stop, gpus),
    )


def measures(jobs: pd.DataFrame, out: Outcome, writes: int = 0) -> dict[str, float | int | None]:
    """The documented measures of one policy, worked out the plain way."""
    gpus, deadline = jobs["gpus"].to_numpy(), jobs["deadline"].to_numpy()
    jct = out.end - jobs["first_submit"].to_numpy()
    ran = (gpus > 0) & np.isfinite(jct) & np.isfinite(out.start)
    due, other = ran & np.isfinite(deadline), ran & np.isnan(deadline)
    missed, weight = due & (out.end > deadline), gpus * out.executed

    def over(x: float, y: float) -> float | None:
        return float(x / y) if y else None

    def of(f, values):  # type: ignore[no-untyped-def]
        return float(f(values)) if len(values) else None

    return {
        "deadline_jobs": int(due.sum()),
        "missed": int(missed.sum()),
        "deadline_miss_rate": over(missed.sum(), due.sum()),
        "deadline_miss_rate_gpu_weighted": over(weight[missed].sum(), weight[due].sum()),
        "deadline_jct_mean_s": of(np.mean, jct[due]),
        "non_deadline_jobs": int(other.sum()),
        "jct_mean_s": of(np.mean, jct[other]),
        "jct_median_s": of(np.median, jct[other]),
        "jct_p95_s": of(lambda v: np.percentile(v, 95), jct[other]),
        "wait_mean_s": of(np.mean, (jct - out.executed)[other]),
        "gpu_utilisation": 0.87,
        "requeues": int(out.requeues.sum()),
        "gpu_hours_lost": float(out.lost_gpu_s.sum() / 3600),
        "writes": writes,
        "unfinished": int((~np.isfinite(out.end)).sum()),
    }


def make_result(jobs: pd.DataFrame, name: str, start: np.ndarray, seed: int = 0) -> PolicyResult:
    """One policy's result from the starts that it gives."""
    rng = np.random.default_rng(seed)
    start = start.copy()
    start[jobs["gpus"].to_numpy() == 16] += 0.0
    if len(start) > 5:
        start[5] = np.nan  # cancelled while waiting
    n, work = len(jobs), jobs["work"].to_numpy()
    preempts = name in ("deadline-qos", "las", "aemon", "tias@on")
    requeues = (rng.random(n) < 0.1).astype(np.int64) * preempts
    out = Outcome(
        start=start,
        end=start + work,
        executed=np.where(np.isnan(start), 0.0, work),
        lost_gpu_s=requeues * 300.0 * jobs["gpus"].to_numpy(),
        requeues=requeues,
        fits=np.arange(n) != 5,
    )
    realisable = not name.startswith("oracle")
    writes = int(requeues.sum()) + n if name.startswith("tias") else 0
    series = _series(jobs, out.start, out.end)
    return PolicyResult(
        name, f"policy {name}", realisable, preempts, out, series, measures(jobs, out, writes), writes
    )


def starts(jobs: pd.DataFrame, name: str, seed: int = 0) -> np.ndarray:
    """A queue order that resembles the policy."""
    rng = np.random.default_rng(seed)
    submit, work, gpus = (jobs[k].to_numpy() for k in ("first_submit", "work", "gpus"))
    far = jobs["deadline"].fillna(np.inf).to_numpy()
    size = work * gpus * rng.lognormal(0, 0.7, len(jobs))
    key = {
        "recorded": submit + rng.exponential(7200, len(jobs)),
        "edf": np.where(np.isfinite(far), far - 1e12, submit),
        "deadline-qos": np.where(np.isfinite(far), far - 1e12, submit),
        "las": size,
        "aemon": size * 1.2,
        "tias@off": np.where(np.isfinite(far) & (far - submit < 30000), far - 1e12, size),
        "tias@on": np.where(np.isfinite(far) & (far - submit < 90000), far - 1e12, size),
        "oracle-srtf": work,
        "oracle-laxity": far - work,
    }.get(name, submit)
    return _pool(jobs, np.asarray(key))


def make_run(
    n: int = 300, policies: tuple[str, ...] = POLICIES, share: float = 0.35, assumed: int = 0
) -> tuple[DryRun, Workload]:
    """A dry run of n jobs and its workload."""
    jobs = make_jobs(n, share=share)
    results = {p: make_result(jobs, p, starts(jobs, p, i), i) for i, p in enumerate(policies)}
    examples = [
        Refused("sacct.txt", 17, "time that cannot be read", NASTY),
        Refused("sacct.txt", 5, "deadline before submit", "deadline=2020-01-01"),
    ]
    refused = Refusals(by_reason=Counter({"time that cannot be read": 12, "cut line": 3}), examples=examples)
    run = DryRun(
        input={
            "files": 1,
            "rows": n + 115,
            "jobs": n,
            "refused": 15,
            "refused_by_reason": dict(refused.by_reason),
            "left_out": {"steps": 88, "pending": 12},
        },
        deadlines={
            "found": int(jobs["deadline"].notna().sum()),
            "refused": 4,
            "assumed": assumed,
            "by_source": {"comment": int(jobs["deadline"].notna().sum())},
            "refused_by_reason": {"deadline before submit": 4},
        },
        cluster={"nodes": 8, "gpus": GPUS, "inferred": True, "source": "most GPUs in use at once"},
        replayed_vs_recorded={"start_tau": 0.913, "start_error_median_s": 754.0, "jobs": n},
        policies=results,
        settings={"preemption": "both", "consent": 0.4, "interval_s": 60, "cap": float("inf")},
        notes=["A history holds only the last text of each comment.", "Nodes are assumed to be alike."],
        refused_examples=examples,
        elapsed_s=1.25,
    )
    return run, Workload(jobs, False, 1, n + 115, refused, Counter({"steps": 88}), list(run.notes))
