"""What is remembered of each job, and where it is kept."""

from __future__ import annotations

from typing import Protocol

from tias_slurm.jobs import Floats, Ints

# columns of the ledger's table
COLUMNS = (
    "first_submit",
    "submit",  # as last seen: a change without a restart means that the id was used again
    "kept",  # useful seconds of earlier runs
    "attained",  # GPU-seconds of earlier runs
    "run_time",  # of the current run, when last seen
    "restarts",
    "requeues",  # by us
    "found",  # the lever's value before we came: the user's own
    "nice",  # the user's own nice, which the priority lever wipes
    "set",  # the value that we last sent; NaN: none
    "before",  # the value that stood there when we sent it
    "refused",  # when Slurm last refused a write of ours; NaN: never
    "unseen",  # 1: the job had runs that we did not see and nobody has told us of
    "claim",  # the deadline accepted last; NaN: none, or withdrawn
    "accepted",  # how often a deadline was accepted
    "withheld",  # the deadline that settings of the site took away; NaN: none
    "lost",  # 1: a claim was withdrawn or moved once it was hopeless or overdue
    "fallen",  # 1: the claim was hopeless or overdue at the last look
    "counts",  # 0: the claim does not count, its account is over its quota; decided when the job starts
    "slot",  # 1: holds a long slot
    "front",  # 1: stands in front of all levels, or started from there
    "late",  # 1: runs, and the claim was made or moved during this run
    "since",  # when this spell of waiting began, moved on by what it was not able to start
    "blocked_at",  # since when it waits for more than nodes and its turn; NaN: it does not
    "requeued_at",  # when we last requeued it; NaN: never, likewise below
    "preempted_at",  # when we last requeued others for it
    "warned_at",  # when we last warned it of a requeue
    "warned_for",  # when we last warned others for it
    "redone",  # seconds of work that our requeues have cost it
    "hold",  # in this spell of waiting: 1 we hold it, 2 we let it go, 3 somebody else did
)
(
    FIRST, SUBMIT, KEPT, ATTAINED, RUN_TIME, RESTARTS, REQUEUES, FOUND, NICE, SET, BEFORE, REFUSED, UNSEEN,
    CLAIM, ACCEPTED, WITHHELD, LOST, FALLEN, COUNTS, SLOT, FRONT, LATE, SINCE, BLOCKED_AT, REQUEUED_AT,
    PREEMPTED_AT, WARNED_AT, WARNED_FOR, REDONE, HOLD,
) = range(len(COLUMNS))  # fmt: skip
# what HOLD says
HELD_BY_US, LET_GO, RELEASED = 1.0, 2.0, 3.0
# columns of a job that nothing is known of are NaN here, 1 in "counts", and 0 elsewhere
UNKNOWN = (
    "set", "before", "refused", "claim", "withheld", "since", "blocked_at", "requeued_at", "preempted_at",
    "warned_at", "warned_for",
)  # fmt: skip


class Store(Protocol):
    """Where a ledger survives the daemon. See store.SqliteStore."""

    def load(self) -> tuple[Ints, Floats, Floats]:
        """Ids (n,), ascending; the table (n, columns); what was learned (see Learner.counts)."""

    def save(self, ids: Ints, table: Floats, gone: Ints, learned: Floats | None) -> None:
        """Keep changed rows, note which jobs are gone, and what was learned if that changed."""

    def recall(self, ids: Ints) -> tuple[Ints, Floats]:
        """Those of the ids that are gone, ascending, and their rows as they were last kept."""

    def get(self, name: str) -> str | None:
        """A text kept under a name; None: none."""

    def put(self, name: str, value: str) -> None:
        """Keep a text under a name."""
