"""Level and urgency -> the value of a field of the job, a function of the job's own standing alone. Pure."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tias_slurm.jobs import Floats
from tias_slurm.policy.base import Ranking

# scontrol(1): nice and site factor lie in +/-2147483645
NICE_MAX = 2_147_483_645
# urgency is cut into steps by its logarithm; 2^32 GPU-seconds is over a million GPU-hours
URGENCY_BITS = 32
# explicit priorities start here: far above what multifactor gives, far below what Slurm can hold
PRIORITY_BASE = 1_000_000_000
# the value of a job that we hold, written as priority 0: not the 0 of one without an explicit priority, and
# one that no field can have
HELD = -(2.0**31)


# why a job is held
HOLD_REASON = "held: long jobs have their share of the GPUs"


def shown(value: float) -> int | str:
    """A lever's value as people are told of it."""
    return "held" if value == HELD else int(value)


class Lever(Protocol):
    """A field of a job that we may write."""

    @property
    def kind(self) -> str:
        """The field's name."""

    @property
    def unit(self) -> float:
        """What one step is worth in the field."""

    @property
    def level_step(self) -> float:
        """What one level is worth in the field."""

    @property
    def reach(self) -> float:
        """How far apart in the field the first and the last place are."""

    @property
    def strict(self) -> bool:
        """Whether a better level always beats what the site's own priority adds."""

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """The value to set, whole numbers. `found`: the user's own. Shapes (n,)."""

    def priority(self, order: Floats, value: Floats) -> Floats:
        """Slurm's priority of jobs whose field has `value`, `order` being the priority without it."""


class _Steps:
    """Where a job stands, as a step from 0 (first) to `last`, and how much a step is worth.

    By default one step outweighs `site_weights`, the sum of the site's PriorityWeight* values, so that levels
    are strict and the site's order decides where a policy leaves it the choice; a `span` softens that, and
    one that is smaller than the number of steps lets neighbours share a value.
    """

    def __init__(self, levels: int, urgency_steps: int, site_weights: int, span: int | None = None) -> None:
        self._steps = urgency_steps
        self._last = levels * urgency_steps - 1
        room = NICE_MAX if span is None else min(span, NICE_MAX)
        largest = room / (self._last + 1)
        if largest >= 1.0:
            largest = float(room // (self._last + 1))
        self.unit = min(site_weights + 1.0, largest) if span is None else largest
        self.strict = self.unit >= 1.0 and self.unit > site_weights
        self.level_step = self.unit * urgency_steps
        self.reach = self.unit * (self._last + 1)

    def behind(self, ranking: Ranking) -> Floats:
        """How far in front of the very last step each job stands, as a number <= 0. Shape (n,).

        The front is one step before all levels.
        """
        bits = np.log2(np.maximum(ranking.urgency, 1.0))
        step = np.minimum(np.floor(bits * (self._steps / URGENCY_BITS)), self._steps - 1)
        place = ranking.level * self._steps + np.where(ranking.site_order, 0.0, step)
        place = np.where(ranking.front, -1.0, place)
        return np.asarray(place - self._last, dtype=np.float64)


class NiceLever(_Steps):
    """Nice between -span and 0 on top of the user's own, so that a user cannot undo it."""

    kind = "nice"

    def offset(self, ranking: Ranking) -> Floats:
        """What is added to the user's own value. Shape (n,)."""
        return np.asarray(np.ceil(self.behind(ranking) * self.unit), dtype=np.float64)

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        return np.asarray(np.clip(found + self.offset(ranking), -NICE_MAX, NICE_MAX), dtype=np.float64)

    def priority(self, order: Floats, value: Floats) -> Floats:
        """See Lever."""
        return order - value


class SiteFactorLever(_Steps):
    """Site factor between 0 and span on top of what was there; leaves nice alone, closed to users."""

    kind = "site_factor"

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        value = found - np.ceil(self.behind(ranking) * self.unit)
        return np.asarray(np.clip(value, -NICE_MAX, NICE_MAX), dtype=np.float64)

    def priority(self, order: Floats, value: Floats) -> Floats:
        """See Lever."""
        return order + value


class PriorityLever(_Steps):
    """An explicit priority: an absolute order, which pins the job and wipes its nice."""

    kind = "priority"

    def __init__(self, levels: int, urgency_steps: int) -> None:
        super().__init__(levels, urgency_steps, 0)
        self.strict = True

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        return PRIORITY_BASE - self.behind(ranking)

    def priority(self, order: Floats, value: Floats) -> Floats:
        """See Lever."""
        return value


class ExactLever:
    """Replay only: the order itself, finer than any field of Slurm can hold. For policies that are compared
    with as their papers state them."""

    kind = "order"
    unit = 0.0
    level_step = 2.0**40
    reach = np.inf
    strict = True

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        within = np.where(ranking.site_order, 0.0, np.minimum(ranking.urgency, 2.0**40 - 1.0))
        level = np.where(ranking.front, -1, ranking.level)
        return np.asarray(level * 2.0**40 + np.where(ranking.front, 0.0, within), dtype=np.float64)

    def priority(self, order: Floats, value: Floats) -> Floats:
        """See Lever."""
        return order - value
