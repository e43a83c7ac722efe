"""Four textbook policies in the plainest way, to judge faster programs by. Not from the engine, and slow.

One pool of GPUs, only counted. An instant is a time at which a job is submitted or ends. At each instant:
jobs that ended give back their GPUs, submitted jobs join, and only then the whole choice of who runs is
made from scratch. A job without work that starts at an instant ends at it too, and the choice is made once
more. All times are ints or Fractions, so nothing is rounded.

* fifo-strict: by submit; the first job that does not fit stops the line.
* fifo-fit: by submit; a job that does not fit is skipped.
* srtf: all unfinished jobs, running or not, by remaining time; each takes its GPUs if they are left.
* srsf: the same, by remaining time x GPUs.

Ties: submit, then input order. A job that asks for more than the pool has is left out: its times are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Time = int | Fraction


@dataclass
class _Job:
    row: int
    submit: Time
    left: Time
    gpus: int
    first_start: Time | None = None
    end: Time | None = None
    preemptions: int = 0


def simulate(
    policy: str, submit: Sequence[Time], work: Sequence[Time], gpus: Sequence[int], capacity: int
) -> tuple[list[Time | None], list[Time | None], list[int]]:
    """First start, end and number of preemptions of each job, in input order."""
    jobs = [_Job(i, s, w, g) for i, (s, w, g) in enumerate(zip(submit, work, gpus, strict=True))]
    possible = [j for j in jobs if j.gpus <= capacity]
    running: list[_Job] = []
    now: Time | None = None
    while any(j.end is None for j in possible):
        coming = [j.submit for j in possible if now is None or j.submit > now]
        ending = [now + j.left for j in running] if now is not None else []
        then = min(coming + ending)
        for j in running:
            j.left -= then - now
        now = then
        for j in running:
            if j.left == 0:
                j.end = now
        running = [j for j in running if j.end is None]
        present = [j for j in possible if j.submit <= now and j.end is None]
        chosen = _choose(policy, present, running, capacity)
        for j in chosen:
            if j.first_start is None:
                j.first_start = now
        for j in running:
            j.preemptions += j not in chosen
        running = chosen
    return [j.first_start for j in jobs], [j.end for j in jobs], [j.preemptions for j in jobs]


def _choose(policy: str, present: list[_Job], running: list[_Job], capacity: int) -> list[_Job]:
    """Who runs from this instant on."""
    if policy in ("fifo-strict", "fifo-fit"):
        chosen = list(running)
        line = sorted((j for j in present if j not in running), key=lambda j: (j.submit, j.row))
    elif policy == "srtf":
        chosen = []
        line = sorted(present, key=lambda j: (j.left, j.submit, j.row))
    elif policy == "srsf":
        chosen = []
        line = sorted(present, key=lambda j: (j.left * j.gpus, j.submit, j.row))
    else:
        raise ValueError(policy)
    for j in line:
        if sum(c.gpus for c in chosen) + j.gpus <= capacity:
            chosen.append(j)
        elif policy == "fifo-strict":
            break
    return chosen
