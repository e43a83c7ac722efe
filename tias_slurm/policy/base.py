"""What every policy takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints, RankInput


@dataclass(frozen=True)
class Ranking:
    """An order over the jobs of one snapshot. All arrays have shape (n,), rows as in the RankInput.

    Levels are served in ascending order; inside a level the smaller urgency goes first, except where
    `site_order` is set: there Slurm's own order (age, fairshare, QOS) decides. Ties everywhere: first
    submit, then job id. A job may be preempted only for a job of a better (smaller) level.
    """

    level: Ints
    urgency: Floats  # positive and finite
    site_order: Bools
    terms: Mapping[str, Floats]  # what made the two above, by the symbols of docs/policy.md
    fallen: Bools  # claims that are hopeless or overdue
    slot: Bools  # who holds a long slot from now on
    front: Bools  # waiting: goes before all levels, but preempts as its level says; running: not preempted
    # the level that each job would have the other way round: a waiting one once it runs on what it would be
    # given, a running one once it waits again; None: the same
    turned: Ints | None = None


class Policy(Protocol):
    """A policy is stateless: what it has learned comes in with each call."""

    @property
    def levels(self) -> int:
        """Number of levels; they run from 0 to levels - 1."""

    def rank(self, now: float, jobs: RankInput, survival: Floats) -> Ranking:
        """Rank the jobs at time `now` (epoch s); `survival` as given by `learning.Learner.survival`."""

    def reason(self, ranking: Ranking, row: int) -> str:
        """Why the job of that row stands where it stands, in a few words."""


def queue_of(gpu_s: Floats, thresholds: Floats) -> Ints:
    """q(v) = number of thresholds <= v, of service v in GPU-seconds. Shapes (n,), (K-1,) -> (n,)."""
    return np.searchsorted(thresholds, gpu_s, side="right")
