"""What finished deadline jobs teach: how much of their window jobs really use.

S(phi), the share of finished deadline jobs of a window class whose useful run time exceeded phi x window,
kept as a histogram. A class with few jobs is drawn towards the whole cluster, and the cluster towards a
uniform prior. Learning is over the whole cluster, never per user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tias_slurm.jobs import Floats, Ints

BINS = 64
BIN_WIDTH = 0.02
CLASS_BOUNDS_S = np.array([2 * 3600.0, 8 * 3600.0, 24 * 3600.0])
SHRINK_WEIGHT = 5.0
# the upper end of the uniform prior on the run time, as a share of the window
PRIOR_UPPER = BINS * BIN_WIDTH


def window_class(window_s: Floats) -> Ints:
    """Class of a window: under 2 h, 8 h, 24 h, longer. Shape (n,) -> (n,), values 0..3."""
    return np.searchsorted(CLASS_BOUNDS_S, window_s, side="right")


@dataclass
class Learner:
    """Histograms of (useful run time) / window by window class."""

    counts: Floats = field(default_factory=lambda: np.zeros((len(CLASS_BOUNDS_S) + 1, BINS)))
    _survival: Floats | None = None

    def learn(self, window_s: Floats, executed_s: Floats) -> None:
        """Take in deadline jobs that COMPLETED. Shapes (n,)."""
        if not len(window_s):
            return
        bins = np.minimum((executed_s / window_s / BIN_WIDTH).astype(np.int64), BINS - 1)
        np.add.at(self.counts, (window_class(window_s), bins), 1.0)
        self._survival = None

    def survival(self) -> Floats:
        """S at the bin edges 0, 0.02, ... 1.28, by class. Shape (4, BINS + 1)."""
        if self._survival is None:
            prior = np.full(BINS, 1.0 / BINS)
            everyone = self.counts.sum(axis=0)
            cluster = (everyone + SHRINK_WEIGHT * prior) / (everyone.sum() + SHRINK_WEIGHT)
            totals = self.counts.sum(axis=1, keepdims=True)
            share = (self.counts + SHRINK_WEIGHT * cluster) / (totals + SHRINK_WEIGHT)
            survival = np.zeros((len(self.counts), BINS + 1))
            # summed from the far end, so that S reaches exactly 0 there
            survival[:, :BINS] = share[:, ::-1].cumsum(axis=1)[:, ::-1]
            self._survival = survival
        return self._survival


def interpolate(survival: Floats, classes: Ints, phi: Floats) -> Floats:
    """S(phi) of each job's class, linear inside a bin. Shapes (4, BINS + 1), (n,), (n,) -> (n,)."""
    position = np.minimum(np.maximum(phi / BIN_WIDTH, 0.0), BINS)
    left = np.minimum(position.astype(np.int64), BINS - 1)
    part = position - left
    value: Floats = survival[classes, left] * (1.0 - part) + survival[classes, left + 1] * part
    return value
