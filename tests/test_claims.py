"""Claims: where they come from, who may make them, and the assumed ones."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.config import Config
from tias_slurm.errors import InputError
from tias_slurm.replay.assumptions import assume_deadlines, calendar, draws, parse_assumption
from tias_slurm.replay.claims import LAST_TEXT, assign_consent, find_deadlines
from tias_slurm.replay.workload import CLAIM_COLUMNS, COLUMNS, Refusals, Workload

UTC = ZoneInfo("UTC")
SUBMIT = 1_790_000_000.0
HOUR = 3600.0


def history(*rows: dict[str, Any], is_trace: bool = False) -> Workload:
    """Jobs of one GPU that ran for an hour, but for what each row says."""
    empty: dict[str, Any] = {"object": "", "float64": 0.0, "int64": 0}
    usual = {name: empty[dtype] for name, (dtype, _) in COLUMNS.items()}
    usual |= {"first_submit": SUBMIT, "work": HOUR, "gpus": 1, "runs": 1, "native_deadline": np.nan}
    frame = pd.DataFrame([{**usual, "job_id": str(i), **row} for i, row in enumerate(rows)])
    frame = frame.astype({name: dtype for name, (dtype, _) in COLUMNS.items()})
    return Workload(frame, is_trace=is_trace, files=1, rows=len(frame), refused=Refusals())


def config(**deadlines: object) -> Config:
    return Config.model_validate({"deadlines": deadlines})


def test_sources_and_their_order() -> None:
    work = history(
        {
            "comment": "deadline=+1h",
            "submit_line": "sbatch --comment=deadline=+9h x",
            "native_deadline": SUBMIT + 5,
        },
        {"comment": "rule_x", "submit_line": "sbatch --comment=deadline=+2h,requeue=yes x"},
        {"comment": '{"gpu_util": 3}', "native_deadline": SUBMIT + 3 * HOUR},
        {
            "comment": "deadline=+1",
            "submit_line": "sbatch --comment=deadline=+2h x",
            "native_deadline": SUBMIT + 5,
        },
        {
            "comment": "requeue=no,checkpoint=15m",
            "submit_line": "sbatch --comment=deadline=+4h,requeue=yes x",
        },
        {"submit_line": "sbatch --comment=deadline=18:00 x"},
        {},
    )
    report = find_deadlines(work, Config(), UTC)
    jobs = work.jobs
    assert set(CLAIM_COLUMNS) <= set(jobs.columns)
    assert {name: str(jobs[name].dtype) for name in CLAIM_COLUMNS} == {
        n: d for n, (d, _) in CLAIM_COLUMNS.items()
    }
    hours = (jobs.deadline.to_numpy() - SUBMIT) / HOUR
    np.testing.assert_equal(hours, [1, 2, 3, np.nan, 4, np.nan, np.nan])
    assert jobs.consent.tolist() == [-1, 1, -1, -1, 0, -1, -1]
    np.testing.assert_equal(jobs.checkpoint.to_numpy()[4:6], [900.0, np.nan])
    assert report.found == 4
    assert report.by_source == {"comment": 1, "submit_line": 2, "native": 1}
    assert report.refused.by_reason == {"no unit": 1, "clock time only": 1}
    assert [(r.file, r.detail) for r in report.refused.examples] == [
        ("comment of job 3", "deadline=+1"),
        ("submit line of job 5", "sbatch --comment=deadline=18:00 x"),
    ]
    assert "+36h" in report.hints["no unit"]
    assert (report.consent_yes, report.consent_no, report.checkpoints) == (1, 1, 1)
    assert report.notes == [LAST_TEXT]


def test_jobs_without_gpus_are_no_deadline_jobs() -> None:
    work = history(
        {"comment": "deadline=+1h,requeue=yes", "gpus": 0},
        {"comment": "deadline=soon", "gpus": 0},
        {"comment": "deadline=@5", "gpus": 0},
    )
    report = find_deadlines(work, Config(), UTC)
    assert work.jobs.deadline.isna().all()
    assert (report.found, report.refused.total, report.without_gpus) == (0, 0, 1)
    assert work.jobs.consent.tolist() == [1, -1, -1]


def test_limits_of_the_site() -> None:
    work = history(
        {"comment": "deadline=+5h", "account": "ml", "partition": "gpu"},
        {"comment": "deadline=+5h", "account": "bio", "partition": "gpu"},
        {"comment": "deadline=+1h", "account": "ml", "partition": "gpu"},
        {"comment": "deadline=+50h", "account": "ml", "partition": "gpu"},
        {"comment": f"deadline=@{SUBMIT:.0f}", "account": "ml", "partition": "gpu"},
        {"native_deadline": SUBMIT - 1, "account": "ml", "partition": "gpu"},
    )
    limits = config(accounts=["ml"], partitions=["gpu"], min_window_s=7200, max_window_s=36_000)
    report = find_deadlines(work, limits, UTC)
    assert report.found == 1
    assert report.refused.by_reason == {"account may not": 1, "too near": 1, "too far": 1, "already past": 2}


def test_other_key_and_other_refusals() -> None:
    work = history({"comment": "due=+5h,requeue=maybe"}, {"comment": "deadline=+5h checkpoint=x"})
    report = find_deadlines(work, config(key="due"), UTC)
    assert (report.found, report.refused.total) == (1, 0)
    assert report.refused_other.by_reason == {"requeue: not yes or no": 1, "checkpoint: not a duration": 1}


def test_deadlines_of_a_trace() -> None:
    work = history({}, {"first_submit": 100.0}, {"first_submit": 100.0}, is_trace=True)
    work.jobs["deadline"] = [np.nan, 100.0, 200.0]
    report = find_deadlines(work, Config(), UTC)
    np.testing.assert_equal(work.jobs.deadline.to_numpy(), [np.nan, np.nan, 200.0])
    assert report.by_source == {"trace": 1}
    assert report.refused.by_reason == {"already past": 1}
    assert (work.jobs.consent == -1).all()


def test_assumed_deadlines() -> None:
    work = history(*[{"work": float(i)} for i in range(2000)], {"gpus": 0}, {"comment": "deadline=+1h"})
    find_deadlines(work, Config(), UTC)
    count, note = assume_deadlines(work, "share=0.3,slack=0.5..2,seed=1")
    jobs = work.jobs
    given_to = jobs.deadline.notna().to_numpy()
    assert given_to.sum() == count + 1
    assert 500 < count < 700
    assert not given_to[0]  # it never ran
    assert not given_to[2000]  # no GPUs
    assert jobs.deadline[2001] == SUBMIT + HOUR  # its own
    slack = (jobs.deadline - SUBMIT)[given_to][:-1] / jobs.work[given_to][:-1] - 1
    assert 0.5 <= slack.min() < 0.55
    assert 1.95 < slack.max() <= 2
    assert abs(slack.mean() - 1.25) < 0.06
    assert note.startswith(f"{count} deadlines are assumed")
    assert "share=0.3,slack=0.5..2,seed=1" in note


def test_draws_depend_on_the_job_alone() -> None:
    work = history(*[{} for _ in range(300)])
    every = draws(work, 7, "deadline")
    work.jobs = work.jobs.iloc[::-3].reset_index(drop=True)
    some = draws(work, 7, "deadline")
    for a, b in zip(every, some, strict=True):
        assert (a[::-3] == b).all()
        assert ((a >= 0) & (a < 1)).all()
    assert not np.allclose(every[0], every[1])
    assert not np.allclose(draws(work, 8, "deadline")[0], some[0])
    assert not np.allclose(draws(work, 7, "consent")[0], some[0])


def test_consent() -> None:
    work = history(*[{} for _ in range(1000)])
    assert assign_consent(work, 1, 1) == 1000
    few = assign_consent(work, 0.2, 1)
    assert 150 < few < 250
    agreed = work.jobs.consent.to_numpy() == 1
    assign_consent(work, 0.5, 1)
    assert (work.jobs.consent.to_numpy()[agreed] == 1).all()  # more consent takes none back
    assert assign_consent(work, 0, 1) == 0
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="0 to 1"):
            assign_consent(work, bad, 1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "unknown key"),
        ("shares=1", "did you mean share"),
        ("share=2", "0 to 1"),
        ("share=nan", "0 to 1"),
        ("share=0.1,share=0.2", "twice"),
        ("slack=1..0", "smaller to the larger"),
        ("slack=-1..0", "LOW..HIGH"),
        ("slack=1,slack=2", "twice"),
        ("seed=1.5", "whole number"),
        ("seed", "whole number"),
        ("kind=moon", "duration or calendar"),
        ("kind=calendar,slack=1", "no slack"),
    ],
)
def test_bad_assumptions(spec: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_assumption(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0, 10), st.integers(0, 10**9))
def test_an_assumption_is_read_as_written(share: float, one: float, two: float, seed: int) -> None:
    low, high = sorted((round(one, 3), round(two, 3)))
    found = parse_assumption(f"seed={seed}, slack={low}..{high} ,share={share:.6f}")
    assert (found.slack_low, found.slack_high, found.seed) == (low, high, seed)
    assert found.share == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("submitted", "pick", "due"),
    [
        ("2026-11-30T07:30", 0.0, "2026-11-30T09:00"),  # a Monday
        ("2026-11-30T08:30", 0.3, "2026-12-01T09:00"),  # 9:00 is too near
        ("2026-11-30T17:00", 0.4, "2026-11-30T18:00"),
        ("2026-11-30T17:01", 0.6, "2026-12-01T18:00"),
        ("2026-11-30T12:00", 0.7, "2026-12-04T18:00"),
        ("2026-12-04T16:00", 0.99, "2026-12-04T18:00"),  # a Friday
        ("2026-12-04T17:30", 0.99, "2026-12-11T18:00"),
        ("2026-10-24T20:00", 0.1, "2026-10-25T09:00"),  # over the end of summer time
    ],
)
def test_calendar_deadlines(submitted: str, pick: float, due: str) -> None:
    zone = ZoneInfo("Europe/Berlin")
    at, then = (datetime.fromisoformat(t).replace(tzinfo=zone) for t in (submitted, due))
    assert datetime.fromtimestamp(calendar(at.timestamp(), pick, zone), zone) == then


def test_calendar_deadlines_do_not_know_durations() -> None:
    ends = []
    for hours in (0.5, 500):
        work = history(*[{"work": hours * HOUR} for _ in range(40)])
        find_deadlines(work, Config(), UTC)
        count, note = assume_deadlines(work, "kind=calendar,share=1,seed=3", UTC)
        assert count == 40
        assert "kind=calendar,share=1,seed=3" in note
        ends.append(work.jobs["deadline"].tolist())
    assert ends[0] == ends[1]
    assert len(set(ends[0])) > 1


@given(st.text(max_size=30))
def test_no_assumption_breaks_it(spec: str) -> None:
    try:
        found = parse_assumption(spec)
    except InputError:
        return
    assert 0 <= found.share <= 1
    assert 0 <= found.slack_low <= found.slack_high
