"""Made-up jobs of twenty users, and what one of them may do to get more than his share; see gaming.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tias_slurm.jobs import Floats

USERS, LOAD = 20, 1.1
CHEAT, SHARE = 0, 0.15  # the user who may cheat, and his share of the jobs
HOUR, DAY = 3600.0, 86_400.0
BESIDE = -1  # the number of jobs that his honest twin does not have; how long they take does not count


class Size(NamedTuple):
    """Of the cluster and of the workload."""

    nodes: int
    jobs: int


FULL = Size(8, 450)


def honest_jobs(seed: int, size: Size = FULL, twin: int = 0) -> pd.DataFrame:
    """The honest jobs: submit, work, gpus, user, deadline (half of them have one), job.

    `twin`: which draw of deadlines the user CHEAT has; all else is the same.
    """
    rng, n = np.random.default_rng(seed), size.jobs
    gpus = rng.choice([1, 2, 4, 8, 16], n, p=[0.5, 0.18, 0.14, 0.14, 0.04])
    work = np.round(np.clip(rng.lognormal(np.log(2.2 * HOUR), 1.3, n), 120, 3 * DAY))
    span = float((work * gpus).sum()) / (8 * size.nodes * LOAD)
    submit = np.sort(np.round(rng.random(n) * span))
    user = np.where(rng.random(n) < SHARE, CHEAT, rng.integers(1, USERS, n))
    slack, claims = rng.uniform(0.3, 2, n), rng.random(n) < 0.5
    if twin:
        other = np.random.default_rng([seed, twin])
        slack = np.where(user == CHEAT, other.uniform(0.3, 2, n), slack)
        claims = np.where(user == CHEAT, other.random(n) < 0.5, claims)
    return pd.DataFrame(
        {
            "submit": submit,
            "work": work,
            "gpus": gpus,
            "user": user,
            "deadline": np.where(claims, submit + work * (1 + slack), np.nan),
            "job": np.arange(n),
        }
    )


# what the comments of the cheat's jobs say at a look: (now, his jobs' columns) -> deadlines, NaN: none
Says = Callable[[float, "Mine"], Floats]


@dataclass(frozen=True)
class Mine:
    """The cheat's jobs of one look. Shapes (m,)."""

    submit: Floats  # first submit
    honest: Floats  # the deadline that he really has; NaN: none
    running: np.ndarray[Any, np.dtype[np.bool_]]
    run_time: Floats  # so far in this run


@dataclass(frozen=True)
class Cheat:
    """A way to game: other jobs from the start, or other comments over time."""

    title: str
    jobs: Callable[[pd.DataFrame], pd.DataFrame] = lambda jobs: jobs
    says: Says | None = None


def _tight(hours: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda jobs: jobs.assign(deadline=jobs["submit"] + hours * HOUR)


def _accurate(jobs: pd.DataFrame) -> pd.DataFrame:
    return jobs.assign(deadline=jobs["submit"] + 1.3 * jobs["work"] + 600)


def _split(jobs: pd.DataFrame) -> pd.DataFrame:
    """Each job of over two hours as four parts of a quarter, submitted together; the last to end counts."""
    long = jobs["work"] > 2 * HOUR
    parts = [jobs[~long]] + [jobs[long].assign(work=np.ceil(jobs["work"][long] / 4))] * 4
    return pd.concat(parts)


def _wide_window(jobs: pd.DataFrame) -> pd.DataFrame:
    long = jobs["work"] * jobs["gpus"] > 20 * HOUR
    return jobs.assign(deadline=np.where(long, jobs["submit"] + 7 * DAY, np.nan))


def _teach(jobs: pd.DataFrame) -> pd.DataFrame:
    """And ten jobs of two minutes beside each of his, that need more than their windows: so that the short
    windows of others look hopeless."""
    tiny = jobs.assign(work=120.0, gpus=1, deadline=jobs["submit"] + 110.0, job=BESIDE)
    return pd.concat([jobs.assign(deadline=np.nan), *[tiny] * 10])


def _each_minute(now: float, mine: Mine) -> Floats:
    return np.floor(now / 60.0) * 60.0 + 2 * HOUR + np.zeros(len(mine.submit))


def _when_waiting(now: float, mine: Mine) -> Floats:
    return np.where((now - mine.submit > HOUR) & ~mine.running, mine.submit + 12 * HOUR, np.nan)


def _remove_when_lost(now: float, mine: Mine) -> Floats:
    said = mine.submit + 6 * HOUR
    return np.where((said - now < HOUR) & ~mine.running, np.nan, said)


def _move_when_lost(now: float, mine: Mine) -> Floats:
    """Six hours, and twelve more each time that it comes near."""
    moves = np.maximum(np.ceil((now - mine.submit - 5 * HOUR) / (12 * HOUR)), 0.0)
    return mine.submit + 6 * HOUR + moves * 12 * HOUR


def _each_hour(now: float, mine: Mine) -> Floats:
    return np.maximum(mine.submit + 6 * HOUR, np.floor(now / HOUR) * HOUR + 6 * HOUR)


def _while_running(now: float, mine: Mine) -> Floats:
    """Twelve hours from the start, once it runs, and twelve more when it comes near: would nobody stop it?"""
    ends = now - mine.run_time + np.ceil((mine.run_time + HOUR) / (12 * HOUR)) * 12 * HOUR
    return np.where(mine.running, ends, np.nan)


CHEATS = {
    "absurd": Cheat("an hour from the submit, on every job", _tight(1)),
    "plausible": Cheat("twelve hours from the submit, on every job", _tight(12)),
    "accurate": Cheat("1.3 times the true run time, on every job", _accurate),
    "split": Cheat("jobs of over two hours in four parts", _split),
    "minute": Cheat("two hours from now, changed each minute", says=_each_minute),
    "wide": Cheat("seven days, on his long jobs only", _wide_window),
    "late": Cheat("twelve hours, added once the job waits", says=_when_waiting),
    "removed": Cheat("six hours, withdrawn when it is nearly lost and the job waits", says=_remove_when_lost),
    "moved": Cheat("six hours, moved when it is nearly lost", says=_move_when_lost),
    "hourly": Cheat("six hours from now, moved each hour", says=_each_hour),
    "running": Cheat("twelve hours from its start, added once the job runs, and moved", says=_while_running),
    "teach": Cheat("no claims, but tiny jobs beside that miss their deadlines", _teach),
}
