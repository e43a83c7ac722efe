"""What became of the jobs that others were requeued for: kept beside the audit records of those requeues.

A table of its own, so that the audit trail stays what was done, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tias_slurm.ledger.store import Entry, SqliteStore
from tias_slurm.slurm.live_requeue import Watched

Span = Callable[[float], str]
# a job that others were requeued for is watched for so long, also over restarts, s
WATCH_S = 7 * 86_400.0
WAITS, VAIN = "still waits", "in vain"
# requeues that were sent, or may have been, and of whose beneficiary no end is known
_OPEN = (
    "FROM audit a LEFT JOIN gain g ON g.record = a.id WHERE a.action = 'requeue' AND a.new IS NOT NULL "
    f"AND (g.became IS NULL OR g.became = '{WAITS}') AND a.time >= ? "
)


class Asks(Protocol):
    """Where a ledger is looked at."""

    def ask(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """See SqliteStore."""


def keep(store: SqliteStore, news: Sequence[Watched]) -> None:
    """Note what became of jobs, with each requeue that was for them; earlier ones that were not followed by
    a start were in vain. Raises LedgerError."""
    rows: list[tuple[object, ...]] = []
    for x in news:
        found = store.ask(
            f"SELECT a.id, a.time {_OPEN} AND a.time <= ? AND a.new = ? "
            "AND (a.result IS NULL OR a.result IN ('ok', 'retry'))",
            (x.since - WATCH_S, x.since, float(x.job_id)),
        )
        for record, time in found:
            if time == x.since:
                rows.append((record, x.result, x.seconds, x.ran_as))
            elif x.result != WAITS:
                rows.append((record, VAIN, None, x.job_id))
    if rows:
        store.change(
            "INSERT OR REPLACE INTO gain (record, became, after_s, job_id) VALUES (?, ?, ?, ?)", rows
        )


def watched(store: Asks, now: float) -> list[tuple[int, float, int, bool]]:
    """Jobs to go on watching, oldest first: job, when others were requeued for it, how many of them, and
    whether it was told of already."""
    rows = store.ask(
        f"SELECT a.new, a.time, count(*), max(g.became IS NOT NULL) {_OPEN} "
        "AND (a.result IS NULL OR a.result = 'ok') GROUP BY a.new, a.time ORDER BY a.time",
        (now - WATCH_S,),
    )
    return [(int(job), float(time), int(n), bool(told)) for job, time, n, told in rows]


def bought(store: SqliteStore, entries: Sequence[Entry], now: float) -> list[dict[str, Any] | None]:
    """What each of these requeues bought, ready for JSON: None where it was for nobody that is known.

    `became`: "started", "still waits", "left" (not seen to start), "in vain", or None: not known, or it has
    not started yet. `after_s`: how long after the requeue. `deadline`: of that job, epoch s; `met`: whether
    it had ended by then, None: not known yet.
    """
    mine = [e for e in entries if e.action == "requeue" and e.new is not None]
    if not mine:
        return [None] * len(entries)
    rows = store.ask(
        "SELECT a.time, a.job_id, g.became, g.after_s, g.job_id FROM gain g JOIN audit a ON a.id = g.record "
        "WHERE a.time >= ? AND a.time <= ?",
        (min(e.time for e in mine), max(e.time for e in mine)),
    )
    became = {(time, job): rest for time, job, *rest in rows}
    made: list[dict[str, Any] | None] = []
    memory: dict[int, dict[str, float | None]] = {}
    for e in entries:
        if e.action != "requeue" or e.new is None:
            made.append(None)
            continue
        what, after_s, ran_as = became.get((e.time, e.job_id), (None, None, int(e.new)))
        known = memory.setdefault(ran_as, {}) or store.memory(ran_as) or {}
        memory[ran_as] = known
        due = known.get("claim")
        made.append({"job_id": int(e.new), "time": e.time, "ran_as": ran_as, "became": what,
                     "after_s": after_s, "deadline": due,
                     "met": _met(what, due, known.get("gone"), now)})  # fmt: skip
    return made


def _met(became: str | None, due: float | None, gone: float | None, now: float) -> bool | None:
    if due is None or (became not in ("started", None, WAITS) and gone is not None):
        return None  # a job that was never seen to run met and missed nothing
    if gone is not None:
        return gone <= due if became == "started" else None
    return False if now > due else None


def for_job(store: SqliteStore, job_id: int) -> list[Entry]:
    """The requeues of others for this job that were sent, or may have been, oldest first."""
    rows = store.ask(
        "SELECT a.time, a.job_id, a.action, a.old, a.new, a.reason, a.result, a.message FROM audit a "
        "LEFT JOIN gain g ON g.record = a.id WHERE a.action = 'requeue' AND (a.new = ? OR g.job_id = ?) "
        "AND (a.result IS NULL OR a.result = 'ok') ORDER BY a.id",
        (float(job_id), job_id),
    )
    return [Entry(*row) for row in rows]


def summary(gained: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """What requeues bought in all, ready for JSON: jobs that others were requeued for, once each and time of
    a requeue; how many started, and after how long (median, s); met and missed deadlines of those."""
    found = {(g["job_id"], g["time"]): g for g in gained if g is not None}.values()
    jobs = {g["ran_as"]: g["met"] for g in found}.values()
    after = sorted(g["after_s"] for g in found if g["became"] == "started" and g["after_s"] is not None)
    return {
        "times": len(found),
        "started": sum(g["became"] == "started" for g in found),
        "never": sum(g["became"] in ("left", VAIN) for g in found),
        "after_s_median": after[len(after) // 2] if after else None,
        "deadlines_met": sum(met is True for met in jobs),
        "deadlines_missed": sum(met is False for met in jobs),
    }


def summary_words(bought: dict[str, Any], span: Span) -> str:
    """The same, to follow how many requeues there were; `span`: durations for people."""
    if not bought["times"]:
        return ""
    text = f"; of {bought['times']} wanted start{'s' * (bought['times'] > 1)} {bought['started']} came"
    if bought["after_s_median"] is not None:
        text += f" (median {span(bought['after_s_median'])} later)"
    if bought["never"]:
        text += f", {bought['never']} never did"
    if bought["deadlines_met"] or bought["deadlines_missed"]:
        text += f"; of their deadlines {bought['deadlines_met']} met, {bought['deadlines_missed']} missed"
    return text


def words(what: dict[str, Any], span: Span) -> str:
    """What a requeue bought, in a few words. `span`: as above."""
    name = f"job {what['job_id']}"
    if what["ran_as"] != what["job_id"]:
        name += f" (as {what['ran_as']})"
    after = "" if what["after_s"] is None else f" {span(what['after_s'])}"
    text = {
        "started": f"{name} started{after} later",
        WAITS: f"{name} had not started{after} later",
        "left": f"{name} left without being seen to start",
        VAIN: f"in vain: {name} did not start",
        None: f"{name} was not seen to start yet",
    }[what["became"]]
    if what["met"] is not None:
        text += f", its deadline was {'met' if what['met'] else 'missed'}"
    return text
