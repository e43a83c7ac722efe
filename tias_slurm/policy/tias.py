"""TIAS: two-level information-agnostic scheduling.

A reconstruction: of the paper (Yang, Lin, Ni, Song, INSAI 2021, DOI 10.1109/INSAI54028.2021.00041) only the
abstract is public. docs/policy.md states the formulas and where each default comes from. Symbols: s first
submit, d deadline, t now, D = d - s, l = d - t, g GPUs, e useful executed time, w = (t - s) - e, a attained
service, x = e / D, K queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints, RankInput
from tias_slurm.policy.base import Ranking, queue_of
from tias_slurm.policy.learning import PRIOR_UPPER, interpolate, window_class
from tias_slurm.policy.shares import grant

# what a job is to level 1; see Tias.classes
CLASSES = ("no deadline", "urgent", "warming", "calm", "hopeless", "overdue")
# where urgency ends, GPU-s
LARGEST = 2.0**40


@dataclass(frozen=True)
class TiasSettings:
    """Every constant of the policy."""

    thresholds_gpu_s: tuple[float, ...] = (18_000.0, 72_000.0, 300_000.0, 1_500_000.0)
    risk: Literal["closed-form", "learned"] = "closed-form"
    delta_s: float = 7_200.0  # Delta: the wait whose risk is looked at
    urgent_risk: float = 0.10  # r_u
    warming_ratio: float = 0.3  # R3, a share of r_u
    window_hint: float = 0.25  # eta: the window as a hint of size
    hopeless_chance: float = 0.10  # p_h
    # (c, level): once accumulated loss reaches c, the level is at most this; c = 0 means any loss
    caps: tuple[tuple[float, int], ...] = ()
    overdue: Literal["last", "best-effort"] = "last"
    queue_urgency: Literal["u", "edf", "laxity", "elapsed"] = "u"
    interval_s: float = 60.0  # less time without progress than one cycle is no loss
    slot_share: float = 0.0  # GPUs of long deadline jobs in a slot, a share of the cluster; 0: no slots
    slot_window_s: float = 43_200.0  # a window of at least this makes a deadline job long
    slot_level: int = 2  # the level of a holder is at most this
    keep_served: float = 0.0  # x from which a deadline job that runs is at level 0; 0: never
    starving_s: float = 2_592_000.0  # a wait of this length brings a job to the front; 0: never
    starving_share: float = 0.1  # GPUs of jobs brought to the front, a share of the cluster
    size_hint: Literal["none", "time-limit"] = "none"  # what tells the size of a job without a deadline
    time_limit_factor: float = 3.0  # a time limit is so many times what jobs use of it
    prior_upper: float = PRIOR_UPPER  # the upper end of the prior on the run time, a share of the window


PRESETS: dict[str, TiasSettings] = {
    "jct-first": TiasSettings(),
    "steady": TiasSettings(keep_served=0.15, slot_level=4),
    "wide-fair": TiasSettings(urgent_risk=0.15, warming_ratio=0.5, caps=((0.0, 6),)),
    "balanced": TiasSettings(
        risk="learned", delta_s=3_600.0, urgent_risk=0.20, warming_ratio=0.05, window_hint=0.5
    ),
    "guard": TiasSettings(
        thresholds_gpu_s=(18_000.0, 72_000.0, 300_000.0, 1_500_000.0, 6_000_000.0),
        urgent_risk=0.125,
        hopeless_chance=0.03,
        caps=((0.0, 6), (0.05, 4), (0.10, 2)),
    ),
    "slots": TiasSettings(
        risk="learned",
        delta_s=3_600.0,
        urgent_risk=0.30,
        warming_ratio=0.20,
        window_hint=0.5,
        slot_share=0.45,
    ),
}


def preset(name: str, **overrides: Any) -> TiasSettings:
    """A preset with single constants replaced. KeyError for an unknown name."""
    return replace(PRESETS[name], **overrides)


class Tias:
    """The policy. Level 1 is `_deadline_levels` and the queues, level 2 is `_queue_urgency`."""

    def __init__(self, settings: TiasSettings) -> None:
        self.settings = settings
        self._thresholds = np.array(settings.thresholds_gpu_s, dtype=np.float64)
        self.queues = len(settings.thresholds_gpu_s) + 1

    @property
    def levels(self) -> int:
        """0 .. 2K+1."""
        return 2 * self.queues + 2

    def rank(self, now: float, jobs: RankInput, survival: Floats) -> Ranking:
        """Levels and urgency of all jobs at `now`. Pure."""
        last = 2 * self.queues + 1
        size = jobs.attained
        hinted = self.settings.size_hint == "time-limit"
        if hinted:
            # no limit is the largest; one that is not known, NaN, tells nothing, nor does one without GPUs
            limit = np.where(np.isnan(jobs.time_limit) | (jobs.gpus <= 0.0), 0.0, jobs.time_limit)
            asked = limit * jobs.gpus
            size = np.maximum(size, asked / self.settings.time_limit_factor)
        best_effort = 2 * queue_of(size, self._thresholds) + 1
        level = np.where(jobs.claim_lost, np.maximum(best_effort, last - 2), best_effort)
        urgency = np.ones(len(jobs))
        claims = np.isfinite(jobs.deadline)
        site_order = np.ones(len(jobs), dtype=np.bool_)
        if hinted:
            site_order = np.isnan(jobs.time_limit)
            urgency = np.where(site_order, 1.0, np.minimum(np.maximum(asked, 1.0), LARGEST))
        fallen, slot = np.zeros(len(jobs), dtype=np.bool_), np.zeros(len(jobs), dtype=np.bool_)
        terms: dict[str, Floats] = {}
        if claims.any():
            rows = np.flatnonzero(claims)
            left = jobs.deadline[rows] - now
            lost, claimed, terms = self._deadline_levels(now, jobs, rows, left, survival)
            fallen[rows] = lost
            slot = self._slots(now, jobs, fallen)
            claimed = self._held_up(jobs, rows, slot[rows], claimed, terms)
            # a deadline that came during the run does not keep others from its nodes
            late = jobs.late[rows] & jobs.running[rows] & (claimed < best_effort[rows])
            claimed = np.where(late, best_effort[rows], claimed)
            bottom = best_effort[rows] if self.settings.overdue == "best-effort" else last
            level[rows] = np.where(lost, bottom, claimed)
            own = self._queue_urgency(now, jobs, rows, left)
            urgency[rows] = np.where(lost, 1.0, np.where(late, urgency[rows], own))
            site_order[rows] = lost | (late & site_order[rows])
        return Ranking(level, urgency, site_order, terms, fallen, slot, self._front(now, jobs))

    def _slots(self, now: float, jobs: RankInput, fallen: Bools) -> Bools:
        """Who holds a long slot: holders keep it while their claim lives, the smallest g D come next."""
        c = self.settings
        window = jobs.deadline - jobs.first_submit
        if c.slot_share <= 0.0:
            return np.zeros(len(jobs), dtype=np.bool_)
        # one without GPUs takes none, and would still count as a holder
        able = (window >= c.slot_window_s) & ~fallen & jobs.able & ~jobs.late & (jobs.gpus > 0.0)
        new = np.flatnonzero(able & ~jobs.slot)
        order = new[np.lexsort((jobs.job_id[new], jobs.first_submit[new], (jobs.gpus * window)[new]))]
        return grant(order, jobs.gpus, able & jobs.slot, c.slot_share * jobs.capacity, strict=False)

    def _held_up(
        self, jobs: RankInput, rows: Ints, slot: Bools, level: Ints, terms: dict[str, Floats]
    ) -> Ints:
        """The levels of deadline jobs once a slot counts, and what has been served of their windows."""
        c = self.settings
        level = np.where(slot, np.minimum(level, c.slot_level), level)
        if c.keep_served > 0.0:
            # who is requeued so late has little of his window left to come back in
            level = np.where(jobs.running[rows] & (terms["x"] >= c.keep_served), 0, level)
        return level

    def _front(self, now: float, jobs: RankInput) -> Bools:
        """Who goes before all levels: those that have waited longest, a share of the cluster at a time.

        A place in front takes nobody's nodes away, so that it cannot make others starve in turn; who has
        started from there runs undisturbed. Who could not start if it were its turn is passed
        over, and else would be in everybody's way.
        """
        c = self.settings
        if c.starving_s <= 0.0:
            return np.zeros(len(jobs), dtype=np.bool_)
        starving = ~jobs.running & jobs.able & (jobs.gpus > 0.0) & (now - jobs.since >= c.starving_s)
        holds = jobs.front & (jobs.running | starving)
        new = np.flatnonzero(starving & ~holds)
        if not len(new):
            return np.asarray(holds, dtype=np.bool_)
        order = new[np.lexsort((jobs.job_id[new], jobs.since[new]))]
        return grant(order, jobs.gpus, holds, c.starving_share * jobs.capacity, strict=True)

    def _deadline_levels(
        self, now: float, jobs: RankInput, rows: Ints, left: Floats, survival: Floats
    ) -> tuple[Bools, Ints, dict[str, Floats]]:
        """Level 1 for deadline jobs: (overdue or hopeless, level if not, terms)."""
        c = self.settings
        executed, gpus = jobs.executed[rows], jobs.gpus[rows]
        elapsed = now - jobs.first_submit[rows]
        window = elapsed + left
        waited = elapsed - executed
        # a window of nothing: the clock went back behind the submit
        overdue = (left <= 0.0) | (window <= 0.0)
        # past the deadline neither chance nor risk is defined; any positive number keeps the arithmetic quiet
        size = np.where(overdue, 1.0, c.prior_upper * window - executed)
        if c.risk == "closed-form":
            chance = np.minimum(np.maximum(left / size, 0.0), 1.0)
            risk = np.minimum(c.delta_s, left) / size
        else:
            safe = np.where(overdue, 1.0, window)
            classes = window_class(safe)
            used = np.maximum(interpolate(survival, classes, executed / safe, c.prior_upper), 1e-12)
            spare = 1.0 - waited / safe
            chance = 1.0 - interpolate(survival, classes, spare, c.prior_upper) / used
            spare -= c.delta_s / safe
            later = 1.0 - interpolate(survival, classes, spare, c.prior_upper) / used
            chance = np.minimum(np.maximum(chance, 0.0), 1.0)
            risk = chance - np.minimum(np.maximum(later, 0.0), 1.0)
        hopeless = ~jobs.running[rows] & (chance < c.hopeless_chance)
        queue = queue_of(np.maximum(jobs.attained[rows], c.window_hint * gpus * window), self._thresholds)
        level = np.where(risk >= c.warming_ratio * c.urgent_risk, 2 * np.maximum(queue - 1, 0), 2 * queue + 2)
        level = np.where(risk >= c.urgent_risk, 0, level)
        loss = waited / size
        for bound, highest in c.caps:
            reached = loss >= bound if bound > 0.0 else waited >= c.interval_s
            level = np.where(reached, np.minimum(level, highest), level)
        terms = {
            "rows": rows,
            "l": left,
            "w": waited,
            "x": np.where(overdue, 0.0, executed / np.where(overdue, 1.0, window)),
            "M0": chance,
            "r": risk,
            "c": loss,
            "q_d": queue,
            "overdue": overdue,
            "hopeless": hopeless,
        }
        return overdue | hopeless, level, terms

    def classes(self, ranking: Ranking) -> Ints:
        """Which of CLASSES each job is in, as numbers. Shape (n,)."""
        kind = np.zeros(len(ranking.level), dtype=np.int64)
        if t := ranking.terms:
            kind[t["rows"]] = self._class_of(t["r"], t["overdue"], t["hopeless"])
        return kind

    def _class_of(self, risk: Floats, overdue: Floats, hopeless: Floats) -> Ints:
        c = self.settings
        live = np.where(risk >= c.urgent_risk, 1, np.where(risk >= c.warming_ratio * c.urgent_risk, 2, 3))
        return np.where(overdue, 5, np.where(hopeless, 4, live))

    def reason(self, ranking: Ranking, row: int) -> str:
        """See Policy."""
        level = int(ranking.level[row])
        t = ranking.terms
        at = int(np.searchsorted(t["rows"], row)) if t else 0
        if not t or at == len(t["rows"]) or t["rows"][at] != row:
            return f"level {level}: no deadline, queue {(level - 1) // 2} by attained service"
        word = CLASSES[int(self._class_of(t["r"][at], t["overdue"][at], t["hopeless"][at]))]
        if word == "overdue":
            return f"level {level}: overdue"
        if word == "hopeless":
            return f"level {level}: hopeless, chance {t['M0'][at]:.3f} < {self.settings.hopeless_chance:g}"
        risk, c = float(t["r"][at]), self.settings
        if word == "urgent":
            return f"level {level}: urgent, risk {risk:.3f} >= {c.urgent_risk:g}"
        if level == 0 and self.settings.keep_served > 0.0 and t["x"][at] >= self.settings.keep_served:
            return f"level 0: kept, served {t['x'][at]:.3f} of its window >= {self.settings.keep_served:g}"
        expected = 2 * int(t["q_d"][at]) + 2 if word == "calm" else 2 * max(int(t["q_d"][at]) - 1, 0)
        held = f", held up by lost time {t['c'][at]:.3f}" if level < expected else ""
        return f"level {level}: {word}, risk {risk:.3f}, queue {int(t['q_d'][at])}{held}"

    def _queue_urgency(self, now: float, jobs: RankInput, rows: Ints, left: Floats) -> Floats:
        """Level 2: the smaller goes first. U = l g (1 - x) in GPU-seconds, or another order by name."""
        kind = self.settings.queue_urgency
        executed = jobs.executed[rows]
        elapsed = now - jobs.first_submit[rows]
        window = elapsed + left
        if kind == "u":
            value = left * jobs.gpus[rows] * (1.0 - executed / np.maximum(window, 1.0))
        elif kind == "edf":
            value = left
        elif kind == "laxity":
            # against the mean of the uniform prior on the run time
            value = left - np.maximum(self.settings.prior_upper / 2 * window - executed, 0.0)
        else:
            # Aemon's elapsed / left, turned over so that the smaller goes first
            value = 86_400.0 * left / np.maximum(elapsed, 1.0)
        return np.maximum(value, 1.0)
