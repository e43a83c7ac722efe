"""Deadlines assumed for a study, where a history or a trace has none; seeded draws for each job."""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats
from tias_slurm.replay.workload import Workload, weight_of

Kind = Literal["duration", "calendar"]
# no calendar deadline lies nearer to the submit than this, s
NEAREST_S = 3600.0
FORMS = {
    "kind": "duration or calendar",
    "share": "a number from 0 to 1",
    "slack": "LOW..HIGH",
    "seed": "a whole number",
}


@dataclass(frozen=True, slots=True)
class Assumption:
    """Deadlines to give to a history that has none.

    duration: submit + duration x (1 + slack). calendar: the next 9:00, 18:00, or Friday 18:00, a third each
    and at least an hour away, whatever the duration, so that some cannot be met.
    """

    kind: Kind = "duration"
    share: float = 0.3  # of the GPU jobs that ran
    slack_low: float = 0.5  # uniform between these two
    slack_high: float = 2.0
    seed: int = 1

    def __str__(self) -> str:
        if self.kind == "calendar":
            return f"kind=calendar,share={self.share:g},seed={self.seed}"
        return f"share={self.share:g},slack={self.slack_low:g}..{self.slack_high:g},seed={self.seed}"


def parse_assumption(spec: str) -> Assumption:
    """Read "share=0.3,slack=0.5..2,seed=1" or "kind=calendar,share=0.3,seed=1".

    What is not said has the default. Raises InputError.
    """
    usual = "write for example share=0.3,slack=0.5..2,seed=1"
    values: dict[str, Any] = {}
    for part in spec.split(","):
        name, _, value = (p.strip() for p in part.partition("="))
        if name in values or (name == "slack" and "slack_low" in values):
            raise InputError(f"--assume-deadlines: {name} is there twice; {usual}")
        number = r"\d{1,9}(?:\.\d{1,9})?"
        if name == "share" and re.fullmatch(number, value, re.ASCII) and float(value) <= 1:
            values["share"] = float(value)
        elif name == "slack" and re.fullmatch(rf"{number}(?:\.\.{number})?", value, re.ASCII):
            low, _, high = value.partition("..")
            values["slack_low"], values["slack_high"] = float(low), float(high or low)
        elif name == "kind" and value in ("duration", "calendar"):
            values["kind"] = value
        elif name == "seed" and re.fullmatch(r"\d{1,18}", value, re.ASCII):
            values["seed"] = int(value)
        elif name in FORMS:
            raise InputError(f"--assume-deadlines: {name} must be {FORMS[name]}; {usual}")
        else:
            close = difflib.get_close_matches(name, FORMS, n=1)
            near = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"--assume-deadlines: unknown key {printable(name)!r}{near}; {usual}")
    found = Assumption(**values)
    if found.kind == "calendar" and "slack_low" in values:
        raise InputError("--assume-deadlines: calendar deadlines know no slack; leave one of the two out")
    if found.slack_low > found.slack_high:
        raise InputError(f"--assume-deadlines: slack goes from the smaller to the larger; {usual}")
    return found


def assume_deadlines(work: Workload, spec: str, zone: tzinfo = UTC) -> tuple[int, str]:
    """Give a share of the jobs with GPUs that ran, and have no deadline of their own, an assumed one.

    In place, after find_deadlines; `zone`: of calendar deadlines. Returns the number of assumed deadlines and
    a note for every output.
    The draw of a job depends on the seed, its id and its submit alone, not on the other jobs.
    Raises InputError on a bad `spec`.
    """
    assumed = parse_assumption(spec)
    jobs = work.jobs
    chosen, where = draws(work, assumed.seed, "deadline")
    duration = jobs["work"].to_numpy(np.float64)
    own = jobs["deadline"].to_numpy(np.float64)
    takes = (weight_of(jobs) > 0) & (duration > 0) & np.isnan(own) & (chosen < assumed.share)
    submit = jobs["first_submit"].to_numpy(np.float64)
    slack = assumed.slack_low + (assumed.slack_high - assumed.slack_low) * where
    due = submit + duration * (1 + slack)
    how = "deadline = submit + duration x (1 + slack)"
    if assumed.kind == "calendar":
        rows = np.flatnonzero(takes)
        due[rows] = [calendar(at, pick, zone) for at, pick in zip(submit[rows], where[rows], strict=True)]
        how = "deadline = the next 9:00, 18:00 or Friday 18:00"
    work.jobs["deadline"] = np.where(takes, due, own)
    count = int(takes.sum())
    note = f"{count} deadlines are assumed, not real ({assumed}): {how}"
    return count, note


def calendar(submit: float, pick: float, zone: tzinfo) -> float:
    """The deadline that a job submitted then gets, epoch s; `pick` in [0, 1) says which kind."""
    earliest = datetime.fromtimestamp(submit + NEAREST_S, zone)
    hour = 9 if pick < 1 / 3 else 18
    days = (4 - earliest.weekday()) % 7 if pick >= 2 / 3 else 0
    due = (earliest + timedelta(days=days)).replace(hour=hour, minute=0, second=0, microsecond=0)
    if due < earliest:
        due += timedelta(days=7 if pick >= 2 / 3 else 1)
    return due.timestamp()


def draws(work: Workload, seed: int, purpose: str) -> tuple[Floats, Floats]:
    """Two independent uniform numbers in [0, 1) for each job, shapes (n,).

    They depend on seed, purpose, cluster, job id and first submit alone: taking jobs out or reading the
    files in another order changes nobody's draw.
    """
    salt = f"{seed}\0{purpose}\0".encode()
    jobs = work.jobs
    digests = b"".join(
        hashlib.blake2b(salt + f"{c}\0{j}\0{s!r}".encode("utf-8", "replace"), digest_size=16).digest()
        for c, j, s in zip(jobs["cluster"], jobs["job_id"], jobs["first_submit"].tolist(), strict=True)
    )
    words = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    pairs = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return pairs[:, 0], pairs[:, 1]
