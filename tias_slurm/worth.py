"""What the daemon was worth: how deadlines came out in life, and in a replay of the same jobs without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from tias_slurm.jobs import Bools
from tias_slurm.replay import metrics
from tias_slurm.replay.results import DryRun, Outcome
from tias_slurm.replay.tables import facts, fate
from tias_slurm.replay.wording import plural, versus, worse
from tias_slurm.replay.workload import Workload

# the measures that mean something of a part of the jobs
MEASURES: Final = (
    "deadline_jobs", "missed", "deadline_miss_rate", "deadline_miss_rate_gpu_weighted", "deadline_jct_mean_s",
    "non_deadline_jobs", "jct_mean_s", "jct_median_s", "jct_p95_s", "wait_mean_s", "requeues",
    "gpu_hours_lost", "gpu_hours", "unfinished",
)  # fmt: skip
LIFE, WITHOUT = "recorded", "multifactor"
SAID: Final = {LIFE: "the daemon", WITHOUT: "the replay without it"}


@dataclass(frozen=True)
class Verdicts:
    """How deadlines came out in two schedules, as rows of the jobs: of those that ended in both."""

    met_both: list[int]
    missed_both: list[int]
    only_first: list[int]  # met in the first alone
    only_second: list[int]

    @property
    def agree(self) -> int:
        """Jobs of which both say the same."""
        return len(self.met_both) + len(self.missed_both)

    @property
    def differ(self) -> int:
        """Jobs of which they do not."""
        return len(self.only_first) + len(self.only_second)


def ended(jobs: pd.DataFrame, since: float, until: float) -> Bools:
    """Jobs that ran and came to their end in life in (since, until], epoch s. Shape (n,)."""
    end = jobs["end"].to_numpy(np.float64)
    # who was requeued last waits to run again
    over = (jobs["runs"].to_numpy() > 0) & (jobs["state"].to_numpy() != "REQUEUED")
    return np.asarray(over & (end > since) & (end <= until), dtype=np.bool_)


def as_they_stood(work: Workload, since: float) -> Workload:
    """The jobs such that a replay finds at `since` what there was: whoever ran is there from the start of
    that run on, whoever waited cannot start before, and what was saved before needs no doing again. What
    ended earlier is not in the history, and they would find an empty cluster. Needs the columns of
    remembered.take_times."""
    jobs = work.jobs.copy()
    eligible, start, first_start, submit = (
        jobs[c].to_numpy(np.float64) for c in ("eligible", "start", "first_start", "first_submit")
    )
    old, ran = submit < since, jobs["runs"].to_numpy() > 0
    in_last, in_first = old & ran & (start < since), old & ran & (first_start < since)
    from_when = np.where(in_last, start, np.where(in_first, first_start, np.where(old, since, -np.inf)))
    jobs["eligible"] = np.maximum(eligible, from_when)
    jobs["work"] = jobs["last_work"] + np.where(in_last, 0.0, jobs["kept_work"])
    moved = int(old.sum())
    note = (
        f"{plural(moved, 'job')} ran or waited when the time began: in the replay nobody starts before that "
        "who had not"
    )
    return replace(work, jobs=jobs, notes=[*work.notes, *([note] if moved else [])])


def of_rows(outcome: Outcome, rows: Bools) -> Outcome:
    """What became of some of the jobs. `rows`: mask of shape (n,)."""
    return Outcome(**{name: getattr(outcome, name)[rows] for name in Outcome.__dataclass_fields__})


def measured(jobs: pd.DataFrame, outcome: Outcome, rows: Bools) -> dict[str, Any]:
    """The measures over some of the jobs."""
    found = metrics.measure(jobs[rows], of_rows(outcome, rows), 0, 0)
    return {name: found[name] for name in MEASURES}


def lived(jobs: pd.DataFrame, since: float, until: float) -> dict[str, Any]:
    """How the jobs came out that ended in (since, until], from what really happened."""
    rows = ended(jobs, since, until)
    found = measured(jobs, metrics.recorded_outcome(jobs), rows)
    late = fate(facts(jobs), metrics.recorded_outcome(jobs)).lateness
    lost = rows & ~np.isnan(late) & ~metrics.possible(jobs)
    return {
        **found,
        "met": found["deadline_jobs"] - found["missed"],
        "impossible": int(lost.sum()),
        "impossible_jobs": _names(jobs, np.flatnonzero(lost).tolist()),
        "ended_well": int((jobs["state"].to_numpy() == "COMPLETED")[rows].sum()),
        "still_running": int(
            (np.isnan(jobs["end"].to_numpy(np.float64)) & (jobs["runs"].to_numpy() > 0)).sum()
        ),
    }


def verdicts(jobs: pd.DataFrame, first: Outcome, second: Outcome, rows: Bools) -> Verdicts:
    """How the deadlines of some of the jobs came out in two schedules."""
    late, other = (fate(facts(jobs), outcome).lateness for outcome in (first, second))
    both = rows & ~np.isnan(late) & ~np.isnan(other)

    def which(a: bool, b: bool) -> list[int]:
        return [int(r) for r in np.flatnonzero(both & ((late > 0) == a) & ((other > 0) == b))]

    return Verdicts(which(False, False), which(True, True), which(False, True), which(True, False))


def compared(
    run: DryRun, work: Workload, stood: Workload, ours: str, since: float, until: float
) -> dict[str, Any]:
    """What the replays of the jobs as they stood say, beside the record. `ours`: the name of that of tias."""
    jobs, rows = work.jobs, ended(work.jobs, since, until)
    before = jobs["work"].to_numpy(np.float64) - stood.jobs["work"].to_numpy(np.float64)
    outcomes = {
        name: replace(p.outcome, executed=p.outcome.executed + before) for name, p in run.policies.items()
    }
    outcomes[LIFE] = life = metrics.recorded_outcome(jobs)
    measures = {name: measured(jobs, outcome, rows) for name, outcome in outcomes.items()}
    part = replace(
        run,
        policies={
            said: replace(run.policies[name], metrics={**run.policies[name].metrics, **measures[name]})
            for name, said in SAID.items()
        },
    )
    document: dict[str, Any] = {
        "policies": measures,
        "ours": ours,
        "findings": [x for x in (versus(part, *SAID.values()), worse(part, *SAID.values())) if x],
    }
    for name in (WITHOUT, ours):
        v = verdicts(jobs, life, outcomes[name], rows)
        document["without" if name == WITHOUT else "model"] = {
            "policy": name,
            "deadline_jobs": v.agree + v.differ,
            "met_in_both": len(v.met_both),
            "missed_in_both": len(v.missed_both),
            "met_only_in_life": len(v.only_first),
            "met_only_in_replay": len(v.only_second),
            "jobs_met_only_in_life": _names(jobs, v.only_first),
            "jobs_met_only_in_replay": _names(jobs, v.only_second),
            **metrics.fidelity(jobs[rows], of_rows(outcomes[name], rows)),
        }
    return document


def _names(jobs: pd.DataFrame, rows: list[int]) -> list[str]:
    return [str(name) for name in jobs["job_id"].iloc[rows]]
