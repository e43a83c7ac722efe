"""Accounting records checked one by one: doubtful times settled, contradictions refused."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import product

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools, Floats
from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm.records import Raw, Records
from tias_slurm.slurm.values import LONGEST_RUN, TOO_LONG

# A job that ended so has run; one in another state may have left while it waited.
HAS_RUN = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED")
SLACK = (
    3660.0  # by which Elapsed may exceed Start to End: an hour of a DST change that the export does not show
)


def settle(r: Raw) -> int:
    """Decide, in place, each time in an hour that happens twice; returns how many records had one.

    The reading in which End - Start is Elapsed (and what was suspended) and Submit <= Eligible <= Start <=
    End; where that leaves both, the earlier.
    """
    names = ("submit", "eligible", "start", "end")
    doubtful = np.zeros(len(r), bool)
    for x in names:
        doubtful |= getattr(r, x + "_late") > getattr(r, x)
    for i in np.flatnonzero(doubtful).tolist():
        best: tuple[tuple[float, float], tuple[float, ...]] | None = None
        run = r.elapsed[i] + np.nan_to_num(r.suspended[i])
        for at in product(*((getattr(r, x)[i], getattr(r, x + "_late")[i]) for x in names)):
            submit, eligible, start, end = at
            misfit = abs(end - start - run)
            order = sum(
                max(0.0, a - b)
                for a, b in ((submit, eligible), (submit, start), (eligible, start), (start, end))
            )
            score = (0.0 if math.isnan(misfit) else misfit, order)
            if best is None or score < best[0]:
                best = score, at
        assert best is not None
        for x, t in zip(names, best[1], strict=True):
            getattr(r, x)[i] = t
    return int(doubtful.sum())


def check(r: Raw, refused: Refusals, file: str) -> Records:
    """Refuse records that contradict themselves; complete an End that follows from Start and Elapsed.

    A record that was cancelled while it waited has no Start afterwards, one that still runs no End.
    """
    code, words = pd.factorize(r.state)

    def among(*states: str) -> Bools:
        return np.isin(words.astype(object), states)[code] if len(words) else np.zeros(0, bool)

    pending, active, has_run = among("PENDING"), among("RUNNING", "SUSPENDED"), among(*HAS_RUN)
    ended = ~pending & ~active
    # Slurm gives what was cancelled while it waited None, Unknown or its End as the Start, by version.
    unstarted = ended & ~has_run & (r.start >= r.end) & ~(r.elapsed > 0) & ~r.allocated
    r.start[pending | unstarted] = math.nan
    r.end[pending | active] = math.nan
    started = ~np.isnan(r.start)
    derived = ended & started & np.isnan(r.end)
    r.end[derived] = (r.start + r.elapsed + np.nan_to_num(r.suspended))[derived]
    late_by_rounding = started & (r.start < r.submit) & (r.start >= r.submit - 1)
    r.start[late_by_rounding] = r.submit[late_by_rounding]
    run = r.end - r.start
    longest = np.fmax(run, r.elapsed)  # of a job that still runs, Elapsed alone

    reasons: list[tuple[str, Bools, Floats]] = [
        ("no submit time", np.isnan(r.submit), r.submit),
        ("runs but has no start time", active & ~started, r.start),
        ("runs but has no Elapsed", active & np.isnan(r.elapsed), r.elapsed),
        ("ended but has no end time", ended & np.isnan(r.end), r.end),
        ("ran but has no start time", ended & ~started & has_run, r.start),
        ("starts before its submit", started & (r.start < r.submit), r.start - r.submit),
        ("ends before its start", run < 0, run),
        ("ends before its submit", ended & (r.end < r.submit), r.end - r.submit),
        (TOO_LONG, longest > LONGEST_RUN, longest),
        ("Elapsed is longer than Start to End", r.elapsed > run + SLACK, r.elapsed - run),
    ]
    keep = np.ones(len(r), bool)
    for reason, hit, value in reasons:
        for i in np.flatnonzero(hit & keep & ~pending | hit & keep & (reason == "no submit time")).tolist():
            keep[i] = False
            detail = f"job {r.job_id[i]}, {r.state[i]}" + (
                "" if np.isnan(value[i]) else f", {value[i]:.0f} s"
            )
            refused.add(file, int(r.line[i]), reason, detail)
    work = np.where(np.isnan(r.elapsed), run - np.nan_to_num(r.suspended), r.elapsed)
    work = np.where(started, np.maximum(work, 0.0), 0.0)
    records = Records(work=work, **{f.name: getattr(r, f.name) for f in fields(Records) if f.name != "work"})
    return records if keep.all() else records.take(keep)
