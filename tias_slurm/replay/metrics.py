"""The measures of one schedule: the same for what was recorded and for every policy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats
from tias_slurm.replay.results import Metrics, Outcome, Series
from tias_slurm.replay.workload import weight_of


def measure(jobs: pd.DataFrame, outcome: Outcome, cluster_gpus: float, writes: int) -> Metrics:
    """Measures over the GPU jobs that ran to an end.

    missed: end > deadline, whatever the state. JCT: end - first submit. Jobs cancelled while waiting and jobs
    without GPUs are in no measure. A rate over nothing is None. Times in seconds. GPUs count by their
    weights, in GPU-hours and in `cluster_gpus`.
    """
    gpus = weight_of(jobs)
    submit = jobs["first_submit"].to_numpy(np.float64)
    deadline = jobs["deadline"].to_numpy(np.float64)
    runs = (jobs["runs"].to_numpy() > 0) & (gpus > 0)
    ended = runs & np.isfinite(outcome.end)
    claims = ended & np.isfinite(deadline)
    others = ended & ~np.isfinite(deadline)
    jct = outcome.end - submit
    missed = claims & (outcome.end > deadline)
    service = jobs["work"].to_numpy(np.float64) * gpus
    span = outcome.end[ended].max() - submit[ended].min() if ended.any() else 0.0
    used = float((outcome.executed * gpus)[ended].sum())
    return {
        "deadline_jobs": int(claims.sum()),
        "missed": int(missed.sum()),
        "deadline_miss_rate": _ratio(missed.sum(), claims.sum()),
        "deadline_miss_rate_gpu_weighted": _ratio(service[missed].sum(), service[claims].sum()),
        "deadline_jct_mean_s": _mean(jct[claims]),
        "non_deadline_jobs": int(others.sum()),
        "jct_mean_s": _mean(jct[others]),
        "jct_median_s": float(np.median(jct[others])) if others.any() else None,
        "jct_p95_s": float(np.percentile(jct[others], 95)) if others.any() else None,
        "wait_mean_s": _mean((jct - outcome.executed)[others]),
        "gpu_utilisation": _ratio(used, cluster_gpus * span),
        "requeues": int(outcome.requeues[runs].sum()),
        "gpu_hours_lost": float(outcome.lost_gpu_s[runs].sum() / 3600.0),
        "gpu_hours": float(service[ended].sum() / 3600.0),
        "writes": writes,
        "unfinished": int((runs & ~ended).sum()),
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def recorded_outcome(jobs: pd.DataFrame) -> Outcome:
    """What really happened. A job that still runs at the end of the export counts with its time so far."""
    start = jobs["start"].to_numpy(np.float64)
    work = jobs["work"].to_numpy(np.float64)
    end = jobs["end"].to_numpy(np.float64)
    ran = jobs["runs"].to_numpy() > 0
    lost = jobs["lost_work"].to_numpy(np.float64)
    return Outcome(
        start=np.where(ran, start, np.nan),
        end=np.where(ran, np.where(np.isfinite(end), end, start + work), np.nan),
        executed=np.where(ran, work + lost, 0.0),
        lost_gpu_s=np.where(ran, lost * weight_of(jobs), 0.0),
        requeues=np.maximum(jobs["runs"].to_numpy(np.int64) - 1, 0),
        fits=np.ones(len(jobs), dtype=np.bool_),
    )


def possible(jobs: pd.DataFrame) -> Bools:
    """Jobs that run no longer than from their first submit to their deadline: nobody could have met the
    others'. True without a deadline. Shape (n,)."""
    window = jobs["deadline"].to_numpy(np.float64) - jobs["first_submit"].to_numpy(np.float64)
    return np.asarray(~(jobs["work"].to_numpy(np.float64) > window), dtype=np.bool_)


def sample_times(jobs: pd.DataFrame, samples: int = 500) -> Floats:
    """Sample times from the first submit on: `samples` up to the last one, and as many again for the tail."""
    submit = jobs["first_submit"].to_numpy(np.float64)
    if not len(submit):
        return np.empty(0)
    first, last = float(submit.min()), float(submit.max())
    step = max((last - first) / samples, 60.0)
    return np.asarray(first + step * np.arange(2 * samples), dtype=np.float64)


def series_of(jobs: pd.DataFrame, outcome: Outcome, times: Floats) -> Series:
    """Queue and use over time of a schedule in which each job ran once, from start to end."""
    gpus = weight_of(jobs)
    submit = jobs["first_submit"].to_numpy(np.float64)
    rows = (gpus > 0) & np.isfinite(outcome.start) & np.isfinite(outcome.end)
    if not rows.any():
        return Series(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
    end = outcome.end[rows]
    times = times[times <= end.max()]
    ones = np.ones(int(rows.sum()))
    g, s, b = gpus[rows], submit[rows], outcome.start[rows]
    return Series(
        times,
        _level(s, b, ones, times).astype(np.int64),
        _level(s, b, g, times),
        _level(b, end, g, times),
    )


def _level(since: Floats, until: Floats, amount: Floats, times: Floats) -> Floats:
    """Sum of the amounts whose interval [since, until) holds each time."""

    def upto(moments: Floats) -> Floats:
        order = np.argsort(moments, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(amount[order])])
        return np.asarray(total[np.searchsorted(moments[order], times, side="right")], dtype=np.float64)

    return np.round(upto(since) - upto(until), 6)


def fidelity(jobs: pd.DataFrame, replayed: Outcome) -> dict[str, float | int | None]:
    """How well Slurm as replayed reproduces the recorded starts, over GPU jobs that ran once.

    start_tau: Kendall's tau-b between the two orders of starts, None without scipy; start_error_median_s:
    median absolute error.
    """
    recorded = jobs["start"].to_numpy(np.float64)
    rows = (
        (jobs["runs"].to_numpy() == 1)
        & (weight_of(jobs) > 0)
        & np.isfinite(recorded)
        & np.isfinite(replayed.start)
    )
    n = int(rows.sum())
    if n < 2:
        return {"start_tau": None, "start_error_median_s": None, "jobs": n}
    try:
        from scipy.stats import kendalltau

        tau = float(kendalltau(recorded[rows], replayed.start[rows]).statistic)
    except ImportError:
        tau = np.nan  # `report` has to work where only the daemon is installed
    return {
        "start_tau": tau if np.isfinite(tau) else None,
        "start_error_median_s": float(np.median(np.abs(recorded[rows] - replayed.start[rows]))),
        "jobs": n,
    }
