"""The life of a claim after its first sight: moved, withdrawn, put back. Pure; see docs/policy.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints

# why the deadline of a comment is not taken; codes of Claim.refused
TAKEN, PAST, CHANGES = range(3)
REASONS = (
    "",
    "the deadline had passed when it was first seen",
    "changed too often: the last one taken holds",
)


class Claim(NamedTuple):
    """What is kept of each job's claim. Shapes (n,)."""

    deadline: Floats  # accepted last, epoch s; NaN: none, or withdrawn
    accepted: Floats  # how often one was accepted
    lost: Bools  # was withdrawn or moved once it was hopeless or overdue
    refused: Ints  # what the comment says now was taken, or why not: a code of REASONS


def follow(said: Floats, since: Floats, old: Claim, fallen: Bools, max_changes: int) -> Claim:
    """The claims after a look at the comments.

    `said`: the deadline that each comment has now, NaN: none; `fallen`: the claim was hopeless or overdue
    when last ranked. A first claim must lie after `since`: now, or the start of a running job, which may not
    have been looked at before. A later deadline in its place, and one that is
    put back after it was withdrawn, is a change: at most `max_changes` of them, then the last accepted claim
    stays. Withdrawing is always possible; a claim that was lost when it was withdrawn or moved leaves its
    mark.
    """
    says = np.isfinite(said)
    stands = np.isfinite(old.deadline)
    news = says & ~(stands & (said == old.deadline))
    first = news & (old.accepted == 0)
    # a job may come back from a refused first claim, but not again and again
    fine = np.where(first, said > since, old.accepted < 1 + max_changes)
    take = news & fine
    withdrawn = stands & ~says
    deadline = np.where(take, said, np.where(withdrawn, np.nan, old.deadline))
    return Claim(
        deadline=deadline,
        accepted=old.accepted + take,
        # kept for good: else a far deadline in between would wash it off
        lost=old.lost | ((withdrawn | (take & stands)) & fallen),
        refused=np.where(news & ~fine, np.where(first, PAST, CHANGES), TAKEN),
    )
