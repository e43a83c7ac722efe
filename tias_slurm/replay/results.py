"""What a replay found: one record per policy, and the document that holds them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tias_slurm.jobs import Floats, Ints

Metrics = dict[str, float | int | None]


@dataclass(frozen=True)
class Series:
    """Samples over time. Shapes (m,)."""

    time: Floats  # epoch seconds, ascending
    waiting_jobs: Ints  # GPU jobs that wait
    waiting_gpus: Floats  # GPUs that they ask for, by weight
    used_gpus: Floats  # by weight


@dataclass(frozen=True)
class Outcome:
    """What became of each job under one policy. Shapes (n,), rows as in Workload.jobs."""

    start: Floats  # start of the last run; NaN: never
    end: Floats  # NaN: never ended
    executed: Floats  # seconds of the job's life that it held its resources, over all runs
    lost_gpu_s: Floats  # GPU-seconds of work redone and restart time, by weight
    requeues: Ints
    fits: npt.NDArray[np.bool_]  # False: asks for more than any node set of the cluster has


@dataclass(frozen=True)
class PolicyResult:
    """One policy's run."""

    name: str  # as given, for example "tias@off"
    title: str  # one phrase for people
    realisable: bool  # False: it knows the future
    preemption: bool
    outcome: Outcome
    series: Series
    metrics: Metrics  # the keys of policies.NAME in the JSON document
    writes: int
    notes: tuple[str, ...] = ()


@dataclass
class DryRun:
    """Everything that the table, the JSON document and the report are made of."""

    input: dict[str, Any]  # files, rows, jobs, refused, refused_by_reason{}, left_out{}
    deadlines: dict[str, Any]  # found, refused, assumed, by_source{}, refused_by_reason{}
    cluster: dict[str, Any]  # nodes, gpus, inferred, source (how it is known)
    replayed_vs_recorded: dict[str, Any]  # start_tau, start_error_median_s, jobs
    policies: Mapping[str, PolicyResult]
    settings: dict[str, Any]  # what the run was made with: preemption, consent, costs, interval
    notes: list[str] = field(default_factory=list)  # assumptions and limits, for people
    refused_examples: list[Any] = field(default_factory=list)  # workload.Refused, of rows and of claims
    elapsed_s: float = 0.0
