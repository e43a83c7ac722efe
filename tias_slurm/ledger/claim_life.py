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
    withheld: Floats  # the deadline that settings of the site took away, epoch s; NaN: none


def follow(
    said: Floats, since: Floats, old: Claim, fallen: Bools, max_changes: int, *, by_settings: bool = False
) -> Claim:
    """The claims after a look at the comments.

    `said`: the deadline that each comment has now, NaN: none; `fallen`: the claim was hopeless or overdue
    when last ranked. A first claim must lie after `since`: now, or the start of a running job, which may not
    have been looked at before. A later deadline in its place, and one that is
    put back after it was withdrawn, is a change: at most `max_changes` of them, then the last accepted claim
    stays. Withdrawing is always possible; a claim that was lost when it was withdrawn or moved leaves its
    mark.

    `by_settings`: the settings that decide about claims are others than at the look before, so that a
    deadline that goes or is another one by now is no doing of its user: it is withheld or taken, and neither
    counts nor leaves a mark. Nor does its return, whenever the settings give it back.
    """
    says = np.isfinite(said)
    stands = np.isfinite(old.deadline)
    moved = by_settings & says & stands & (said != old.deadline) & (old.accepted < 1 + max_changes)
    given = (says & ~stands & (said == old.withheld)) | moved
    news = says & ~(stands & (said == old.deadline)) & ~given
    first = news & (old.accepted == 0)
    # a job may come back from a refused first claim, but not again and again
    fine = np.where(first, said > since, old.accepted < 1 + max_changes)
    take = news & fine
    withdrawn = stands & ~says
    taken_away = withdrawn & by_settings
    deadline = np.where(take | given, said, np.where(withdrawn, np.nan, old.deadline))
    withheld = np.where(take | given, np.nan, old.withheld)
    return Claim(
        deadline=deadline,
        accepted=old.accepted + take,
        # kept for good: else a far deadline in between would wash it off
        lost=old.lost | (((withdrawn & ~taken_away) | (take & stands)) & fallen),
        refused=np.where(news & ~fine, np.where(first, PAST, CHANGES), TAKEN),
        withheld=np.where(taken_away, old.deadline, withheld),
    )
