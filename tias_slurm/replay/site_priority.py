"""How Slurm itself orders jobs: priority/multifactor with age and fair share (priority_multifactor.html)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tias_slurm.jobs import Floats, Ints
from tias_slurm.replay import engine as e


@dataclass(frozen=True)
class Weights:
    """slurm.conf's PriorityWeightAge, PriorityMaxAge, PriorityWeightFairshare, PriorityDecayHalfLife and
    PriorityCalcPeriod; times in seconds."""

    age: float = 1000.0
    max_age_s: float = 604_800.0
    fairshare: float = 1000.0
    half_life_s: float = 604_800.0
    period_s: float = 300.0


class SitePriority:
    """age x min(age / max age, 1) + fairshare x 2^(-users x the user's share of usage), which fades.

    All users have equal shares. The age counts from the first submit.
    """

    def __init__(self, weights: Weights, users: int, first_submit: Floats, start: float) -> None:
        self._w = weights
        self._submit = first_submit
        self._usage = np.zeros(users)
        self._accounted = start
        self._decayed = start
        self.next_tick = start

    def arrival(self) -> Floats:
        """Base priority of a job submitted now, by user. Shape (users,)."""
        total = self._usage.sum()
        share = self._usage / total if total > 0 else np.full(len(self._usage), 1.0 / len(self._usage))
        base: Floats = self._w.fairshare * np.exp2(-len(self._usage) * share)
        return base

    def skip_to(self, time: float) -> None:
        """The next tick is the first at or after `time`: until then there is nobody to order."""
        if time < np.inf:
            steps = np.ceil((time - self.next_tick) / self._w.period_s)
            self.next_tick += max(steps, 0.0) * self._w.period_s

    def ended(self, jobs: Ints, s: e.State) -> None:
        """Account what ended jobs used since the last tick."""
        self._charge(jobs, s.end[jobs], s)

    def tick(self, s: e.State) -> None:
        """Account, decay, and give every waiting job its new base priority."""
        now = self.next_tick
        active = s.active[: s.counter[e.ACTIVE]]
        running = active[s.status[active] == e.RUNNING]
        self._charge(running, np.full(len(running), now), s)
        self._accounted = now
        self._usage *= 0.5 ** ((now - self._decayed) / self._w.half_life_s)
        self._decayed = now
        s.arrival_base[:] = self.arrival()
        age = np.minimum((now - self._submit[active]) / self._w.max_age_s, 1.0)
        s.base[active] = self._w.age * age + s.arrival_base[s.user[active]]
        self.next_tick = now + self._w.period_s

    def _charge(self, jobs: Ints, until: Floats, s: e.State) -> None:
        since = np.maximum(s.run_start[jobs], self._accounted)
        np.add.at(self._usage, s.user[jobs], s.weight[jobs] * np.maximum(until - since, 0.0))
