"""What owners of jobs were told, out of the ledger in use: for `history` and `status`."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tias_slurm.config import Config
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.notify.book import Row

DAY_S = 86_400.0
# no message is under way for longer than this
LONGEST_S = 3_600.0


def told(config: Config, number: int, *, words: bool = True) -> list[dict[str, Any]]:
    """What the job with that number, or its array, was or is to be told, ready for JSON. `words`: also why
    sending failed, where a mail program may name a user."""
    from tias_slurm.cli.look import ledger_in_use
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.notify.book import NoticeBook

    path = ledger_in_use(config)
    if path is None:
        return []
    since = works_since(config)
    store = SqliteStore(path, older="refuse")
    try:
        return [_document(row, words, since) for row in NoticeBook(store).of(number)]
    finally:
        store.close()


def works_since(config: Config) -> float:
    """Since when the daemon that sends messages has run, epoch s, or for longer than any takes; inf: none
    does. Raises InputError."""
    from tias_slurm import status
    from tias_slurm.service.leadership import this_host

    state_dir, host = config.daemon.state_dir, this_host() if config.daemon.lease_path else ""
    left = status.left(state_dir, host) or {}
    lead = left.get("leadership")
    if lead is not None and not lead["leads"]:
        host = lead["leader"]
        left = status.left(state_dir, host) or {}
    holder = status.holder(state_dir, host)
    if not holder.running or left.get("pid") != holder.pid:
        return math.inf
    return max(float(left.get("started", math.inf)), time.time() - LONGEST_S)


def _document(row: Row, words: bool, since: float) -> dict[str, Any]:
    from tias_slurm.notify.due import NOT_KNOWN, word

    kept, became = row.kept, word(row.kept, since)
    taken_up = kept.taken_up if kept.taken_up == kept.taken_up else None
    return {
        "time": kept.time,
        "reason": kept.key[1],
        "job_id": kept.key[0],
        "told": row.record or None,
        "how": row.how,
        "taken_up": taken_up,
        "result": None if became == NOT_KNOWN else became,
        "message": row.message if words else "",
        "text": list(row.text.lines),
    }


def line(message: dict[str, Any]) -> tuple[str, str]:
    """What became of a message, and what it says with why it failed, for people."""
    result = message["result"] or "not known"
    if result == "waits" and message["message"]:
        result = "waits for another try"
    elif result == "waits" and message["how"] == "output":
        result = "waits until the job runs"
    why = f": {message['message']}" if message["message"] else ""
    return result, f"{message['how']}, {message['reason']}{why}: {' '.join(message['text'])}"


def summary(store: SqliteStore, how: str, now: float, since: float) -> dict[str, Any]:
    """Messages that wait, and what became of those of the last day, ready for JSON. `since`: works_since."""
    from tias_slurm.notify.book import NoticeBook
    from tias_slurm.notify.due import by_result

    kept = [row.kept for row in NoticeBook(store).since(now - DAY_S)]
    day = dict(by_result(kept, now - DAY_S, since))
    return {"how": how, "waiting": day.pop("waits", 0), "day": day}


def status_line(found: dict[str, Any]) -> str:
    """The summary for people; "": there is nothing to say."""
    if found["how"] == "off" and not found["waiting"] and not found["day"]:
        return ""
    parts = [f"{n} {result}" for result, n in found["day"].items()]
    past = f"in the last day {', '.join(parts)}" if parts else "none in the last day"
    return f"{found['how']}; {past}; {found['waiting']} wait"
