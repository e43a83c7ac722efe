"""What owners of jobs were told, out of the ledger in use: for `history` and `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tias_slurm.config import Config
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.notify.book import Row

DAY_S = 86_400.0


def told(config: Config, number: int, *, words: bool = True) -> list[dict[str, Any]]:
    """What the job with that number, or its array, was or is to be told, ready for JSON. `words`: also why
    sending failed, where a mail program may name a user."""
    from tias_slurm.cli.look import ledger_in_use
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.notify.book import NoticeBook

    path = ledger_in_use(config)
    if path is None:
        return []
    store = SqliteStore(path, older="refuse")
    try:
        return [_document(row, words) for row in NoticeBook(store).of(number)]
    finally:
        store.close()


def _document(row: Row, words: bool) -> dict[str, Any]:
    kept = row.kept
    taken_up = kept.taken_up if kept.taken_up == kept.taken_up else None
    return {
        "time": kept.time,
        "reason": kept.key[1],
        "job_id": kept.key[0],
        "told": row.record or None,
        "how": row.how,
        "taken_up": taken_up,
        "result": "waits" if kept.waits else kept.result or None,
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


def summary(store: SqliteStore, how: str, now: float) -> dict[str, Any]:
    """Messages that wait, and what became of those of the last day, ready for JSON."""
    from tias_slurm.notify.book import NoticeBook
    from tias_slurm.notify.due import by_result

    day = dict(by_result([row.kept for row in NoticeBook(store).since(now - DAY_S)], now - DAY_S))
    return {"how": how, "waiting": day.pop("waits", 0), "day": day}


def status_line(found: dict[str, Any]) -> str:
    """The summary for people; "": there is nothing to say."""
    if found["how"] == "off" and not found["waiting"] and not found["day"]:
        return ""
    parts = [f"{n} {result}" for result, n in found["day"].items()]
    past = f"in the last day {', '.join(parts)}" if parts else "none in the last day"
    return f"{found['how']}; {past}; {found['waiting']} wait"
