"""What finished deadline jobs teach: how much of their window jobs really use.

S(phi), the share of finished deadline jobs of a window class whose useful run time exceeded phi x window,
kept as a histogram. A class with few jobs is drawn towards the whole cluster, and the cluster towards a
uniform prior. Learning is over the whole cluster, never per user: users are only told apart so that a few
of them cannot speak for all. A job moves one bin by at most one, whatever it did, and its weight halves
every `half_life_s`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import Floats, Ints

BINS = 64
CLASS_BOUNDS_S = np.array([2 * 3600.0, 8 * 3600.0, 24 * 3600.0])
CLASS_WORDS = ("under 2 h", "2 h to 8 h", "8 h to 24 h", "24 h and longer")
# users whose weights are remembered; who ended nothing for longest is forgotten first
MOST_USERS = 10_000
# their weights have so many digits, here as in the store, so that a restart changes nothing
DIGITS = 4
DAY_S = 86_400.0
# the upper end of the uniform prior on the run time, as a share of the window
PRIOR_UPPER = 1.28


@dataclass(frozen=True)
class LearnSettings:
    """See [learning], and prior_upper in [policy]."""

    upper: float = PRIOR_UPPER  # where the prior and the last bin end, as a share of the window
    prior_jobs: float = 5.0  # the weight of the prior in the cluster, and of the cluster in a class, in jobs
    half_life_s: float = 2_592_000.0  # habits change with projects, over months
    # a user's jobs weigh as much as so many in a class, or as this share of what all others weigh there
    user_jobs: float = 10.0
    user_share: float = 0.25


def window_class(window_s: Floats) -> Ints:
    """Class of a window: under 2 h, 8 h, 24 h, longer. Shape (n,) -> (n,), values 0..3."""
    return np.searchsorted(CLASS_BOUNDS_S, window_s, side="right")


class Learned(NamedTuple):
    """What is known of one window class."""

    windows: str  # "under 2 h", ...
    jobs: float  # that it is worth; their weights fade
    quantiles: dict[float, float]  # which share of the window was enough for 0.25, 0.5, 0.75, 0.9 of them


@dataclass
class Learner:
    """Histograms of (useful run time) / window by window class: BINS bins from 0 to `settings.upper`."""

    settings: LearnSettings = field(default_factory=LearnSettings)
    counts: Floats = field(default_factory=lambda: np.zeros((len(CLASS_BOUNDS_S) + 1, BINS)))
    users: dict[str, Floats] = field(default_factory=dict)  # weight by class, the latest to learn from last
    faded_at: float = np.nan  # epoch s
    _survival: Floats | None = None

    def learn(self, window_s: Floats, executed_s: Floats, users: Sequence[str] | None = None) -> None:
        """Take in deadline jobs that COMPLETED. Shapes (n,).

        `users`: whose they are. An empty name, and None, is nobody known: such jobs are taken as they come.
        """
        if not len(window_s):
            return
        bins = np.minimum((executed_s / window_s / self._bin).astype(np.int64), BINS - 1)
        for at, (window, bin_) in enumerate(zip(window_class(window_s).tolist(), bins.tolist(), strict=True)):
            self.counts[window, bin_] += self._room(users[at] if users is not None else "", window)
        self._survival = None

    @property
    def _bin(self) -> float:
        return self.settings.upper / BINS

    def _room(self, user: str, window: int) -> float:
        """What one more job of a user counts for in a class, 0..1; noted as counted."""
        if not user:
            return 1.0
        s = self.settings
        mine = self.users.pop(user, None)
        mine = np.zeros(len(self.counts)) if mine is None else mine
        others = float(self.counts[window].sum()) - float(mine[window])
        room = min(max(max(s.user_jobs, s.user_share * others) - float(mine[window]), 0.0), 1.0)
        mine[window] = round(float(mine[window]) + room, DIGITS)
        self.users[user] = mine
        if len(self.users) > MOST_USERS:
            del self.users[next(iter(self.users))]
        return room

    def fade(self, now: float) -> bool:
        """Let what was learned fade, a day at a time; whether there is something new to keep."""
        if not np.isfinite(self.faded_at):
            self.faded_at = now
            return True
        days = np.floor((now - self.faded_at) / DAY_S)
        if days < 1.0:
            return False
        self.faded_at += days * DAY_S
        if not self.counts.any():
            return False
        left = 0.5 ** (days * DAY_S / self.settings.half_life_s)
        self.counts *= left
        self.counts[self.counts < 1e-6] = 0.0
        self.users = {u: np.round(w * left, DIGITS) for u, w in self.users.items() if w.sum() * left >= 0.01}
        self._survival = None
        return True

    def survival(self) -> Floats:
        """S at the bin edges, from 0 to `settings.upper`, by class. Shape (4, BINS + 1)."""
        if self._survival is None:
            prior, weight = np.full(BINS, 1.0 / BINS), self.settings.prior_jobs
            everyone = self.counts.sum(axis=0)
            cluster = (everyone + weight * prior) / (everyone.sum() + weight)
            totals = self.counts.sum(axis=1, keepdims=True)
            share = (self.counts + weight * cluster) / (totals + weight)
            survival = np.zeros((len(self.counts), BINS + 1))
            # summed from the far end, so that S reaches exactly 0 there
            survival[:, :BINS] = share[:, ::-1].cumsum(axis=1)[:, ::-1]
            self._survival = survival
        return self._survival

    def learned(self) -> list[Learned]:
        """What is believed of each window class now, the shortest windows first; with nothing learned, the
        prior."""
        survival = self.survival()
        edges = np.arange(BINS + 1) * self._bin
        found = []
        for at, words in enumerate(CLASS_WORDS):
            used = 1.0 - survival[at] / survival[at, 0]
            quantiles = {q: float(np.interp(q, used, edges)) for q in (0.25, 0.5, 0.75, 0.9)}
            found.append(Learned(words, float(self.counts[at].sum()), quantiles))
        return found

    def dumps(self) -> str:
        """What a store has to keep beside `counts`, as text."""
        users = {user: [round(w, DIGITS) for w in weights.tolist()] for user, weights in self.users.items()}
        at = self.faded_at if np.isfinite(self.faded_at) else None
        return json.dumps({"faded_at": at, "users": users, "upper": self.settings.upper})

    def loads(self, text: str) -> None:
        """Take back what `dumps` gave, after `counts`. What is not of that form is passed over.

        Counts of bins of another width are spread over today's, evenly inside a bin.
        """
        try:
            kept = json.loads(text)
            upper = float(kept.get("upper", PRIOR_UPPER))
            at = np.nan if kept["faded_at"] is None else float(kept["faded_at"])
            users = {str(u): np.array(w, dtype=np.float64) for u, w in kept["users"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        if all(w.shape == (len(self.counts),) and np.isfinite(w).all() for w in users.values()):
            self.faded_at, self.users = at, users
        if upper > 0.0 and upper != self.settings.upper:
            self.counts = respread(self.counts, upper, self.settings.upper)
            self._survival = None


def respread(counts: Floats, old: float, new: float) -> Floats:
    """Counts of bins from 0 to `old` in bins from 0 to `new`; the last takes all beyond. Shapes (4, BINS)."""
    edges = np.linspace(0.0, new, BINS + 1)
    edges[-1] = max(old, new)
    below = np.concatenate((np.zeros((len(counts), 1)), counts.cumsum(axis=1)), axis=1)
    known = np.linspace(0.0, old, BINS + 1)
    return np.diff(np.array([np.interp(edges, known, row) for row in below]), axis=1)


def interpolate(survival: Floats, classes: Ints, phi: Floats, upper: float = PRIOR_UPPER) -> Floats:
    """S(phi) of each job's class, linear inside a bin. Shapes (4, BINS + 1), (n,), (n,) -> (n,).

    `upper`: the phi at which the last bin ends.
    """
    position = np.minimum(np.maximum(phi * (BINS / upper), 0.0), BINS)
    left = np.minimum(position.astype(np.int64), BINS - 1)
    part = position - left
    value: Floats = survival[classes, left] * (1.0 - part) + survival[classes, left + 1] * part
    return value
