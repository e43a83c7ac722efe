"""Level and urgency -> the value of a field of the job, a function of the job's own standing alone. Pure."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tias_slurm.jobs import Floats
from tias_slurm.policy.base import Ranking

# scontrol(1): nice lies in +/-2147483645
NICE_MAX = 2_147_483_645
# urgency is cut into steps by its logarithm; 2^32 GPU-seconds is over a million GPU-hours
URGENCY_BITS = 32


class Lever(Protocol):
    """A field of a job that we may write."""

    @property
    def kind(self) -> str:
        """The field's name."""

    @property
    def strict(self) -> bool:
        """Whether a better level always beats what the site's own priority adds."""

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """The value to set, whole numbers; smaller goes first. `found`: the user's own. Shapes (n,)."""


class NiceLever:
    """Nice between -span and 0 on top of the user's own, so that a user cannot undo it.

    `site_weights` is the sum of the site's PriorityWeight* values. By default one step outweighs it, so that
    levels are strict and the site's order decides where a policy leaves it the choice; a `span` softens that,
    and one that is smaller than the number of steps lets neighbours share a value.
    """

    kind = "nice"

    def __init__(self, levels: int, urgency_steps: int, site_weights: int, span: int | None = None) -> None:
        self._steps = urgency_steps
        self._last = levels * urgency_steps - 1
        room = NICE_MAX if span is None else min(span, NICE_MAX)
        largest = room / max(self._last, 1)
        if largest >= 1.0:
            largest = float(room // max(self._last, 1))
        self.unit = min(site_weights + 1.0, largest) if span is None else largest
        self.strict = self.unit >= 1.0 and self.unit > site_weights

    def offset(self, ranking: Ranking) -> Floats:
        """What is added to the user's own value. Shape (n,)."""
        bits = np.log2(np.maximum(ranking.urgency, 1.0))
        step = np.minimum(np.floor(bits * (self._steps / URGENCY_BITS)), self._steps - 1)
        place = ranking.level * self._steps + np.where(ranking.site_order, 0.0, step)
        return np.asarray(np.ceil((place - self._last) * self.unit), dtype=np.float64)

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        return np.asarray(found + self.offset(ranking), dtype=np.float64)


class ExactLever:
    """Replay only: the order itself, finer than any field of Slurm can hold. For policies that are compared
    with as their papers state them."""

    kind = "order"
    strict = True

    def target(self, found: Floats, ranking: Ranking) -> Floats:
        """See Lever."""
        within = np.where(ranking.site_order, 0.0, np.minimum(ranking.urgency, 2.0**40 - 1.0))
        return np.asarray(ranking.level * 2.0**40 + within, dtype=np.float64)
