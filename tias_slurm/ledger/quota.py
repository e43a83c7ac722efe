"""How much GPU time an account may use under deadlines: a token bucket for each. Pure; see docs/policy.md.

A bucket fills at quota_rate x capacity x max(fair share, half the equal share) and holds what that gives in
quota_burst_s. It pays for what runs under a deadline that counts. A job that waits counts while the bucket
covers an hour of those before it; once it runs, that stays as it is, and the bucket may go into debt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints


@dataclass(frozen=True)
class Settings:
    """See [deadlines] quota_*."""

    rate: float  # GPU time under deadlines, over the account's share of the cluster
    burst_s: float
    shares: Mapping[str, float] = field(default_factory=dict)  # fair shares by name, 0..1
    # so much of each job that runs or waits under a deadline is set apart before the next one counts, s: else
    # the last GPU-second would let all that waits in at once
    reserve_s: float = 3_600.0


@dataclass
class Buckets:
    """What each account has used of its bucket, GPU-seconds. One that is full is not kept."""

    settings: Settings
    used: dict[str, float] = field(default_factory=dict)
    at: float = np.nan  # when it was last looked at, epoch s
    sizes: dict[str, float] = field(default_factory=dict)  # of the buckets of accounts at the last look

    def rates(self, names: Sequence[str], capacity: float) -> dict[str, float]:
        """How fast the buckets of accounts fill, GPU-seconds a second.

        The equal share is one over the accounts that are known: named in the settings, in `names`, or with a
        bucket that is not full.
        """
        s = self.settings
        known = {*names, *s.shares, *self.used}
        others = len(known) - len(s.shares)
        rest = max(1.0 - sum(s.shares.values()), 0.0) / max(others, 1)
        least = 0.5 / max(len(known), 1)
        return {name: s.rate * capacity * max(s.shares.get(name, rest), least) for name in known}

    def look(
        self,
        now: float,
        names: Sequence[str],
        capacity: float,
        account: Ints,
        gpus: Floats,
        ran: Floats,
        pays: Bools,
    ) -> Floats:
        """Fill the buckets, and charge for what has run since the last look; what is left of each.

        `names` (m,): of accounts. `account`, `gpus`, `ran` (s, of the present run), `pays`, shapes (n,): the
        jobs. Returns shape (m,), GPU-seconds, negative: in debt.
        """
        passed = max(now - self.at, 0.0) if np.isfinite(self.at) else 0.0
        self.at = now
        rates = self.rates(names, capacity)
        cost = np.bincount(
            account[pays], weights=(gpus * np.minimum(ran, passed))[pays], minlength=len(names)
        )
        for name in self.used:
            self.used[name] -= rates[name] * passed
        for name, gpu_s in zip(names, cost.tolist(), strict=True):
            if gpu_s > 0.0:
                self.used[name] = max(self.used.get(name, 0.0), 0.0) + gpu_s
        self.used = {name: used for name, used in self.used.items() if used > 0.0}
        burst = self.settings.burst_s
        self.sizes = {name: rate * burst for name, rate in rates.items()}
        return np.array([rates[n] * burst - self.used.get(n, 0.0) for n in names], dtype=np.float64)

    def dumps(self) -> str:
        """What a store has to keep, as text."""
        at = self.at if np.isfinite(self.at) else None
        return json.dumps({"at": at, "used": self.used, "sizes": self.sizes})

    def loads(self, text: str) -> None:
        """Take back what `dumps` gave. What is not of that form is passed over."""
        try:
            kept = json.loads(text)
            at = np.nan if kept["at"] is None else float(kept["at"])
            used = {str(name): float(gpu_s) for name, gpu_s in kept["used"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        if all(np.isfinite(gpu_s) and gpu_s > 0.0 for gpu_s in used.values()):
            self.at, self.used = at, used


def left(text: str) -> dict[str, tuple[float, float]]:
    """What is left of each account's bucket by what `dumps` gave, and how much it holds, GPU-seconds."""
    try:
        kept = json.loads(text or "{}")
        used = kept.get("used", {})
        sizes = {str(name): float(size) for name, size in kept.get("sizes", {}).items()}
        return {name: (size - float(used.get(name, 0.0)), size) for name, size in sizes.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def covered(left: Floats, account: Ints, gpus: Floats, order: Ints, reserve_s: float) -> Bools:
    """Which jobs the buckets cover, if each takes a reserve of `reserve_s` in this order.

    `left` (m,): what is left of each account's bucket; `account`, `gpus` (m',): of the jobs, `order`: rows of
    them. Returns shape (m',): whether what is left by the jobs of the account before it is more than nothing.
    """
    fine = np.zeros(len(account), dtype=np.bool_)
    by_account = order[np.argsort(account[order], kind="stable")]
    takes = gpus[by_account] * reserve_s
    before = np.cumsum(takes) - takes
    code = account[by_account]
    # the sum restarts with each account
    first = np.searchsorted(code, np.arange(len(left)), side="left")
    start = np.append(before, 0.0)[np.minimum(first, len(before))]
    fine[by_account] = left[code] - (before - start[code]) > 0.0
    return fine
