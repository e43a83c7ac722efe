"""What every reader hands to the replay: one table of jobs, and an account of what was not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tias_slurm.errors import printable
from tias_slurm.gpu_weights import of_jobs, sharded
from tias_slurm.jobs import Floats, Ints

# One row a job, in input order; the replay's own key of a job is its row number.
# name -> (dtype, meaning)
COLUMNS: dict[str, tuple[str, str]] = {
    "job_id": ("object", "as a user knows it: 4711, 12_3, 123+0, or the trace's own"),
    "cluster": ("object", "Slurm's ClusterName, '' where unknown"),
    "user": ("object", "'' where unknown"),
    "account": ("object", "'' where unknown"),
    "partition": ("object", "'' where unknown; the partition it ran in, or a comma list while pending"),
    "qos": ("object", "'' where unknown"),
    "state": ("object", "base word of the last record: COMPLETED, CANCELLED, RUNNING, ..."),
    "first_submit": ("float64", "epoch seconds, of the first run"),
    "eligible": ("float64", "epoch seconds, of the first run; at least first_submit"),
    "start": ("float64", "epoch seconds, of the last run; NaN: never started, or not recorded (traces)"),
    "end": ("float64", "epoch seconds, of the last run (runs = 0: left); NaN: not ended, or not recorded"),
    "work": ("float64", "seconds executed in the last run; of a RUNNING job the run time so far"),
    "lost_work": ("float64", "seconds executed in earlier runs; where runs is 0, in all"),
    "runs": ("int64", "number of runs that started; 0: left while it waited, also after runs"),
    "gpus": ("int64", "whole GPUs, of all types"),
    "gpu_type": ("object", "'' untyped; of several types how many of each, as in a100=2,1g.5gb=1"),
    "shards": ("int64", "shards of GPUs, of the whole job; 0 also where unknown"),
    "cpus": ("int64", "0 where unknown"),
    "mem_mb": ("float64", "whole job; 0 where unknown"),
    "nodes": ("int64", "node count of the request or allocation; 0: names none"),
    "time_limit": ("float64", "seconds; inf: unlimited; NaN: unknown"),
    "comment": ("object", "text, '' where none"),
    "submit_line": ("object", "text, '' where none"),
    "native_deadline": ("float64", "epoch seconds of Slurm's own --deadline; NaN: none"),
}

# added by slurm.history.read_history(keep_nodes=True)
NODE_COLUMNS: dict[str, tuple[str, str]] = {
    "node_list": ("object", "host list of the last run, as in gn[01-03,7]; '' where none or unknown"),
}

# added by slurm.history.read_history(keep_ids=True)
ID_COLUMNS: dict[str, tuple[str, str]] = {
    "raw_id": ("int64", "JobIDRaw, by which the ledger knows the job; negative for one that is no number"),
    "first_start": ("float64", "epoch seconds, of the first run that the history has; NaN: none"),
}

# added by replay.claims
CLAIM_COLUMNS: dict[str, tuple[str, str]] = {
    "deadline": ("float64", "epoch seconds of an admitted claim; NaN: none"),
    "consent": ("int64", "1: requeue=yes, 0: requeue=no, -1: unsaid"),
    "checkpoint": ("float64", "seconds between checkpoints as the comment says; NaN: unsaid"),
}


def _shards(jobs: pd.DataFrame) -> Ints:
    return jobs["shards"].to_numpy(np.int64) if "shards" in jobs else np.zeros(len(jobs), dtype=np.int64)


def shards_alone(jobs: pd.DataFrame, weights: Mapping[str, float]) -> Ints:
    """Shards of the jobs that have nothing else and count as GPU jobs, 0 of others. Shape (n,)."""
    shards = _shards(jobs)
    return np.where(sharded(jobs["gpus"].to_numpy(np.int64), shards, weights), shards, 0)


def weigh_jobs(jobs: pd.DataFrame, weights: Mapping[str, float]) -> Floats:
    """What all GPUs of each job count for, by `[gpus] weights`; 0: no GPU job. Shape (n,)."""
    kinds = jobs["gpu_type"].tolist() if "gpu_type" in jobs else [""] * len(jobs)
    return of_jobs(jobs["gpus"].to_numpy(np.int64), kinds, _shards(jobs), weights)


def weight_of(jobs: pd.DataFrame) -> Floats:
    """The column `weight`; in a table that was not weighed each GPU counts 1. Shape (n,)."""
    return (jobs["weight"] if "weight" in jobs else jobs["gpus"]).to_numpy(np.float64)


@dataclass(frozen=True, slots=True)
class Refused:
    """One row (or claim) that was not taken, and why."""

    file: str
    line: int  # 1-based; of JSON: the index in jobs[], 1-based; 0: the file as a whole
    reason: str  # a short phrase of a fixed set, fit to count by
    detail: str = ""  # what stood there, shortened and printable


@dataclass
class Refusals:
    """Counts every refusal by reason; keeps the first `keep` of each reason for the report."""

    keep: int = 20
    by_reason: Counter[str] = field(default_factory=Counter)
    examples: list[Refused] = field(default_factory=list)

    def add(self, file: str, line: int, reason: str, detail: str = "") -> None:
        """Count one refusal."""
        self.by_reason[reason] += 1
        if self.by_reason[reason] <= self.keep:
            self.examples.append(Refused(file, line, reason, printable(detail)))

    @property
    def total(self) -> int:
        """All refusals."""
        return sum(self.by_reason.values())

    def update(self, others: Iterable[Refused]) -> None:
        """Count several."""
        for r in others:
            self.add(r.file, r.line, r.reason, r.detail)


@dataclass
class Workload:
    """Jobs to replay. `jobs` has the columns of COLUMNS (if asked for, NODE_COLUMNS and ID_COLUMNS; after
    replay.claims, CLAIM_COLUMNS).
    """

    jobs: pd.DataFrame
    is_trace: bool
    files: int
    rows: int  # rows seen in the input, refused ones and steps included
    refused: Refusals
    left_out: Counter[str] = field(default_factory=Counter)  # read, not replayed: steps, PENDING
    notes: list[str] = field(default_factory=list)  # what was assumed; shown with every result
