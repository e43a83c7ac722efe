"""What a job's owner is told, in words: what happened, what it means, what to do. Pure.

Reasons are those that `explain` shows. Nothing in it is of another user's job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tias_slurm.deadlines import Refusal
from tias_slurm.errors import printable

# what a hopeless deadline is called everywhere
HARDLY_MET = "its deadline can hardly be met any more"
PASSED = "its deadline has passed"
MOST_CHARS = 1200
_MOST_NAME = 40


class Message(NamedTuple):
    """A message: a subject of one line, and lines."""

    subject: str
    lines: tuple[str, ...]

    @property
    def line(self) -> str:
        """All of it in one line."""
        return printable(f"tias-slurm: {' '.join(self.lines)}", MOST_CHARS)

    @property
    def body(self) -> str:
        """As the body of a mail."""
        return "".join(f"{printable(line, MOST_CHARS)}\n" for line in self.lines)


def refused(job: str, key: str, refusals: Sequence[Refusal], unaccepted: str) -> Message:
    """Something in the comment is not taken. `unaccepted`: why a claim that is well written is not."""
    job = printable(job, _MOST_NAME)
    what = [f"{_shown(r, key)}= in its comment is not taken: {r.code}; {r.text}." for r in refusals]
    if unaccepted:
        what.append(f"{key}= in its comment is not taken: {unaccepted}.")
    claim = any(r.key == "deadline" for r in refusals)
    means = "What is not taken is as if it were not there."
    if claim:
        means = "The job waits and runs as one without a deadline."
    do = f"To change it: scontrol update JobId={job} Comment=...; how it stands: tias-slurm explain {job}"
    return _message(job, "a key in the comment is not taken", [f"job {job}:", *what, means, do])


def impossible(job: str, key: str, *, passed: bool, behind: bool) -> Message:
    """The deadline of a waiting job will not be met. `passed`: it lies behind us; `behind`: such jobs go
    behind all others."""
    job = printable(job, _MOST_NAME)
    what = f"job {job}: {PASSED} while it waited." if passed else (
        f"job {job}: {HARDLY_MET}, even if it had started when this was found."
    )  # fmt: skip
    means = "It goes behind all other jobs, so that it costs nobody else theirs, and still gets its turn."
    if not behind:
        means = "It is served like a job without a deadline."
    do = (
        f"If a later one will do: scontrol update JobId={job} Comment={key}=..., with what else the comment "
        f"holds; to take it away does not help. How it stands: tias-slurm explain {job}"
    )
    return _message(job, "deadline can hardly be met", [what, means, do])


def requeue(job: str, *, by_slurm: bool) -> Message:
    """The job was requeued for another, by us or by Slurm's own preemption."""
    job = printable(job, _MOST_NAME)
    what = f"job {job} was stopped and put back into the queue, for a job of better standing."
    consent = "requeue=no in its comment keeps it from being stopped again"
    if by_slurm:
        what = (
            f"job {job} was requeued by Slurm: stopped and put back into the queue, in favour of jobs with "
            "higher priority."
        )
        consent = "With requeue=no in its comment it is put above all that wait as soon as it runs again"
    means = (
        "It keeps its id and its place by service and starts again by itself; what it had not saved is lost."
    )
    do = (
        f"Nothing needs to be done if it goes on from its last checkpoint. {consent}; --open-mode=append "
        "keeps its output from being overwritten."
    )
    return _message(job, "requeued", [what, means, do])


def _message(job: str, subject: str, lines: Sequence[str]) -> Message:
    first, *rest = lines
    if first.endswith(":") and rest:
        first, rest = f"{first} {rest[0]}", rest[1:]
    return Message(f"Slurm Job_id={job} tias-slurm: {subject}", (first, *rest))


def _shown(refusal: Refusal, key: str) -> str:
    return key if refusal.key == "deadline" else refusal.key
