"""Which jobs have a deadline, consent to be requeued, or checkpoints: found, or assumed for a study."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.assemble import claim_limits
from tias_slurm.config import Config
from tias_slurm.deadlines import Claim, Refusal, admit, own_keys, read_comment, read_submit_line
from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats
from tias_slurm.replay.workload import Refusals, Workload

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
    gpus = jobs["gpus"].to_numpy(np.int64)
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


@dataclass(frozen=True, slots=True)
class Assumption:
    """Deadlines to give to a history that has none: deadline = submit + duration x (1 + slack)."""

    share: float = 0.3  # of the GPU jobs that ran
    slack_low: float = 0.5  # uniform between these two
    slack_high: float = 2.0
    seed: int = 1

    def __str__(self) -> str:
        return f"share={self.share:g},slack={self.slack_low:g}..{self.slack_high:g},seed={self.seed}"


def parse_assumption(spec: str) -> Assumption:
    """Read "share=0.3,slack=0.5..2,seed=1"; what is not said has the default. Raises InputError."""
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
        elif name == "seed" and re.fullmatch(r"\d{1,18}", value, re.ASCII):
            values["seed"] = int(value)
        elif name in {"share", "slack", "seed"}:
            forms = {"share": "a number from 0 to 1", "slack": "LOW..HIGH", "seed": "a whole number"}
            raise InputError(f"--assume-deadlines: {name} must be {forms[name]}; {usual}")
        else:
            close = difflib.get_close_matches(name, ["share", "slack", "seed"], n=1)
            near = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"--assume-deadlines: unknown key {printable(name)!r}{near}; {usual}")
    found = Assumption(**values)
    if found.slack_low > found.slack_high:
        raise InputError(f"--assume-deadlines: slack goes from the smaller to the larger; {usual}")
    return found


def assume_deadlines(work: Workload, spec: str) -> tuple[int, str]:
    """Give a share of the jobs with GPUs that ran, and have no deadline of their own, an assumed one.

    In place, after find_deadlines. Returns the number of assumed deadlines and a note for every output.
    The draw of a job depends on the seed, its id and its submit alone, not on the other jobs.
    Raises InputError on a bad `spec`.
    """
    assumed = parse_assumption(spec)
    jobs = work.jobs
    chosen, where = draws(work, assumed.seed, "deadline")
    duration = jobs["work"].to_numpy(np.float64)
    own = jobs["deadline"].to_numpy(np.float64)
    takes = (jobs["gpus"].to_numpy() > 0) & (duration > 0) & np.isnan(own) & (chosen < assumed.share)
    slack = assumed.slack_low + (assumed.slack_high - assumed.slack_low) * where
    due = jobs["first_submit"].to_numpy(np.float64) + duration * (1 + slack)
    work.jobs["deadline"] = np.where(takes, due, own)
    count = int(takes.sum())
    note = f"{count} deadlines are assumed, not real ({assumed}): deadline = submit + duration x (1 + slack)"
    return count, note


def assign_consent(work: Workload, share: float, seed: int) -> int:
    """Make a seeded share (0..1) of all jobs requeueable and the others not, whatever they say. In place.

    Returns how many are. A larger share adds jobs and takes none away. Raises InputError on a bad share.
    """
    if not 0 <= share <= 1:
        raise InputError(f"--consent {share:g}: a share goes from 0 to 1")
    agreed = draws(work, seed, "consent")[0] < share
    work.jobs["consent"] = agreed.astype(np.int64)
    return int(agreed.sum())


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
