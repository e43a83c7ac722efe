"""Which jobs have a deadline, consent to be requeued, or checkpoints: found, or assumed for a study."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.assemble import claim_limits
from tias_slurm.config import Config
from tias_slurm.deadlines import Claim, Refusal, admit, own_keys, read_comment, read_submit_line
from tias_slurm.errors import InputError, printable
from tias_slurm.replay.assumptions import draws
from tias_slurm.replay.workload import Refusals, Workload, weigh_jobs

COMMENT: Final = "comment"
SUBMIT_LINE: Final = "submit_line"
NATIVE: Final = "native"
TRACE: Final = "trace"
LAST_TEXT: Final = (
    "a history holds only the last text of each comment: a deadline that was changed, or replaced by another "
    "tool, is not seen as it was"
)


@dataclass
class ClaimReport:
    """What was found. Only jobs with GPUs can be deadline jobs."""

    found: int = 0  # admitted
    by_source: Counter[str] = field(default_factory=Counter)  # admitted: comment, submit_line, native, trace
    refused: Refusals = field(default_factory=Refusals)  # of the deadline key; file: whose text it was
    refused_other: Refusals = field(default_factory=Refusals)  # of requeue= and checkpoint=
    hints: dict[str, str] = field(default_factory=dict)  # reason -> what to write instead
    without_gpus: int = 0  # good claims of jobs without GPUs, left out
    consent_yes: int = 0  # jobs that say requeue=yes
    consent_no: int = 0
    checkpoints: int = 0  # jobs that say checkpoint=
    notes: list[str] = field(default_factory=list)  # for people

    def refuse(self, job: str, source: str, refusal: Refusal, text: str) -> None:
        """Count one refusal, with the job and the text as its example."""
        where = self.refused if refusal.key == "deadline" else self.refused_other
        where.add(f"{source.replace('_', ' ')} of job {printable(job, 40)}", 0, refusal.code, text)
        self.hints.setdefault(refusal.code, refusal.text)


def find_deadlines(work: Workload, config: Config, zone: ZoneInfo) -> ClaimReport:
    """Add the columns deadline, consent and checkpoint (workload.CLAIM_COLUMNS) to `work.jobs`, in place.

    A deadline comes from Comment; else from --comment in SubmitLine; else from Slurm's own. If the Comment
    holds the key, it alone counts, even with a bad value. A trace's deadlines are its column `deadline`.
    All pass the limits of `config`. `zone`: of times without an offset.
    """
    report = ClaimReport()
    jobs = work.jobs
    n = len(jobs)
    deadline = np.full(n, np.nan)
    consent = np.full(n, -1, dtype=np.int64)
    checkpoint = np.full(n, np.nan)
    limits = claim_limits(config)
    submit = jobs["first_submit"].to_numpy(np.float64)
    gpus = weigh_jobs(jobs, config.gpus.weights)
    who = {name: jobs[name].tolist() for name in ("job_id", "account", "qos", "partition", "user")}

    def take(row: int, epoch: float, source: str, text: str) -> None:
        refusal = admit(
            epoch,
            first_submit=float(submit[row]),
            limits=limits,
            account=str(who["account"][row]),
            qos=str(who["qos"][row]),
            partition=str(who["partition"][row]),
            user=str(who["user"][row]),
        )
        if gpus[row] == 0:
            report.without_gpus += refusal is None
        elif refusal:
            report.refuse(str(who["job_id"][row]), source, refusal, text)
        else:
            deadline[row] = epoch
            report.found += 1
            report.by_source[source] += 1

    if work.is_trace and "deadline" in jobs.columns:
        given = jobs["deadline"].to_numpy(np.float64)
        for row in np.flatnonzero(~np.isnan(given)):
            take(int(row), float(given[row]), TRACE, f"{given[row]:.15g}")
    else:
        comments = jobs["comment"].to_numpy()
        lines = jobs["submit_line"].to_numpy()
        native = jobs["native_deadline"].to_numpy(np.float64)
        key = config.deadlines.key
        search = own_keys(key).search
        written = [
            bool(c and search(c)) or bool(s and search(s)) for c, s in zip(comments, lines, strict=True)
        ]
        for row in np.flatnonzero(np.array(written, dtype=bool) | ~np.isnan(native)):
            at = float(submit[row])
            first = read_comment(comments[row], key=key, first_submit=at, zone=zone)
            second = read_submit_line(lines[row], key=key, first_submit=at, zone=zone)
            source, text = (COMMENT, comments[row]) if first.holds_key else (SUBMIT_LINE, lines[row])
            claim = first if first.holds_key else second
            consent[row], checkpoint[row] = _terms(first, second)
            for refusal, origin, said in _refusals(first, second, comments[row], lines[row]):
                if refusal.key != "deadline" or gpus[row] > 0:
                    report.refuse(str(who["job_id"][row]), origin, refusal, said)
            if claim.deadline is not None:
                take(int(row), claim.deadline, source, text)
            elif not claim.holds_key and not math.isnan(native[row]):
                take(int(row), float(native[row]), NATIVE, f"{native[row]:.15g}")
        if report.by_source[COMMENT] or report.by_source[SUBMIT_LINE]:
            report.notes.append(LAST_TEXT)

    work.jobs["deadline"], work.jobs["consent"], work.jobs["checkpoint"] = deadline, consent, checkpoint
    report.by_source = +report.by_source
    report.consent_yes, report.consent_no = int((consent == 1).sum()), int((consent == 0).sum())
    report.checkpoints = int((~np.isnan(checkpoint)).sum())
    if report.without_gpus:
        report.notes.append(f"{report.without_gpus} deadlines of jobs without GPUs are left out")
    return report


def _terms(first: Claim, second: Claim) -> tuple[int, float]:
    """Consent and checkpoint: of the comment, else of the submit line."""

    def said(claim: Claim, key: str) -> bool:
        return any(r.key == key for r in claim.refusals)

    requeue = first.requeue if first.requeue is not None or said(first, "requeue") else second.requeue
    every = first.checkpoint_s
    if every is None and not said(first, "checkpoint"):
        every = second.checkpoint_s
    return (-1 if requeue is None else int(requeue)), (math.nan if every is None else every)


def _refusals(first: Claim, second: Claim, comment: str, line: str) -> list[tuple[Refusal, str, str]]:
    """Refusals that count, with source and text: a key of the comment hides the submit line's."""
    found = [(r, COMMENT, comment) for r in first.refusals]
    hidden = {r.key for r in first.refusals}
    hidden |= {"deadline"} if first.holds_key else set()
    hidden |= {"requeue"} if first.requeue is not None else set()
    hidden |= {"checkpoint"} if first.checkpoint_s is not None else set()
    return found + [(r, SUBMIT_LINE, line) for r in second.refusals if r.key not in hidden]


def assign_consent(work: Workload, share: float, seed: int) -> int:
    """Make a seeded share (0..1) of all jobs requeueable and the others not, whatever they say. In place.

    Returns how many are. A larger share adds jobs and takes none away. Raises InputError on a bad share.
    """
    if not 0 <= share <= 1:
        raise InputError(f"--consent {share:g}: a share goes from 0 to 1")
    agreed = draws(work, seed, "consent")[0] < share
    work.jobs["consent"] = agreed.astype(np.int64)
    return int(agreed.sum())
