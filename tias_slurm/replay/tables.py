"""What each policy did to each job: columns for jobs.parquet and the worst-hit lists of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.replay.output import need_extra, replacing
from tias_slurm.replay.results import Outcome, PolicyResult
from tias_slurm.replay.workload import weight_of

ROW_GROUP = 1 << 20
TEXTS = ("job_id", "policy", "user", "partition")


@dataclass(frozen=True)
class JobFacts:
    """The columns of the jobs that no policy changes. Shapes (n,)."""

    gpus: Ints
    weight: Floats  # what these, or its shards, count for; 0: no GPU job
    submit: Floats
    deadline: Floats  # NaN: none


@dataclass(frozen=True)
class Fate:
    """What one policy did to the jobs, seconds. Shapes (n,); NaN for a job that did not run to an end."""

    jct: Floats
    wait: Floats
    lateness: Floats  # end - deadline; NaN also without a deadline or without GPUs
    ran: Bools  # GPU jobs that ran to an end: the ones that the measures count


def facts(jobs: pd.DataFrame) -> JobFacts:
    """The job columns as arrays. A workload that no claims were read for has no deadlines."""
    n = len(jobs)
    deadline = jobs["deadline"].to_numpy(np.float64) if "deadline" in jobs else np.full(n, np.nan)
    return JobFacts(
        jobs["gpus"].to_numpy(np.int64),
        weight_of(jobs),
        jobs["first_submit"].to_numpy(np.float64),
        np.asarray(deadline),
    )


def fate(job: JobFacts, outcome: Outcome) -> Fate:
    """JCT, wait and lateness of each job. A job cancelled while waiting has none of them."""
    ended = np.isfinite(outcome.start) & np.isfinite(outcome.end)
    jct = np.where(ended, outcome.end - job.submit, np.nan)
    ran = ended & (job.weight > 0)
    return Fate(jct, jct - outcome.executed, np.where(ran, outcome.end - job.deadline, np.nan), ran)


def texts(column: pd.Series[Any]) -> list[str]:
    """A text column as valid Unicode strings; missing values as ''."""
    values = ["" if v is None or v != v else str(v) for v in column.to_numpy(dtype=object)]
    return [v if v.isascii() else v.encode("utf-8", "replace").decode() for v in values]


def largest(values: Floats, keep: int) -> Ints:
    """Rows of the largest positive values, largest first, ties in row order. Shape (k,), k <= keep."""
    rows = np.flatnonzero(values > 0)  # NaN is not
    if len(rows) > keep:
        limit = np.partition(values[rows], len(rows) - keep)[len(rows) - keep]
        rows = rows[values[rows] >= limit]
    return rows[np.argsort(-values[rows], kind="stable")][:keep].astype(np.int64)


def write_jobs(path: Path, jobs: pd.DataFrame, policies: Mapping[str, PolicyResult]) -> None:
    """Write one row per job and policy: policies in the run's order, jobs in input order in each.

    Times are seconds in the input's own clock (epoch seconds of a history), NaN is null. `missed` is
    null without a deadline, without GPUs, and for a job that did not run to an end. The same rows give
    the same bytes under one version of pyarrow. InputError if pyarrow is missing or path is not writable.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        raise need_extra("pyarrow") from None

    kinds = {
        **dict.fromkeys(TEXTS, pa.string()),
        "gpus": pa.int64(),
        "weight": pa.float64(),
        **dict.fromkeys(("submit", "deadline", "start", "end", "wait", "jct"), pa.float64()),
        "missed": pa.bool_(),
        "requeues": pa.int64(),
        "lost_gpu_s": pa.float64(),
    }
    schema = pa.schema([pa.field(k, t) for k, t in kinds.items()])
    job = facts(jobs)
    n = len(jobs)

    def reals(values: Floats) -> Any:
        return pa.array(values, pa.float64(), mask=np.isnan(values))

    fixed = {k: pa.array(texts(jobs[k]), pa.string()) for k in ("job_id", "user", "partition")}
    fixed["gpus"], fixed["weight"] = pa.array(job.gpus), pa.array(job.weight)
    fixed["submit"], fixed["deadline"] = reals(job.submit), reals(job.deadline)
    with (
        replacing(path) as temp,
        pq.ParquetWriter(
            temp,
            schema,
            version="2.6",
            compression="zstd",
            use_dictionary=list(TEXTS),
            store_schema=False,
            write_statistics=True,
        ) as writer,
    ):
        for name, p in policies.items():
            out, end = p.outcome, fate(job, p.outcome)
            columns = {
                **fixed,
                "policy": pa.array([name] * n, pa.string()),
                "start": reals(out.start),
                "end": reals(out.end),
                "wait": reals(end.wait),
                "jct": reals(end.jct),
                "missed": pa.array(end.lateness > 0, mask=np.isnan(end.lateness)),
                "requeues": pa.array(out.requeues.astype(np.int64)),
                "lost_gpu_s": reals(out.lost_gpu_s),
            }
            table = pa.Table.from_arrays([columns[k] for k in kinds], schema=schema)
            writer.write_table(table, row_group_size=ROW_GROUP)
